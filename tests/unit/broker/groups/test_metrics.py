"""Metrics of the group coordinator."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from paceline.broker.metrics import group_lags_of
from paceline.model.identifiers import TopicPartition
from tests.support.group_cluster import CONFIG, GroupCluster


def test_gauges_count_groups_by_state_with_their_members_and_offsets() -> None:
    cluster = GroupCluster()
    leader, _ = cluster.stable(2)
    cluster.commit(7, leader)
    cluster.commit(8, leader, partition=1)
    cluster.join(group_id="another")
    numbers = cluster.coordinator.numbers()
    states = {labels[0]: count for labels, count in numbers.by_state.items() if count}
    assert states == {"Stable": 1, "CompletingRebalance": 1}
    assert (numbers.members, numbers.offsets) == (3, 2)
    assert numbers.largest["group.max.size",] == 2 and numbers.largest["group.max.offsets",] == 2
    assert 0 < numbers.largest["group.max.metadata.bytes",] < numbers.largest["group.max.offsets.bytes",]


def test_commits_rebalances_and_loads_are_counted() -> None:
    cluster = GroupCluster()
    leader, _ = cluster.stable(2)
    before = cluster.coordinator.metrics
    assert (before.rebalances, before.offset_commits, before.loads) == (2, 0, 1)
    cluster.commit(7, leader)
    assert before.offset_commits == 1
    cluster.fail_over()
    assert cluster.coordinator.metrics.loads == 1 and cluster.coordinator.metrics.rebalances == 0
    assert cluster.coordinator.storage.loading_count == 0


def test_load_time_counts_the_wait_for_the_high_watermark() -> None:
    cluster = GroupCluster()
    cluster.fail_over(run=False)
    cluster.log.end += 1
    cluster.time.run_for(500)
    assert cluster.coordinator.storage.loading_count == 1 and cluster.coordinator.metrics.loads == 0
    cluster.log.end -= 1
    cluster.log.high_watermark = cluster.log.end + 1
    cluster.time.run_for(500)
    assert cluster.coordinator.metrics.loads == 1 and cluster.coordinator.metrics.load_ms >= 500


def test_expired_offsets_are_counted() -> None:
    cluster = GroupCluster(replace(CONFIG, offsets_retention_ms=1_000, offsets_retention_check_interval_ms=500))
    cluster.commit(7)
    cluster.time.run_for(3_000)
    assert cluster.coordinator.metrics.offset_expirations == 1 and cluster.coordinator.numbers().offsets == 0


def test_the_lag_of_a_group_counts_committed_records_and_needs_every_partition_here() -> None:
    def hosted(high_watermark: int) -> SimpleNamespace:
        return SimpleNamespace(log=SimpleNamespace(high_watermark=high_watermark))

    def group(name: str, **offsets: int) -> SimpleNamespace:
        committed = {TopicPartition(topic, 0): SimpleNamespace(value=SimpleNamespace(offset=offset))
                     for topic, offset in offsets.items()}  # fmt: skip
        return SimpleNamespace(group_id=name, offsets=committed)

    online = {TopicPartition("a", 0): hosted(10), TopicPartition("b", 0): hosted(5)}
    manager: Any = SimpleNamespace(hosted=SimpleNamespace(online=online))
    listed = [group("g", a=7, b=9), group("elsewhere", a=1, c=1), group("none"), group("later", a=0)]
    groups: Any = SimpleNamespace(storage=SimpleNamespace(loaded_groups=lambda: listed))
    assert group_lags_of(manager, groups, 100) == {("g",): 3, ("later",): 10}
    assert group_lags_of(manager, groups, 4) == {("g",): 3}
