"""Find segments that vanished while the broker was stopped: readers would skip their records without an error.

A clean stop lists the segments of each log in its marker, for the next load to compare. After an unclean stop there is
no list, so a load looks for gaps between segments instead.

Source: docs/protocol/log-format.md#missing-segments.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from paceline.log.damage_file import GAP, TRUNCATED
from paceline.log.partition_log import PartitionLog
from paceline.log.segment import Segment
from paceline.model.errors import CorruptMessageError

SegmentSizes = Mapping[int, int]
"""Size in bytes of each segment with batches, by base offset, in ascending order."""


def encode_segments(logs: Iterable[PartitionLog]) -> bytes:
    """Return the content of the marker: the segments of each log by directory name.

    Segments without batches are left out, because a clean stop does not make their files durable.
    """
    segments = {
        log.path.rpartition("/")[2]: {one.base_offset: one.size for one in log.segments if one.size} for log in logs
    }
    return json.dumps({"segments": segments}).encode()


def decode_segments(data: bytes) -> Mapping[str, SegmentSizes]:
    """Return the segments of each log by directory name; empty for a marker of Kafka or of an earlier version."""
    try:
        segments = json.loads(data)["segments"]
        return {name: {int(base): int(size) for base, size in sizes.items()} for name, sizes in segments.items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


def missing_records(stopped: SegmentSizes, sizes: SegmentSizes) -> dict[str, str]:
    """Return the kind and description of the damage if a segment is missing or has another size than at the stop.

    ``sizes`` are the present segments. Those that were not listed do not count: a loss of power may restore segments
    that were deleted.
    """
    lacking = next((base for base, size in stopped.items() if sizes.get(base) != size), None)
    if lacking is None:
        return {}
    text = f"lacks records of segment {lacking}, which had {stopped[lacking]} bytes at the last clean stop"
    is_tail = all(base <= lacking for base in sizes)
    return {TRUNCATED if is_tail else GAP: text}


def gap_between(segments: Sequence[Segment]) -> dict[str, str]:
    """Return the kind and description of the damage if a segment does not begin where the segment before it ends.

    The topic is not compacted now. If it was compacted earlier, a gap proves nothing; then other batches lack records,
    too.

    Raises:
        OSError: storage failed.
    """
    try:
        for segment, following in pairwise(segments):
            end = segment.end_offset()
            if end < following.base_offset:
                text = f"has a gap from {end} to {following.base_offset}, and was never compacted"
                return {} if any(_was_compacted(one) for one in segments) else {GAP: text}
    except CorruptMessageError:
        pass  # Reads report the damaged batch.
    return {}


def _was_compacted(segment: Segment) -> bool:
    """Whether a batch lacks records, or does not begin where the batch before it in the segment ends."""
    end = None
    for _, header in segment.headers(0):
        if header.record_count <= header.last_offset_delta or end not in (None, header.base_offset):
            return True
        end = header.last_offset + 1
    return False
