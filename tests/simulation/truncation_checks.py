"""Logs after a truncation: no producer state above the end, and correct lookups by time."""

from typing import TYPE_CHECKING

from paceline.log.damage import DamagedLogError
from paceline.model.errors import KafkaStorageError
from tests.simulation.history import History
from tests.simulation.observed_log import Mirror, ObservedLog
from tests.simulation.partition_record import PartitionRecords
from tests.simulation.verdicts import Verdicts

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster
    from tests.simulation.machines import BrokerLife

_LOOK_UPS = 3


class TruncationChecks:
    """R20 and R21. They use their own random stream, so they do not change the run."""

    def __init__(
        self, cluster: "SimulatedCluster", verdicts: Verdicts, records: PartitionRecords, history: History
    ) -> None:
        self._cluster = cluster
        self._verdicts = verdicts
        self._records = records
        self._history = history
        self._chance = cluster.world.chance("look-ups by time")

    def truncated(self, life: "BrokerLife", log: ObservedLog, removed: Mirror) -> None:
        """Check a log that was just truncated; ``removed`` has the removed batches."""
        if removed.ends:
            beyond = log.beyond_the_end()
            self._verdicts.check(
                "R20", not beyond, f"{life.name} {log.topic_partition}: cut to {log.log_end_offset}, has {beyond}"
            )
            self.look_up(life, log, log.log_end_offset)

    def look_up(self, life: "BrokerLife", log: ObservedLog, limit_offset: int) -> None:
        """Look up times close to those of some batches, and compare the results with the records in the log."""
        record = self._records.of_log(log)
        mirror = log.mirror
        if record is None or not mirror.ends or life.broker_id in record.flipped or life.machine.has_damaged_files:
            return
        first = mirror.first_above(log.log_start_offset)
        known = [self._history.by_crc.get(crc) for crc in mirror.crcs[first:]]
        times = [one.timestamp_ms for one in known if one is not None]
        if not times or len(times) < len(known):
            return
        for _ in range(_LOOK_UPS):
            wanted_ms = self._chance.choice(times) + self._chance.choice((0, 0, 1, -1))
            expected: tuple[int, int] | None = None
            for base, time_ms in zip(mirror.bases[first:], times, strict=True):
                offset = max(base, log.log_start_offset)
                if time_ms >= wanted_ms:
                    expected = (offset, time_ms) if offset < limit_offset else None
                    break
            try:
                found = log.offset_for_timestamp(wanted_ms, limit_offset)
            except KafkaStorageError:
                return
            except DamagedLogError as error:
                self._verdicts.fail("R21", f"{life.name} {log.topic_partition}: {wanted_ms} is not found: {error}")
                return
            self._verdicts.check(
                "R21",
                found == expected,
                f"{life.name} {log.topic_partition}: {wanted_ms} is found at {found}, it lies at {expected}",
            )
