"""Rows S3-1, S3-7 and S3-9 on real processes: registrations that end, and errors that a producer receives."""

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from paceline.model.errors import LeaderNotAvailableError
from paceline.model.identifiers import TopicPartition
from paceline.runtime.embedded_zookeeper import EmbeddedZooKeeper
from paceline_client import Producer
from tests.integration.fake_cluster import FakeCluster
from tests.integration.test_broker_process import (
    LONG_S,
    SHORT_SESSION_MS,
    Broker,
    Process,
    Stubs,
    started,
    until,
    wait_for_controller,
)

TICK_MS = 500
SLACK_S = 40.0
"""A busy machine stretches everything."""


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[str]:
    with EmbeddedZooKeeper(tmp_path / "zookeeper") as server:
        yield server.address


@pytest.mark.cluster
@pytest.mark.zookeeper
def test_s3_1_a_killed_brokers_node_is_deleted_with_its_session_and_a_stopped_ones_at_once(
    zookeeper: str, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        client = KazooClient(zookeeper, timeout=30.0)
        client.start(timeout=60)
        stack.callback(client.close)
        stack.callback(client.stop)
        connect = f"{zookeeper}/rows"
        session = f"--zookeeper-session-timeout-ms={SHORT_SESSION_MS}"
        controller = started(stack, Process("controller", tmp_path, connect, "--controller-id=1000000"))
        brokers = {
            number: started(stack, Broker(tmp_path, connect, f"b{number}", f"--broker-id={number}", session))
            for number in (1, 2, 3)
        }
        addresses = {number: broker.ready().client for number, broker in brokers.items()}
        wait_for_controller(Stubs(stack), addresses[1])

        def node(number: int) -> str:
            return f"/rows/brokers/ids/{number}"

        for number in brokers:
            data, stat = client.get(node(number))
            assert stat.ephemeralOwner and json.loads(data)["endpoints"]
        assert sorted(client.get_children("/rows/brokers/ids")) == ["1", "2", "3"]

        killed_s = time.monotonic()
        brokers[1].popen.send_signal(signal.SIGKILL)
        brokers[1].popen.wait(LONG_S)
        assert client.exists(node(1)), "the node outlives the process"
        until(lambda: client.exists(node(1)) is None)
        took_s = time.monotonic() - killed_s
        # The last heartbeat may have come up to a third of the timeout before the end, and later on a busy machine.
        assert SHORT_SESSION_MS * 0.4 <= took_s * 1000 <= SHORT_SESSION_MS + TICK_MS + SLACK_S * 1000
        controller.wait_said(r"dead=\[1\]")

        stopped_s = time.monotonic()
        assert brokers[2].stop() == 0
        assert client.exists(node(2)) is None, "the node is deleted before the process ends"
        assert time.monotonic() - stopped_s < LONG_S
        controller.wait_said(r"dead=\[2\]")
        assert client.get_children("/rows/brokers/ids") == ["3"]


@pytest.mark.cluster
@pytest.mark.zookeeper
def test_s3_9_a_sigterm_moves_leaders_before_the_broker_leaves_and_single_replicas_do_not_delay_it(
    zookeeper: str, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        client = KazooClient(zookeeper, timeout=30.0)
        client.start(timeout=60)
        stack.callback(client.close)
        stack.callback(client.stop)
        connect = f"{zookeeper}/shutdown"
        session = "--zookeeper-session-timeout-ms=30000"
        started(stack, Process("controller", tmp_path, connect, "--controller-id=1000000"))
        brokers = {
            number: started(stack, Broker(tmp_path, connect, f"b{number}", f"--broker-id={number}", session))
            for number in (1, 2)
        }
        for broker in brokers.values():
            broker.ready()
        for topic, replicas in ("both", [2, 1]), ("single", [2]):
            data = json.dumps({"version": 1, "partitions": {"0": replicas}}).encode()
            client.create(f"/shutdown/brokers/topics/{topic}", data)

        def state_of(topic: str) -> tuple[dict[str, Any], Any]:
            data, stat = client.get(f"/shutdown/brokers/topics/{topic}/partitions/0/state")
            return json.loads(data), stat

        def is_led_by_2(topic: str) -> bool:
            path = f"/shutdown/brokers/topics/{topic}/partitions/0/state"
            return client.exists(path) is not None and state_of(topic)[0]["leader"] == 2

        until(lambda: is_led_by_2("both") and is_led_by_2("single"))
        until(lambda: sorted(state_of("both")[0]["isr"]) == [1, 2])
        stopped_s = time.monotonic()
        assert brokers[2].stop() == 0
        assert time.monotonic() - stopped_s < LONG_S
        moved, moved_stat = state_of("both")
        assert (moved["leader"], moved["isr"]) == (1, [1])
        _, registrations = client.get("/shutdown/brokers/ids")
        assert moved_stat.mzxid < registrations.pzxid, "the leader had moved before the registration was deleted"
        assert state_of("single")[0]["isr"] == [2], "the only replica stays in the ISR, so that it can lead again"


def test_s3_7_a_producer_gets_leader_not_available_and_continues_when_the_replica_returns() -> None:
    fake = FakeCluster().start()
    try:
        fake.topic("one")
        fake.move(TopicPartition("one", 0), None)
        with Producer(fake.bootstrap, linger_ms=0, delivery_timeout_ms=4_000, request_timeout_ms=2_000) as producer:
            refused = producer.send("one", b"a").exception(60)
            assert refused is not None and isinstance(refused.__cause__, LeaderNotAvailableError)
        with Producer(fake.bootstrap, linger_ms=0) as producer:
            waiting = producer.send("one", b"b")
            assert not waiting.done()
            fake.move(TopicPartition("one", 0), 1)
            assert waiting.result(60).offset == 0
        assert fake.values("one") == {0: [b"b"]}
    finally:
        fake.stop()
