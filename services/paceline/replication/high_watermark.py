"""Compute the high watermark, an exclusive offset.

Source: docs/protocol/replication.md#leader-high-watermark and #follower-high-watermark.
"""

from collections.abc import Callable, Collection, Iterable

from paceline.replication.follower_progress import FollowerProgress


def leader_high_watermark(
    current: int,
    leader_end_offset: int,
    followers: Iterable[FollowerProgress],
    isr: Collection[int],
    maximal_isr: Collection[int],
    min_insync_replicas: int,
    now_ms: int,
    replica_lag_time_max_ms: int,
    may_join: Callable[[FollowerProgress], bool],
) -> int:
    """Return the leader's high watermark, never below ``current``.

    It is the smallest end offset of the leader, of every member of the maximal ISR (committed plus proposed, so a
    commit survives either outcome of the ISR write), and of every other replica that was caught up within
    ``replica_lag_time_max_ms``. If these replicas did not count, the high watermark could advance so fast that a
    replica about to join the ISR never reaches it.

    It does not advance while the committed ISR is smaller than ``min_insync_replicas`` (KAFKA-15583), or while the end
    offset of a counted replica is unknown.

    Args:
        may_join: whether a replica outside the ISR is eligible to join it; an ineligible replica, such as one whose
            broker shuts down, must not delay the high watermark (KAFKA-15021).
    """
    if len(isr) < min_insync_replicas:
        return current
    candidate = leader_end_offset
    for follower in followers:
        end_offset = follower.log_end_offset
        if end_offset is not None and end_offset >= candidate:
            continue
        if follower.broker_id not in maximal_isr:
            caught_up_ms = follower.caught_up_ms(leader_end_offset)
            if caught_up_ms is None or now_ms - caught_up_ms > replica_lag_time_max_ms or not may_join(follower):
                continue
        if end_offset is None:
            return current
        candidate = end_offset
    return max(current, candidate)


def follower_high_watermark(
    current: int, leader_high_watermark: int, log_end_offset: int, log_start_offset: int
) -> int:
    """Return a follower's high watermark after a fetch: the leader's, at most the follower's log end.

    A new leader's high watermark may be below its follower's; only truncation lowers a follower's high watermark.
    """
    return max(current, log_start_offset, min(leader_high_watermark, log_end_offset))
