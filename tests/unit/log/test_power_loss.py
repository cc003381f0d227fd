"""Durable records survive a loss of power, and the loaded log is a prefix of some earlier state."""

import random
from dataclasses import replace

import pytest

from paceline.log.checkpoint import LOG_START_CHECKPOINT, read_offsets
from paceline.log.directory_names import DAMAGED
from paceline.log.files import join
from paceline.log.load_report import LoadReport
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.partition_log import PartitionLog
from paceline.log.record_batch import check_crc, decode_batch, iterate_headers
from tests.simulation.disk import SimulatedDisk
from tests.unit.log.helpers import NOW_MS, ROOT, TP, batch

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)


class History:
    """Every record ever appended, and the records that must survive."""

    def __init__(self) -> None:
        self.states: list[list[tuple[int, int, bytes]]] = [[]]
        self.present: dict[int, tuple[int, bytes]] = {}
        self.durable_end = 0

    def append(self, offset: int, epoch: int, values: list[bytes]) -> None:
        for i, value in enumerate(values):
            self.present[offset + i] = (epoch, value)
        self.note()

    def truncate(self, offset: int) -> None:
        self.present = {known: what for known, what in self.present.items() if known < offset}
        self.durable_end = min(self.durable_end, offset)

    def note(self) -> None:
        self.states.append([(known, *what) for known, what in sorted(self.present.items())])

    def was_once(self, kept: list[tuple[int, int, bytes]]) -> bool:
        """Whether these records were the beginning of the log at some time, not a mixture of two states."""
        return any(state[: len(kept)] == kept for state in self.states)


def start(disk: SimulatedDisk, boot: int) -> tuple[LogManager, PartitionLog]:
    def failed(_path: str, error: Exception) -> None:
        raise error

    found = LogManager(disk, [ROOT], CONFIG, on_dir_failure=failed, boot_id=f"boot {boot}")
    found.load(NOW_MS)
    return found, found.get_or_create(TP, "A" * 22, True)


def contents(log: PartitionLog) -> list[tuple[int, int, bytes]]:
    found: list[tuple[int, int, bytes]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, log.log_end_offset)
        if not data:
            break
        for position, header in iterate_headers(data):
            check_crc(data, position, header)
            assert log.epochs.epoch_of(header.base_offset) == header.leader_epoch
            records = decode_batch(data[position : position + header.size])
            found.extend((record.offset, header.leader_epoch, record.value or b"") for record in records)
            offset = header.last_offset + 1
    return found


def step(rng: random.Random, found: LogManager, log: PartitionLog, history: History, number: int) -> None:
    kind = rng.random()
    if kind < 0.6:
        values = [b"%d-%d" % (number, i) for i in range(rng.randint(1, 4))]
        if rng.random() < 0.3:
            log.assign_leader_epoch(number, log.log_end_offset)
        history.append(log.append_as_leader(batch(*values), number, NOW_MS).base_offset, number, values)
    elif kind < 0.75:
        # Followers truncate at the end of an epoch, and so at the start of a batch.
        starts = sorted({entry.start_offset for entry in log.epochs.entries}) or [0]
        offset = rng.choice(starts[-6:])
        log.truncate_to(offset)
        history.truncate(offset)
    elif kind < 0.78:
        log.truncate_fully_and_start_at(log.log_end_offset)
        history.truncate(0)
    elif kind < 0.9:
        log.flush()
        history.durable_end = log.log_end_offset
    else:
        found.checkpoint_recovery_points()
        found.checkpoint_high_watermarks()


@pytest.mark.parametrize("seed", range(100))
def test_durable_records_survive_and_no_other_records_appear(seed: int) -> None:
    rng = random.Random(seed)
    disk = SimulatedDisk(lambda: NOW_MS, rng)
    history = History()
    found, log = start(disk, 0)
    for boot in range(1, 6):
        for number in range(rng.randint(0, 40)):
            step(rng, found, log, history, 1000 * boot + number)
        if rng.random() < 0.3:
            disk.crash_process()
            boot_id = boot - 1
        else:
            disk.lose_power()
            boot_id = boot
        found, log = start(disk, boot_id)
        kept = contents(log)
        offsets = [offset for offset, _, _ in kept]
        assert offsets == list(range(offsets[0], offsets[-1] + 1)) if offsets else True
        assert history.was_once(kept)
        assert [epoch for _, epoch, _ in kept] == sorted(epoch for _, epoch, _ in kept)
        durable = {offset: what for offset, what in history.present.items() if offset < history.durable_end}
        survived = {offset: (epoch, value) for offset, epoch, value in kept}
        assert {offset: survived.get(offset) for offset in durable if offset >= log.log_start_offset} == {
            offset: what for offset, what in durable.items() if offset >= log.log_start_offset
        }
        if boot_id == boot - 1:
            assert survived == history.present
        history.present = survived
        history.note()
        history.durable_end = min(history.durable_end, log.recovery_point)


def test_a_gap_between_segments_after_a_loss_of_power_ends_the_log() -> None:
    disk = SimulatedDisk(lambda: NOW_MS, random.Random(1))
    found, log = start(disk, 0)
    for i in range(20):
        log.append_as_leader(batch(b"value %d" % i), 0, NOW_MS)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 2
    disk.truncate(log.segments[0].log_path, 0)
    disk.append(log.segments[0].log_path, batch(b"value 0", base_offset=0, leader_epoch=0))
    disk.crash_process()
    _, after_crash = start(disk, 0)
    assert after_crash.log_end_offset == 20  # the page cache survived: a gap may be a compacted leader's
    disk.crash_process()
    _, after_power_loss = start(disk, 1)
    assert after_power_loss.log_end_offset == 1
    assert found.live_log_dirs == [ROOT]


@pytest.mark.parametrize(
    "settings", [None, replace(CONFIG, cleanup_policy=frozenset({"compact"}))], ids=["unknown settings", "compacted"]
)
def test_a_gap_after_a_loss_of_power_is_reported_when_compaction_may_have_left_it(settings: LogConfig | None) -> None:
    """Lost records and compaction look alike: neither may the log end at the gap, nor may the replica be trusted."""
    disk = SimulatedDisk(lambda: NOW_MS, random.Random(1))
    _, log = start(disk, 0)
    for i in range(20):
        log.append_as_leader(batch(b"value %d" % i), 0, NOW_MS)
    disk.truncate(log.segments[0].log_path, 0)
    disk.append(log.segments[0].log_path, batch(b"value 0", base_offset=0, leader_epoch=0))
    disk.crash_process()
    found = LogManager(disk, [ROOT], CONFIG, on_dir_failure=lambda *_: None, boot_id="boot 1")
    found.load(NOW_MS, lambda _topic: settings)
    (loaded,) = found.all_logs()
    assert loaded.log_end_offset == 20
    assert list(found.unexplained_gaps) == [loaded.topic_partition]


@pytest.mark.parametrize("is_clean", [False, True], ids=["crash", "clean stop"])
def test_a_gap_is_reported_again_after_restarts_until_the_log_is_set_aside(is_clean: bool) -> None:
    """The controller knows of the unclean restart; the replica was not rebuilt yet."""
    disk = SimulatedDisk(lambda: NOW_MS, random.Random(1))
    settings = replace(CONFIG, cleanup_policy=frozenset({"compact"}))
    _, log = start(disk, 0)
    for i in range(20):
        log.append_as_leader(batch(b"value %d" % i), 0, NOW_MS)
    disk.truncate(log.segments[0].log_path, 0)
    disk.append(log.segments[0].log_path, batch(b"value 0", base_offset=0, leader_epoch=0))
    disk.crash_process()

    def load() -> tuple[LogManager, LoadReport]:
        found = LogManager(disk, [ROOT], CONFIG, on_dir_failure=lambda *_: None, boot_id="boot 1")
        return found, found.load(NOW_MS, lambda _topic: settings)

    first, report = load()
    assert report.is_unclean_restart("boot 1")
    described = first.unexplained_gaps[TP]
    first.unclean_restart_noted()
    for _ in range(2):
        if is_clean:
            first.shutdown()
        else:
            disk.crash_process()
        first, report = load()
        assert not report.is_unclean_restart("boot 1") and not report.directories[0].quarantined
        assert first.unexplained_gaps == {TP: described}
    first.set_log_aside(TP, DAMAGED)
    disk.crash_process()
    after, _ = load()
    assert not after.unexplained_gaps and after.get(TP) is None


class KilledError(BaseException):
    """Stands for SIGKILL."""


def test_a_load_that_is_killed_before_it_has_stored_a_gap_finds_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a controller knows of the unclean restart, each load treats the page cache as lost."""
    disk = SimulatedDisk(lambda: NOW_MS, random.Random(1))
    settings = replace(CONFIG, cleanup_policy=frozenset({"compact"}))
    _, log = start(disk, 0)
    for i in range(20):
        log.append_as_leader(batch(b"value %d" % i), 0, NOW_MS)
    disk.truncate(log.segments[0].log_path, 0)
    disk.append(log.segments[0].log_path, batch(b"value 0", base_offset=0, leader_epoch=0))
    create = SimulatedDisk.create

    def kill(self: SimulatedDisk, path: str) -> None:
        if "known-damage" in path:
            raise KilledError
        create(self, path)

    with monkeypatch.context() as patches:
        patches.setattr(SimulatedDisk, "create", kill)
        for _ in range(2):
            disk.crash_process()
            with pytest.raises(KilledError):
                LogManager(disk, [ROOT], CONFIG, on_dir_failure=lambda *_: None, boot_id="boot 1").load(
                    NOW_MS, lambda _topic: settings
                )
    disk.crash_process()
    found = LogManager(disk, [ROOT], CONFIG, on_dir_failure=lambda *_: None, boot_id="boot 1")
    found.load(NOW_MS, lambda _topic: settings)
    assert list(found.unexplained_gaps) == [TP]


@pytest.mark.parametrize("seed", range(8))
def test_a_synced_deletion_survives_a_loss_of_power(seed: int) -> None:
    disk = SimulatedDisk(lambda: NOW_MS, random.Random(seed))
    manager, log = start(disk, 1)
    log.append_as_leader(batch(b"old"), 0, NOW_MS)
    log.flush()
    manager.delete(TP)
    manager.sync_deletions()
    disk.lose_power()
    _, again = start(disk, 2)
    assert again.log_end_offset == 0


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("crashes_first", [False, True])
def test_records_below_a_durable_log_start_stay_deleted_when_their_files_return(seed: int, crashes_first: bool) -> None:
    disk = SimulatedDisk(lambda: NOW_MS, random.Random(seed))
    manager, log = start(disk, 1)
    for i in range(20):
        log.append_as_leader(batch(b"value %d" % i), 0, NOW_MS)
    log.flush()
    manager.checkpoint_recovery_points()
    beginning = log.segments[2].base_offset
    log.increment_log_start_offset(beginning)
    assert log.remove_segments_below_start()
    manager.checkpoint_log_start_offsets()
    if crashes_first:
        disk.crash_process()
        manager, log = start(disk, 1)
        manager.checkpoint_log_start_offsets()
    disk.lose_power()
    _, again = start(disk, 2)
    assert again.log_start_offset == beginning and again.log_end_offset == 20
    assert [offset for offset, _, _ in contents(again)] == list(range(beginning, 20))


def test_a_log_start_is_not_in_the_checkpoint_once_the_first_segments_name_is_durable() -> None:
    disk = SimulatedDisk(lambda: NOW_MS, random.Random(1))
    manager, log = start(disk, 1)
    for i in range(20):
        log.append_as_leader(batch(b"value %d" % i), 0, NOW_MS)
    log.flush()
    log.increment_log_start_offset(log.segments[2].base_offset)
    log.remove_segments_below_start()
    manager.checkpoint_log_start_offsets()
    assert read_offsets(disk, join(ROOT, LOG_START_CHECKPOINT)) == {TP: log.log_start_offset}
    log.append_as_leader(batch(b"one more"), 0, NOW_MS)
    log.flush()
    manager.checkpoint_log_start_offsets()
    assert read_offsets(disk, join(ROOT, LOG_START_CHECKPOINT)) == {}


@pytest.mark.parametrize("seed", range(12))
def test_the_name_of_the_first_segment_file_is_durable(seed: int) -> None:
    """The log was flushed for its epoch before it had a file: its directory must be synced again."""
    disk = SimulatedDisk(lambda: NOW_MS, random.Random(seed))
    _, log = start(disk, 0)
    log.assign_leader_epoch(1, 0)
    log.flush()
    log.append_as_leader(batch(b"first"), 1, NOW_MS)
    log.flush()
    disk.lose_power()
    _, again = start(disk, 1)
    assert again.log_end_offset == 1 and contents(again) == [(0, 1, b"first")]


@pytest.mark.parametrize("seed", range(8))
def test_records_deleted_before_a_clean_stop_stay_deleted_when_their_files_return(seed: int) -> None:
    disk = SimulatedDisk(lambda: NOW_MS, random.Random(seed))
    manager, log = start(disk, 1)
    for i in range(20):  # without leader epochs, which a new log start would have written
        log.append_as_follower(batch(b"value %d" % i, base_offset=i))
    log.flush()
    beginning = log.segments[2].base_offset
    log.increment_log_start_offset(beginning)
    assert log.remove_segments_below_start()
    manager.shutdown()
    manager, log = start(disk, 1)
    manager.checkpoint_log_start_offsets()
    disk.lose_power()
    assert start(disk, 2)[1].log_start_offset == beginning


def nameless(disk: SimulatedDisk, boot: int, topic_id: str | None = None) -> tuple[LogManager, PartitionLog]:
    """As `start`, but the log gets a topic id only if one is given."""
    found = LogManager(disk, [ROOT], CONFIG, on_dir_failure=lambda _path, _error: None, boot_id=f"boot {boot}")
    found.load(NOW_MS)
    return found, found.get_or_create(TP, topic_id, True)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("appends", [False, True])
def test_a_topic_id_adopted_after_the_first_records_is_durable_after_a_stop(seed: int, appends: bool) -> None:
    disk = SimulatedDisk(lambda: NOW_MS, random.Random(seed))
    manager, log = nameless(disk, 0)
    log.append_as_leader(batch(b"one"), 0, NOW_MS)
    log.flush()
    log.assign_topic_id("A" * 22)
    if appends:
        log.append_as_leader(batch(b"two"), 0, NOW_MS)
        log.flush()
    else:
        manager.shutdown()
    disk.lose_power()
    assert nameless(disk, 1)[1].topic_id == "A" * 22


@pytest.mark.parametrize("seed", range(8))
def test_records_of_a_flush_overtaken_by_a_truncation_are_flushed_again(seed: int) -> None:
    """The flush ends at the first removed file: later files in its list are not durable."""
    disk = SimulatedDisk(lambda: NOW_MS, random.Random(seed))
    _, log = start(disk, 0)
    for i in range(20):
        log.append_as_leader(batch(b"value %d" % i), 0, NOW_MS)
    task = log.begin_flush()
    assert task is not None
    log.truncate_to(2)
    task.run()
    log.finish_flush(task)
    log.append_as_leader(batch(b"later"), 1, NOW_MS)
    log.flush()
    disk.lose_power()
    found = LogManager(disk, [ROOT], CONFIG, on_dir_failure=lambda _path, _error: None, boot_id="boot 1")
    found.load(NOW_MS)
    again = found.get(TP)
    assert again is not None and (again.topic_id, again.log_end_offset) == ("A" * 22, 3)


@pytest.mark.parametrize("seed", range(8))
def test_the_start_of_a_reset_log_survives_the_loss_of_its_first_file(seed: int) -> None:
    disk = SimulatedDisk(lambda: NOW_MS, random.Random(seed))
    manager, log = start(disk, 1)
    log.truncate_fully_and_start_at(100)
    manager.checkpoint_log_start_offsets()
    log.append_as_follower(batch(b"first", base_offset=100, leader_epoch=1))
    manager.checkpoint_log_start_offsets()
    disk.lose_power()
    assert start(disk, 2)[1].log_start_offset == 100


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("rolls", [False, True])
def test_an_append_that_requires_a_flush_is_durable_while_another_flush_runs(seed: int, rolls: bool) -> None:
    disk = SimulatedDisk(lambda: NOW_MS, random.Random(seed))
    config = LogConfig(flush_messages=1, segment_bytes=100 if rolls else 10_000)
    manager = LogManager(disk, [ROOT], config, on_dir_failure=lambda _path, _error: None, boot_id="boot 0")
    manager.load(NOW_MS)
    log = manager.get_or_create(TP, "A" * 22, True)
    log.assign_leader_epoch(1, 0)
    task = log.begin_flush()
    assert task is not None
    log.append_as_leader(batch(b"one"), 1, NOW_MS)
    log.append_as_leader(batch(b"two"), 1, NOW_MS)
    disk.lose_power()
    _, again = start(disk, 1)
    assert contents(again) == [(0, 1, b"one"), (1, 1, b"two")] and again.topic_id == "A" * 22


@pytest.mark.parametrize("seed", range(8))
def test_records_truncated_at_the_recovery_point_stay_removed_after_a_clean_stop(seed: int) -> None:
    """The truncated records may be on disk, written by an overtaken flush or by the kernel."""
    disk = SimulatedDisk(lambda: NOW_MS, random.Random(seed))
    manager, log = start(disk, 1)
    log.append_as_leader(batch(b"one"), 1, NOW_MS)
    log.flush()
    log.append_as_leader(batch(b"two"), 1, NOW_MS)
    task = log.begin_flush()
    assert task is not None
    task.run()
    log.truncate_to(1)
    log.finish_flush(task)
    manager.shutdown()
    disk.lose_power()
    found, again = start(disk, 2)
    assert contents(again) == [(0, 1, b"one")] and not found.truncated_after_clean_stop


@pytest.mark.parametrize("seed", range(8))
def test_records_cut_by_recovery_stay_removed_after_a_clean_stop(seed: int) -> None:
    disk = SimulatedDisk(lambda: NOW_MS, random.Random(seed))
    manager, log = start(disk, 1)
    log.append_as_leader(batch(b"one"), 1, NOW_MS)
    log.flush()
    manager.checkpoint_recovery_points()
    torn = batch(b"two", base_offset=1, leader_epoch=1)[:-3]
    disk.append(log.segments[0].log_path, torn)
    disk.sync(log.segments[0].log_path)
    disk.crash_process()
    manager, log = start(disk, 1)
    assert contents(log) == [(0, 1, b"one")]
    manager.shutdown()
    disk.lose_power()
    found, again = start(disk, 2)
    assert contents(again) == [(0, 1, b"one")] and not found.truncated_after_clean_stop


def sequences(log: PartitionLog) -> dict[int, int]:
    return {one.producer_id: one.last_sequence for one in log.producers.entries}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("stop", ["clean", "second clean", "none"])
def test_producers_whose_records_were_all_deleted_survive_a_loss_of_power(seed: int, stop: str) -> None:
    """Only the snapshot has them: without it a leader takes the second batch of a producer for its first."""
    disk = SimulatedDisk(lambda: NOW_MS, random.Random(seed))
    manager, log = start(disk, 1)
    for sequence in range(12):
        log.append_as_leader(batch(b"value", producer=(7, 0, sequence)), 0, NOW_MS)
    log.update_high_watermark(12)
    log.config = replace(CONFIG, retention_bytes=1)
    offset = log.retained_from(NOW_MS)
    assert offset == 12
    log.increment_log_start_offset(offset)
    log.remove_segments_below_start()
    manager.checkpoint_log_start_offsets()
    if stop != "none":
        manager.shutdown()
    if stop == "second clean":
        manager, log = start(disk, 1)
        manager.shutdown()
    disk.lose_power()
    again = start(disk, 2)[1]
    assert (again.log_end_offset, sequences(again)) == (12, {7: 11})


@pytest.mark.parametrize("seed", range(8))
def test_producers_of_deleted_segments_survive_a_loss_of_power(seed: int) -> None:
    disk = SimulatedDisk(lambda: NOW_MS, random.Random(seed))
    _, log = start(disk, 1)
    for producer in (7, 8):
        for sequence in range(8):
            log.append_as_leader(batch(b"value", producer=(producer, 0, sequence)), 0, NOW_MS)
    log.flush()
    log.update_high_watermark(16)
    log.increment_log_start_offset(log.segments[-1].base_offset)
    log.remove_segments_below_start()
    disk.lose_power()
    assert sequences(start(disk, 2)[1]) == {7: 7, 8: 7}
