"""The ring of the latest state changes."""

import pytest

from paceline.model.event_ring import EventRing
from paceline.model.state_change import StateChange


def change(number: int) -> StateChange:
    return StateChange(who="broker-1", wall_ms=1_000 * number, cause=str(number))


def ring_of(count: int, capacity: int = 4) -> EventRing:
    ring = EventRing(capacity)
    for number in range(count):
        ring.append(change(number))
    return ring


def causes(ring: EventRing, position: int, max_events: int = 100) -> list[str | None]:
    return [each.cause for each in ring.read(position, max_events).events]


def test_a_reader_continues_at_its_position() -> None:
    ring = ring_of(3)
    first = ring.read(0, 2)
    assert ([each.cause for each in first.events], first.next_position, first.lost_count) == (["0", "1"], 2, 0)
    assert causes(ring, first.next_position) == ["2"]
    assert ring.read(3, 10).events == ()
    ring.append(change(3))
    assert causes(ring, 3) == ["3"]


def test_a_slow_reader_gets_the_number_of_lost_events_and_continues_at_the_oldest() -> None:
    ring = ring_of(10)
    found = ring.read(1, 100)
    assert [each.cause for each in found.events] == ["6", "7", "8", "9"]
    assert (found.lost_count, found.next_position) == (5, 10)
    assert (ring.begin, ring.end) == (6, 10)


def test_the_ring_never_holds_more_than_its_capacity() -> None:
    ring = ring_of(1_000, capacity=7)
    assert ring.end - ring.begin == 7
    assert causes(ring, 0) == [str(number) for number in range(993, 1_000)]


def test_filtered_events_are_skipped_and_count_as_read() -> None:
    ring = ring_of(6, capacity=10)
    found = ring.read(0, 100, lambda each: each.cause in {"1", "4"})
    assert ([each.cause for each in found.events], found.next_position) == (["1", "4"], 6)


def test_one_read_is_bounded_for_any_filter() -> None:
    ring = ring_of(8, capacity=10)
    found = ring.read(0, 100, lambda each: each.cause == "7", max_looks=5)
    assert (found.events, found.next_position) == ((), 5)
    assert [each.cause for each in ring.read(5, 100, lambda each: each.cause == "7", max_looks=5).events] == ["7"]


def test_a_position_beyond_the_end_waits_at_the_end() -> None:
    found = ring_of(3).read(99, 10)
    assert (found.events, found.next_position, found.lost_count) == ((), 3, 0)


@pytest.mark.parametrize(("wall_ms", "position"), [(0, 6), (6_000, 6), (7_500, 8), (9_000, 9), (9_001, 10)])
def test_a_time_is_found_among_the_kept_events(wall_ms: int, position: int) -> None:
    assert ring_of(10).position_since(wall_ms) == position


def test_a_capacity_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity must be at least 1, not 0"):
        EventRing(0)
