"""Find where a follower's log diverges from its leader's (KIP-101, KIP-279, KIP-595).

Source: docs/protocol/replication.md#truncation-point; worked examples are in #truncation-examples.
"""

from collections.abc import Callable

from paceline.model.errors import OffsetOutOfRangeError
from paceline.model.replica_fetch import EpochEnd

EndOffsetForEpoch = Callable[[int], tuple[int, int] | None]
"""Lookup in a log: returns the largest known epoch not above the argument, and its exclusive end offset."""


def truncation_point(leader_end: EpochEnd, log_end_offset: int, end_offset_for_epoch: EndOffsetForEpoch) -> int:
    """Return the offset to which a follower truncates when its log diverges from its leader's.

    Args:
        leader_end: the leader's largest epoch not above the follower's, and its end offset.
        log_end_offset: the follower's own log end offset, exclusive.
        end_offset_for_epoch: lookup in the follower's own epochs.
    """
    own = end_offset_for_epoch(leader_end.epoch)
    if own is None:
        return min(leader_end.end_offset, log_end_offset)
    own_epoch, own_end_offset = own
    if own_epoch == leader_end.epoch:
        return min(own_end_offset, leader_end.end_offset, log_end_offset)
    # This log does not have the leader's epoch: the next fetch compares the next lower own epoch.
    return min(own_end_offset, log_end_offset)


def divergence(
    fetch_offset: int,
    last_fetched_epoch: int | None,
    log_start_offset: int,
    log_end_offset: int,
    end_offset_for_epoch: EndOffsetForEpoch,
) -> EpochEnd | None:
    """Return the epoch and offset where the reader's log diverges from the leader's, None if it is a prefix of it.

    Raises:
        OffsetOutOfRangeError: the fetch offset is outside the log, or the log has no epoch up to the reader's.

    Source: Kafka 2.8 Partition.readRecords; docs/protocol/replication.md#divergence-on-fetch.
    """
    if last_fetched_epoch is not None:
        end = end_offset_for_epoch(last_fetched_epoch)
        if end is None:
            raise OffsetOutOfRangeError(
                f"the leader has no epoch up to {last_fetched_epoch}", log_start_offset, log_end_offset
            )
        if fetch_offset < log_start_offset:
            raise _out_of_range(fetch_offset, log_start_offset, log_end_offset)
        epoch, end_offset = end
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return EpochEnd(epoch, end_offset)
    if fetch_offset < log_start_offset or fetch_offset > log_end_offset:
        raise _out_of_range(fetch_offset, log_start_offset, log_end_offset)
    return None


def _out_of_range(fetch_offset: int, log_start_offset: int, log_end_offset: int) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"offset {fetch_offset} is outside [{log_start_offset}, {log_end_offset}]", log_start_offset, log_end_offset
    )
