"""Checks of replicas: their logs, high watermarks and leaders."""

from typing import TYPE_CHECKING

from paceline.broker.groups.offsets_topic import OFFSETS_TOPIC
from paceline.broker.partition.partition import Partition
from paceline.log.directory_names import directory_name
from paceline.log.files import is_no_room
from paceline.log.retention import SegmentExtent
from paceline.model.identifiers import INTERNAL_TOPICS
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.state_change import StateChange, StateChangeKind
from tests.simulation.compaction_checks import CompactionChecks
from tests.simulation.observed_log import Mirror, ObservedLog
from tests.simulation.partition_record import PartitionRecord, PartitionRecords
from tests.simulation.verdicts import Verdicts

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster
    from tests.simulation.machines import BrokerLife, BrokerMachine


class ReplicaChecks:
    """R1, R3b, R4, R5, R5b, R6, R7, R8, R9, R14, R16, C3 and C5."""

    def __init__(
        self,
        cluster: "SimulatedCluster",
        verdicts: Verdicts,
        records: PartitionRecords,
        compaction: CompactionChecks,
    ) -> None:
        self._cluster = cluster
        self._verdicts = verdicts
        self._records = records
        self._compaction = compaction
        self.batch_topics: dict[int, str] = {}
        """Topic id by checksum, for every batch that clients created."""

    # Logs

    def appended(self, life: "BrokerLife", log: ObservedLog, first: int, as_leader: bool) -> None:
        """Check batches that were appended."""
        verdicts = self._verdicts
        record = self._records.of_log(log)
        mirror = log.mirror
        if record is None:
            return
        record.logs[life.broker_id] = log
        if life.broker_id in record.flipped or record.is_unknowable:
            return  # Its bytes may differ now; the next read detects it.
        if mirror.seed is None:
            record.root(mirror)
        if not as_leader:
            first -= self._forget_deleted(record, log)
        count = len(mirror.ends) - first
        for name in ("R3b", "R4", "R16", "C5"):
            verdicts.exercise(name, count)
        for index in range(first, len(mirror.ends)):
            end, epoch, chain, crc = mirror.ends[index], mirror.epochs[index], mirror.chains[index], mirror.crcs[index]
            is_known = mirror.seed is not None and not record.led_damaged
            if is_known and record.lineage.setdefault((end, epoch), chain) != chain:
                verdicts.fail("R3b", f"{record}: {life.name} has another history at ({end}, epoch {epoch})")
            if index:
                if epoch < mirror.epochs[index - 1]:
                    verdicts.fail("R4", f"{record}: {life.name} appends epoch {epoch} after {mirror.epochs[index - 1]}")
                if mirror.bases[index] != mirror.ends[index - 1]:
                    verdicts.fail("C5", f"{record}: {life.name} has a gap before {mirror.bases[index]}")
            # Checksums have 32 bits, so a coordinator's batch may have that of a producer's; internal topics are not
            # re-created.
            is_internal = record.topic_partition.topic in INTERNAL_TOPICS
            if not is_internal and self.batch_topics.get(crc, record.topic_id) != record.topic_id:
                verdicts.fail("R16", f"{record}: {life.name} holds a batch of another topic at {mirror.bases[index]}")
        if as_leader:
            hosted = self._hosted(life, log)
            epoch = mirror.epochs[-1]
            if hosted is not None and (not hosted.is_leader or hosted.leader_epoch != epoch):
                verdicts.fail("R1", f"{record}: {life.name} appends in epoch {epoch} without leading in it")
        elif record.damaged:
            self._maybe_whole(record, life)

    def truncated(self, life: "BrokerLife", log: ObservedLog, end_before: int, removed: Mirror) -> None:
        """Check a truncation; ``removed`` begins with the first removed batch."""
        verdicts = self._verdicts
        record = self._records.of_log(log)
        if record is None:
            return
        record.logs[life.broker_id] = log
        self._cluster.note(life.name, f"{record} is cut from {end_before} to {log.log_end_offset}")
        verdicts.exercise("R9")
        record.root(log.mirror)
        promised = record.promised_starts.get(life.broker_id)
        if promised is not None:
            record.promised_starts[life.broker_id] = min(promised, log.log_start_offset)
        hosted = self._hosted(life, log)
        if hosted is not None and hosted.is_leader:
            verdicts.fail("R9", f"{record}: {life.name} leads and truncates from {end_before} to {log.log_end_offset}")
        # A follower that has to start again at its leader's log start removes the records below it.
        first = removed.first_above(min(record.asked_start, log.log_start_offset))
        if record.voided or life.broker_id in record.damaged or first == len(removed.ends):
            return
        end = removed.ends[first]
        # A leader that copied a compacted log knows only approximately where an epoch began. It may truncate a follower
        # outside the ISR there, and remove superseded records that the leader has compacted.
        is_member = record.zk is None or life.broker_id in record.zk.isr
        if not is_member and self._compaction.are_superseded(record, log.log_end_offset, end_before):
            return
        # A follower outside the ISR that has not heard of the present leader may follow an earlier one, without the
        # records that the present leader has committed since. It fetches them again before it may join the ISR.
        is_late = record.zk is not None and hosted is not None and hosted.leader_epoch < record.zk.leader_epoch
        if not is_member and is_late:
            return
        if end <= record.thw and record.committed.chain_at(end) == removed.chain_at(end):
            verdicts.fail(
                "R9",
                f"{record}: {life.name} truncates from {end_before} to {log.log_end_offset}, "
                f"committed up to {record.thw}",
            )

    # Compaction

    def originals(self, log: ObservedLog) -> Mirror | None:
        """Return the committed batches of a compacted topic as they were appended, None for any other topic."""
        record = self._records.of_log(log) if log.topic_partition.topic == OFFSETS_TOPIC else None
        return None if record is None or record.voided else record.committed

    def compacted(self, life: "BrokerLife", log: ObservedLog) -> None:
        """A compacted segment was put in place."""
        record = self._records.of_log(log)
        if record is not None:
            self._cluster.note(life.name, f"{record} has a compacted segment")
            self._compaction.contents(life, record, log)

    # Log starts

    def log_start_moved(self, life: "BrokerLife", log: ObservedLog, before: int, high_watermark: int) -> None:
        """Check that the log start moved to a requested offset, and only over committed records."""
        record = self._records.of_log(log)
        if record is None:
            return
        now = log.log_start_offset
        self._cluster.note(life.name, f"{record} starts at {now}, not at {before}")
        self._verdicts.check(
            "R18", now <= high_watermark, f"{record}: {life.name} starts at {now}, committed is {high_watermark}"
        )
        self._was_asked_for(life, record, log)
        self._forget_deleted(record, log)

    def retained(
        self, life: "BrokerLife", log: ObservedLog, offset: int, goes: list[SegmentExtent], wall_ms: int
    ) -> None:
        """Check segments deleted by retention on this broker: committed, and too old or above the size limit."""
        record = self._records.of_log(log)
        if record is None:
            return
        config, left, wrong = log.config, log.size_bytes, []
        for one in goes:
            left -= one.size_bytes
            is_too_old = 0 <= config.retention_ms < wall_ms - one.newest_ms
            if not is_too_old and not 0 <= config.retention_bytes <= left:
                wrong.append(one)
        self._verdicts.check(
            "R19",
            offset <= log.high_watermark and not wrong,
            f"{record}: {life.name} deletes {wrong} up to {offset}, committed is {log.high_watermark}",
        )
        record.asked_start = max(record.asked_start, offset)

    def _forget_deleted(self, record: PartitionRecord, log: ObservedLog) -> int:
        """Remove from a follower's mirror its own batches below its leader's log start; return their number.

        A former leader may have records there that no other replica has. It deletes them when a response contains the
        higher log start, or the first records after it.
        """
        leader = None if record.zk is None else record.logs.get(record.zk.leader)
        if leader is None or leader is log or leader.log_start_offset <= log.mirror.start:
            return 0
        start = leader.log_start_offset
        # This leader's log may never have had the records that were committed before an unclean election.
        own, wanted = log.mirror.chain_at(start), (leader.mirror if record.voided else record.committed).chain_at(start)
        if own is None or wanted is None or own == wanted:
            return 0
        count = len(log.mirror.ends)
        log.mirror.forget_below(start, wanted)
        return count - len(log.mirror.ends)

    def _was_asked_for(self, life: "BrokerLife", record: PartitionRecord, log: ObservedLog) -> None:
        self._verdicts.check(
            "R18",
            # Followers adopt and keep the start of the only ISR member, which leads although it lacks first segments.
            log.log_start_offset <= record.asked_start
            or record.was_led_without(record.asked_start, log.log_start_offset),
            f"{record}: {life.name} starts at {log.log_start_offset}, requested was {record.asked_start}",
        )

    def _starts_where_promised(self, life: "BrokerLife", record: PartitionRecord, log: ObservedLog) -> None:
        """Check that a restart restores no records that a leader had deleted."""
        if life.broker_id in record.flipped:
            return
        self._was_asked_for(life, record, log)
        promised = record.promised_starts.get(life.broker_id)
        if promised is not None:
            self._verdicts.check(
                "R18",
                log.log_start_offset >= promised,
                f"{record}: {life.name} starts at {log.log_start_offset} again, it had deleted up to {promised}",
            )

    def log_starts_lost(self, broker_id: int) -> None:
        """Record that the file with a broker's log starts was damaged; only the starts of segments are known."""
        for record in self._records.by_id.values():
            record.promised_starts.pop(broker_id, None)

    # High watermarks

    def high_watermark_moved(self, life: "BrokerLife", log: ObservedLog, before: int) -> None:
        """Check a changed high watermark."""
        verdicts = self._verdicts
        now = log.high_watermark
        record = self._records.of_log(log)
        verdicts.exercise("R8")
        if not log.log_start_offset <= now <= log.log_end_offset:
            verdicts.fail("R8", f"{life.name} {log.topic_partition}: {now} is outside the log")
        hosted = self._hosted(life, log)
        if hosted is None or record is None:
            return
        if not hosted.is_leader:
            self._follows(life, record, log, now)
            return
        if now < before:
            verdicts.fail("R8", f"{record}: {life.name} leads and falls from {before} to {now}")
        verdicts.exercise("R7")
        if len(hosted.isr) < max(record.min_insync_replicas, log.config.min_insync_replicas):
            verdicts.fail("R7", f"{record}: {life.name} commits {now} with ISR {hosted.isr}")
        if record.is_valid_leader(life.broker_id, hosted.leader_epoch):
            self._counts_all(life, record, hosted, now)
        if record.zk is not None and now > record.thw:
            self._committed(life, record, record.zk, log, now)

    def _follows(self, life: "BrokerLife", record: PartitionRecord, log: ObservedLog, now: int) -> None:
        """Check that a follower's high watermark covers only committed records, and that it has them."""
        if record.voided or life.broker_id in record.damaged:
            return
        if now > record.thw:
            self._verdicts.fail("R8", f"{record}: {life.name} follows to {now}, committed is {record.thw}")
        self._forget_deleted(record, log)
        known, own = record.committed.chain_at(now), log.mirror.chain_at(now)
        self._verdicts.exercise("R3")
        if known is not None and own is not None and known != own:
            self._verdicts.fail("R3", f"{record}: {life.name} has another history below its high watermark {now}")

    def _counts_all(self, life: "BrokerLife", record: PartitionRecord, hosted: Partition, now: int) -> None:
        assert record.zk is not None
        self._verdicts.exercise("R6")
        for member in record.zk.isr:
            follower = hosted.followers.get(member)
            known = None if follower is None else follower.log_end_offset
            if member != life.broker_id and (known is None or known < now):
                self._verdicts.fail(
                    "R6", f"{record}: {life.name} commits {now}, knows {member} at {known}, ISR {record.zk.isr}"
                )

    def _committed(
        self, life: "BrokerLife", record: PartitionRecord, zk: LeaderAndIsr, log: ObservedLog, now: int
    ) -> None:
        """Move the true commit point.

        A deposed leader that does not know its successor may still commit while its followers do not know the successor
        either. Every ISR member, including the successor, has the records that it then commits, so its commits count
        too.
        """
        verdicts = self._verdicts
        verdicts.exercise("C3")
        mirror = log.mirror
        if not record.has_all_committed(mirror):
            if life.broker_id in record.flipped:
                record.voided = record.voided or f"{life.name} leads with damaged records"
            if not record.voided:
                verdicts.fail("C3", f"{record}: {life.name} commits {now} over another history below {record.thw}")
            record.committed = mirror.copy()
            record.committed.cut(now)
        else:
            self._extend(record, mirror, now)
        record.thw = now
        # The mirror of a damaged replica lacks the batches after the damage.
        if record.committed.end != now and life.broker_id not in record.flipped:
            verdicts.fail("R8", f"{record}: {life.name} commits {now} inside a batch")
        for member in zk.isr:
            self._complete(record, member, "at a commit")

    def _extend(self, record: PartitionRecord, mirror: Mirror, now: int) -> None:
        committed = record.committed
        for index in range(mirror.first_above(committed.end), len(mirror.ends)):
            if mirror.ends[index] > now:
                break
            committed.add(mirror.bases[index], mirror.ends[index], mirror.epochs[index], mirror.crcs[index])

    def _complete(self, record: PartitionRecord, broker_id: int, when: str) -> None:
        """Check that an ISR member, running or stopped, has everything committed."""
        log = record.logs.get(broker_id)
        if record.voided or broker_id in record.damaged or not record.thw:
            return
        if log is None and record.topic_id in self._cluster.checks.dead_topic_ids:
            return  # The brokers of a deleted topic delete their replicas at different times.
        self._verdicts.exercise("R5b")
        if log is None or not record.has_all_committed(log.mirror):
            end = None if log is None else log.mirror.end
            self._verdicts.fail("R5b", f"{record}: broker {broker_id} ends at {end} of {record.thw} {when}")

    def set_aside(self, life: "BrokerLife", log: ObservedLog) -> None:
        """Record that a log was renamed; the next log of the partition on this broker begins empty."""
        record = self._records.of_log(log)
        if record is not None:
            record.forget_replica(life.broker_id)

    def deleted(self, life: "BrokerLife", log: ObservedLog) -> None:
        """Record that a log is being deleted, even if its broker had no role for the partition."""
        record = self._records.of_log(log)
        if record is not None:
            record.forget_replica(life.broker_id)
            record.undo_damage(life.broker_id)

    def moved(self, life: "BrokerLife", old: ObservedLog, log: ObservedLog) -> None:
        """Check a log that has replaced another one at the end of a move between directories."""
        record = self._records.of_log(log)
        if record is None:
            return
        record.logs[life.broker_id] = log
        record.root(log.mirror, old.mirror)
        self._forget_as_before(log, old.mirror)
        if record.is_unknowable or life.broker_id in record.flipped:
            return
        offsets = [(one.log_start_offset, one.high_watermark, one.log_end_offset) for one in (old, log)]
        self._verdicts.check("R24", offsets[0] == offsets[1], f"{record}: {life.name} moves {offsets}")
        self._verdicts.check(
            "R24", old.mirror.same_history(log.mirror), f"{record}: {life.name} moves another log, {offsets}"
        )
        self.epochs_agree(life.name, record, log)
        self._compaction.contents(life, record, log)

    # Roles

    def state_changed(self, record: PartitionRecord, old: LeaderAndIsr | None, new: LeaderAndIsr) -> None:
        """Check a new state in ZooKeeper."""
        if new.isr and not record.voided and record.flipped.keys() >= set(new.isr):
            record.voided = f"only {list(new.isr)} are in sync, and their records are damaged on the disk"
        for member in new.isr:
            if old is None or member not in old.isr:
                self._complete(record, member, "when it joins the ISR")
                life = self._cluster.brokers[member].life if member in record.damaged else None
                if life is not None and member in record.logs:
                    self._maybe_whole(record, life)

    def _maybe_whole(self, record: PartitionRecord, life: "BrokerLife") -> None:
        """End the exemption of a replica that has every record again.

        Before the replica's broker has registered, a leader may still count a delayed fetch of its previous process,
        which had more records, and let it join the ISR; the controller removes it when it handles the unclean restart.
        """
        if life.node.broker_epoch >= 0:
            record.maybe_whole(life.broker_id)

    def directory_failed(self, life: "BrokerLife", path: str, error: Exception) -> None:
        """Check that a running broker does not take a full disk for a broken one."""
        if is_no_room(error):
            self._verdicts.fail("R23", f"{life.name} takes {path} offline: {error}")

    def broker_changed(self, life: "BrokerLife", change: StateChange) -> None:
        """Check a state change of a broker."""
        if change.kind is StateChangeKind.LOG_DIR_SHORT:
            self._verdicts.exercise("R23")
        if change.kind is StateChangeKind.REPLICA_DELETED and change.topic_id and change.topic_partition:
            record = self._records.get(change.topic_id, change.topic_partition)
            # The deletion at the end of a known reassignment is allowed: only assigned replicas have data to lose.
            keeps = record.harmed and life.broker_id in record.assignment.target
            if keeps and record.topic_id not in self._cluster.checks.dead_topic_ids:
                self._verdicts.fail("H26", f"{record}: {life.name} deletes the data of a topic with invalid nodes")
        if change.kind not in (StateChangeKind.BECAME_LEADER, StateChangeKind.BECAME_FOLLOWER):
            return
        assert change.topic_partition is not None and change.leader_epoch is not None
        log = life.logs.get(change.topic_partition)
        if not isinstance(log, ObservedLog) or log.topic_id is None:
            return
        record = self._records.get(log.topic_id, log.topic_partition)
        if change.kind is StateChangeKind.BECAME_LEADER:
            self._became_leader(life, log, record, change.leader_epoch)
        elif not log.mirror.ends:
            self._identified(life, log, record)

    def _identified(self, life: "BrokerLife", log: ObservedLog, record: PartitionRecord) -> None:
        """Keep a log with its partition: an empty log has no topic id on disk, and gets it with its first role."""
        record.logs[life.broker_id] = log
        record.root(log.mirror)

    def _became_leader(self, life: "BrokerLife", log: ObservedLog, record: PartitionRecord, leader_epoch: int) -> None:
        self._identified(life, log, record)
        is_new = leader_epoch not in record.leaders
        first = record.leaders.setdefault(leader_epoch, life.broker_id)
        record.led_us.setdefault(leader_epoch, self._cluster.world.now_us)
        self._verdicts.check(
            "R1", first == life.broker_id, f"{record}: {first} and {life.broker_id} lead in {leader_epoch}"
        )
        latest = log.epochs.entries[-1] if log.epochs.entries else None
        self._verdicts.check(
            "R4",
            latest is not None
            and latest.epoch == leader_epoch
            # A restarted leader continues in its epoch, which began earlier.
            and (
                latest.start_offset == log.log_end_offset or (not is_new and latest.start_offset < log.log_end_offset)
            ),
            f"{record}: {life.name} leads in {leader_epoch} from {log.log_end_offset}, its cache ends with {latest}",
        )
        if -1 in record.unclean_starts.values():
            # After a first unclean election the committed log is unknown; a second election may lose more records.
            start = record.kept_by(log.mirror) if len(record.unclean_starts) == 1 else 0
            record.unclean_starts = {
                epoch: start if known == -1 and epoch <= leader_epoch else known
                for epoch, known in record.unclean_starts.items()
            }
        if life.broker_id in record.flipped:
            # A damaged length field looks like an interrupted append: later records are lost, and the epoch continues.
            record.voided = record.voided or f"{life.name} leads with damaged records"
            record.led_damaged = True
        if life.broker_id in record.lost_segments:
            record.led_without.append(record.lost_segments[life.broker_id])
        if record.voided:
            return
        if not record.is_valid_leader(life.broker_id, leader_epoch):
            return
        if record.topic_id in self._cluster.checks.dead_topic_ids:
            return  # The controller no longer elects leaders, and restores the last leader until the topic is deleted.
        self._verdicts.check(
            "R5",
            record.has_all_committed(log.mirror),
            f"{record}: {life.name} becomes leader in {leader_epoch} ending at {log.mirror.end} of {record.thw}",
        )

    # Restarts

    def power_lost(self, machine: "BrokerMachine") -> None:
        """Record that every replica of this machine may have lost records."""
        for record in self._records.by_id.values():
            if machine.broker_id in record.logs and not record.deleted:
                record.damage(machine.broker_id)

    def started(self, life: "BrokerLife") -> None:
        """Check the logs that a broker has loaded."""
        for log in life.logs.observed_logs():
            record = self._records.of_log(log)
            if record is None:
                continue
            before = record.logs.get(life.broker_id)
            record.logs[life.broker_id] = log
            if life.broker_id in record.lost_segments:
                self._verdicts.check(
                    "R14",
                    record.topic_partition in life.logs.unexplained_gaps,
                    f"{record}: {life.name} does not notice that a segment is missing",
                )
            record.root(log.mirror, None if before is None else before.mirror)
            if before is not None and before is not log:
                self._forget_as_before(log, before.mirror)
            self._starts_where_promised(life, record, log)
            self._compare(life, record, log, before)
            self._high_watermark_is_true(life, record, log)
            self._compaction.contents(life, record, log)
            if life.broker_id not in record.flipped:
                self.epochs_agree(life.name, record, log)
        if len(life.logs.live_log_dirs) < len(life.logs.log_dirs):
            return  # Logs in a directory that could not be loaded still exist.
        for record in self._records.by_id.values():
            old = record.logs.get(life.broker_id)
            if old is None or record.deleted or life.logs.get(record.topic_partition) is old:
                continue
            current = life.logs.get(record.topic_partition)
            if isinstance(current, ObservedLog) and current.topic_id == record.topic_id:
                continue
            self._gone(life, record, old)

    def _forget_as_before(self, log: ObservedLog, before: Mirror) -> None:
        """Remove from the loaded mirror the batches that its predecessor had removed, if the log starts above them."""
        forgotten = log.mirror.start < before.start <= log.log_start_offset
        if forgotten and before.seed is not None and log.mirror.chain_at(before.start) is not None:
            log.mirror.forget_below(before.start, before.seed)

    def _gone(self, life: "BrokerLife", record: PartitionRecord, old: ObservedLog) -> None:
        name = f"/{directory_name(record.topic_partition)}."
        # The previous process may have set the log aside in a directory that failed at the same time: the file exists.
        is_aside = any(name in path for path in life.logs.set_aside)
        if (
            not is_aside
            and old.mirror.ends
            and life.broker_id not in record.damaged
            and life.broker_id in record.assignment.replicas
        ):
            self._verdicts.fail("R14", f"{record}: {life.name} has no log any more, it ended at {old.mirror.end}")
        old.mirror = Mirror()

    def _compare(
        self, life: "BrokerLife", record: PartitionRecord, log: ObservedLog, before: ObservedLog | None
    ) -> None:
        if before is None or before is log or record.is_unknowable:
            return
        kept = before.mirror.same_history(log.mirror)
        if before.directory.is_offline or (life.machine.has_died_at_work and life.broker_id not in record.damaged):
            # An append or truncation that failed on storage, or was in progress when the process died, may have reached
            # the file: its caller got an uncertain result.
            common = min(before.mirror.end, log.mirror.end)
            kept = before.mirror.chain_at(common) == log.mirror.chain_at(common)
        # The start offset of an empty log is durable before the broker may join the ISR with it. When storage failed at
        # that moment, an unclean election may make the broker the only ISR member before the controller knows of it.
        may_join = record.zk is not None and life.broker_id in record.zk.isr and not before.directory.is_offline
        kept = kept or (not before.mirror.ends and not may_join)
        self._verdicts.exercise("R14")
        if life.broker_id in record.flipped:
            return
        if life.broker_id not in record.damaged and not kept:
            self._verdicts.fail(
                "R14", f"{record}: {life.name} restarts with {log.mirror.end} instead of {before.mirror.end}"
            )
        if life.broker_id in record.damaged:
            if kept and life.broker_id not in record.incomplete:
                record.undo_damage(life.broker_id)
            elif not kept:
                record.incomplete.add(life.broker_id)
                known = before.mirror.chain_at(log.mirror.end)
                own = log.mirror.chain_at(log.mirror.end) if log.mirror.chains else known
                # A truncation that was not durable may be undone; the restored records were appended earlier.
                once = record.lineage.get((log.mirror.end, log.mirror.epochs[-1])) if log.mirror.epochs else None
                # Segments restored after a power failure begin at an offset below which the records are unknown.
                had = own in (known, once) if own is not None else log.mirror.begins(before.mirror)
                # A gap that compaction or the power failure may have caused marks the log as damaged: it is rebuilt.
                is_reported = record.topic_partition in life.logs.unexplained_gaps
                if known is not None and not had and not is_reported:
                    self._verdicts.fail("R14", f"{record}: {life.name} restarts with a history it never had")
            self._maybe_whole(record, life)

    def _high_watermark_is_true(self, life: "BrokerLife", record: PartitionRecord, log: ObservedLog) -> None:
        if record.voided:
            return
        self._verdicts.check(
            "R14",
            log.high_watermark <= max(record.thw, log.log_start_offset) and log.high_watermark <= log.log_end_offset,
            f"{record}: {life.name} loads {log.high_watermark} of {log.log_end_offset}, committed {record.thw}",
        )

    def epochs_agree(self, who: str, record: PartitionRecord, log: ObservedLog) -> None:
        """Check that the epoch cache has the first offset of each epoch in the log; it may also have empty epochs."""
        if record.is_unknowable:
            return
        mirror = log.mirror
        wanted: dict[int, int] = {}
        start = log.log_start_offset
        for index in range(mirror.first_above(start), len(mirror.ends)):
            wanted.setdefault(mirror.epochs[index], max(mirror.bases[index], start))
        entries = {entry.epoch: entry.start_offset for entry in log.epochs.entries}
        if record.topic_partition.topic == OFFSETS_TOPIC:
            # Compaction may have removed every batch of an epoch, or its first batches: then the epoch may begin
            # earlier.
            wanted = {epoch: min(first, entries[epoch]) for epoch, first in wanted.items() if epoch in entries}
        extra = {epoch: start for epoch, start in entries.items() if epoch not in wanted}
        missing = {epoch: first for epoch, first in wanted.items() if entries.get(epoch) != first}
        if wanted and len(missing) == 1:
            # A follower that starts again within a batch records the epoch at the start of the batch.
            first = mirror.first_above(start)
            if mirror.bases[first] <= entries.get(mirror.epochs[first], -1) <= start:
                missing.pop(mirror.epochs[first], None)
        # An epoch without records starts where the next epoch with records starts, or later.
        misplaced = {epoch for epoch, start in extra.items() if start > mirror.end}
        self._verdicts.check(
            "R4", not missing and not misplaced, f"{record}: {who} knows epochs {entries}, the log has {wanted}"
        )

    @staticmethod
    def _hosted(life: "BrokerLife", log: ObservedLog) -> Partition | None:
        node = getattr(life, "node", None)
        hosted = None if node is None else node.replica_manager.hosted.online.get(log.topic_partition)
        return hosted if hosted is not None and hosted.log is log else None
