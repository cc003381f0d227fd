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

    def __enter__(self) -> "_Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def group_offsets(self, _group: str) -> dict[TopicPartition, Any]:
        return dict.fromkeys((FIRST, OTHER), SimpleNamespace(offset=70))

    def describe_topics(self, _names: list[str]) -> list[Any]:
        return [SimpleNamespace(partitions=[SimpleNamespace(partition=0)])]

    def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 100)

    def alter_group_offsets(self, _group: str, offsets: dict[TopicPartition, int]) -> None:
        self.altered |= offsets


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> _Cluster:
    found = _Cluster()
    monkeypatch.setattr(paceline_client, "Admin", lambda *_: found)
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
