"""Get digests from every replica of a partition, range by range, and compare them. Runs on executors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from paceline.pipeline.jobs.verify.compare import Finding, RangeDigest, compare

RANGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes per digest: the maximum that a broker reads for a response."""
RPC_TIMEOUT_S: Final = 30.0

Ask = Callable[[int, int, int], RangeDigest]
"""Function from broker id, start and end offset to that replica's digest; an error is part of the digest."""


@dataclass(frozen=True, slots=True)
class PartitionToVerify:
    """A partition and its replicas."""

    topic: str
    partition: int
    topic_id: str
    leader: int
    replicas: tuple[int, ...]
    addresses: Mapping[int, str]
    """``host:port`` per live broker."""


@dataclass(slots=True)
class Verified:
    """Result of the comparison."""

    ranges: int = 0
    records: int = 0
    size_bytes: int = 0


def verify_partition(item: PartitionToVerify, ask: Ask, verified: Verified) -> list[Finding]:
    """Compare all replicas from the largest log start to the smallest high watermark, both read before the digests.

    A range that differs is read a second time: a replica may have been truncated, or have deleted a segment, between
    the digests.
    """
    marks = {broker_id: ask(broker_id, 0, 0) for broker_id in item.replicas}
    answered = [mark for mark in marks.values() if not mark.error]
    if len(answered) < 2:
        return _compared(item, 0, 0, marks)
    end = min(mark.high_watermark for mark in answered)
    start = max(mark.log_start_offset for mark in answered)
    silent = _compared(item, start, end, {b: mark for b, mark in marks.items() if mark.error})
    asked = [broker_id for broker_id, mark in marks.items() if not mark.error]
    findings: list[Finding] = []
    while start < end:
        # The range ends at the end of the leader's chunk, so that every replica covers the same batches.
        pace = ask(item.leader if item.leader in asked else asked[0], start, end)
        stop = end if pace.error or pace.next_offset <= start else pace.next_offset
        found = _compared(item, start, stop, {broker_id: ask(broker_id, start, stop) for broker_id in asked})
        if found:
            found = _compared(item, start, stop, {broker_id: ask(broker_id, start, stop) for broker_id in asked})
        findings += found
        verified.ranges += 1
        verified.records += pace.record_count
        verified.size_bytes += pace.size_bytes
        start = stop
    return silent + findings


def _compared(item: PartitionToVerify, start: int, end: int, digests: Mapping[int, RangeDigest]) -> list[Finding]:
    return compare(item.topic, item.partition, start, end, item.leader, digests)


def ask_over_grpc(item: PartitionToVerify, channel_of: Callable[[str], Any]) -> Ask:
    """Return a function that calls the brokers."""
    import grpc

    from paceline.model.errors import ErrorCode
    from paceline.v1 import log_service_pb2, log_service_pb2_grpc

    def ask(broker_id: int, start: int, end: int) -> RangeDigest:
        address = item.addresses.get(broker_id)
        if address is None:
            return RangeDigest(error=f"broker {broker_id} is not live")
        request = log_service_pb2.DigestRangeRequest(
            topic=item.topic,
            partition=item.partition,
            topic_id=item.topic_id,
            start_offset=start,
            end_offset=end,
            max_bytes=RANGE_BYTES,
        )
        try:
            answer = log_service_pb2_grpc.LogServiceStub(channel_of(address)).DigestRange(
                request, timeout=RPC_TIMEOUT_S
            )
        except grpc.RpcError as error:
            return RangeDigest(error=f"broker {broker_id} at {address}: {error.details()}")
        if answer.HasField("error"):
            damaged = answer.error.code == int(ErrorCode.CORRUPT_MESSAGE)
            return RangeDigest(error=f"broker {broker_id}: {answer.error.message}", is_damaged=damaged)
        return RangeDigest(
            answer.first_offset if answer.HasField("first_offset") else None,
            answer.last_offset if answer.HasField("last_offset") else None,
            answer.record_count,
            answer.size_bytes,
            tuple(answer.leader_epochs),
            answer.stored_crc32c,
            answer.content_crc32c,
            answer.log_start_offset,
            answer.log_end_offset,
            answer.high_watermark,
            answer.next_offset,
        )

    return ask


def describe(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return findings as JSON values."""
    return [
        {
            "topic": each.topic,
            "partition": each.partition,
            "broker": each.broker_id,
            "start_offset": each.start_offset,
            "end_offset": each.end_offset,
            "difference": each.difference.value,
            "message": each.message,
        }
        for each in findings
    ]
