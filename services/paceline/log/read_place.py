"""The place of a waiting fetch in a log, to count its bytes by file positions instead of reading them again."""

from paceline.log.local_log import LocalLog
from paceline.log.segment import Segment


class ReadPlace:
    """The segment and byte position of the batch that holds ``offset``.

    The place is found once. It is found again if the segment was replaced, as by compaction, or truncated.
    Source: Kafka 2.8 DelayedFetch.tryComplete, LogOffsetMetadata.
    """

    __slots__ = ("_position", "_segment", "_truncation_count", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._segment: Segment | None = None
        self._position = 0
        self._truncation_count = 0

    def bytes_below(self, log: LocalLog, limit_offset: int) -> int | None:
        """Return the bytes of whole batches from the place up to ``limit_offset``, which must not be below the place.

        Return None if ``limit_offset`` is in a later segment: a read ends with its segment, so more bytes never come.

        Raises:
            OSError: storage failed.
            CorruptMessageError: bytes in the file are not a batch.
        """
        segment, next_base = log.segments.holding(self.offset)
        if next_base is not None and limit_offset > next_base:
            return None
        if segment is not self._segment or self._truncation_count != log.truncation_count:
            self._position = segment.position_of(self.offset)
            self._segment, self._truncation_count = segment, log.truncation_count
        is_whole = limit_offset == (log.end_offset if next_base is None else next_base)
        return (segment.size if is_whole else segment.position_of(limit_offset)) - self._position
