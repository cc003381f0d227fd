"""The figures of Spark's stream in the report of `make run`."""

import json

from examples.flights.reading import Batch, Reading, parse_batches


def batch(at_s: float, **ends: int) -> Batch:
    return Batch(at_s, 200, 1_000, {int(name[1:]): end for name, end in ends.items()})


READING = Reading(
    [batch(1.0, p0=10, p1=10), batch(2.0, p0=20, p1=20), batch(6.5, p0=20, p1=30), batch(7.0, p0=25, p1=31)]
)


def test_a_partition_is_read_again_once_a_row_of_its_new_leader_is_in_the_table() -> None:
    assert READING.read_again_ms(killed_at_s=2.5, resumed_at={0: 20, 1: 30}) == {0: 4_500, 1: 4_500}
    assert READING.read_again_ms(killed_at_s=2.5, resumed_at={0: 24, 1: 29}) == {0: 4_500, 1: 4_000}


def test_a_partition_without_a_record_of_its_new_leader_is_omitted() -> None:
    assert READING.read_again_ms(killed_at_s=2.5, resumed_at={0: 25, 1: 29}) == {1: 4_000}


def test_the_longest_pause_includes_the_wait_for_the_first_micro_batch() -> None:
    assert READING.longest_pause_ms == 4_500
    assert Reading([batch(62.0, p0=10), batch(76.6, p0=20)]).longest_pause_ms == 62_000
    assert READING.median_ms == 200
    assert Reading().longest_pause_ms == Reading().median_ms == 0


def test_times_count_from_the_first_record() -> None:
    assert [each.at_s for each in Reading.since(1.0, READING.batches).batches] == [0.0, 1.0, 5.5, 6.0]


def test_an_incomplete_line_is_omitted() -> None:
    line = json.dumps({"at_s": 1.5, "duration_ms": 3, "rows": 4, "ends": {"0": 4}}) + "\n"
    assert parse_batches([line, line[:-1]]) == [Batch(1.5, 3, 4, {0: 4})]
    assert parse_batches([line[:9]]) == []
