"""A repeated batch in the log is a duplicate after every load: docs/protocol/log-format.md#producer-snapshots."""

from collections.abc import Callable

import pytest

from paceline.log.log_config import LogConfig
from paceline.log.partition_log import PartitionLog
from paceline.log.record_batch import MAX_INT32
from paceline.model.errors import OutOfOrderSequenceNumberError
from tests.unit.log.helpers import DIRECTORY, NOW_MS, SMALL, TP, batch, crash, manager
from tests.unit.log.memory_files import MemoryFiles

BATCHES = 14
PRODUCERS = (7, 8)
FIRST_SEQUENCE = 1_000


class Broker:
    """A process with one log of batches of two records, written by two producers in turn."""

    def __init__(self, config: LogConfig = SMALL, first_sequence: int = FIRST_SEQUENCE, batches: int = BATCHES) -> None:
        self.files = MemoryFiles()
        self._config = config
        self._first_sequence = first_sequence
        self.start()
        self.manager.get_or_create(TP, None, True)
        for i in range(batches):
            self.log.append_as_leader(self.batch(i), 0, NOW_MS)

    @property
    def log(self) -> PartitionLog:
        found = self.manager.get(TP)
        assert found is not None
        return found

    def batch(self, i: int) -> bytes:
        """Return batch ``i`` of the log, at offset 2 * i."""
        sequence = (self._first_sequence + i // 2 * 2) & MAX_INT32
        return batch(b"a%d" % i, b"b%d" % i, producer=(PRODUCERS[i % 2], 0, sequence))

    def stop(self) -> None:
        self.manager.shutdown()

    def kill(self) -> None:
        self.manager.checkpoint_recovery_points()
        crash(self.files)

    def start(self) -> None:
        self.manager, report = manager(self.files, self._config)
        assert report.directories[0].quarantined == []

    def restart(self) -> None:
        self.stop()
        self.start()

    def check_repeats(self, end: int = BATCHES) -> None:
        """Repeat the last five batches of each producer below batch ``end``, then write the next ones."""
        for i in range(max(0, end - 10), end):
            info = self.log.append_as_leader(self.batch(i), 1, NOW_MS)
            assert (info.duplicate, info.base_offset, info.last_offset) == (True, 2 * i, 2 * i + 1), i
        for i in (end, end + 1):
            assert not self.log.append_as_leader(self.batch(i), 1, NOW_MS).duplicate

    def names(self, suffix: str) -> list[str]:
        return sorted(name for name in self.files.contents if name.endswith(suffix))

    @property
    def earlier(self) -> list[str]:
        return self.names(".earlier-batches")

    @property
    def snapshots(self) -> list[str]:
        return self.names(".snapshot")

    def check_pairs(self) -> None:
        """Check that there are no earlier batches without a snapshot."""
        assert {name.partition(".")[0] for name in self.earlier} <= {name.partition(".")[0] for name in self.snapshots}


ONE_SEGMENT = LogConfig()
CONFIGS = pytest.mark.parametrize("config", [SMALL, ONE_SEGMENT], ids=["segments", "one segment"])


@CONFIGS
def test_the_last_five_batches_of_each_producer_are_known_after_an_orderly_stop(config: LogConfig) -> None:
    broker = Broker(config)
    broker.restart()
    broker.restart()
    broker.check_repeats()


@CONFIGS
def test_the_last_five_batches_of_each_producer_are_known_after_a_crash(config: LogConfig) -> None:
    broker = Broker(config)
    broker.restart()
    broker.log.flush()
    broker.kill()
    broker.start()
    broker.check_repeats()


def test_the_last_five_batches_are_known_when_the_crash_follows_a_roll() -> None:
    broker = Broker(batches=0)
    while len(broker.snapshots) < 3:
        broker.log.append_as_leader(broker.batch(broker.log.log_end_offset // 2), 0, NOW_MS)
    end = broker.log.log_end_offset // 2
    broker.log.flush()
    broker.kill()
    broker.start()
    broker.check_repeats(end)


@pytest.mark.parametrize("restarted", [True, False], ids=["started before", "same process"])
@pytest.mark.parametrize("end", range(2, BATCHES))
def test_the_last_five_batches_below_a_truncation_are_known(end: int, restarted: bool) -> None:
    broker = Broker()
    if restarted:
        broker.restart()
    broker.log.truncate_to(2 * end)
    broker.check_repeats(end)


def test_a_truncation_within_a_batch_forgets_this_batch_and_keeps_the_five_before_it() -> None:
    broker = Broker()
    broker.restart()
    broker.log.truncate_to(2 * BATCHES - 1)
    broker.restart()
    broker.check_repeats(BATCHES - 1)


def test_sequences_that_wrap_are_known_after_a_start() -> None:
    broker = Broker(first_sequence=MAX_INT32 - 6)
    broker.restart()
    assert {one.first_sequence for one in broker.log.producers.entries[0].batches} >= {MAX_INT32, 1}
    broker.check_repeats()


def test_a_sequence_below_the_first_batch_of_a_producer_is_no_duplicate_after_a_start() -> None:
    broker = Broker(batches=4)
    broker.restart()
    with pytest.raises(OutOfOrderSequenceNumberError):
        broker.log.append_as_leader(batch(b"x", b"y", producer=(7, 0, FIRST_SEQUENCE - 2)), 0, NOW_MS)


DAMAGES: dict[str, Callable[[bytearray], bytearray]] = {
    "emptied": lambda _data: bytearray(),
    "shortened": lambda data: data[:-1],
    "without its last row": lambda data: data[:-32],
    "another byte": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "another version": lambda data: bytearray(b"\x00\x02") + data[2:],
}


@CONFIGS
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_batches_are_read_from_the_log_when_their_file_is_damaged(
    damage: Callable[[bytearray], bytearray], config: LogConfig
) -> None:
    broker = Broker(config)
    broker.stop()
    assert broker.earlier
    for name in broker.earlier:
        broker.files.contents[name] = damage(broker.files.contents[name])
    broker.start()
    broker.check_repeats()


def test_earlier_batches_of_another_snapshot_are_not_used() -> None:
    broker = Broker()
    broker.stop()
    *_, older, newest = broker.earlier
    broker.files.contents[newest] = bytearray(broker.files.contents[older])
    broker.start()
    broker.check_repeats()


def test_a_snapshot_of_a_version_without_the_second_file_gives_the_newest_batch() -> None:
    broker = Broker(ONE_SEGMENT)
    broker.stop()
    for name in broker.earlier:
        del broker.files.contents[name]
    broker.start()
    assert broker.log.append_as_leader(broker.batch(BATCHES - 1), 0, NOW_MS).duplicate
    for i in range(BATCHES, BATCHES + 8):
        broker.log.append_as_leader(broker.batch(i), 0, NOW_MS)
    broker.restart()
    broker.check_repeats(BATCHES + 8)


def test_a_snapshot_that_lacks_no_batch_has_no_second_file() -> None:
    broker = Broker(batches=2)
    broker.log.append_as_leader(batch(b"without a producer"), 0, NOW_MS)
    broker.restart()
    assert (len(broker.snapshots), broker.earlier) == (1, [])
    broker.log.append_as_leader(broker.batch(2), 0, NOW_MS)
    broker.stop()
    assert broker.earlier == [f"{DIRECTORY}/00000000000000000007.earlier-batches"]


def test_the_second_file_is_removed_when_its_snapshot_is_rewritten_without_producers() -> None:
    broker = Broker()
    broker.restart()
    newest = broker.snapshots[-1]
    assert newest.replace(".snapshot", ".earlier-batches") == broker.earlier[-1]
    broker.log.remove_expired_producers(NOW_MS + 10, 0)
    assert broker.log.producers.entries == []
    broker.stop()
    assert broker.snapshots[-1] == newest
    assert newest.replace(".snapshot", ".earlier-batches") not in broker.earlier


def test_a_second_file_is_written_before_its_snapshot_and_removed_after_it() -> None:
    broker = Broker()
    broker.restart()
    broker.log.truncate_to(BATCHES)
    steps = [
        (step, name.partition(".snapshot")[1] or ".earlier-batches")
        for step, name in broker.files.operations
        if step in ("create", "remove") and f"/{2 * BATCHES:020d}." in name
    ]
    assert steps == [
        ("create", ".earlier-batches"),
        ("create", ".snapshot"),
        ("remove", ".snapshot"),
        ("remove", ".earlier-batches"),
    ]


def test_second_files_are_removed_with_their_snapshots() -> None:
    broker = Broker()
    at_rolls = len(broker.earlier)
    assert at_rolls > 3
    broker.restart()
    broker.log.append_as_leader(broker.batch(BATCHES), 0, NOW_MS)
    broker.restart()  # The snapshot of the first stop belongs to no segment.
    broker.check_pairs()
    broker.log.truncate_to(BATCHES)
    broker.check_pairs()
    broker.log.update_high_watermark(BATCHES)
    broker.log.increment_log_start_offset(BATCHES - 2)
    broker.log.remove_segments_below_start()
    broker.check_pairs()
    assert 0 < len(broker.earlier) < at_rolls
    broker.log.truncate_fully_and_start_at(100)
    assert broker.snapshots == broker.earlier == []


def test_a_load_removes_second_files_without_a_snapshot() -> None:
    broker = Broker()
    broker.stop()
    for name in broker.snapshots[-2:]:
        del broker.files.contents[name]
    broker.start()
    broker.check_pairs()
    broker.check_repeats()
