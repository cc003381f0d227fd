"""Bytes on disk that differ from the written bytes are reported and never returned; intact records are read."""

import random
from bisect import bisect_right
from itertools import accumulate

import pytest

from paceline.log.batch_file import BatchFile, _walk, cut_whole
from paceline.log.damage import DamagedLogError
from paceline.log.directory_names import DAMAGED, STRAY
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.partition_log import PartitionLog
from paceline.log.record_batch import HEADER_BYTES, NewRecord, encode_batch, iterate_headers
from paceline.model.errors import CorruptMessageError
from paceline.model.identifiers import TopicPartition
from tests.unit.log.memory_files import MemoryFiles

TP = TopicPartition("t", 0)
COUNT = 8


def manager(files: MemoryFiles, **config: object) -> LogManager:
    found = LogManager(files, ["/d"], LogConfig(**config), on_dir_failure=lambda *_: None, boot_id="b")  # type: ignore[arg-type]
    found.load(0)
    return found


def filled(files: MemoryFiles, **config: object) -> tuple[LogManager, PartitionLog]:
    """A log of one-record batches."""
    logs = manager(files, **config)
    log = logs.get_or_create(TP, None, True)
    for number in range(COUNT):
        log.append_as_leader(encode_batch([NewRecord(number, None, b"value-%d" % number)]), 0, 0)
    log.update_high_watermark(COUNT)
    return logs, log


def positions(files: MemoryFiles, log: PartitionLog) -> list[int]:
    data = bytes(files.contents[log.segments[0].log_path])
    return [position for position, _ in iterate_headers(data)]


def read_at(log: PartitionLog, offset: int, max_bytes: int = 10) -> list[int]:
    """Return the offsets of the batches that a read returns."""
    return [header.base_offset for _, header in iterate_headers(log.read(offset, max_bytes, log.log_end_offset))]


FIELDS = {
    "a byte of the base offset": 7,
    "a high byte of the base offset": 2,
    "a low byte of the length": 11,
    "a high byte of the length": 8,
    "a low byte of the leader epoch": 15,
    "a high byte of the leader epoch": 13,
    "the magic": 16,
    "the checksum": 18,
    "the attributes": 22,
    "the last offset delta": 26,
    "the maximum timestamp": 40,
    "the record count": 60,
    "a byte of the value": 70,
}


@pytest.mark.parametrize("where", FIELDS)
@pytest.mark.parametrize("mask", [0x01, 0x80])
def test_a_batch_with_a_flipped_bit_is_never_returned(where: str, mask: int) -> None:
    files = MemoryFiles()
    _, log = filled(files)
    sound = {number: log.read(number, 10, COUNT) for number in range(COUNT)}
    at = positions(files, log)[4]
    files.contents[log.segments[0].log_path][at + FIELDS[where]] ^= mask
    # Remove cached positions, which a new process would not have.
    log.segments[0]._positions = {}
    refused = []
    for offset in range(COUNT):
        try:
            data = log.read(offset, 10, COUNT)
        except DamagedLogError:
            refused.append(offset)
        else:
            assert data in sound.values(), f"offset {offset}"
            assert not data or next(iter(iterate_headers(data)))[1].base_offset in (offset, offset + 1)
    assert 4 in refused and not {0, 1, 2} & set(refused)


@pytest.mark.parametrize("seed", range(8))
def test_remembered_pieces_hide_no_damage_limit_or_epoch(seed: int) -> None:
    rng = random.Random(seed)
    starts = sorted(rng.sample(range(900), rng.choice((0, 1, 3))))

    def epoch_of(offset: int) -> int | None:
        return bisect_right(starts, offset) - 1 if starts and offset >= starts[0] else None

    sound = [
        encode_batch(
            [NewRecord(offset, None, bytes(rng.choice((1, 1, 1, 1, 40, 3_000))))],
            base_offset=offset,
            leader_epoch=epoch_of(offset) or 0,
        )
        for offset in range(900)
    ]
    begins = [0, *accumulate(map(len, sound))]
    whole = b"".join(sound)
    assert cut_whole(whole, 900, epoch_of)[0] == len(whole)
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(rng.randrange(3)):
            place = rng.choice(begins[:-1]) + rng.randrange(HEADER_BYTES + 5)
            data[place] ^= 1 << rng.randrange(8)
        limit, moved = rng.choice((900, rng.randrange(1, 900))), rng.choice((0, 0, 1))
        begin = rng.choice(begins[: len(begins) // 4])
        read = bytes(data[begin : rng.randrange(begin + 1, len(data) + 1)])

        def epoch_now(offset: int, moved: int = moved) -> int | None:
            return epoch_of(offset + moved)

        expected = _walk(read, 0, len(read), -1, 0, limit, epoch_now)
        if expected[0]:
            assert cut_whole(read, limit, epoch_now, begin) == expected
        else:
            with pytest.raises(CorruptMessageError):
                cut_whole(read, limit, epoch_now, begin)


def of_several_records(files: MemoryFiles, **config: object) -> PartitionLog:
    """A log of batches of one to three records."""
    log = manager(files, **config).get_or_create(TP, None, True)
    for number in range(COUNT):
        records = [NewRecord(number, None, b"value-%d" % number)] * (1 + number % 3)
        log.append_as_leader(encode_batch(records), 0, 0)
    log.update_high_watermark(log.log_end_offset)
    return log


@pytest.mark.parametrize("index_interval_bytes", [1, 4096])
@pytest.mark.parametrize("segment_bytes", [250, 1 << 20])
@pytest.mark.parametrize("remembers", [True, False])
def test_no_flipped_bit_in_a_header_makes_a_read_skip_records(
    index_interval_bytes: int, segment_bytes: int, remembers: bool
) -> None:
    files = MemoryFiles()
    log = of_several_records(files, index_interval_bytes=index_interval_bytes, segment_bytes=segment_bytes)
    end = log.log_end_offset
    sound = [log.read(offset, 10, end) for offset in range(end)]
    assert all(sound) and (len(log.segments) > 3) == (segment_bytes == 250)
    known = {segment: segment._positions for segment in log.segments}
    for segment in log.segments:
        data = files.contents[segment.log_path]
        for at, header in list(iterate_headers(bytes(data))):
            for bit in range(27 * 8):
                data[at + bit // 8] ^= 1 << bit % 8
                refused = []
                for offset in range(end):
                    for one in log.segments:
                        one._positions = dict(known[one]) if remembers else {}
                    try:
                        got = log.read(offset, 10, end)
                    except DamagedLogError:
                        refused.append(offset)
                    else:
                        assert got == sound[offset], f"segment {segment.base_offset}, byte {at}, bit {bit}: {offset}"
                assert refused, f"segment {segment.base_offset}, byte {at}, bit {bit}"
                assert header.base_offset in refused
                data[at + bit // 8] ^= 1 << bit % 8


def test_a_read_in_a_gap_of_a_compacted_log_returns_the_next_batch() -> None:
    for config in ({}, {"index_interval_bytes": 1}, {"index_interval_bytes": 1, "segment_bytes": 150}):
        log = manager(MemoryFiles(), **config).get_or_create(TP, None, True)
        offsets = [0, 4, 5, 11, 30, 31, 50]
        for offset in offsets:
            record = NewRecord(offset, None, b"value")
            log.append_as_follower(encode_batch([record], base_offset=offset, leader_epoch=0))
        for offset in range(51):
            for segment in log.segments:
                segment._positions = {}
            assert read_at(log, offset) == [next(one for one in offsets if one >= offset)]
        log.truncate_to(20)
        assert (log.log_end_offset, log.read(15, 10, 20)) == (20, b"")


@pytest.mark.parametrize("index_interval_bytes", [1, 4096])
def test_a_truncation_that_meets_a_base_offset_that_is_too_small_is_damage(index_interval_bytes: int) -> None:
    """Otherwise a removed record would stay the last one of its producer, and its retry would count as a duplicate."""
    files = MemoryFiles()
    _, log = filled(files, index_interval_bytes=index_interval_bytes)
    files.contents[log.segments[0].log_path][positions(files, log)[5] + 7] ^= 4
    with pytest.raises(DamagedLogError, match="begins at 1, below 5"):
        log.truncate_to(5)


def test_a_read_returns_the_batches_before_the_damage() -> None:
    files = MemoryFiles()
    _, log = filled(files)
    files.contents[log.segments[0].log_path][positions(files, log)[4] + 70] ^= 1
    assert read_at(log, 0, 10_000) == [0, 1, 2, 3]
    with pytest.raises(DamagedLogError):
        log.read(4, 10_000, COUNT)
    assert read_at(log, 5, 10_000) == [5, 6, 7]


def test_a_damaged_log_is_set_aside_and_recognised_after_a_restart() -> None:
    files = MemoryFiles()
    logs, log = filled(files)
    kept = bytes(files.contents[log.segments[0].log_path])
    path = logs.set_log_aside(TP, DAMAGED)
    assert logs.get(TP) is None and logs.set_aside == [path]
    fresh = logs.get_or_create(TP, None, True)
    assert fresh.log_end_offset == 0 and fresh.path == "/d/t-0"
    assert bytes(files.contents[f"{path}/00000000000000000000.log"]) == kept
    logs.set_log_aside(TP, STRAY)
    logs.shutdown()
    again = manager(files)
    assert [name.rpartition("-")[2] for name in sorted(again.set_aside)] in (["damaged", "stray"], ["stray", "damaged"])
    assert again.get(TP) is None and again.purge_deleted() == 0, "only an operator removes them"


def test_the_last_batch_of_a_cleanly_stopped_log_is_checked() -> None:
    files = MemoryFiles()
    logs, log = filled(files)
    at = positions(files, log)[COUNT - 1]
    logs.shutdown()
    files.contents["/d/t-0/00000000000000000000.log"][at + FIELDS["the last offset delta"]] ^= 1
    again = manager(files)
    assert list(again.truncated_after_clean_stop) == [TP]
    found = again.get(TP)
    assert found is not None and found.log_end_offset == COUNT - 1


def test_a_cut_after_a_clean_stop_is_reported_again_after_restarts_until_the_log_follows_a_leader() -> None:
    files = MemoryFiles()
    logs, log = filled(files)
    at = positions(files, log)[6]
    logs.shutdown()
    files.contents["/d/t-0/00000000000000000000.log"][at + 16] = 9
    first = manager(files).truncated_after_clean_stop
    assert list(first) == [TP]
    files.locked.clear()  # the process was killed
    again = manager(files)
    assert again.truncated_after_clean_stop == first
    again.shutdown()
    again = manager(files)
    assert again.truncated_after_clean_stop == first
    again.forget_truncation(TP)
    again.shutdown()
    assert manager(files).truncated_after_clean_stop == {}


class KilledError(BaseException):
    """Stands for SIGKILL."""


@pytest.mark.parametrize("clean", [True, False])
def test_a_load_that_is_killed_after_it_has_cut_a_log_does_not_forget_the_cut(clean: bool) -> None:
    files = MemoryFiles()
    logs, log = filled(files)
    log.flush()
    path, at = log.segments[0].log_path, positions(files, log)[1]
    logs.checkpoint_recovery_points()
    if clean:
        logs.shutdown()
    files.locked.clear()
    files.contents[path][at + 16] = 9  # the magic of the second batch
    size = len(files.contents[path])

    def kill(_operation: str, name: str) -> bool:
        if name == path and len(files.contents[path]) < size:
            raise KilledError
        return False

    files.fails = kill
    again = LogManager(files, ["/d"], LogConfig(), on_dir_failure=lambda *_: None, boot_id="b")
    with pytest.raises(KilledError):
        again.load(0)
    files.fails = lambda _operation, _path: False
    files.locked.clear()
    again = LogManager(files, ["/d"], LogConfig(), on_dir_failure=lambda *_: None, boot_id="b")
    report = again.load(0)
    found = again.get(TP)
    assert found is not None and found.log_end_offset == 1, "the first load has truncated the log"
    assert report.is_unclean_restart("b") is not clean
    assert list(again.truncated_after_clean_stop) == ([TP] if clean else [])


@pytest.mark.parametrize("content", [b"", b"version: 7\ngap: a\n", b"version: 0\nhole: a\n", b"\xff"])
def test_damage_that_cannot_be_read_counts_as_a_gap(content: bytes) -> None:
    files = MemoryFiles()
    logs, _ = filled(files)
    logs.shutdown()
    files.contents["/d/t-0/known-damage"] = bytearray(content)
    assert manager(files).unexplained_gaps == {TP: "/d/t-0/known-damage cannot be read"}


EPOCH = range(12, 16)


def test_recovery_ends_the_log_at_a_flipped_bit_before_the_last_batch() -> None:
    files = MemoryFiles()
    _, log = filled(files)
    path, at = log.segments[0].log_path, positions(files, log)
    sound = [log.read(offset, 10, COUNT) for offset in range(COUNT)]
    for byte in range(at[5] - at[4]):
        if byte in EPOCH:
            continue  # any epoch may begin here; the next LeaderAndIsr decides
        for bit in range(8):
            crashed = MemoryFiles()
            crashed.contents = {name: bytearray(data) for name, data in files.contents.items()}
            crashed.directories = files.directories.copy()
            crashed.contents[path][at[4] + byte] ^= 1 << bit
            found = manager(crashed).get(TP)
            assert found is not None and found.log_end_offset == 4, f"byte {byte}, bit {bit}"
            assert [found.read(offset, 10, 4) for offset in range(4)] == sound[:4]


def test_a_flipped_bit_in_the_last_batch_after_a_clean_stop_neither_moves_the_end_nor_is_returned() -> None:
    files = MemoryFiles()
    logs, log = filled(files)
    path = log.segments[0].log_path
    starts = [*positions(files, log), len(files.contents[path])]
    sound = [log.read(offset, 10, COUNT) for offset in range(COUNT)]
    logs.shutdown()
    for at in range(starts[COUNT - 1], starts[COUNT]):
        for bit in range(8):
            stopped = MemoryFiles()
            stopped.contents = {name: bytearray(data) for name, data in files.contents.items()}
            stopped.directories = files.directories.copy()
            stopped.contents[path][at] ^= 1 << bit
            again = manager(stopped)
            found = again.get(TP)
            assert found is not None and found.log_end_offset <= COUNT, f"byte {at}, bit {bit}"
            assert found.log_end_offset == COUNT or list(again.truncated_after_clean_stop) == [TP]
            for offset in range(found.log_end_offset):
                try:
                    data = found.read(offset, 10, found.log_end_offset)
                except DamagedLogError:
                    continue
                assert data == sound[offset], f"byte {at}, bit {bit}, offset {offset}"


def test_a_cleanly_stopped_log_that_has_lost_its_tail_is_reported() -> None:
    files = MemoryFiles()
    logs, log = filled(files)
    at = positions(files, log)[6]
    logs.shutdown()
    files.contents["/d/t-0/00000000000000000000.log"][at + 16] = 9
    again = manager(files)
    assert list(again.truncated_after_clean_stop) == [TP]
    found = again.get(TP)
    assert found is not None and found.log_end_offset == 6


def test_a_truncation_that_leaves_a_batch_above_its_offset_is_damage() -> None:
    """The index lookup skips the wrong base offset, so the cut is correct, but no batch could follow there."""
    files = MemoryFiles()
    _, log = filled(files, index_interval_bytes=1)
    files.contents[log.segments[0].log_path][positions(files, log)[5] + 2] ^= 1
    with pytest.raises(DamagedLogError, match="below 6"):
        log.truncate_to(6)
    assert (log.log_end_offset, log.high_watermark) == (6, 6)


def test_whole_segments_below_the_log_start_are_removed() -> None:
    files = MemoryFiles()
    logs, log = filled(files, segment_bytes=200)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) >= 3
    log.increment_log_start_offset(bases[2] + 1)
    renamed = log.remove_segments_below_start()
    assert [segment.base_offset for segment in log.segments] == bases[2:]
    assert all(path.endswith(".deleted") and files.exists(path) for path in renamed)
    assert read_at(log, bases[2] + 1)[0] == bases[2] + 1
    log.remove_files(renamed)
    log.remove_files(renamed)
    assert not any(path.endswith(".deleted") for path in files.contents)
    logs.shutdown()
    again = manager(files, segment_bytes=200).get(TP)
    assert again is not None and again.log_start_offset == bases[2] + 1 and again.log_end_offset == COUNT


def test_a_truncation_that_meets_a_base_offset_that_is_too_large_is_damage() -> None:
    """A batch whose base offset became too large looks like the batch at which to cut."""
    files = MemoryFiles()
    _, log = filled(files)
    for number in range(COUNT, 40):  # more batches than a segment caches positions of
        log.append_as_leader(encode_batch([NewRecord(number, None, b"value-%d" % number)]), 0, 0)
    files.contents[log.segments[0].log_path][positions(files, log)[12] + 7] ^= 16
    with pytest.raises(DamagedLogError, match="not below 13"):
        log.truncate_to(20)
    assert log.log_end_offset == 40


def durable_and_crashed(files: MemoryFiles) -> tuple[str, list[int]]:
    """Return the file and the batch positions of a log that was flushed completely before its process died."""
    logs, log = filled(files)
    log.flush()
    logs.checkpoint_recovery_points()
    files.locked.clear()
    return log.segments[0].log_path, positions(files, log)


LENGTH_GREW = (6, 9, 1)
OFFSET_GREW = (7, 7, 8)


@pytest.mark.parametrize(("number", "byte", "mask"), [LENGTH_GREW, OFFSET_GREW])
def test_a_durable_batch_that_is_corrupt_counts_as_lost_and_not_as_an_interrupted_append(
    number: int, byte: int, mask: int
) -> None:
    files = MemoryFiles()
    path, starts = durable_and_crashed(files)
    files.contents[path][starts[number] + byte] ^= mask
    logs = LogManager(files, ["/d"], LogConfig(), on_dir_failure=lambda *_: None, boot_id="b")
    report = logs.load(0)
    log = logs.get(TP)
    assert log is not None and log.log_end_offset == number
    assert report.directories[0].lost_batches == [TP] and report.is_unclean_restart("b")


@pytest.mark.parametrize("mask", [8, 4])
def test_a_lookup_by_time_in_a_damaged_log_returns_no_wrong_offset(mask: int) -> None:
    files = MemoryFiles()
    _, log = filled(files)
    files.contents[log.segments[0].log_path][positions(files, log)[5] + 7] ^= mask  # 13 or 1 in place of 5
    with pytest.raises(DamagedLogError):
        log.offset_for_timestamp(5, COUNT)


def test_records_appended_after_a_cut_at_the_load_do_not_count_as_durable() -> None:
    files = MemoryFiles()
    path, starts = durable_and_crashed(files)
    files.contents[path][starts[3] + 30] ^= 1
    logs = manager(files)
    log = logs.get(TP)
    assert log is not None and log.log_end_offset == 3
    assert bytes(files.contents["/d/recovery-point-offset-checkpoint"]) == b"0\n1\nt 0 3\n"


def test_the_error_of_a_batch_that_is_no_batch_names_the_byte_in_the_file() -> None:
    files, one = MemoryFiles(), encode_batch([NewRecord(1000, b"k", bytes(100))])
    files.make_directory("/d")
    files.append("/d/f.log", one * 300)
    bad = 250 * len(one)
    files.contents["/d/f.log"][bad + 16] = 1
    file = BatchFile(files, "/d/f.log")
    file.size = files.size(file.log_path)
    assert bad > 3 * 8192
    with pytest.raises(CorruptMessageError, match=f"/d/f.log at byte {bad}: the batch has magic 1"):
        list(file.headers(0))


def test_the_checksum_of_a_batch_in_a_file_is_that_of_its_pieces() -> None:
    files = MemoryFiles()
    files.make_directory("/d")
    files.append("/d/f.log", encode_batch([NewRecord(1000, b"k", bytes(5 << 19))]) * 2)
    file = BatchFile(files, "/d/f.log")
    file.size = files.size(file.log_path)
    first, second = file.headers(0)
    assert file.has_valid_crc(first) and file.has_valid_crc(second)
    files.contents["/d/f.log"][-1] ^= 1
    assert file.has_valid_crc(first) and not file.has_valid_crc(second)
