"""Decide which replicas leave the ISR and which may join it.

Source: docs/protocol/replication.md#leaving-the-isr and #joining-the-isr.
"""

from collections.abc import Iterable, Mapping
from enum import Enum

from paceline.replication.follower_progress import FollowerProgress


class JoinRefusal(Enum):
    """The reason why a follower may not join the ISR."""

    NOT_FETCHED_IN_EPOCH = "it has not fetched in this leader epoch"
    BELOW_HIGH_WATERMARK = "it has not reached the high watermark"
    BELOW_EPOCH_START = "it has not reached the start of this leader epoch"
    BELOW_LOG_START = "its log starts below the leader's"
    NOT_REGISTERED = "it is not a registered broker"
    OLD_BROKER_EPOCH = "its fetch came from an earlier registration"
    SHUTTING_DOWN = "it is shutting down or offline"


def out_of_sync_replicas(
    isr: Iterable[int],
    leader_id: int,
    leader_end_offset: int,
    followers: Mapping[int, FollowerProgress],
    now_ms: int,
    replica_lag_time_max_ms: int,
) -> tuple[int, ...]:
    """Return the ISR members to remove, in ISR order.

    A follower is out of sync when it lacks records *and* was last caught up more than ``replica_lag_time_max_ms`` ago.
    A follower whose end offset equals the leader's stays in the ISR even without fetches, because it has all records.
    """
    late = []
    for broker_id in isr:
        if broker_id == leader_id:
            continue
        follower = followers.get(broker_id)
        if follower is None:
            continue
        if follower.log_end_offset == leader_end_offset:
            continue
        caught_up_ms = follower.caught_up_ms(leader_end_offset)
        if caught_up_ms is None or now_ms - caught_up_ms > replica_lag_time_max_ms:
            late.append(broker_id)
    return tuple(late)


def why_not_join(
    follower: FollowerProgress,
    high_watermark: int,
    leader_epoch_start_offset: int,
    registered_broker_epoch: int | None,
    shutting_down: bool,
) -> JoinRefusal | None:
    """Return the reason why the follower may not join the ISR, None when it may join.

    ``registered_broker_epoch`` comes from the metadata cache (None: not registered, -1: unknown epoch). A fetch with a
    newer broker epoch than the cache is accepted: the ISR write checks the registration in ZooKeeper (KIP-903).

    The follower must have reached the start of the leader epoch, because records between this leader's high watermark
    and that offset may have been committed by the previous leader (KAFKA-7128).
    """
    if not follower.fetched_in_epoch or follower.log_end_offset is None or follower.broker_epoch is None:
        return JoinRefusal.NOT_FETCHED_IN_EPOCH
    if follower.log_end_offset < high_watermark:
        return JoinRefusal.BELOW_HIGH_WATERMARK
    if follower.log_end_offset < leader_epoch_start_offset:
        return JoinRefusal.BELOW_EPOCH_START
    return why_not_eligible(follower, registered_broker_epoch, shutting_down)


def why_not_eligible(
    follower: FollowerProgress, registered_broker_epoch: int | None, shutting_down: bool
) -> JoinRefusal | None:
    """Return the reason why the follower's *broker* may not join any ISR, None when it may."""
    if registered_broker_epoch is None:
        return JoinRefusal.NOT_REGISTERED
    if follower.broker_epoch is not None and follower.broker_epoch < registered_broker_epoch:
        return JoinRefusal.OLD_BROKER_EPOCH
    if shutting_down:
        return JoinRefusal.SHUTTING_DOWN
    return None
