"""Closing a consumer when the application's own code fails."""

import threading
from collections.abc import Sequence

import pytest

from paceline.model.identifiers import TopicPartition
from paceline_client import Consumer, RebalanceListener


class Failing(RebalanceListener):
    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        raise RuntimeError("the application's database is down")


def test_close_ends_every_thread_although_the_rebalance_listener_fails() -> None:
    consumer = Consumer("127.0.0.1:1", group_id="g", client_id="closing-consumer")
    consumer.subscribe(pattern="t", listener=Failing())
    consumer.take_assignment([TopicPartition("t", 0)])
    with pytest.raises(RuntimeError, match="database is down"):
        consumer.close(timeout_ms=100)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("closing-consumer")] == []
