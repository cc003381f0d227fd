"""The leader-epoch cache: the table of docs/protocol/log-format.md#leader-epoch-cache."""

import pytest

from paceline.log.checkpoint import DamagedFileError
from paceline.log.leader_epoch_cache import LeaderEpochCache
from tests.unit.log.memory_files import MemoryFiles

ASSIGN = [
    # entries before         assign    entries after
    ([], (0, 0), [(0, 0)]),
    ([(0, 0)], (0, 0), [(0, 0)]),
    ([(0, 0)], (0, 10), [(0, 0)]),
    ([(0, 0)], (1, 10), [(0, 0), (1, 10)]),
    ([(0, 0), (1, 10)], (1, 12), [(0, 0), (1, 10)]),
    ([(0, 0), (1, 10)], (2, 10), [(0, 0), (2, 10)]),
    ([(0, 0), (1, 10)], (2, 5), [(0, 0), (2, 5)]),
    ([(0, 0), (3, 10)], (2, 20), [(0, 0), (2, 20)]),
    ([(0, 0), (1, 10)], (1, 7), [(0, 0), (1, 7)]),
    ([(0, 5), (1, 10)], (2, 0), [(2, 0)]),
    ([(0, 0)], (-1, 10), [(0, 0)]),
]

END_OFFSET = [
    # entries, log end offset, asked epoch, answer
    ([], 10, 0, None),
    ([(0, 0)], 10, -1, None),
    ([(0, 0)], 10, 0, (0, 10)),
    ([(0, 0)], 10, 1, None),
    ([(2, 5), (4, 9)], 12, 1, (1, 5)),
    ([(2, 5), (4, 9)], 12, 2, (2, 9)),
    ([(2, 5), (4, 9)], 12, 3, (2, 9)),
    ([(2, 5), (4, 9)], 12, 4, (4, 12)),
    ([(0, 0), (1, 2), (3, 4)], 5, 2, (1, 4)),  # X3 of the truncation examples: the answer is for epoch 1
    ([(0, 0), (3, 6), (4, 10)], 10, 4, (4, 10)),  # X7 of the truncation examples: an epoch without records
]

FROM_END = [
    ([(0, 0), (1, 10), (2, 20)], 20, [(0, 0), (1, 10)]),
    ([(0, 0), (1, 10), (2, 20)], 15, [(0, 0), (1, 10)]),
    ([(0, 0), (1, 10), (2, 20)], 21, [(0, 0), (1, 10), (2, 20)]),
    ([(0, 0), (1, 10)], 0, []),
]

FROM_START = [
    ([(0, 0), (1, 10), (2, 20)], 0, [(0, 0), (1, 10), (2, 20)]),
    ([(0, 0), (1, 10), (2, 20)], 5, [(0, 5), (1, 10), (2, 20)]),
    ([(0, 0), (1, 10), (2, 20)], 10, [(1, 10), (2, 20)]),
    ([(0, 0), (1, 10), (2, 20)], 15, [(1, 15), (2, 20)]),
    ([(0, 0), (1, 10), (2, 20)], 99, [(2, 99)]),
]


def cache(entries: list[tuple[int, int]], files: MemoryFiles | None = None) -> LeaderEpochCache:
    found = LeaderEpochCache(files or MemoryFiles(), "/epochs")
    for epoch, start in entries:
        found.assign(epoch, start)
    assert found.entries == entries
    return found


@pytest.mark.parametrize(("before", "assigned", "after"), ASSIGN)
def test_assigning_an_epoch(before: list[tuple[int, int]], assigned: tuple[int, int], after: list[object]) -> None:
    found = cache(before)
    found.assign(*assigned)
    assert found.entries == after


@pytest.mark.parametrize(("entries", "end", "asked", "answer"), END_OFFSET)
def test_the_end_offset_of_an_epoch(
    entries: list[tuple[int, int]], end: int, asked: int, answer: tuple[int, int] | None
) -> None:
    assert cache(entries).end_offset(asked, end) == answer


@pytest.mark.parametrize(("before", "offset", "after"), FROM_END)
def test_truncating_from_the_end(before: list[tuple[int, int]], offset: int, after: list[object]) -> None:
    found = cache(before)
    found.truncate_from_end(offset)
    assert found.entries == after


@pytest.mark.parametrize(("before", "offset", "after"), FROM_START)
def test_truncating_from_the_start(before: list[tuple[int, int]], offset: int, after: list[object]) -> None:
    found = cache(before)
    found.truncate_from_start(offset)
    assert found.entries == after


def test_the_epoch_of_an_offset() -> None:
    found = cache([(2, 5), (4, 9)])
    assert [found.epoch_of(offset) for offset in (0, 4, 5, 8, 9, 100)] == [None, None, 2, 2, 4, 4]


def test_an_assignment_writes_no_file_before_the_flush() -> None:
    files = MemoryFiles()
    found = cache([(0, 0), (3, 7)], files)
    assert found.dirty and files.operations == []
    found.flush()
    assert not found.dirty
    assert bytes(files.contents["/epochs"]) == b"0\n2\n0 0\n3 7\n"
    assert ("sync", "/epochs.tmp") in files.operations and ("sync_directory", "/") in files.operations
    again = LeaderEpochCache(files, "/epochs")
    again.load()
    assert again.entries == [(0, 0), (3, 7)] and not again.dirty


def test_a_change_during_a_flush_keeps_the_cache_dirty() -> None:
    files = MemoryFiles()
    found = cache([(0, 0)], files)
    data, version = found.encode(), found.version
    found.assign(1, 5)
    found.write(data)
    found.flushed(version)
    assert found.dirty
    found.flush()
    assert bytes(files.contents["/epochs"]) == b"0\n2\n0 0\n1 5\n"


@pytest.mark.parametrize(
    "data",
    [b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\n0\n", b"0\n1\n0 x\n", b"0\n2\n1 5\n0 9\n", b"0\n2\n0 5\n1 5\n", b"\xff\xfe"],
)
def test_a_damaged_epoch_file_is_reported_and_ignored(data: bytes) -> None:
    files = MemoryFiles()
    files.contents["/epochs"] = bytearray(data)
    found = LeaderEpochCache(files, "/epochs")
    with pytest.raises(DamagedFileError):
        found.load()
    assert found.entries == []
