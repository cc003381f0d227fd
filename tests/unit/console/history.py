"""A short history of a partition, which the tests of the console read."""

from typing import Any

from paceline.console.recording import ACKNOWLEDGED, EVENT, FAULT, GAP, SAMPLE, VERDICT, Entry
from paceline.model.identifiers import TopicPartition

TP = TopicPartition("t", 0)
WHERE = {"topic": "t", "partition": 0}


def sample(
    t: int, leader: int | None, epoch: int, isr: list[int], replicas: list[dict[str, Any]], **more: Any
) -> Entry:
    known = {
        "topic_id": "id",
        "min_insync_replicas": 2,
        "controller": 7,
        "controller_epoch": 1,
        "zk_version": epoch + len(isr),
    }
    state = {"leader": leader, "leader_epoch": epoch, "isr": isr, "replicas": replicas}
    return Entry(t, SAMPLE, {**WHERE, **known, **state, **more})


def replica(broker: int, end: int | None = None, high_watermark: int | None = None, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"broker_id": broker, "alive": end is not None, "controller_epoch": 1}
    if end is not None:
        found |= {"log_start_offset": 0, "log_end_offset": end, "high_watermark": high_watermark}
        found |= {"role": "follower", "leader_epochs": [[0, 0]], "last_fetch_ago_ms": 20}
    return {**found, **more}


def history() -> list[Entry]:
    """Broker 1 leads, appends three records that broker 2 does not get, and dies; broker 2 leads, and 1 truncates."""
    leader = {"role": "leader"}
    elected = {"who": "controller-7", "kind": "controller-elected", "controller_epoch": 1}
    died = {**WHERE, "who": "controller-7", "kind": "leader-elected", "leader": 2, "leader_epoch": 1, "isr": [2]}
    cut = {**WHERE, "who": "broker-1", "kind": "truncated", "end_offset": 10, "leader": 2, "leader_epoch": 1}
    request = {
        **WHERE,
        "who": "broker-2",
        "kind": "control-request",
        "controller_id": 7,
        "request": "LeaderAndIsr",
    }
    return [
        Entry(0, EVENT, elected),
        sample(500, 1, 0, [1, 2], [replica(1, 10, 10, **leader), replica(2, 10, 10)]),
        Entry(600, ACKNOWLEDGED, {**WHERE, "end": 10, "acks": "all"}),
        Entry(900, ACKNOWLEDGED, {**WHERE, "end": 13, "acks": "leader"}),
        sample(1_000, 1, 0, [1, 2], [replica(1, 13, 10, **leader), replica(2, 10, 10, last_fetch_ago_ms=500)]),
        Entry(1_200, FAULT, {"who": "broker-1", "what": "crashes"}),
        sample(1_500, 1, 0, [1, 2], [replica(1), replica(2, 10, 10)]),
        Entry(1_600, EVENT, {**died, "zk_version": 3, "cause": "BrokerChange", "replicas": []}),
        Entry(1_610, EVENT, {**request, "controller_epoch": 1, "leader": 2, "leader_epoch": 1}),
        sample(2_000, 2, 1, [2], [replica(1, registered=False), replica(2, 10, 10, **leader)], zk_version=3),
        Entry(2_500, GAP, {"from": 2_100, "why": "a test"}),
        Entry(2_800, EVENT, {**cut, "replicas": [{"broker_id": 1, "log_end_offset": 13}]}),
        sample(
            3_000, 2, 1, [1, 2], [replica(1, 10, 10), replica(2, 10, 10, **leader, leader_epochs=[[0, 0], [1, 10]])],
            zk_version=4,
        ),
        Entry(3_000, VERDICT, {"violated": [{"invariant": "C1", "meaning": "no loss", "evidence": ["<b>lost</b>"]}]}),
    ]  # fmt: skip
