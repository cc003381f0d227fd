"""A kill or a loss of power between any two steps of a compaction leaves the old segments or the new segment."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.partition_log import PartitionLog
from paceline.log.record_batch import NewRecord, Record, check_crc, decode_batch, encode_batch, iterate_headers
from tests.simulation.disk import SimulatedDisk
from tests.unit.log.helpers import NOW_MS, ROOT, TP

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100, cleanup_policy=frozenset({"compact"}))
LARGER = replace(CONFIG, segment_bytes=1_200)
STEPS = ("create", "append", "truncate", "rename", "remove", "sync", "sync_directory")


class Killed(BaseException):
    """The process was killed."""


class DyingDisk(SimulatedDisk):
    """A disk whose process is killed before step ``steps_left``, counted down."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(lambda: NOW_MS, chance)
        self.steps_left: int | None = None

    def step(self) -> None:
        if self.steps_left is not None:
            if not self.steps_left:
                raise Killed
            self.steps_left -= 1


def _counted(name: str) -> Callable[..., None]:
    def method(self: DyingDisk, *arguments: object) -> None:
        self.step()
        getattr(SimulatedDisk, name)(self, *arguments)

    return method


for _name in STEPS:
    setattr(DyingDisk, _name, _counted(_name))


def start(disk: DyingDisk, boot: str, config: LogConfig) -> tuple[LogManager, PartitionLog]:
    def failed(_path: str, error: Exception) -> None:
        raise error

    found = LogManager(disk, [ROOT], config, on_dir_failure=failed, boot_id=boot)
    found.load(NOW_MS)
    return found, found.get_or_create(TP, "A" * 22, True)


def fill(found: LogManager, log: PartitionLog, count: int = 30, keys: int = 3) -> None:
    for number in range(count):
        records = [NewRecord(NOW_MS + number, b"key %d" % (number % keys), b"value %d" % number)]
        producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": number} if number < 12 else {}
        log.append_as_leader(encode_batch(records, **producer), 1 + number // 10, NOW_MS)  # type: ignore[arg-type]
    log.flush()
    log.update_high_watermark(log.log_end_offset)
    found.checkpoint_recovery_points()
    found.checkpoint_high_watermarks()


def compact(found: LogManager, log: PartitionLog) -> None:
    cleanable = log.compaction.find_cleanable(NOW_MS)
    if cleanable is None:
        return
    task = log.compaction.begin(cleanable, NOW_MS, 1 << 20, 0.9)
    while not task.is_finished:
        task.run(1 << 20)
        if task.cleaned is not None:
            log.remove_files(log.compaction.replace_segments(task, task.cleaned))
    log.compaction.finish(task)
    found.checkpoint_cleaner_offsets()


def contents(log: PartitionLog) -> list[Record]:
    """Return every record, read by batches; checks that each batch has the epoch in the epoch cache."""
    found: list[Record] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, log.log_end_offset)
        assert data
        for position, header in iterate_headers(data):
            check_crc(data, position, header)
            assert log.epochs.epoch_of(header.base_offset) == header.leader_epoch
            found.extend(decode_batch(data[position : position + header.size]))
            offset = header.last_offset + 1
    return found


def last_of_each_key(records: list[Record]) -> dict[bytes | None, Record]:
    return {record.key: record for record in records}


def killed(disk: DyingDisk, steps: int, work: Callable[[], object]) -> bool:
    """Run ``work`` for ``steps`` steps; return whether it was killed."""
    disk.steps_left = steps
    try:
        work()
    except Killed:
        return True
    finally:
        disk.steps_left = None
    return False


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power-lost"])
@pytest.mark.parametrize("also_in_the_load", [False, True])
def test_a_kill_between_any_two_steps_loses_no_last_value(power: bool, also_in_the_load: bool) -> None:
    end = 30
    for steps in range(1_000):
        disk = DyingDisk(random.Random(steps))
        found, log = start(disk, "boot 0", CONFIG)
        fill(found, log)
        before = contents(log)
        active = log.segments[-1].base_offset
        log.config = LARGER
        was_killed = killed(disk, steps, lambda found=found, log=log: compact(found, log))  # type: ignore[misc]
        fall = disk.lose_power if power else disk.crash_process
        fall()
        if also_in_the_load:
            killed(disk, steps % 17, lambda disk=disk: start(disk, "boot 1" if power else "boot 0", LARGER))  # type: ignore[misc]
            fall()
        # Even under another policy no gap counts as lost in a power failure.
        config = LARGER if steps % 2 else replace(LARGER, cleanup_policy=frozenset({"delete"}))
        found, log = start(disk, "boot 2" if power else "boot 0", config)
        after = contents(log)
        assert log.log_end_offset == end and last_of_each_key(after) == last_of_each_key(before), steps
        assert set(map(repr, after)) <= set(map(repr, before)), steps
        assert [one.offset for one in after] == sorted({one.offset for one in after}), steps
        last = log.producers.get(5)
        assert last is not None and last.last_sequence == 11, steps
        left = [path for path in disk.paths() if path.endswith((".cleaned", ".swap", ".deleted"))]
        assert not left, steps
        # No segment ends below the next one, which recovery would treat as a loss.
        assert [one.end_offset() for one in log.segments[:-1]] == [one.base_offset for one in log.segments[1:]], steps
        for segment in log.segments[:-1]:
            assert disk.exists(segment.offset_index.path) and disk.exists(segment.time_index.path), steps
        log.config = LARGER
        log.flush()
        log.update_high_watermark(end)
        compact(found, log)
        kept = {record.offset for record in contents(log) if record.offset < active}
        assert kept == {one.offset for one in last_of_each_key([b for b in before if b.offset < active]).values()}, (
            steps
        )
        if not was_killed:
            assert steps > 25
            return
    raise AssertionError("the compaction never came to its end")


def cancel_a_cleaning(log: PartitionLog) -> None:
    """Begin a cleaning and truncate the log after the second segment was written, so that it is never put in place."""
    cleanable = log.compaction.find_cleanable(NOW_MS)
    assert cleanable is not None
    task = log.compaction.begin(cleanable, NOW_MS, 1 << 20, 0.9)
    task.run(1 << 20)
    assert task.cleaned is not None
    log.remove_files(log.compaction.replace_segments(task, task.cleaned))
    task.run(1 << 20)
    assert task.cleaned is not None and task.cleaned.segment.base_offset > 0
    log.truncate_to(log.log_end_offset - 1)


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power-lost"])
def test_a_kill_after_a_cancelled_cleaning_loses_no_last_value(power: bool) -> None:
    for steps in range(1_000):
        disk = DyingDisk(random.Random(steps))
        found, log = start(disk, "boot 0", CONFIG)
        fill(found, log, 45, 15)
        log.config = LARGER
        cancel_a_cleaning(log)
        log.flush()
        found.checkpoint_recovery_points()
        before = contents(log)
        was_killed = killed(disk, steps, lambda found=found, log=log: compact(found, log))  # type: ignore[misc]
        fall = disk.lose_power if power else disk.crash_process
        fall()
        found, log = start(disk, "boot 1" if power else "boot 0", LARGER)
        after = contents(log)
        assert last_of_each_key(after) == last_of_each_key(before) and log.log_end_offset == 44, steps
        assert {record.offset for record in after} <= {record.offset for record in before}, steps
        assert [one.end_offset() for one in log.segments[:-1]] == [one.base_offset for one in log.segments[1:]], steps
        if not was_killed:
            assert steps > 10
            return
    raise AssertionError("the compaction never came to its end")
