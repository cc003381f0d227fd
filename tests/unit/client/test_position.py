"""`Consumer.position` of a group member that has to fetch its committed offset."""

import threading

import pytest

from paceline.model.identifiers import TopicPartition
from paceline_client import Consumer, OffsetAndMetadata
from paceline_client.groups.group_consumer import ConsumerGroup

ONE = TopicPartition("t", 0)


def test_other_threads_of_the_consumer_work_while_position_fetches_a_committed_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The heartbeat thread needs the consumer's lock to report a rebalance."""
    fetches: list[bool] = []
    with Consumer("127.0.0.1:1", group_id="g", enable_auto_commit=False) as consumer:

        def fetch(_group: ConsumerGroup, _deadline: float) -> None:
            other = threading.Thread(target=consumer._wake_poll, daemon=True)
            other.start()
            other.join(20)
            fetches.append(not other.is_alive())
            if len(fetches) > 1:  # the first fetch got no answer
                consumer.begin_at({ONE: OffsetAndMetadata(5)})

        monkeypatch.setattr(ConsumerGroup, "begin_at_committed", fetch)
        consumer.take_assignment([ONE])
        assert consumer.position(ONE, timeout_ms=60_000) == 5
    assert fetches == [True, True]
