"""`Consumer.poll_batches` of a group member."""

import pytest

from paceline_client import Consumer
from paceline_client.groups.group_consumer import ConsumerGroup


def test_poll_batches_takes_part_in_the_rebalances_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines: list[float] = []
    monkeypatch.setattr(ConsumerGroup, "poll", lambda _self, deadline: deadlines.append(deadline))
    with Consumer("127.0.0.1:1", group_id="g") as consumer:
        consumer.subscribe(pattern="t")
        assert consumer.poll_batches(timeout_ms=1) == []
    assert deadlines
