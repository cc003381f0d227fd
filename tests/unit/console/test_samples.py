"""Samples of a live cluster, made of the views of its brokers."""

from typing import Any

from paceline.console.service.collector import sample_of
from paceline.model.errors import NotLeaderOrFollowerError
from paceline_client.admin import PartitionReplicasDescription, ReplicaDescription
from paceline_client.metadata import PartitionDescription
from tests.unit.console.history import TP


def progress(broker: int, end: int | None, ago: int | None = None, **more: Any) -> ReplicaDescription:
    return ReplicaDescription(broker, end, 0, ago, ago, in_sync=True, high_watermark=end, **more)


def view(
    broker: int, leader: int, epoch: int, *replicas: ReplicaDescription, leads: bool
) -> PartitionReplicasDescription:
    return PartitionReplicasDescription(
        TP.topic, TP.partition, leader, epoch, 0, 10, 0, (1, 2), (1, 2), replicas,
        topic_id="id", zk_version=4, min_insync_replicas=2, error=None if leads else NotLeaderOrFollowerError("no"),
    )  # fmt: skip


METADATA = PartitionDescription(0, 1, 3, (1, 2, 3), (1, 2, 3))


def test_each_replica_speaks_for_itself_and_the_leader_for_the_progress() -> None:
    views = {
        1: {TP: view(1, 1, 4, progress(1, 12, leader_epochs=((0, 0), (4, 9))), progress(2, 7, 30), leads=True)},
        2: {TP: view(2, 1, 4, progress(2, 8, leader_epochs=((0, 0),)), leads=False)},
        3: {},
    }
    sample = sample_of(TP, METADATA, views, {1, 2, 3})
    assert (sample["leader"], sample["leader_epoch"], sample["isr"], sample["zk_version"]) == (1, 4, [1, 2], 4)
    leader, follower, silent = sample["replicas"]
    assert (leader["role"], leader["log_end_offset"], leader["leader_epochs"]) == ("leader", 12, [[0, 0], [4, 9]])
    assert (follower["role"], follower["log_end_offset"], follower["last_fetch_ago_ms"]) == ("follower", 8, 30)
    assert silent == {"broker_id": 3, "alive": True, "registered": True, "answers": False}


def test_of_two_brokers_that_take_themselves_for_leader_the_newer_counts() -> None:
    views = {
        1: {TP: view(1, 1, 4, progress(1, 12), leads=True)},
        2: {TP: view(2, 2, 5, progress(2, 8), leads=True)},
    }
    sample = sample_of(TP, METADATA, views, {1, 2})
    assert (sample["leader"], sample["leader_epoch"]) == (2, 5)
    assert sample["replicas"][2]["alive"] is False


def test_without_a_leader_the_metadata_counts() -> None:
    sample = sample_of(TP, METADATA, {}, {2, 3})
    assert (sample["leader"], sample["leader_epoch"], sample["isr"]) == (1, 3, [1, 2, 3])
    assert "min_insync_replicas" not in sample


def test_brokers_that_were_not_asked_are_not_called_silent() -> None:
    assert all("answers" not in one for one in sample_of(TP, METADATA, None, {1, 2, 3})["replicas"])
