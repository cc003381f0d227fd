"""`paceline cluster export | import`: the metadata of a cluster as a file, to build an empty cluster like it.

The file has cluster id, topics with ids, assignments and settings, and dynamic broker settings; never leaders, in-sync
replicas or epochs, which belong to records that the file does not have.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from paceline.model.admin import NewTopic

if TYPE_CHECKING:
    from paceline_client import Admin

VERSION: Final = 1
_INTERNAL: Final = "__"
"""Names of topics that brokers create themselves begin so; they are exported, but not imported."""


def export_cluster(admin: "Admin") -> dict[str, Any]:
    """Return the metadata of a cluster as JSON values."""
    cluster = admin.describe_cluster()
    topics = admin.describe_topics(from_controller=True)
    configs = admin.describe_configs([topic.name for topic in topics]) if topics else {}
    brokers = admin.describe_broker_configs([None, *(one.broker_id for one in cluster.brokers)])
    own = {
        "all" if which is None else str(which): values
        for which, entries in brokers.items()
        if (values := _own(entries, "broker_default" if which is None else "broker"))
    }
    return {
        "version": VERSION,
        "cluster_id": cluster.cluster_id,
        "server_version": cluster.server_version,
        "topics": [
            {
                "name": topic.name,
                "topic_id": topic.topic_id,
                "assignments": [list(one.replicas) for one in topic.partitions],
                "configs": _own(configs[topic.name], "topic"),
            }
            for topic in topics
        ],
        "broker_configs": own,
    }


def import_cluster(admin: "Admin", text: str, any_brokers: bool, dry_run: bool) -> list[str]:
    """Create the topics and settings of an exported cluster in an empty one; return the names of the topics.

    Args:
        admin: a client of the empty cluster.
        text: content of the file.
        any_brokers: whether the controller places the replicas, instead of the brokers in the file.
        dry_run: check without changing anything.

    Raises:
        ValueError: the file is not an export, the cluster has topics, or brokers of the assignments are missing.
        PacelineError: a topic or a setting was refused; everything is checked before the first change.
    """
    found = parse_export(text)
    present = [name for name in admin.list_topics() if not name.startswith(_INTERNAL)]
    if present:
        raise ValueError(
            f"the cluster has {len(present)} topics, such as {present[0]}: import only into an empty cluster, "
            "nothing was changed"
        )
    wanted = [topic for topic in found["topics"] if not topic["name"].startswith(_INTERNAL)]
    live = {one.broker_id for one in admin.describe_cluster().brokers}
    named = {broker for topic in wanted for replicas in topic["assignments"] for broker in replicas}
    if not any_brokers and not named <= live:
        missing = ", ".join(map(str, sorted(named - live)))
        raise ValueError(f"brokers {missing} of the assignments are not live: start them, or give --any-brokers")
    topics = [_new_topic(topic, any_brokers) for topic in wanted]
    if topics:
        admin.create_topics(topics, validate_only=True)
    changes = {
        None if which == "all" else int(which): values for which, values in found.get("broker_configs", {}).items()
    }
    if changes:
        admin.alter_broker_configs(changes, validate_only=True)
    if dry_run:
        return [topic.name for topic in topics]
    if changes:
        admin.alter_broker_configs(changes)
    if topics:
        admin.create_topics(topics)
    return [topic.name for topic in topics]


def parse_export(text: str) -> dict[str, Any]:
    """Return the content of an export.

    Raises:
        ValueError: it is not one; the message has the place.
    """
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"the file is not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("version") != VERSION or not isinstance(found.get("topics"), list):
        raise ValueError(f"the file is no export of version {VERSION} of paceline cluster export")
    for number, topic in enumerate(found["topics"]):
        if not (
            isinstance(topic, dict)
            and isinstance(topic.get("name"), str)
            and _are_lists_of_ids(topic.get("assignments"))
            and isinstance(topic.get("configs"), dict)
        ):
            raise ValueError(f"entry {number} of topics is not {{name, topic_id, assignments, configs}}")
    return found


def _are_lists_of_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(row, list) and row and all(type(each) is int and each >= 0 for each in row) for row in value)
    )


def _new_topic(topic: Mapping[str, Any], any_brokers: bool) -> NewTopic:
    rows = topic["assignments"]
    if any_brokers:
        return NewTopic(topic["name"], len(rows), max(map(len, rows)), configs=topic["configs"])
    return NewTopic(topic["name"], assignments=tuple(map(tuple, rows)), configs=topic["configs"])


def _own(entries: Sequence[Any], source: str) -> dict[str, str]:
    return {one.key: one.value for one in entries if one.source == source and one.key != "broker.removal"}
