"""Faults of disks, and damaged or lost files."""

from pathlib import PurePath
from typing import TYPE_CHECKING

from paceline.log.checkpoint import LOG_START_CHECKPOINT
from tests.simulation.fault_schedule import Fault
from tests.simulation.machines import BrokerMachine
from tests.simulation.partition_record import PartitionRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.cluster import SimulatedCluster

SEGMENT_SUFFIX = ".log"
INDEX_SUFFIXES = (".index", ".timeindex", ".snapshot", ".earlier-batches")
DERIVED_SUFFIXES = (*INDEX_SUFFIXES, "leader-epoch-checkpoint", "offset-checkpoint")


class DiskFaults:
    """Executes faults of disks; part of the fault injector."""

    _cluster: "SimulatedCluster"

    def _broker(self, fault: Fault) -> BrokerMachine:
        raise NotImplementedError

    def _after(self, fault: Fault, do: "Callable[[], None]") -> None:
        raise NotImplementedError

    def _failed_sync(self, fault: Fault) -> None:
        """Make the next fsync fail: the log directory goes offline; if it is the only directory, the broker stops."""
        self._broker(fault).disk.fail_next_sync = True
        self._after(fault, self._broker(fault).retry_directories)

    def _failed_write(self, fault: Fault) -> None:
        """Make the next write fail after a part of its bytes."""
        self._broker(fault).disk.fail_next_write = True
        self._after(fault, self._broker(fault).retry_directories)

    def _full_disk(self, fault: Fault) -> None:
        """Let another program take the disk of a broker, up to some bytes, and give it back later."""
        machine = self._broker(fault)
        free_bytes = (0, fault.other % 300, fault.other % 1_500, fault.other % 6_000)[fault.pick // 7 % 4]
        machine.disk.capacity_bytes = machine.disk.used_bytes + free_bytes
        self._cluster.note(machine.name, f"has {free_bytes} bytes free")

        def give_back() -> None:
            machine.disk.capacity_bytes = None

        self._after(fault, give_back)

    def _flipped_byte(self, fault: Fault) -> None:
        """Flip a byte of a replica's records, if another in-sync replica is intact."""
        whole = [
            record
            for record in self._cluster.checks.records.living()
            if record.zk is not None and len(record.zk.isr) > 1 and not record.damaged and not record.voided
        ]
        if not whole:
            return
        record = whole[fault.pick % len(whole)]
        assert record.zk is not None
        machine = self._cluster.brokers[record.zk.isr[fault.other % len(record.zk.isr)]]
        segments = self._expendable_segments(record, machine)
        if segments:
            path = segments[fault.other // 7 % len(segments)]
            size = machine.disk.size(path)
            if size:
                self._cluster.note(machine.name, f"has a flipped byte in {path}")
                record.flip(machine.broker_id)
                machine.files_damaged()
                machine.disk.flip_byte(path, fault.pick * 31 % size, 1 << fault.other % 8)

    def _expendable_segments(self, record: PartitionRecord, machine: BrokerMachine) -> list[str]:
        """Return the segment files of a replica, none unless an ISR member on another broker has all its records."""
        log = record.logs.get(machine.broker_id)
        isr = () if record.zk is None else record.zk.isr
        others = [record.logs[one] for one in isr if one in record.logs and one != machine.broker_id]
        if log is None or all(other.log_end_offset < log.log_end_offset for other in others):
            return []
        return [
            path for path in machine.disk.paths() if path.startswith(log.path + "/") and path.endswith(SEGMENT_SUFFIX)
        ]

    def _lose_segment(self, fault: Fault) -> None:
        """Stop a broker orderly; meanwhile a segment before the last vanishes, if another in-sync replica is intact."""
        machine = self._broker(fault)

        def lose() -> None:
            for record in self._cluster.checks.records.living():
                found = [] if record.damaged or record.voided else self._expendable_segments(record, machine)
                with_batches = sorted(path for path in found if machine.disk.size(path))
                if len(with_batches) < 2 or not machine.has_stopped_cleanly:
                    continue
                number = fault.other % (len(with_batches) - 1)
                path = with_batches[number]
                self._cluster.note(machine.name, f"loses {path}")
                first, end = (int(PurePath(one).stem) for one in with_batches[number : number + 2])
                record.lose_segment(machine.broker_id, first, end)
                machine.files_damaged()
                for suffix in (SEGMENT_SUFFIX, *INDEX_SUFFIXES)[: 1 if fault.other % 2 else None]:
                    if machine.disk.exists(path.replace(SEGMENT_SUFFIX, suffix)):
                        machine.disk.vanish(path.replace(SEGMENT_SUFFIX, suffix))

        machine.stop(restart_after_ms=fault.duration_ms, then=lose)

    def _damaged_file(self, fault: Fault) -> None:
        """Kill a broker, and write invalid bytes into a file that can be rebuilt: an index or a checkpoint."""
        machine = self._broker(fault)
        machine.crash()
        derived = [path for path in machine.disk.paths() if path.endswith(DERIVED_SUFFIXES)]
        for number in range(1 + fault.other % 3):
            if derived:
                path = derived[(fault.other // 5 + number * 101) % len(derived)]
                self._cluster.note(machine.name, f"has foreign bytes in {path}")
                if path.endswith(LOG_START_CHECKPOINT):
                    self._cluster.checks.replicas.log_starts_lost(machine.broker_id)
                machine.disk.garble(path)
        self._after(fault, machine.start)

    def _stop_and_lose_power(self, fault: Fault) -> None:
        """Lose power directly after an orderly stop, which must have made all data durable."""
        machine = self._broker(fault)
        machine.stop(restart_after_ms=fault.duration_ms, then=machine.lose_power)
