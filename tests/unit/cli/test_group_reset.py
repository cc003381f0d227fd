"""Which partitions `paceline group reset` changes: never others than those that were named."""

from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import paceline_client
from paceline.cli.commands import cli
from paceline_client import TopicPartition

FIRST, OTHER = TopicPartition("orders", 0), TopicPartition("payments", 0)


class _Cluster:
    """An Admin and a Consumer of a cluster with two topics of one partition, and a group that has read both."""

    def __init__(self) -> None:
        self.altered: dict[TopicPartition, int] = {}
        self.asked_ms: set[int] = set()
        self.committed = [FIRST, OTHER]

    def __enter__(self) -> "_Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def group_offsets(self, _group: str) -> dict[TopicPartition, Any]:
        return dict.fromkeys(self.committed, SimpleNamespace(offset=70))

    def describe_topics(self, _names: list[str]) -> list[Any]:
        return [SimpleNamespace(partitions=[SimpleNamespace(partition=0)])]

    def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 100)

    def offsets_for_times(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, Any]:
        self.asked_ms = set(times.values())
        return {tp: SimpleNamespace(offset=55) for tp in times}

    def alter_group_offsets(self, _group: str, offsets: dict[TopicPartition, int]) -> None:
        self.altered |= offsets


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> _Cluster:
    found = _Cluster()
    monkeypatch.setattr(paceline_client, "Admin", lambda *_, **__: found)
    monkeypatch.setattr(paceline_client, "Consumer", lambda *_: found)
    return found


@pytest.mark.parametrize(
    ("which", "altered"),
    [((), {FIRST: 0, OTHER: 0}), (("orders",), {FIRST: 0}), (("orders/0",), {FIRST: 0})],
    ids=["all", "a topic", "a partition"],
)
def test_the_named_partitions_are_reset(
    cluster: _Cluster, which: tuple[str, ...], altered: dict[TopicPartition, int]
) -> None:
    result = CliRunner().invoke(cli, ["group", "reset", "readers", *which, "--to", "start"])
    assert result.exit_code == 0 and cluster.altered == altered


@pytest.mark.parametrize("which", [("orders/9",), ("orders/0", "orders/9")])
def test_a_partition_that_does_not_exist_is_refused_and_no_offset_changes(
    cluster: _Cluster, which: tuple[str, ...]
) -> None:
    result = CliRunner().invoke(cli, ["group", "reset", "readers", *which, "--to", "start"])
    assert result.exit_code == 69 and "no partition 9" in result.stderr and not cluster.altered


@pytest.mark.parametrize("moment", ["1970-01-02T00:00:00+00:00", "@1970-01-02T00:00+00:00", "@86400000"])
def test_offsets_are_set_to_a_time(cluster: _Cluster, moment: str) -> None:
    result = CliRunner().invoke(cli, ["group", "reset", "readers", "orders", "--to", moment])
    assert (result.exit_code, cluster.altered, cluster.asked_ms) == (0, {FIRST: 55}, {86_400_000}), result.output


def test_a_time_ago_is_accepted_and_another_word_is_not(cluster: _Cluster) -> None:
    assert CliRunner().invoke(cli, ["group", "reset", "readers", "orders", "--to", "10m"]).exit_code == 0
    refused = CliRunner().invoke(cli, ["group", "reset", "readers", "orders", "--to", "@soon"])
    assert (refused.exit_code, "'@soon' is none of start" in refused.stderr) == (2, True)


def test_a_group_without_offsets_needs_the_names_of_topics(cluster: _Cluster) -> None:
    cluster.committed = []
    refused = CliRunner().invoke(cli, ["group", "reset", "readers", "--to", "start"])
    assert (refused.exit_code, refused.stderr.split(":")[0]) == (64 + 5, "GROUP_ID_NOT_FOUND")
    assert CliRunner().invoke(cli, ["group", "reset", "readers", "orders", "--to", "start"]).exit_code == 0
