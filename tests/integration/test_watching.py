"""Events, replicas and metrics of a cluster of real processes."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from paceline.coordination.errors import JavaNotFoundError
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, Node
from paceline.dev.ports import free_plan
from paceline.model.errors import NotControllerError
from paceline.rpc.channels import open_channel
from paceline.rpc.convert.events import event_from_proto
from paceline.rpc.errors import from_rpc_error
from paceline.runtime.embedded_zookeeper import java_path
from paceline.v1 import metadata_service_pb2 as pb
from paceline.v1.metadata_service_pb2_grpc import MetadataServiceStub
from paceline_client import Admin, NewTopic, Producer, StateChange, StateChangeKind
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

PACELINE = Path(sys.executable).with_name("paceline")
DEADLINE_S = 180.0


@pytest.fixture(scope="module")
def broken_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Start two controllers and three brokers that tests kill and pause; each test repairs its faults."""
    try:
        java_path()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    cluster = LocalCluster(tmp_path_factory.mktemp("watched"), CONFIG_FILE, ports=free_plan(2, 3), heap_mib=64)
    cluster.start()
    yield cluster
    cluster.stop()


class Watching:
    """A running `paceline watch`, and the lines of its output so far."""

    def __init__(self, cluster: LocalCluster, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [str(PACELINE), "watch", *arguments, "-b", cluster.bootstrap],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell without job control sets SIGINT to be ignored for its background processes and their children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.lines: list[str] = []
        self.notes: list[str] = []
        for stream, kept in ((self.process.stdout, self.lines), (self.process.stderr, self.notes)):
            threading.Thread(target=self._read, args=(stream, kept), daemon=True).start()
        eventually(lambda: self.notes, DEADLINE_S, "the watch has begun")

    @staticmethod
    def _read(stream: Any, kept: list[str]) -> None:
        kept.extend(iter(stream.readline, ""))

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in list(self.lines)]

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=60)


@contextlib.contextmanager
def watching(cluster: LocalCluster, *arguments: str) -> Iterator[Watching]:
    watch = Watching(cluster, *arguments)
    try:
        yield watch
    finally:
        watch.process.kill()
        watch.process.wait(timeout=60)


def make(cluster: LocalCluster, name: str, *assignments: list[int], **configs: str) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, assignments=assignments, configs=configs)])


def fill(cluster: LocalCluster, topic: str, count: int) -> None:
    with Producer(cluster.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=0)
        producer.flush()


def active(cluster: LocalCluster) -> Node:
    def found() -> Node | None:
        with Admin(cluster.bootstrap) as admin:
            controller_id = admin.describe_cluster().controller_id
        return cluster.nodes.get(f"controller-{controller_id}")

    return eventually(found, DEADLINE_S, "there is a controller")  # type: ignore[return-value]


def scraped(cluster: LocalCluster, node: Node) -> dict[str, float]:
    """Return every metric sample of a process, by metric name with labels."""
    port = next(argument.split("=")[1] for argument in node.argv if argument.startswith("--metrics-port="))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def numbers_named(document: str, title: str) -> set[str]:
    found = re.search(rf"(?ms)^## {title}\n(.*?)(?=^## |\Z)", document)
    assert found is not None
    return set(re.findall(r"(paceline_[a-z_]+)", found[1]))


def metadata_stub(address: str) -> Any:
    return MetadataServiceStub(open_channel(address))


# streams


def test_the_controller_publishes_the_events_of_a_topic_from_creation_to_deletion(local_cluster: LocalCluster) -> None:
    stub = metadata_stub(active(local_cluster).client_address)
    call = stub.WatchEvents(pb.WatchEventsRequest(filter=pb.EventFilter(topics=["told"])), timeout=DEADLINE_S)
    begun = next(call).batch
    assert not begun.events and begun.cursor
    with Admin(local_cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("told", 1, 3)])
        admin.delete_topics(["told"])
    kinds: list[str] = []
    while "TOPIC_DELETED" not in kinds:
        batch = next(call).batch
        assert not batch.HasField("gap")
        events = [event_from_proto(event) for event in batch.events]
        assert all((event.topic_partition or (event.topic,))[0] == "told" for event in events)
        assert all((event.controller_epoch or 0) > 0 for event in events)
        kinds += [event.kind.name for event in events]
    call.cancel()
    assert kinds[0] == "TOPIC_CREATED" and kinds[-1] == "TOPIC_DELETED" and kinds.count("TRANSITION") > 5


def test_a_broker_publishes_the_events_of_its_replicas(local_cluster: LocalCluster) -> None:
    stub = metadata_stub(local_cluster.broker(2).client_address)
    call = stub.WatchEvents(pb.WatchEventsRequest(filter=pb.EventFilter(topics=["lived"])), timeout=DEADLINE_S)
    assert next(call).batch.cursor
    make(local_cluster, "lived", [2, 1])
    event = next(message.batch.events[0] for message in call if message.batch.events)
    leading = event.became_leader
    assert (event.source, leading.partition.partition, leading.broker_id) == ("broker-2", 0, 2)
    assert (leading.leadership.leader, list(leading.leadership.isr)) == (2, [2, 1])
    call.cancel()
    with pytest.raises(grpc.RpcError) as refused:
        next(stub.WatchEvents(pb.WatchEventsRequest(active_controller_only=True), timeout=30))
    error = from_rpc_error(refused.value)
    assert isinstance(error, NotControllerError)
    assert error.metadata["address"] == active(local_cluster).client_address


def test_topics_are_equal_at_brokers_and_controller_and_a_standby_names_the_active_one(
    local_cluster: LocalCluster,
) -> None:
    make(local_cluster, "seen", [1, 3], [3, 2])
    leading = active(local_cluster)
    standby = next(node for node in local_cluster.nodes.values() if node.kind == "controller" and node is not leading)
    for node in (leading, local_cluster.broker(1), local_cluster.broker(2)):
        stub = metadata_stub(node.client_address)

        def picture(stub: Any = stub) -> Any:
            (topic,) = stub.DescribeTopics(pb.DescribeTopicsRequest(topics=["seen"]), timeout=30).topics
            return topic.partitions

        partitions = eventually(picture, DEADLINE_S, "the topic exists")
        assert [list(partition.isr) for partition in partitions] == [[1, 3], [3, 2]]
        cluster = stub.DescribeCluster(pb.DescribeClusterRequest(), timeout=30)
        assert {broker.id for broker in cluster.brokers} == {1, 2, 3}
    with pytest.raises(grpc.RpcError) as refused:
        metadata_stub(standby.client_address).DescribeTopics(pb.DescribeTopicsRequest(), timeout=30)
    error = from_rpc_error(refused.value)
    assert isinstance(error, NotControllerError) and error.metadata["address"] == leading.client_address


# replicas


def test_a_leader_describes_each_replica_completely(local_cluster: LocalCluster) -> None:
    make(local_cluster, "viewed", [1, 2, 3], **{"min.insync.replicas": "2"})
    fill(local_cluster, "viewed", 100)
    with Admin(local_cluster.bootstrap) as admin:

        def told() -> Any:
            (view,) = admin.describe_replicas("viewed")
            return all(replica.high_watermark == 100 for replica in view.replicas) and view

        view = eventually(told, DEADLINE_S, "every follower has the high watermark")
        (topic,) = admin.describe_topics(["viewed"])
        assert (view.leader, view.high_watermark, view.min_insync_replicas) == (1, 100, 2)
        assert (view.topic_id, view.under_replicated, view.isr) == (topic.topic_id, False, (1, 2, 3))
        assert view.zk_version >= 0 and view.adding_replicas == view.removing_replicas == ()
        for replica in view.replicas:
            assert (replica.log_end_offset, replica.log_start_offset, replica.lag_records) == (100, 0, 0)
            assert replica.in_sync and replica.online
            assert replica.broker_epoch is not None and replica.broker_epoch > 0
            assert replica.last_fetch_ago_ms is not None and replica.last_caught_up_ago_ms is not None
        assert admin.describe_leaders([topic])[("viewed", 0)].replicas[0].log_end_offset == 100  # type: ignore[index]


# metrics


def test_every_documented_metric_is_served_by_a_real_process(local_cluster: LocalCluster) -> None:
    # Broker 2 leads "counted" and is a follower of "copied".
    for topic, replicas in (("counted", [2, 1]), ("copied", [1, 2])):
        make(local_cluster, topic, replicas)
        fill(local_cluster, topic, 10)
    document = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    for node, title in ((local_cluster.broker(2), "Broker"), (active(local_cluster), "Controller")):
        names = numbers_named(document, title) | numbers_named(document, "Every process")

        # Metrics with labels have no series before their first event.
        never = {
            "paceline_request_errors_total",
            "paceline_controller_takeover_seconds",
            "paceline_listener_limit_refusals_total",
            "paceline_client_throttle_seconds_total",
        }

        def missing(node: Node = node, names: set[str] = names - never) -> set[str]:
            there = {name.partition("{")[0] for name in scraped(local_cluster, node)}
            there |= {re.sub(r"_(count|sum|bucket)$", "", name) for name in there}
            return names - there

        begin = time.monotonic()
        while missing():
            assert time.monotonic() - begin < DEADLINE_S, f"{title}: {sorted(missing())}"
            time.sleep(0.2)


def test_metrics_follow_their_topic_and_are_removed_with_it(local_cluster: LocalCluster) -> None:
    before = scraped(local_cluster, local_cluster.broker(1))
    make(local_cluster, "moving", [1, 2, 3])
    fill(local_cluster, "moving", 500)

    def sample(name: str, broker: int = 1) -> float:
        return scraped(local_cluster, local_cluster.broker(broker)).get(name, -1.0)

    part = '{partition="0",topic="moving"}'
    eventually(
        lambda: sample(f"paceline_partition_high_watermark{part}") == 500, DEADLINE_S, "the high watermark is shown"
    )
    assert sample(f"paceline_partition_in_sync_replicas{part}") == 3
    assert sample('paceline_topic_messages_in_total{topic="moving"}') == 500
    assert sample("paceline_messages_in_total") - before["paceline_messages_in_total"] >= 500
    size = sample('paceline_topic_bytes_in_total{topic="moving"}')
    assert size > 0 and sample('paceline_topic_replication_bytes_out_total{topic="moving"}') == 2 * size
    eventually(
        lambda: sample('paceline_topic_replication_bytes_in_total{topic="moving"}', broker=2) == size,
        DEADLINE_S,
        "copied",
    )
    with Admin(local_cluster.bootstrap) as admin:
        admin.delete_topics(["moving"])

    def left() -> list[str]:
        return [name for name in scraped(local_cluster, local_cluster.broker(1)) if 'topic="moving"' in name]

    eventually(lambda: not left(), DEADLINE_S, "the topic's series are removed")


# the command line during failures


def test_a_watch_continues_at_the_next_controller(broken_cluster: LocalCluster) -> None:
    with watching(broken_cluster, "-o", "ndjson") as events:
        make(broken_cluster, "before", [1, 2])
        eventually(lambda: _created(events) == ["before"], DEADLINE_S, "the first topic is reported")
        killed = active(broken_cluster)
        broken_cluster.kill(killed)
        elected = eventually(
            lambda: [row for row in events.rows() if row["kind"] == "controller-elected"],
            DEADLINE_S,
            "a new controller is active",
        )
        assert elected[0]["who"] != killed.name
        make(broken_cluster, "after", [2, 3])
        eventually(lambda: _created(events) == ["before", "after"], DEADLINE_S, "the second topic is reported")
        assert any("continuing at" in note for note in events.notes)
        assert events.interrupt() == 130
        eventually(lambda: events.notes[-1] == "interrupted\n", DEADLINE_S, "the interruption is reported")
        assert not any("Traceback" in note for note in events.notes)
        broken_cluster.restart(killed)


def _created(watch: Watching) -> list[str]:
    return [row["topic"] for row in watch.rows() if row["kind"] == "topic-created"]


def test_a_lagging_follower_is_shown_in_events_metrics_and_top(broken_cluster: LocalCluster) -> None:
    make(broken_cluster, "lags", [2, 3], **{"min.insync.replicas": "1"})
    leader, follower = broken_cluster.broker(2), broken_cluster.broker(3)
    before = scraped(broken_cluster, leader)
    with watching(broken_cluster, "lags", "--broker", "2", "--kind", "isr", "-o", "ndjson") as watch:
        broken_cluster.pause(follower)
        try:
            fill(broken_cluster, "lags", 50)
            shrunk = eventually(lambda: _first(watch, "isr-shrunk"), DEADLINE_S, "the follower has left the ISR")
            assert (shrunk["old_isr"], shrunk["isr"], shrunk["who"]) == ([2, 3], [2], "broker-2")
            assert [replica["broker_id"] for replica in shrunk["replicas"]] == [2, 3]
            name = "paceline_under_replicated_partitions"
            eventually(
                lambda: scraped(broken_cluster, leader)[name] > 0,
                DEADLINE_S,
                "the metric counts the under-replicated partition",
            )
            numbers = scraped(broken_cluster, leader)
            assert numbers["paceline_isr_shrinks_total"] > before["paceline_isr_shrinks_total"]
            assert numbers['paceline_partition_under_replicated{partition="0",topic="lags"}'] == 1
            row = eventually(lambda: _top(broken_cluster, "lags"), DEADLINE_S, "paceline top shows the partition")
            assert (row["leo"], row["lag"], row["isr"]) == (50, 50, [2])
        finally:
            broken_cluster.resume(follower)
        grown = eventually(lambda: _first(watch, "isr-expanded"), DEADLINE_S, "the follower is in the ISR again")
        assert sorted(grown["isr"]) == [2, 3]
    eventually(
        lambda: scraped(broken_cluster, leader)["paceline_isr_expands_total"] > before["paceline_isr_expands_total"],
        DEADLINE_S,
        "the metric counts the ISR expansion",
    )


def _first(watch: Watching, kind: str) -> dict[str, Any]:
    return next((row for row in watch.rows() if row["kind"] == kind), {})


def _top(cluster: LocalCluster, topic: str) -> dict[str, Any]:
    """Return the row of the topic's only partition, empty while the partition is not under-replicated."""
    ended = subprocess.run(
        [str(PACELINE), "top", topic, "--once", "--under-replicated", "-o", "ndjson", "-b", cluster.bootstrap],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    return next((row for row in rows if row["state"] == "under-replicated"), {})


def test_a_dead_leader_is_shown_in_events_and_in_the_controllers_metrics(broken_cluster: LocalCluster) -> None:
    make(broken_cluster, "dies", [1, 2], **{"min.insync.replicas": "1"})
    make(broken_cluster, "dies-alone", [1])
    with Admin(broken_cluster.bootstrap) as admin:
        stream = admin.watch_events(
            topics=["dies", "dies-alone"], kinds=[StateChangeKind.LEADER_ELECTED, StateChangeKind.TRANSITION]
        )
        assert next(stream).events == ()
        before = scraped(broken_cluster, active(broken_cluster))
        broken_cluster.kill(broken_cluster.broker(1))
        try:
            changes: list[StateChange] = []
            for item in stream:
                changes += item.events
                elected = [change for change in changes if change.kind is StateChangeKind.LEADER_ELECTED]
                offline = [change for change in changes if change.to_state == "OfflinePartition"]
                if elected and offline:
                    break
            assert (elected[0].leader, elected[0].topic_partition) == (2, ("dies", 0))
            assert elected[0].cause == "suspicion: its control connection closed and two connects were refused"
            assert [(change.topic_partition, change.cause) for change in offline] == [
                (("dies-alone", 0), "session: the broker's registration has ended")
            ]
            name = "paceline_offline_partitions"
            eventually(
                lambda: scraped(broken_cluster, active(broken_cluster))[name] == 1,
                DEADLINE_S,
                "one partition is offline",
            )
            after = scraped(broken_cluster, active(broken_cluster))
            kind = 'paceline_leader_elections_total{cause="suspicion",kind="controlled_shutdown"}'
            assert after[kind] > before.get(kind, 0)
            event = 'paceline_controller_event_seconds_count{event="BrokerChange"}'
            assert after[event] > before.get(event, 0)
            elections = "paceline_leader_election_seconds_count"
            assert after[elections] > before[elections]
        finally:
            stream.close()  # type: ignore[attr-defined]
            broken_cluster.restart(broken_cluster.broker(1))
    eventually(
        lambda: scraped(broken_cluster, active(broken_cluster))["paceline_offline_partitions"] == 0,
        DEADLINE_S,
        "the partition is online again",
    )


def test_unknown_topics_and_partitions_are_reported_alike_and_soon(local_cluster: LocalCluster) -> None:
    make(local_cluster, "two", [1], [2])

    def said(*arguments: str) -> tuple[int, str]:
        ended = subprocess.run(
            [str(PACELINE), *arguments, "-b", local_cluster.bootstrap],
            input="",
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return ended.returncode, ended.stderr

    partition = (64 + 5, "UNKNOWN_TOPIC_OR_PARTITION: topic two has 2 partitions, no partition 9\n")
    assert said("produce", "two/9") == said("consume", "two/9") == said("partition", "describe", "two/9") == partition
    assert said("top", "two/9", "--once") == partition
    code, text = said("produce", "nosuch")
    assert code == 64 + 5 and text == "UNKNOWN_TOPIC_OR_PARTITION: topic 'nosuch' does not exist\n"
    for command in (("produce",), ("consume",), ("topic", "describe")):
        code, text = said(*command, "bad name")
        assert code == 64 + 3 and text.startswith("INVALID_TOPIC: the topic name 'bad name' "), text
    code, text = said("topic", "alter", "two", "--set", "retention.ms=abc")
    assert (code, text) == (64 + 3, "INVALID_CONFIG: invalid value 'abc' for retention.ms: must be a whole number\n")
