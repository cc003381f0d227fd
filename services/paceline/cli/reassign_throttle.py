"""Set and remove the throttle of a reassignment as Kafka's tool does: replica lists per topic, a rate per broker.

Replicas that may send records of a moving partition are listed as throttled leaders, replicas that receive them as
throttled followers. The throttle never delays in-sync replicas (KIP-73).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from paceline.model.broker_dynamic_config import REPLICATION_RATES
from paceline.model.errors import UnknownTopicOrPartitionError
from paceline.model.throttled_replicas import ALL_REPLICAS
from paceline.operations.reassign_progress import throttled_brokers

if TYPE_CHECKING:
    from paceline_client import Admin

Partition = tuple[str, int]
LISTS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


@dataclass(frozen=True, slots=True)
class Throttle:
    """Settings of a throttle."""

    topics: Mapping[str, tuple[str, str]]
    """Throttled leaders and throttled followers by topic."""
    brokers: tuple[int, ...]
    """Brokers that get a rate limit."""


def plan_throttle(present: Mapping[Partition, Sequence[int]], targets: Mapping[Partition, Sequence[int]]) -> Throttle:
    """Return the throttle of a move from ``present``, the replicas that hold the records, to ``targets``. Pure."""
    lists: dict[str, tuple[list[str], list[str]]] = {}
    brokers: set[int] = set()
    for (topic, index), target in sorted(targets.items()):
        holders = present.get((topic, index), ())
        receivers = [broker for broker in target if broker not in holders]
        if not receivers:
            continue
        leaders, followers = lists.setdefault(topic, ([], []))
        leaders += [f"{index}:{broker}" for broker in holders]
        followers += [f"{index}:{broker}" for broker in receivers]
        brokers.update(holders, receivers)
    return Throttle(
        {topic: (",".join(leaders), ",".join(followers)) for topic, (leaders, followers) in lists.items()},
        tuple(sorted(brokers)),
    )


def set_throttle(admin: "Admin", throttle: Throttle, bytes_per_second: int) -> None:
    """Add to the replica lists of the topics and set the rates of the brokers; existing list entries stay."""
    from paceline_client import ConfigChange

    if not throttle.topics:
        return
    now = admin.describe_configs(list(throttle.topics), LISTS)
    changes: dict[str, list[ConfigChange]] = {}
    for topic, texts in throttle.topics.items():
        known = {entry.key: entry.value for entry in now[topic]}
        wanted = zip(LISTS, texts, strict=True)
        mine = [ConfigChange(key, "append", text) for key, text in wanted if known.get(key) != ALL_REPLICAS]
        if mine:
            changes[topic] = mine
    if changes:
        admin.alter_configs(changes)
    rate = {key: str(bytes_per_second) for key in REPLICATION_RATES}
    admin.alter_broker_configs(dict.fromkeys(throttle.brokers, rate))


def lift_throttle(admin: "Admin", topics: Iterable[str], brokers: Iterable[int]) -> str | None:
    """Remove replica lists and rates; return a description of the removed throttle, or None without a throttle.

    Removes the rates of ``brokers`` and of all live brokers, as Kafka's tool does.
    """
    listed = [topic for topic in dict.fromkeys(topics) if _has_lists(admin, topic)]
    if listed:
        admin.alter_configs({topic: dict.fromkeys(LISTS) for topic in listed})
    slowed = throttled_brokers(admin, brokers)
    if slowed:
        admin.alter_broker_configs({broker: dict.fromkeys(REPLICATION_RATES) for broker in slowed})
    said = [f"brokers {', '.join(map(str, slowed))}"] if slowed else []
    said += [f"topics {', '.join(listed)}"] if listed else []
    return " and ".join(said) or None


def _has_lists(admin: "Admin", topic: str) -> bool:
    try:
        return any(entry.source == "topic" for entry in admin.describe_configs(topic, LISTS)[topic])
    except UnknownTopicOrPartitionError:
        return False
