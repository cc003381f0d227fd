"""Packing offset ranges into tasks."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.pipeline.source.offset_ranges import OffsetRange, pack

MIB = 1 << 20


def ranges_of(*records: int, size: float = 1024.0) -> list[OffsetRange]:
    return [OffsetRange("t", number, 10, 10 + count, bytes_per_record=size) for number, count in enumerate(records)]


def offsets(tasks: list[list[OffsetRange]]) -> list[tuple[int, int]]:
    return sorted((each.partition, at) for task in tasks for each in task for at in range(each.start, each.end))


def sizes(tasks: list[list[OffsetRange]]) -> list[int]:
    return [sum(each.records for each in task) for task in tasks]


def test_nothing_to_read_is_no_task() -> None:
    assert pack([], 8, MIB) == []
    assert pack(ranges_of(0, 0), 8, MIB, min_partitions=4) == []


def test_small_partitions_share_one_task() -> None:
    tasks = pack(ranges_of(*[5] * 1_000), 8, 64 * MIB)
    assert len(tasks) == 1
    assert len(tasks[0]) == 1_000


def test_the_bytes_decide_how_many_tasks_up_to_the_most() -> None:
    assert len(pack(ranges_of(*[1_024] * 3), 8, MIB)) == 3
    assert len(pack(ranges_of(*[1_024] * 100), 8, MIB)) == 8


def test_a_large_partition_is_spread_over_tasks() -> None:
    tasks = pack(ranges_of(8_000), 8, MIB)
    assert sizes(tasks) == [1_000] * 8
    assert [task[0].start for task in tasks] == [10 + 1_000 * n for n in range(8)]


def test_partitions_are_not_split_for_a_few_records() -> None:
    tasks = pack(ranges_of(1_050, 950, 1_020, 980), 4, MIB)
    assert [[each.partition for each in task] for task in tasks] == [[0], [1], [2], [3]]


def test_partitions_of_one_leader_come_together() -> None:
    mixed = [OffsetRange("t", number, 0, 1_024, leader=f"b{number % 2}") for number in range(8)]
    tasks = pack(mixed, 2, MIB)
    assert [{each.leader for each in task} for task in tasks] == [{"b0"}, {"b1"}]


def test_more_tasks_can_be_asked_for_than_the_most() -> None:
    assert sizes(pack(ranges_of(14), 2, MIB, min_partitions=8)) == [1, 2, 2, 2, 1, 2, 2, 2]
    assert len(pack(ranges_of(3), 2, MIB, min_partitions=8)) == 3


def test_more_tasks_than_records_are_never_made() -> None:
    assert sizes(pack(ranges_of(14), 2, MIB, min_partitions=2**31 - 1)) == [1] * 14
    assert sizes(pack(ranges_of(9, size=1e9), 2**31 - 1, 1)) == [1] * 9


def test_no_task_has_more_records_than_allowed() -> None:
    assert sizes(pack(ranges_of(10, 10, 5), 1, MIB, max_records_per_partition=10)) == [8, 8, 9]


@given(
    counts=st.lists(st.integers(0, 300), max_size=12),
    weights=st.lists(st.sampled_from([1.0, 100.0, 5_000.0]), min_size=12, max_size=12),
    max_tasks=st.integers(1, 9),
    target=st.integers(1, 200_000),
    least=st.none() | st.integers(1, 20),
    most=st.none() | st.integers(1, 100),
)
def test_every_offset_is_read_exactly_once_and_the_limits_hold(
    counts: list[int], weights: list[float], max_tasks: int, target: int, least: int | None, most: int | None
) -> None:
    wanted = [
        OffsetRange("t", number, 7, 7 + count, bytes_per_record=weight)
        for number, (count, weight) in enumerate(zip(counts, weights, strict=False))
    ]
    tasks = pack(wanted, max_tasks, target, least, most)
    assert offsets(tasks) == offsets([wanted])
    assert all(task and all(each.records > 0 for each in task) for task in tasks)
    total = sum(counts)
    if most is not None:
        assert max(sizes(tasks), default=0) <= most
    else:
        assert len(tasks) <= max(max_tasks, least or 0)
    if least is not None:
        assert len(tasks) >= min(least, total)
    for task in tasks:
        assert len({each.partition for each in task}) == len(task), "a fetch may name a partition once"
