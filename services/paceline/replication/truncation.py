"""Find where a follower's log diverges from its leader's (KIP-101, KIP-279, KIP-595).

Source: docs/protocol/replication.md#truncation-point; worked examples are in #truncation-examples.
"""

from collections.abc import Callable
from dataclasses import dataclass

from paceline.model.errors import OffsetOutOfRangeError
from paceline.model.replica_fetch import EpochEnd

EndOffsetForEpoch = Callable[[int], tuple[int, int] | None]
"""Lookup in a log: returns the largest known epoch not above the argument, and its exclusive end offset."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """The offset to truncate to; ``done`` is False if another epoch lookup is needed after that truncation."""

    offset: int
    done: bool


def truncation_point(
    leader_answer: EpochEnd | None,
    log_end_offset: int,
    end_offset_for_epoch: EndOffsetForEpoch,
    fallback_offset: int,
) -> Truncation:
    """Return the offset to which a follower truncates after its leader's response to an epoch lookup.

    Args:
        leader_answer: an epoch of the leader and its end offset; None when the leader does not know such an epoch.
        log_end_offset: the follower's own log end offset, exclusive.
        end_offset_for_epoch: lookup in the follower's own epochs.
        fallback_offset: the follower's high watermark, to which it truncates when ``leader_answer`` is None.
    """
    if leader_answer is None or leader_answer.end_offset < 0:
        return Truncation(min(fallback_offset, log_end_offset), done=True)
    end_offset = leader_answer.end_offset
    if leader_answer.epoch < 0:
        return Truncation(min(end_offset, log_end_offset), done=True)
    own = end_offset_for_epoch(leader_answer.epoch)
    if own is None:
        return Truncation(min(end_offset, log_end_offset), done=True)
    own_epoch, own_end_offset = own
    if own_epoch == leader_answer.epoch:
        return Truncation(min(own_end_offset, end_offset, log_end_offset), done=True)
    # This log does not have the leader's epoch: truncate to the end of the next lower own epoch, and look up again.
    return Truncation(min(own_end_offset, log_end_offset), done=False)


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
