"""R22: a compacted log keeps the last record of each key at its offset.

The checks know every batch of a compacted topic from the leaders' appends, and the committed log from the checksums of
its batches. Together these determine the records that a replica must have, whatever it or its leader compacted.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from paceline.broker.groups.offsets_topic import OFFSETS_TOPIC
from paceline.log.compaction.cleaner import CleanedSegment
from paceline.log.record_batch import Record, iterate_headers, parse_header
from paceline.model.errors import PacelineError
from tests.simulation.observed_log import ObservedLog
from tests.simulation.partition_record import PartitionRecord, PartitionRecords
from tests.simulation.verdicts import Verdicts
from tests.support.batches import decode_records

if TYPE_CHECKING:
    from tests.simulation.machines import BrokerLife


class CompactionChecks:
    """R22."""

    def __init__(self, verdicts: Verdicts, records: PartitionRecords) -> None:
        self._verdicts = verdicts
        self._records = records
        self._batches: dict[int, bytes] = {}
        """Every batch of a compacted topic, by checksum."""

    def written(self, data: bytes) -> None:
        """Store a batch that a leader appends to a compacted topic."""
        self._batches[parse_header(data).crc] = bytes(data)

    def originals(self, record: PartitionRecord) -> Iterator[Record]:
        """Yield the records of the committed log as they were appended."""
        committed = record.committed
        for base, crc in zip(committed.bases, committed.crcs, strict=True):
            data = self._batches.get(crc)
            if data is None:
                return
            first = parse_header(data).base_offset
            for one in decode_records(data):
                yield one._replace(offset=base + one.offset - first)

    def are_superseded(self, record: PartitionRecord, first: int, end: int) -> bool:
        """Whether no committed record from ``first`` to ``end`` of a compacted topic is the last of its key."""
        if record.topic_partition.topic != OFFSETS_TOPIC:
            return False
        last = {one.key: one.offset for one in self.originals(record) if one.offset < record.thw}
        return not any(first <= offset < end for offset in last.values())

    def replaces(self, life: "BrokerLife", log: ObservedLog, cleaned: CleanedSegment) -> None:
        """Check a compacted segment that is about to replace others."""
        record = self._records.of_log(log)
        if record is None or record.harmed:
            return
        topic = log.topic_partition.topic
        self._verdicts.check(
            "R22", topic == OFFSETS_TOPIC, f"{record}: {life.name} compacts a topic whose settings say nothing of it"
        )
        end = max(source.end_offset() for source in cleaned.sources)
        self._verdicts.check(
            "R22",
            end <= log.high_watermark,
            f"{record}: {life.name} compacts up to {end}, committed is {log.high_watermark}",
        )

    def contents(self, life: "BrokerLife", record: PartitionRecord, log: ObservedLog) -> None:
        """Check the records of a replica up to the commit point, its log end, or where its history diverges."""
        if record.topic_partition.topic != OFFSETS_TOPIC or record.voided or record.harmed or record.led_damaged:
            return
        # A replica that lost power may not lead until its log is complete; a compacted log may lack records in the
        # middle.
        if life.broker_id in record.flipped or life.broker_id in record.incomplete or log.directory.is_offline:
            return
        if record.topic_partition in life.logs.unexplained_gaps:
            return  # The replica counts as damaged: it is rebuilt before it joins the ISR.
        committed = [one for one in self.originals(record) if one.offset < record.thw]
        # A follower copies a log that its leader has compacted with records that the follower does not have yet.
        last = {one.key: one.offset for one in committed}
        limit = min(record.thw, log.log_end_offset, record.committed.end, record.kept_by(log.mirror))
        wanted = [one for one in committed if log.log_start_offset <= one.offset < limit]
        try:
            present = {one.offset: one for one in _records_of(log) if one.offset < limit}
        except PacelineError as error:
            self._verdicts.fail("R22", f"{record}: {life.name} cannot read what it has compacted: {error}")
            return
        self._verdicts.exercise("R22", len(wanted))
        for one in wanted:
            found = present.pop(one.offset, None)
            if found is None and last[one.key] == one.offset:
                self._verdicts.fail("R22", f"{record}: {life.name} has no record at {one.offset}, the last of its key")
                return
            if found is not None and (found.key, found.value) != (one.key, one.value):
                self._verdicts.fail("R22", f"{record}: {life.name} has {found} instead of {one}")
                return
        if present:
            self._verdicts.fail("R22", f"{record}: {life.name} has unknown records at {sorted(present)[:5]}")


def _records_of(log: ObservedLog) -> Iterator[Record]:
    """Yield every record in the way that a follower reads it."""
    position = log.log_start_offset
    while position < log.log_end_offset:
        data = log.read(position, 1 << 20, log.log_end_offset)
        if not data:
            return
        for one in decode_records(data):
            if one.offset >= log.log_start_offset:
                yield one
        position = max(header.last_offset + 1 for _, header in iterate_headers(data))
