"""Metadata of a made-up cluster, which the tests of the screens read."""

from types import SimpleNamespace
from typing import Any

from paceline.model.admin import PartitionDescription
from paceline_client.metadata import Broker, TopicDescription

MARKUP = "<b>t</b>"


def cluster(*alive: int) -> Any:
    brokers = tuple(Broker(one, "host", 9000 + one) for one in alive)
    return SimpleNamespace(
        cluster_id="id", brokers=brokers, controller_id=7, controller_epoch=2, controller_address="c:1",
        server_version="1",
    )  # fmt: skip


def partition(index: int, leader: int | None = 1, isr: tuple[int, ...] = (1, 2), **more: Any) -> PartitionDescription:
    return PartitionDescription(index, leader, 0, (1, 2), isr, **more)


def topic(name: str, *partitions: PartitionDescription) -> TopicDescription:
    return TopicDescription(name, "id", partitions)


def topics() -> list[TopicDescription]:
    """A whole partition, one with a follower out of the ISR, and one without a leader."""
    return [
        topic("a", partition(0), partition(1, isr=(1,))),
        topic(MARKUP, partition(0, leader=None, isr=(2,), offline_replicas=(2,))),
    ]
