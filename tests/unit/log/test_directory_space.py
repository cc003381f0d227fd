"""Which appends a log directory takes, from the free bytes of its disk alone."""

import pytest

from paceline.log.directory_space import DirectorySpace, Room
from paceline.log.files import DiskSpace
from paceline.model.errors import ErrorCode, LogDirFullError

GIB = 1 << 30
TOTAL = 100_000


def space_of(free: int, min_free_bytes: int | None = 4_000) -> DirectorySpace:
    space = DirectorySpace("/data", min_free_bytes)
    space.measured(DiskSpace(free, TOTAL, "/"), 0)
    return space


@pytest.mark.parametrize(
    ("free", "rooms"),
    [
        ((4_000, 3_999, 4_000, 5_999, 6_000), "ROOMY SHORT SHORT SHORT ROOMY"),
        ((3_999, 1_000, 999, 1_000, 1_499, 1_500), "SHORT SHORT FULL FULL FULL SHORT"),
        ((0, 5_999, 6_000), "FULL SHORT ROOMY"),
        ((0, 6_000, 999), "FULL ROOMY FULL"),
    ],
)
def test_each_state_ends_at_one_and_a_half_times_the_bytes_where_it_begins(free: tuple[int, ...], rooms: str) -> None:
    space, found = DirectorySpace("/data", 4_000), []
    for now_ms, one in enumerate(free):
        space.measured(DiskSpace(one, TOTAL), now_ms)
        found.append(space.room.name)
    assert " ".join(found) == rooms


@pytest.mark.parametrize(
    ("total", "limit"), [(10 * GIB, GIB // 2), (20 * GIB, GIB), (4_000 * GIB, GIB), (80 << 20, 4 << 20)]
)
def test_the_default_limit_is_a_gibibyte_or_a_twentieth_of_a_smaller_disk(total: int, limit: int) -> None:
    space = DirectorySpace("/data")
    assert space.limit_bytes == 0
    space.measured(DiskSpace(total, total), 0)
    assert (space.limit_bytes, space.reserve_bytes) == (limit, limit // 4)


def test_a_short_directory_refuses_producers_and_takes_copies_of_a_leader() -> None:
    space = space_of(2_000)
    space.check(uses_reserve=True)
    with pytest.raises(LogDirFullError, match="disk / of log directory /data has 2000 of 100000 bytes") as refused:
        space.check(uses_reserve=False)
    assert (refused.value.code, refused.value.retriable, refused.value.definite) == (ErrorCode.LOG_DIR_FULL, True, True)
    assert "log.dir.min.free.bytes is 4000, and produce continues at 6000" in str(refused.value)
    for uses_reserve in (False, True):
        with pytest.raises(LogDirFullError):
            space_of(500).check(uses_reserve=uses_reserve)


def test_appended_bytes_ask_for_a_measurement_only_when_they_may_cross_a_limit() -> None:
    space = space_of(10_000)
    assert [space.note_append(2_000) for _ in range(4)] == [False, False, False, True]
    space.measured(DiskSpace(3_000, TOTAL), 1)
    assert [space.note_append(1_000) for _ in range(3)] == [False, False, True]
    space.measured(DiskSpace(100, TOTAL), 2)
    assert not space.note_append(1 << 30)


def test_a_write_without_room_makes_the_directory_full_whatever_the_disk_says() -> None:
    space = space_of(TOTAL)
    space.note_no_room()
    assert space.room is Room.FULL
    rooms = {}
    for now_ms in (1_000, 2_000, 10_999, 11_000):
        space.measured(DiskSpace(TOTAL, TOTAL), now_ms)
        rooms[now_ms] = space.room
    assert rooms == {1_000: Room.FULL, 2_000: Room.FULL, 10_999: Room.FULL, 11_000: Room.ROOMY}
    # A measurement without a clock, as after an append, does not end the pause.
    space.note_no_room()
    space.measured(DiskSpace(TOTAL, TOTAL))
    assert space.room is Room.FULL


def test_without_a_limit_only_a_write_without_room_counts() -> None:
    space = space_of(0, min_free_bytes=0)
    assert space.room is Room.ROOMY
    space.check(uses_reserve=False)
    space.note_no_room()
    with pytest.raises(LogDirFullError):
        space.check(uses_reserve=True)
