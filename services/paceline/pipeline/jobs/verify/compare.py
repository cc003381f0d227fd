"""Compare the digests that all replicas have of one range. No I/O."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Difference(Enum):
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
class RangeDigest:
    """Digest of a replica's records in a range."""

    first_offset: int | None = None
    last_offset: int | None = None
    record_count: int = 0
    size_bytes: int = 0
    leader_epochs: tuple[int, ...] = ()
    stored_crc32c: int = 0
    content_crc32c: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: int = 0
    next_offset: int = 0
    error: str = ""
    """Error text; empty when there is a digest."""
    is_damaged: bool = False
    """Whether the error is a checksum mismatch."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A replica that differs in a range."""

    topic: str
    partition: int
    broker_id: int
    start_offset: int
    end_offset: int
    difference: Difference
    message: str


def compare(
    topic: str, partition: int, start: int, end: int, leader: int, digests: Mapping[int, RangeDigest]
) -> list[Finding]:
    """Return the replicas that differ from the majority; in a tie the leader's digest counts.

    The caller excludes records below the largest log start of a replica, because replicas delete old segments at
    different times.
    """
    findings = []

    def found(broker_id: int, difference: Difference, message: str) -> None:
        findings.append(Finding(topic, partition, broker_id, start, end, difference, message))

    answered = {broker_id: digest for broker_id, digest in digests.items() if not digest.error}
    for broker_id, digest in digests.items():
        if digest.is_damaged:
            found(broker_id, Difference.DAMAGED, digest.error)
        elif digest.error:
            found(broker_id, Difference.MISSING, digest.error)
    if not answered:
        return findings
    usual = _usual(answered, leader)
    for broker_id, digest in sorted(answered.items()):
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


def _usual(digests: Mapping[int, RangeDigest], leader: int) -> RangeDigest:
    counts = Counter(_stored(digest) for digest in digests.values())
    most = max(counts.values())
    agreed = [broker_id for broker_id, digest in sorted(digests.items()) if counts[_stored(digest)] == most]
    return digests[leader if leader in agreed else agreed[0]]
