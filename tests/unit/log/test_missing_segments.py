"""A log that lacks a segment when it is loaded is reported: readers would skip the records without an error."""

import random
from dataclasses import replace

import pytest

from paceline.log.directory_names import DAMAGED, directory_name
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.partition_log import PartitionLog
from paceline.log.record_batch import crc_of
from paceline.model.identifiers import TopicPartition
from tests.simulation.disk import SimulatedDisk
from tests.unit.log.helpers import DIRECTORY, NOW_MS, ROOT, SMALL, TP, batch, crash, filled_manager
from tests.unit.log.memory_files import MemoryFiles

COMPACTED = replace(SMALL, cleanup_policy=frozenset({"compact"}))
POLICIES = {"not compacted": SMALL, "compacted": COMPACTED, "unknown": None}
MARKER = f"{ROOT}/.kafka_cleanshutdown"


def loaded(files: MemoryFiles, settings: LogConfig | None = SMALL, boot_id: str = "boot") -> LogManager:
    """Load the logs again; the process before has ended."""
    crash(files)
    found = LogManager(files, [ROOT], SMALL, on_dir_failure=lambda *_: None, boot_id=boot_id)
    found.load(NOW_MS, lambda _topic: settings)
    return found


def bases_of(logs: LogManager, tp: TopicPartition = TP) -> list[int]:
    log = logs.get(tp)
    assert log is not None
    return [segment.base_offset for segment in log.segments]


def remove_segment(files: MemoryFiles, base: int, *, with_indexes: bool = False, directory: str = DIRECTORY) -> None:
    """Remove a segment's file, or all files with its base offset."""
    for path in [path for path in files.contents if path.startswith(f"{directory}/{base:020d}.")]:
        if with_indexes or path.endswith(".log"):
            del files.contents[path]


def damage_of(logs: LogManager) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """Return the logs with a gap and the logs without their tail."""
    return list(logs.unexplained_gaps), list(logs.truncated_after_clean_stop)


# -- after a clean stop --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("with_indexes", [False, True], ids=["log alone", "all files"])
@pytest.mark.parametrize("which", [0, 1, -3, -2])
def test_a_segment_that_is_missing_after_a_clean_stop_is_a_gap(which: int, with_indexes: bool, policy: str) -> None:
    files = MemoryFiles()
    logs, _ = filled_manager(files)
    base = bases_of(logs)[which]
    logs.shutdown()
    remove_segment(files, base, with_indexes=with_indexes)
    again = loaded(files, POLICIES[policy])
    assert damage_of(again) == ([TP], []) and f"segment {base}" in again.unexplained_gaps[TP]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("count", [1, 2])
def test_last_segments_that_are_missing_after_a_clean_stop_are_a_lost_tail(count: int, policy: str) -> None:
    files = MemoryFiles()
    logs, _ = filled_manager(files)
    bases = bases_of(logs)[-count:]
    logs.shutdown()
    for base in bases:
        remove_segment(files, base)
    again = loaded(files, POLICIES[policy])
    assert damage_of(again) == ([], [TP])
    log = again.get(TP)
    assert log is not None and log.log_end_offset == bases[0]


def test_a_log_without_any_of_its_segments_is_a_lost_tail() -> None:
    files = MemoryFiles()
    logs, _ = filled_manager(files)
    bases = bases_of(logs)
    logs.shutdown()
    for base in bases:
        remove_segment(files, base)
    assert damage_of(loaded(files)) == ([], [TP])


@pytest.mark.parametrize("kept", [0, 0.5], ids=["emptied", "half"])
@pytest.mark.parametrize("which", [0, 2])
def test_a_segment_that_became_shorter_after_a_clean_stop_is_a_gap(which: int, kept: float) -> None:
    files = MemoryFiles()
    logs, _ = filled_manager(files)
    log = logs.get(TP)
    assert log is not None
    segment = log.segments[which]
    logs.shutdown()
    del files.contents[segment.log_path][int(segment.size * kept) :]
    assert damage_of(loaded(files))[0] == [TP]


def test_a_last_segment_that_ends_a_batch_earlier_after_a_clean_stop_is_a_lost_tail() -> None:
    files = MemoryFiles()
    logs, _ = filled_manager(files, batches=2)
    log = logs.get(TP)
    assert log is not None and log.segment_count == 1
    segment = log.segments[0]
    logs.shutdown()
    del files.contents[segment.log_path][segment.size // 2 :]
    assert damage_of(loaded(files)) == ([], [TP])


def test_only_the_log_that_lacks_a_segment_is_reported() -> None:
    files = MemoryFiles()
    logs, _ = filled_manager(files)
    other = TopicPartition("other", 3)
    for log in (logs.get_or_create(other, None, True), logs.get_or_create(TopicPartition("third", 0), None, True)):
        for number in range(20):
            log.append_as_leader(batch(b"%d" % number), 0, NOW_MS)
    base = bases_of(logs, other)[1]
    logs.shutdown()
    remove_segment(files, base, directory=f"{ROOT}/{directory_name(other)}")
    assert damage_of(loaded(files)) == ([other], [])


@pytest.mark.parametrize("is_clean", [False, True], ids=["crash", "clean stop"])
def test_a_missing_segment_is_reported_again_until_the_log_is_set_aside(is_clean: bool) -> None:
    files = MemoryFiles()
    logs, _ = filled_manager(files)
    base = bases_of(logs)[1]
    logs.shutdown()
    remove_segment(files, base)
    logs = loaded(files, COMPACTED)
    described = logs.unexplained_gaps
    assert list(described) == [TP]
    for _ in range(2):
        if is_clean:
            logs.shutdown()
        logs = loaded(files, COMPACTED)
        assert logs.unexplained_gaps == described
    logs.set_log_aside(TP, DAMAGED)
    logs.shutdown()
    assert damage_of(loaded(files, COMPACTED)) == ([], [])


class KilledError(BaseException):
    """Stands for SIGKILL."""


def test_a_load_that_is_killed_does_not_forget_the_segments_at_the_clean_stop() -> None:
    """The load has removed the marker, and was killed before it had compared the log."""
    files = MemoryFiles()
    logs, _ = filled_manager(files)
    base = bases_of(logs)[1]
    logs.shutdown()
    remove_segment(files, base)

    def kill(operation: str, path: str) -> bool:
        if operation == "list_directory" and path == DIRECTORY:
            raise KilledError
        return False

    files.fails = kill
    for _ in range(2):
        with pytest.raises(KilledError):
            loaded(files, COMPACTED)
    files.fails = lambda _operation, _path: False
    again = loaded(files, COMPACTED)
    assert damage_of(again) == ([TP], [])


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"version":0,"brokerEpoch":7}', b'{"segments":{"a":1}}', b'{"segments":{"a":{"b":1}}}'],
)
def test_a_marker_without_a_list_of_segments_is_a_clean_stop_without_a_comparison(content: bytes) -> None:
    """Kafka and earlier versions write such markers."""
    files = MemoryFiles()
    logs, _ = filled_manager(files)
    base = bases_of(logs)[1]
    logs.shutdown()
    remove_segment(files, base)
    files.contents[MARKER] = bytearray(content)
    crash(files)
    again = LogManager(files, [ROOT], SMALL, on_dir_failure=lambda *_: None, boot_id="boot")
    assert again.load(NOW_MS).clean_shutdown and damage_of(again) == ([], [])


def test_a_list_of_segments_is_compared_once() -> None:
    """Later changes of the log would look like missing segments."""
    files = MemoryFiles()
    logs, _ = filled_manager(files)
    logs.shutdown()
    logs = loaded(files)
    log = logs.get(TP)
    assert log is not None
    log.truncate_fully_and_start_at(7)
    assert damage_of(loaded(files)) == ([], [])


# -- after the process was killed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True], ids=["recovered", "below the recovery point"])
@pytest.mark.parametrize("with_indexes", [False, True], ids=["log alone", "all files"])
@pytest.mark.parametrize("which", [1, -2])
def test_a_middle_segment_that_is_missing_after_a_kill_is_a_gap(which: int, with_indexes: bool, durable: bool) -> None:
    files = MemoryFiles()
    logs, _ = filled_manager(files)
    log = logs.get(TP)
    assert log is not None
    if durable:
        log.flush()
        logs.checkpoint_recovery_points()
    base = bases_of(logs)[which]
    remove_segment(files, base, with_indexes=with_indexes)
    again = loaded(files)
    assert damage_of(again) == ([TP], []) and str(base) in again.unexplained_gaps[TP]
    found = again.get(TP)
    assert found is not None and found.log_end_offset == 40, "the records after the gap are kept"


def with_gaps(logs: LogManager, offsets: list[int]) -> PartitionLog:
    """Append batches of one record as a follower of a compacted log."""
    log = logs.get_or_create(TP, None, True)
    for offset in offsets:
        log.append_as_follower(batch(b"value", base_offset=offset, leader_epoch=0))
    return log


BETWEEN_SEGMENTS = [0, 1, 2, 3, 10, 11, 12, 13, 20, 21]
"""Four batches fit into a segment, so each gap is before a segment."""


@pytest.mark.parametrize("policy", ["compacted", "unknown"])
def test_gaps_of_a_topic_that_may_be_compacted_are_not_reported_after_a_kill(policy: str) -> None:
    files = MemoryFiles()
    logs = loaded(files)
    log = with_gaps(logs, BETWEEN_SEGMENTS)
    assert bases_of(logs) == [0, 10, 20] and log.log_end_offset == 22
    assert damage_of(loaded(files, POLICIES[policy])) == ([], [])


def test_gaps_of_a_topic_that_was_once_compacted_are_not_reported_after_a_kill() -> None:
    """Compaction also leaves gaps within segments, which a missing segment does not."""
    files = MemoryFiles()
    logs = loaded(files)
    with_gaps(logs, [*BETWEEN_SEGMENTS, 30])
    assert bases_of(logs) == [0, 10, 20]
    assert damage_of(loaded(files)) == ([], [])


def test_a_batch_with_fewer_records_than_offsets_shows_an_earlier_compaction() -> None:
    files = MemoryFiles()
    logs = loaded(files)
    log = with_gaps(logs, [0, 1, 2])
    thinned = bytearray(batch(b"value", base_offset=3, leader_epoch=0))
    thinned[26] = 4  # the last offset delta, which compaction keeps
    thinned[17:21] = crc_of(bytes(thinned), 0, len(thinned)).to_bytes(4, "big")
    log.append_as_follower(bytes(thinned))
    log.append_as_follower(batch(b"value", base_offset=10, leader_epoch=0))
    assert bases_of(logs) == [0, 10]
    assert damage_of(loaded(files)) == ([], [])


def test_gaps_of_a_log_that_this_broker_has_compacted_are_not_reported_after_a_kill() -> None:
    files = MemoryFiles()
    logs = loaded(files)
    log = with_gaps(logs, [0, 1, 2, 3, 10, 11, 12])
    assert bases_of(logs) == [0, 10]
    log.compaction.first_dirty_offset = 10
    logs.checkpoint_cleaner_offsets()
    assert damage_of(loaded(files)) == ([], [])


# -- no false alarm ------------------------------------------------------------------------------------------------


def delete_records(logs: LogManager, log: PartitionLog) -> None:
    log.increment_log_start_offset(log.segments[2].base_offset + 1)
    log.remove_segments_below_start()


def delete_all(logs: LogManager, log: PartitionLog) -> None:
    log.update_high_watermark(log.log_end_offset)
    log.config = replace(log.config, retention_ms=0)
    offset = log.retained_from(NOW_MS)
    assert offset == log.log_end_offset
    log.increment_log_start_offset(offset)
    log.remove_segments_below_start()


def truncate(logs: LogManager, log: PartitionLog) -> None:
    log.truncate_to(log.segments[2].base_offset + 2)
    log.append_as_leader(batch(b"new"), 2, NOW_MS)


def truncate_and_diverge(logs: LogManager, log: PartitionLog) -> None:
    log.truncate_to(4)
    for number in range(20):
        log.append_as_leader(batch(b"another value %d" % number), 2, NOW_MS)


def reset(logs: LogManager, log: PartitionLog) -> None:
    log.truncate_fully_and_start_at(100)
    for number in range(20):
        log.append_as_leader(batch(b"%d" % number), 2, NOW_MS)


def empty(logs: LogManager, log: PartitionLog) -> None:
    log.truncate_fully_and_start_at(100)


def re_create(logs: LogManager, log: PartitionLog) -> None:
    logs.delete(TP)
    log = logs.get_or_create(TP, "B" * 22, True)
    for number in range(20):
        log.append_as_leader(batch(b"x%d" % number), 2, NOW_MS)


@pytest.mark.parametrize("is_clean", [False, True], ids=["crash", "clean stop"])
@pytest.mark.parametrize("restarts_first", [False, True])
@pytest.mark.parametrize(
    "change", [delete_records, delete_all, truncate, truncate_and_diverge, reset, empty, re_create]
)
def test_changes_by_the_broker_itself_are_no_damage(change, restarts_first: bool, is_clean: bool) -> None:  # type: ignore[no-untyped-def]
    files = MemoryFiles()
    logs, _ = filled_manager(files)
    if restarts_first:
        logs.shutdown()
        logs = loaded(files)
    log = logs.get(TP)
    assert log is not None
    log.flush()
    logs.checkpoint_recovery_points()
    change(logs, log)
    if is_clean:
        logs.shutdown()
    assert damage_of(loaded(files)) == ([], [])


@pytest.mark.parametrize("seed", range(40))
def test_a_loss_of_power_after_a_clean_stop_leaves_no_missing_segment(seed: int) -> None:
    rng = random.Random(seed)
    disk = SimulatedDisk(lambda: NOW_MS, rng)
    for boot in range(4):
        logs = LogManager(disk, [ROOT], SMALL, on_dir_failure=lambda *_: None, boot_id=f"boot {boot}")
        logs.load(NOW_MS, lambda _topic: COMPACTED if seed % 2 else SMALL)
        assert damage_of(logs) == ([], [])
        log = logs.get_or_create(TP, "A" * 22, True)
        for number in range(rng.randint(0, 30)):
            log.append_as_leader(batch(b"%d" % number), boot, NOW_MS)
            if rng.random() < 0.1:
                log.flush()
        kind = rng.randrange(4)
        if kind == 0:
            log.truncate_to(rng.randint(log.log_start_offset, log.log_end_offset))
        elif kind == 1 and log.segment_count > 1:
            delete_records(logs, log) if log.segment_count > 2 else None
        elif kind == 2:
            log.truncate_fully_and_start_at(log.log_end_offset)
        logs.shutdown()
        disk.lose_power()
