"""Read the log directories of stopped brokers: batches and checkpoints, and compare replicas."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.log.checkpoint import decode_offsets
from paceline.log.directory_names import directory_name
from paceline.log.record_batch import check_crc, iterate_headers
from paceline.model.identifiers import TopicPartition


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch as stored in a segment."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    data: bytes


def batches(folder: Path, topic_partition: TopicPartition) -> Iterator[StoredBatch]:
    """Yield the batches of a replica in offset order; a batch with a wrong CRC raises CorruptMessageError."""
    for segment in sorted((folder / directory_name(topic_partition)).glob("*.log")):
        data = segment.read_bytes()
        for position, header in iterate_headers(data):
            check_crc(data, position, header)
            end = position + header.size
            yield StoredBatch(header.base_offset, header.last_offset, header.leader_epoch, data[position:end])


def compare_replicas(
    folders: Sequence[Path], topic_partition: TopicPartition, high_watermark: int
) -> tuple[int, list[str]]:
    """Compare all replicas of a partition below the high watermark, batch by batch, byte by byte.

    Returns:
        The number of batches compared, and what is wrong: a hole, a missing tail, or a difference.
    """
    replicas = [[b for b in batches(folder, topic_partition) if b.base_offset < high_watermark] for folder in folders]
    problems: list[str] = []
    for folder, found in zip(folders, replicas, strict=True):
        expected = found[0].base_offset if found else 0
        for batch in found:
            if batch.base_offset != expected:
                problems.append(f"{folder}: {topic_partition} jumps from {expected} to {batch.base_offset}")
            expected = batch.last_offset + 1
        if expected < high_watermark:
            problems.append(
                f"{folder}: {topic_partition} ends at {expected}, below its high watermark {high_watermark}"
            )
    reference = replicas[0]
    for folder, found in zip(folders[1:], replicas[1:], strict=True):
        for ours, theirs in zip(reference, found, strict=False):
            if ours != theirs:
                problems.append(
                    f"{folder}: {topic_partition} differs at {ours.base_offset} (epoch {ours.leader_epoch}) / "
                    f"{theirs.base_offset} (epoch {theirs.leader_epoch})"
                )
                break
    return len(reference), problems


def read_high_watermarks(folder: Path) -> dict[TopicPartition, int]:
    """Return the high-watermark checkpoint of a log directory."""
    return decode_offsets((folder / "replication-offset-checkpoint").read_bytes())
