"""Compare answers to clients with the logs."""

from typing import TYPE_CHECKING

from paceline.log.producer_state import REMEMBERED_BATCHES
from paceline.log.record_batch import iterate_headers
from paceline.model.client_io import FetchResult, ProduceResult, RequiredAcks
from paceline.model.errors import ErrorCode, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.model.replica_fetch import EpochEnd
from tests.simulation.history import History, Outcome, Poll, Reading, Send
from tests.simulation.observed_log import Mirror, ObservedLog
from tests.simulation.partition_record import PartitionRecord, PartitionRecords
from tests.simulation.verdicts import Verdicts
from tests.support.batches import decode_records

if TYPE_CHECKING:
    from tests.simulation.machines import BrokerLife


class ClientChecks:
    """C1 to C11, and R7 for acknowledged records."""

    def __init__(self, verdicts: Verdicts, records: PartitionRecords, history: History) -> None:
        self._verdicts = verdicts
        self._records = records
        self._history = history

    # During the run

    def produce_answered(self, life: "BrokerLife", send: Send, result: ProduceResult) -> None:
        """Check a broker's response to a produce request."""
        if result.failure is not None and result.failure.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self._is_no_repetition(life, send)
        if result.failure is not None or send.acks is not RequiredAcks.ALL:
            return
        verdicts = self._verdicts
        verdicts.exercise("R7")
        hosted = life.node.replica_manager.hosted.online.get(send.topic_partition)
        if hosted is None or hosted.log is None or not hosted.is_leader:
            verdicts.fail("R7", f"{life.name} acknowledges for {send.topic_partition} without leading it")
            return
        send.leader_epoch = max(send.leader_epoch, hosted.leader_epoch)
        if not hosted.has_enough_replicas:
            verdicts.fail("R7", f"{life.name} acknowledges for {send.topic_partition} with ISR {hosted.isr}")
        if hosted.log.high_watermark < result.base_offset + send.count:
            verdicts.fail(
                "R7",
                f"{life.name} acknowledges {result.base_offset} of {send.topic_partition}, "
                f"committed is {hosted.log.high_watermark}",
            )

    def _is_no_repetition(self, life: "BrokerLife", send: Send) -> None:
        """Check that a refused sequence is not the sequence of one of the producer's last five batches."""
        log = life.logs.get(send.topic_partition)
        if not isinstance(log, ObservedLog) or log.topic_id != send.topic_id:
            return
        latest: list[int] = []
        for crc in reversed(log.mirror.crcs[log.mirror.first_above(log.log_start_offset) :]):
            known = self._history.by_crc.get(crc)
            if known is not None and known.producer_id == send.producer_id:
                latest.append(crc)
            if len(latest) == REMEMBERED_BATCHES:
                break
        self._verdicts.exercise("C11")
        if send.crc in latest:
            self._verdicts.fail("C11", f"{life.name} refuses {send.client}'s {send.sequence}, which its log has")

    def fetch_answered(self, life: "BrokerLife", reading: Reading, position: int, result: FetchResult) -> None:
        """Check a broker's response to a reader's fetch."""
        if result.failure is not None:
            return
        record = self._records.get(reading.topic_id, reading.topic_partition)
        log = life.logs.get(reading.topic_partition)
        if log is not None and log.topic_id == reading.topic_id and position < log.log_start_offset:
            self._verdicts.fail(
                "R18", f"{record}: {life.name} returns {position}, its log starts at {log.log_start_offset}"
            )
        self._verdicts.exercise("C9")
        if record.voided:
            return
        if result.preferred_read_replica is None and not self._is_leader(life, reading.topic_partition):
            self._told_by_follower(life.broker_id, record, result.high_watermark)
        end = max((header.last_offset + 1 for _, header in iterate_headers(result.batches)), default=0)
        if end > record.thw:
            self._verdicts.fail("C9", f"{record}: {life.name} returns records up to {end}, committed is {record.thw}")
        if result.high_watermark > record.thw:
            self._verdicts.fail(
                "C9", f"{record}: {life.name} returns high watermark {result.high_watermark}, committed is {record.thw}"
            )

    @staticmethod
    def _is_leader(life: "BrokerLife", topic_partition: TopicPartition) -> bool:
        hosted = life.node.replica_manager.hosted.online.get(topic_partition)
        return hosted is not None and hosted.is_leader

    def _told_by_follower(self, broker_id: int, record: PartitionRecord, high_watermark: int) -> None:
        """Check that the high watermark in a follower's responses does not fall, even if its process restarts."""
        before = record.told_by_follower.get(broker_id, -1)
        self._verdicts.exercise("C10")
        # A replica that has lost records copies them again.
        if high_watermark < before and not record.was_damaged:
            self._verdicts.fail("C10", f"{record}: follower {broker_id} tells {high_watermark} after {before}")
        record.told_by_follower[broker_id] = max(before, high_watermark)

    def polled(self, reading: Reading, position: int, poll: Poll) -> None:
        """Check that a batch received by a reader continues at its position."""
        self._verdicts.exercise("C7")
        # A log may start, or a truncation have ended, within a batch; the reader then receives the whole batch.
        record = self._records.get(reading.topic_id, reading.topic_partition)
        across = poll.base < position < poll.end and (record.voided or position <= record.asked_start)
        skips_lost_segment = poll.base > position and record.was_led_without(position, poll.base)
        if poll.base != position and not across and not skips_lost_segment:
            self._verdicts.fail("C7", f"{reading.client} {reading.topic_partition}: {poll.base} after {position}")

    def out_of_range(self, reading: Reading, position: int, message: str) -> None:
        """Check an OFFSET_OUT_OF_RANGE response to a reader."""
        record = self._records.get(reading.topic_id, reading.topic_partition)
        is_lost = record.was_led_without(position, position + 1)
        excused = record.voided or record.deleted or reading.told_by_deposed or is_lost
        if not excused and position >= record.asked_start:
            self._verdicts.fail("C9", f"{record}: {reading.client} at {position} is out of range: {message}")

    def end_told(self, reading: Reading, offset: int, by_deposed: bool) -> None:
        """Check that the end offset that a client receives does not decrease."""
        record = self._records.get(reading.topic_id, reading.topic_partition)
        self._verdicts.exercise("C10")
        if offset < reading.latest and not record.voided and not by_deposed:
            self._verdicts.fail("C10", f"{record}: {reading.client} receives end {offset} after {reading.latest}")
        reading.latest = max(reading.latest, offset)

    def epoch_end_told(self, reading: Reading, position: int, epoch: int, end: EpochEnd | None) -> None:
        """Check that no reader takes a committed record for truncated."""
        record = self._records.get(reading.topic_id, reading.topic_partition)
        committed = record.committed
        last = committed.first_above(position - 1)
        # No checksum covers the epoch in a batch, so a damaged replica may have told another one.
        is_true = last < len(committed.ends) and (committed.ends[last], committed.epochs[last]) == (position, epoch)
        if not is_true or position <= record.asked_start or record.voided or record.deleted or record.unclean_starts:
            return
        is_cut = end is None or end.epoch < epoch or end.end_offset < position
        told = f"{record}: {reading.client} at {position} of epoch {epoch} is told {end}"
        self._verdicts.check("C9", not is_cut, told)

    def out_of_order(self, send: Send, message: str) -> None:
        """Check an OUT_OF_ORDER_SEQUENCE_NUMBER response to a producer."""
        record = self._records.get(send.topic_id, send.topic_partition)
        self._verdicts.exercise("C11")
        if not record.voided and not record.deleted and not send.told_by_deposed:
            self._verdicts.fail("C11", f"{record}: {send.client} sequence {send.sequence}: {message}")

    # At the end

    def finish(self, record: PartitionRecord, leader: ObservedLog, in_sync: list[ObservedLog]) -> None:
        """Compare the answers to clients about a partition with the final logs."""
        sends = [
            send
            for send in self._history.sends
            if send.topic_id == record.topic_id and send.topic_partition == record.topic_partition
        ]
        mirror = leader.mirror
        first = mirror.first_above(leader.log_start_offset)
        self._no_phantoms(record, mirror, first)
        self._readable(record, leader)
        self._sequences(record, mirror, first)
        if record.voided:
            if record.unclean_starts and not record.was_damaged:
                self._loss_is_bounded(record, sends, leader)
            return
        for log in in_sync:
            self._nothing_lost(record, sends, log)
        self._real_time(record, sends)
        for reading in self._history.readings:
            if reading.topic_id == record.topic_id and reading.topic_partition == record.topic_partition:
                self._still_there(record, reading, leader)

    def _nothing_lost(self, record: PartitionRecord, sends: list[Send], log: ObservedLog) -> None:
        for send in sends:
            if send.outcome is not Outcome.OK or send.acks is not RequiredAcks.ALL:
                continue
            assert send.offset is not None
            self._verdicts.exercise("C1")
            if send.offset + send.count <= log.log_start_offset:
                continue  # Deleted: see R18.
            found = log.mirror.batch_at(send.offset)
            if found is None or found[1] != send.crc:
                self._verdicts.fail(
                    "C1", f"{record}: {send.client} was told {send.offset}, the log of {log.path} has {found}"
                )

    def _loss_is_bounded(self, record: PartitionRecord, sends: list[Send], leader: ObservedLog) -> None:
        """Check that records lost by an unclean election were above its leader's log end and older than its epoch."""
        for send in sends:
            if send.outcome is not Outcome.OK or send.acks is not RequiredAcks.ALL or send.offset is None:
                continue
            self._verdicts.exercise("C1")
            found = leader.mirror.batch_at(send.offset)
            deleted = send.offset + send.count <= leader.log_start_offset
            lost = not deleted and (found is None or found[1] != send.crc)
            if lost and not record.is_excused(send.offset, send.leader_epoch):
                self._verdicts.fail(
                    "C1",
                    f"{record}: {send.client} lost {send.offset}, acknowledged in epoch {send.leader_epoch}, "
                    f"though unclean leaders kept the records below {record.unclean_starts}",
                )

    def _no_phantoms(self, record: PartitionRecord, mirror: Mirror, first: int) -> None:
        seen: dict[int, int] = {}
        for base, crc in zip(mirror.bases[first:], mirror.crcs[first:], strict=True):
            send = self._history.by_crc.get(crc)
            seen[crc] = seen.get(crc, 0) + 1
            if send is None:
                self._verdicts.fail("C2", f"{record}: no client sent the batch at {base}")
                continue
            if send.outcome is Outcome.FAIL:
                self._verdicts.fail("C2", f"{record}: {send.client} was refused the batch at {base}")
            allowed = 1 if send.producer_id >= 0 else max(1, 2 * send.tries)
            if seen[crc] > allowed:
                self._verdicts.fail("C4", f"{record}: {send.client}'s batch is at {base} again")
        self._verdicts.exercise("C2", len(mirror.crcs))
        self._verdicts.exercise("C4", len(mirror.crcs))

    def _readable(self, record: PartitionRecord, log: ObservedLog) -> None:
        """Read the whole log as a consumer would and count the offsets."""
        if record.zk is not None and record.zk.leader in record.flipped:
            return
        position = log.log_start_offset
        while position < log.log_end_offset:
            try:
                data = log.read(position, 1 << 20, log.log_end_offset)
            except PacelineError as error:
                self._verdicts.fail("C5", f"{record}: {log.path} cannot be read at {position}: {error}")
                return
            for item in decode_records(data):
                if item.offset < log.log_start_offset:
                    continue  # The log starts within a batch.
                if item.offset != position:
                    self._verdicts.fail("C5", f"{record}: {log.path} has {item.offset} instead of {position}")
                    return
                position += 1
            end = max((header.last_offset + 1 for _, header in iterate_headers(data)), default=position)
            if not data or position < end:
                self._verdicts.fail("C5", f"{record}: {log.path} has no record at {position}, its batch ends at {end}")
                return
        self._verdicts.exercise("C5")

    def _sequences(self, record: PartitionRecord, mirror: Mirror, first: int) -> None:
        following: dict[int, int] = {}
        for base, crc in zip(mirror.bases[first:], mirror.crcs[first:], strict=True):
            send = self._history.by_crc.get(crc)
            if send is None or send.producer_id < 0:
                continue
            self._verdicts.exercise("C11")
            # Earlier batches of the producer may have been deleted.
            expected = following.get(send.producer_id, send.sequence if record.asked_start else 0)
            if send.sequence != expected and not record.voided:
                self._verdicts.fail("C11", f"{record}: {send.client} has {send.sequence} at {base}, not {expected}")
            following[send.producer_id] = send.sequence + send.count

    def _real_time(self, record: PartitionRecord, sends: list[Send]) -> None:
        known = [
            send
            for send in sends
            if send.outcome is Outcome.OK and send.offset is not None and send.acks is RequiredAcks.ALL
        ]
        completed = sorted(known, key=lambda send: send.completed_us or 0)
        highest = -1
        index = 0
        for send in sorted(known, key=lambda send: send.invoked_us):
            while index < len(completed) and (completed[index].completed_us or 0) < send.invoked_us:
                highest = max(highest, completed[index].offset or 0)
                index += 1
            self._verdicts.exercise("C8")
            assert send.offset is not None
            if send.offset < highest:
                self._verdicts.fail("C8", f"{record}: {send.client} got {send.offset} after {highest} was answered")

    def _still_there(self, record: PartitionRecord, reading: Reading, leader: ObservedLog) -> None:
        mirror = leader.mirror
        for poll in reading.polls:
            if poll.end <= leader.log_start_offset:
                continue
            self._verdicts.exercise("C6")
            found = mirror.batch_at(poll.base)
            if found is None or found[1] != poll.crc:
                self._verdicts.fail("C9", f"{record}: {reading.client} read {poll.base}, which was lost or changed")
