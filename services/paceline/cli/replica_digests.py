"""Compare the digests that all replicas have of the same ranges. No I/O; `verify.py` has the command."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from paceline.model.errors import CorruptMessageError, PacelineError
from paceline_client import PartitionDescription, RangeDigest

Answer = RangeDigest | PacelineError
Ask = Callable[[int, int, int], Answer]
"""Function from broker id, start and end offset to that replica's digest, or the reason why there is none."""


class Difference(StrEnum):
    """Kinds of difference between a replica and the majority."""

    MISSING = "missing"
    """The replica has none of the records, or does not answer for the partition."""
    GAP = "gap"
    """Some records are missing: the replica has fewer records, or its log ends inside the range."""
    DIVERGED = "diverged-bytes"
    """The replica has different bytes at the same offsets."""
    OTHER_EPOCHS = "other-epochs"
    """The replica has the same bytes with other leader epochs."""
    DAMAGED = "damaged"
    """The stored bytes of the replica do not match their checksums."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A replica that differs in a range; the names of the fields are those of the command's output."""

    topic: str
    partition: int
    broker: int
    start_offset: int
    end_offset: int
    difference: Difference
    message: str


@dataclass(slots=True)
class Verified:
    """Result of the comparison of one partition."""

    ranges: int = 0
    records: int = 0
    stored_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)


def verify_partition(topic: str, partition: PartitionDescription, ask: Ask) -> Verified:
    """Compare all replicas from the largest log start to the smallest high watermark, both read before the digests.

    A range that differs is read a second time: a replica may have been truncated, or have deleted a segment, between
    the digests.
    """
    verified = Verified()
    marks = {broker_id: ask(broker_id, 0, 0) for broker_id in partition.replicas}
    answered = {broker_id: mark for broker_id, mark in marks.items() if isinstance(mark, RangeDigest)}
    if len(answered) < 2:
        verified.findings = compare(topic, partition, 0, 0, marks)
        return verified
    end = min(mark.high_watermark for mark in answered.values())
    start = max(mark.log_start_offset for mark in answered.values())
    silent = {broker_id: mark for broker_id, mark in marks.items() if broker_id not in answered}
    verified.findings = compare(topic, partition, start, end, silent)
    leader = partition.leader if partition.leader in answered else next(iter(answered))
    while start < end:
        # The range ends at the end of the leader's chunk, so that every replica covers the same batches.
        pace = ask(leader, start, end)
        stop = end
        if isinstance(pace, RangeDigest):
            stop = pace.next_offset if pace.next_offset > start else end
            verified.records += pace.record_count
            verified.stored_bytes += pace.size_bytes
        for _ in range(2):
            found = compare(
                topic, partition, start, stop, {broker_id: ask(broker_id, start, stop) for broker_id in answered}
            )
            if not found:
                break
        verified.findings += found
        verified.ranges += 1
        start = stop
    return verified


def compare(
    topic: str, partition: PartitionDescription, start: int, end: int, answers: Mapping[int, Answer]
) -> list[Finding]:
    """Return the replicas that differ from the majority; in a tie the leader's digest counts.

    The caller excludes records below the largest log start of a replica, because replicas delete old segments at
    different times.
    """
    findings = []

    def found(broker_id: int, difference: Difference, message: str) -> None:
        findings.append(Finding(topic, partition.partition, broker_id, start, end, difference, message))

    digests: dict[int, RangeDigest] = {}
    for broker_id, answer in sorted(answers.items()):
        if isinstance(answer, RangeDigest):
            digests[broker_id] = answer
        else:
            damaged = isinstance(answer, CorruptMessageError)
            found(broker_id, Difference.DAMAGED if damaged else Difference.MISSING, str(answer))
    usual = _usual(digests, partition.leader) if digests else RangeDigest()
    for broker_id, digest in digests.items():
        if _stored(digest) == _stored(usual):
            continue
        if usual.record_count and not digest.record_count:
            found(broker_id, Difference.MISSING, f"none of {usual.record_count} records exists")
        elif digest.record_count < usual.record_count or digest.log_end_offset < min(end, usual.log_end_offset):
            counts = f"{digest.record_count} of {usual.record_count} records exist"
            found(broker_id, Difference.GAP, f"{counts}, offsets {digest.first_offset} to {digest.last_offset}")
        elif digest.content_crc32c == usual.content_crc32c and digest.size_bytes == usual.size_bytes:
            epochs = f"leader epochs {list(digest.leader_epochs)} instead of {list(usual.leader_epochs)}"
            found(broker_id, Difference.OTHER_EPOCHS, epochs)
        else:
            crcs = f"CRC-32C {digest.stored_crc32c:08x} instead of {usual.stored_crc32c:08x}"
            found(broker_id, Difference.DIVERGED, crcs)
    return findings


def _stored(digest: RangeDigest) -> tuple[object, ...]:
    return digest.first_offset, digest.last_offset, digest.record_count, digest.size_bytes, digest.stored_crc32c


def _usual(digests: Mapping[int, RangeDigest], leader: int | None) -> RangeDigest:
    counts = Counter(_stored(digest) for digest in digests.values())
    most = max(counts.values())
    agreed = [broker_id for broker_id, digest in digests.items() if counts[_stored(digest)] == most]
    return digests[leader if leader in agreed else agreed[0]]
