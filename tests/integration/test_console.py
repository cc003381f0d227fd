"""The console on a running cluster: the JSON twin of its page shows a partition, and a recording of it plays."""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from starlette.testclient import TestClient

from paceline.console.lens import frame_at
from paceline.console.recording import Header, RecordingWriter, read_recording
from paceline.console.service.collector import Collector
from paceline.console.service.pages import Pages
from paceline.console.service.source import LiveSource
from paceline.console.timeline import Timeline
from paceline.dev.local_cluster import LocalCluster
from paceline.model.identifiers import TopicPartition
from paceline_client import Admin, NewTopic, Producer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

DEADLINE_S = 60.0
TP = TopicPartition("watched", 0)


@pytest.fixture
def browser(local_cluster: LocalCluster) -> Iterator[TestClient]:
    source = LiveSource(lambda: Admin(local_cluster.bootstrap), "a test")
    yield TestClient(Pages(source).application(), headers={"accept": "application/json"})
    source.close()


def test_a_partition_is_shown_live_and_from_its_recording(local_cluster: LocalCluster, browser: TestClient) -> None:
    lines: list[str] = []
    began_ms = int(time.time() * 1000)
    writer = RecordingWriter(lines.append, Header(title="a test", origin="cluster", began_ms=began_ms))
    collector = Collector(lambda: Admin(local_cluster.bootstrap), writer.add, lambda: [TP], began_ms)
    bootstrap = local_cluster.bootstrap
    with closing(collector), Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        admin.create_topics([NewTopic(TP.topic, assignments=[[1, 2, 3]])])
        for number in range(3):
            producer.send(TP.topic, b"%d" % number).result(DEADLINE_S)
        collector.start()

        def shown() -> dict[str, Any]:
            answer = browser.get("/partition/watched/0")
            return dict(answer.json()) if answer.status_code == 200 else {}

        def complete() -> dict[str, Any] | None:
            frame = shown()
            ends = [(one["log_end_offset"], one["high_watermark"]) for one in frame.get("replicas", ())]
            return frame if ends == [(3, 3)] * 3 else None

        frame = eventually(complete, DEADLINE_S, "the offsets of all replicas")
        assert frame is not None
        assert (frame["leader"], frame["leader_epoch"], frame["isr"]) == (1, 0, [1, 2, 3])
        assert frame["findings"][0][1].startswith("watched/0 is healthy: broker 1 leads in epoch 0")
        assert frame["replicas"][0]["epochs"] == [[0, 0, 3]]
        # The brokers report the controller's requests once they know that a watcher names the partition.
        orders = iter([[2, 1, 3], [1, 2, 3]] * 100)

        def requests() -> list[dict[str, Any]]:
            admin.alter_partition_reassignments({TP: next(orders)})
            return list(shown()["requests"])

        eventually(lambda: any(one["request"] == "LeaderAndIsr" for one in requests()), DEADLINE_S, "a control request")
    writer.end()
    recording = read_recording(lines)
    assert recording.cut is None
    played = frame_at(Timeline(recording.header, recording.entries), TP, recording.entries[-1].t)
    assert {(one.broker_id, one.log_end_offset) for one in played.replicas} == {(1, 3), (2, 3), (3, 3)}
