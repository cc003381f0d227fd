"""A damaged batch before the end of the active segment: loading, appending and stopping the other records and logs."""

import pytest

from paceline.log.checkpoint import CLEAN_SHUTDOWN_MARKER
from paceline.log.damage import DamagedLogError
from paceline.log.files import join
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.partition_log import PartitionLog
from paceline.log.record_batch import iterate_headers
from paceline.model.identifiers import TopicPartition
from tests.unit.log.helpers import NOW_MS, ROOT, TP, batch, manager
from tests.unit.log.memory_files import MemoryFiles

COUNT = 12
LATEST = 4
"""The batch with the largest timestamp: the last entry of the time index speaks of it."""
MAGIC = 16
CONFIG = LogConfig(index_interval_bytes=150)


def filled(files: MemoryFiles) -> tuple[LogManager, PartitionLog]:
    """A log of one-record batches in one segment."""
    logs, _ = manager(files, CONFIG)
    log = logs.get_or_create(TP, None, True)
    for number in range(COUNT):
        timestamp = 9000 if number == LATEST else 1000 + number
        log.append_as_leader(batch(b"%d" % number, timestamp=timestamp), 0, NOW_MS)
    return logs, log


def damage(files: MemoryFiles, log: PartitionLog, number: int) -> None:
    content = files.contents[log.segments[0].log_path]
    content[[position for position, _ in iterate_headers(bytes(content))][number] + MAGIC] ^= 1


@pytest.mark.parametrize("number", range(COUNT - 3))
def test_a_damaged_batch_before_the_end_prevents_no_start_and_costs_no_other_batch(number: int) -> None:
    files = MemoryFiles()
    logs, log = filled(files)
    logs.shutdown()
    damage(files, log, number)
    again, _ = manager(files, CONFIG)
    found = again.get(TP)
    assert found is not None and found.log_end_offset == COUNT
    for offset in range(COUNT):
        if offset == number:
            with pytest.raises(DamagedLogError):
                found.read(offset, 10, COUNT)
        elif offset == COUNT - 1:
            assert found.read(offset, 10, COUNT)


@pytest.mark.parametrize("number", range(LATEST, COUNT - 3))
def test_an_append_that_finds_damage_changes_nothing(number: int) -> None:
    files = MemoryFiles()
    logs, log = filled(files)
    logs.shutdown()
    again, _ = manager(files, CONFIG)
    found = again.get(TP)
    assert found is not None
    damage(files, log, number)
    before = bytes(files.contents[log.segments[0].log_path])
    for as_leader in (True, False):
        with pytest.raises(DamagedLogError):
            if as_leader:
                found.append_as_leader(batch(b"more"), 0, NOW_MS)
            else:
                found.append_as_follower(batch(b"more", base_offset=COUNT, leader_epoch=0))
        assert found.log_end_offset == COUNT
        assert bytes(files.contents[log.segments[0].log_path]) == before


@pytest.mark.parametrize("number", range(LATEST, COUNT - 3))
def test_damage_in_one_log_does_not_prevent_the_stop_of_the_others(number: int) -> None:
    files = MemoryFiles()
    logs, log = filled(files)
    logs.shutdown()
    again, _ = manager(files, CONFIG)
    other = again.get_or_create(TopicPartition("z", 0), None, True)
    other.append_as_leader(batch(b"other"), 0, NOW_MS)
    damage(files, log, number)
    again.shutdown()
    assert files.exists(join(ROOT, CLEAN_SHUTDOWN_MARKER)) and not files.locked
    last, report = manager(files, CONFIG)
    found, sound = last.get(TP), last.get(other.topic_partition)
    assert report.clean_shutdown and found is not None and sound is not None
    assert (found.log_end_offset, sound.log_end_offset) == (COUNT, 1)
