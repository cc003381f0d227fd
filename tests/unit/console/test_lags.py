"""Lag of groups: samples within bounds, gaps, and the chart."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.console.lag_drawing import WINDOW_MS, lag_svg
from paceline.console.pages.groups import group_list, group_page
from paceline.console.service.lags import EVERY_MS, Lags
from paceline.model.errors import CoordinatorNotAvailableError, UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from paceline_client.errors import BootstrapError
from tests.unit.console.metadata import partition, topic

WHERE = TopicPartition("a", 0)


class FakeAdmin:
    """Groups that have committed offset 3 of a partition with ten records, and one of a deleted topic."""

    def __init__(self, *groups: str) -> None:
        self.groups = groups
        self.error: Exception | None = None

    def list_groups(self) -> list[Any]:
        if self.error:
            raise self.error
        return [SimpleNamespace(group_id=one) for one in self.groups]

    def describe_groups(self, ids: list[str]) -> list[Any]:
        if ids == ["moving"]:
            raise CoordinatorNotAvailableError("moving")
        return [SimpleNamespace(group_id=ids[0], state="Empty", members=())]

    def group_offsets(self, _group: str) -> dict[TopicPartition, Any]:
        return dict.fromkeys([WHERE, TopicPartition("gone", 0)], SimpleNamespace(offset=3, metadata=""))

    def describe_topics(self, names: list[str] | None = None) -> list[Any]:
        if names and "gone" in names:
            raise UnknownTopicOrPartitionError("gone")
        return [topic("a", partition(0), partition(1)), topic("other", partition(0))]

    def describe_leaders(self, topics: list[Any]) -> dict[TopicPartition, Any]:
        assert [(one.name, len(one.partitions)) for one in topics] == [("a", 1)]
        return {WHERE: SimpleNamespace(high_watermark=10)}


def lags(admin: FakeAdmin) -> Lags:
    return Lags(admin)  # type: ignore[arg-type]


def test_a_sample_has_the_lag_of_each_group_also_with_a_deleted_topic() -> None:
    sampled = lags(FakeAdmin("g", "h"))
    sampled.sample(1_000)
    assert sampled.totals() == {"g": 7, "h": 7} and sampled.series("g") == [(1_000, 7)]
    assert [(row["group"], row["lag"]) for row in sampled.of_topic("a")] == [("g", 7), ("h", 7)]
    assert sampled.of_topic("gone")[0]["lag"] is None


def test_a_group_whose_coordinator_moves_does_not_hide_the_others() -> None:
    sampled = lags(FakeAdmin("g", "moving", "z"))
    sampled.sample(0)
    assert sampled.totals() == {"g": 7, "z": 7}


def test_two_hours_are_kept_and_a_group_that_was_deleted_is_forgotten() -> None:
    admin = FakeAdmin("g", "h")
    sampled = lags(admin)
    sampled.sample(0)
    admin.groups = ("g",)
    for number in range(1, 400):
        sampled.sample(number * EVERY_MS)
    assert len(sampled.series("g")) == WINDOW_MS // EVERY_MS
    assert sampled.series("h") == [] and sampled.totals() == {"g": 7}


def test_the_number_of_sampled_groups_is_bounded_and_told() -> None:
    sampled = lags(FakeAdmin(*(f"g{number}" for number in range(250))))
    sampled.sample(0)
    assert (len(sampled.totals()), sampled.left_out) == (200, 50)


def test_a_failed_sample_leaves_the_earlier_ones() -> None:
    admin = FakeAdmin("g")
    sampled = lags(admin)
    sampled.sample(0)
    admin.error = BootstrapError("no answer")
    with pytest.raises(BootstrapError):
        sampled.sample(EVERY_MS)
    assert sampled.series("g") == [(0, 7)] and sampled.taken_ms == 0


def test_the_chart_leaves_gaps_open_and_stays_within_its_frame() -> None:
    series = [(0, 5), (EVERY_MS, 1_000), (20 * EVERY_MS, 0)]
    drawn = lag_svg(series, 20 * EVERY_MS, EVERY_MS)
    curves = re.findall(r'<line x1="([\d.]+)%" y1="([\d.]+)" x2="([\d.]+)%" y2="([\d.]+)" class="curve"/>', drawn)
    assert len(curves) == 3  # a dot, a line, and a dot after the gap
    assert all(0 <= float(x) <= 100.2 and 0 <= float(y) <= 148 for x, y in [(one[0], one[1]) for one in curves])
    assert 'aria-label="Lag over two hours, now 0 records"' in drawn
    assert "No lag has been sampled yet" in lag_svg([], 0, EVERY_MS)


def test_the_page_of_a_group_has_members_lag_and_samples() -> None:
    member = SimpleNamespace(
        member_id="m", group_instance_id="", client_id="c", client_host="h", assignment=(WHERE,) * 300
    )
    group = SimpleNamespace(
        group_id="", state="Stable", coordinator=1, generation=2, protocol="range", leader="m", members=(member,)
    )
    found = group_page(group, [{"partition": "a/0", "lag": 7}, {"partition": "a/1", "lag": None}], [(0, 7)], {})
    assert (found["title"], found["facts"]["lag"], found["samples"][0]["lag"]) == ("(no name)", 7, 7)
    (row,) = found["members"]
    assert (row["leads"], row["partition_count"], len(row["partitions"])) == (True, 300, 200)


def test_groups_are_found_by_a_part_of_their_id() -> None:
    names = ("group_id", "state", "member_count", "coordinator", "protocol_type")
    groups = [SimpleNamespace(**dict.fromkeys(names, one)) for one in ("Ab", "b")]
    assert [one["group"] for one in group_list(groups, {"b": 2}, 0, {"q": "B"})["groups"]] == ["Ab", "b"]
    assert group_list(groups, {"b": 2}, 0, {"q": "A"})["groups"][0]["lag"] is None
