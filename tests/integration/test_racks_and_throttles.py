"""A cluster in two racks: reads from a follower, replication throttles, log directories, and drained brokers.

The module has its own cluster, because its tests stop brokers and set rates.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.cli.commands import cli
from paceline.coordination.errors import JavaNotFoundError
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline.model.errors import ErrorCode, LogDirNotFoundError, PolicyViolationError, ReplicaNotAvailableError
from paceline.rpc.channels import open_channel
from paceline.runtime.embedded_zookeeper import java_path
from paceline.testing import PATIENT
from paceline.v1 import admin_service_pb2 as admin_pb
from paceline.v1 import log_service_pb2 as pb
from paceline.v1.admin_service_pb2_grpc import AdminServiceStub
from paceline.v1.log_service_pb2_grpc import LogServiceStub
from paceline_client import Admin, Consumer, NewTopic, Producer, TopicPartition
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

DEADLINE_S = 120.0
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Start one controller and three brokers: 1 and 3 in rack a, 2 in rack b."""
    try:
        java_path()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    made = LocalCluster(
        tmp_path_factory.mktemp("racks"),
        CONFIG_FILE,
        controllers=1,
        settings={**PATIENT, "replica.fetch.max.bytes": "100000", "replica.fetch.response.max.bytes": "100000"},
        ports=free_plan(1, 3),
        heap_mib=64,
        racks=["a", "b"],
    )
    made.start()
    yield made
    made.stop()


def make(cluster: LocalCluster, name: str, *assignments: list[int]) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, assignments=assignments, configs={"min.insync.replicas": "1"})])


def fill(cluster: LocalCluster, topic: str, count: int, size: int = 10) -> None:
    with Producer(cluster.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, (b"%d " % number).ljust(size, b"x"))
        producer.flush()


def fetch_at(cluster: LocalCluster, broker: int, topic: str, rack: str) -> pb.FetchPartitionResult:
    with open_channel(cluster.broker(broker).client_address) as channel:
        answer = LogServiceStub(channel).Fetch(
            pb.FetchRequest(rack_id=rack, partitions=[pb.FetchPartition(topic=topic)]), timeout=10
        )
    return answer.partitions[0]


def run(cluster: LocalCluster, *arguments: str) -> Any:
    result = CliRunner().invoke(cli, [*arguments, "-b", cluster.bootstrap])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def rows(cluster: LocalCluster, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(cluster, *arguments, "-o", "json").stdout)
    return found


# reads from a follower in the same rack (KIP-392)


def test_the_leader_names_a_follower_in_the_callers_rack_and_that_one_serves_it(cluster: LocalCluster) -> None:
    make(cluster, "near", [1, 2])
    fill(cluster, "near", 10)
    sent = eventually(
        lambda: (answer := fetch_at(cluster, 1, "near", "b")).HasField("preferred_read_replica") and answer,
        DEADLINE_S,
        "the leader names the follower",
    )
    assert (sent.preferred_read_replica, list(sent.records.records)) == (2, [])
    eventually(
        lambda: fetch_at(cluster, 2, "near", "b").high_watermark == 10,
        DEADLINE_S,
        "the follower has the high watermark of all records",
    )
    assert len(fetch_at(cluster, 2, "near", "b").records.records) == 10
    assert fetch_at(cluster, 2, "near", "").error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not fetch_at(cluster, 1, "near", "a").HasField("preferred_read_replica")


def test_a_consumer_with_a_rack_reads_everything_from_the_follower(cluster: LocalCluster) -> None:
    make(cluster, "far", [1, 2])
    fill(cluster, "far", 2_000, 1_000)
    eventually(
        lambda: fetch_at(cluster, 2, "far", "b").high_watermark == 2_000, DEADLINE_S, "all records are committed"
    )
    with Consumer(cluster.bootstrap, client_rack="b", max_buffered_bytes=100_000) as consumer:
        consumer.assign([TopicPartition("far", 0)])
        consumer.seek_to_beginning()
        seen: list[int] = []

        def reads_all() -> bool:
            for records in consumer.poll(timeout_ms=500).values():
                seen.extend(int(record.value.split()[0]) for record in records)
                state = consumer._assignment.find(TopicPartition("far", 0))
                assert state is not None and state.read_replica == 2, "records came from another broker"
            return len(seen) >= 2_000

        eventually(reads_all, DEADLINE_S, "all records are read", pause_s=0.0)
    assert seen == list(range(2_000))


def test_a_consumer_returns_to_the_leader_when_its_follower_dies_and_misses_no_record(cluster: LocalCluster) -> None:
    make(cluster, "back", [1, 2, 3])
    fill(cluster, "back", 100)
    seen: list[int] = []
    follower = cluster.broker(2)
    with Consumer(cluster.bootstrap, client_rack="b") as consumer:
        consumer.assign([TopicPartition("back", 0)])
        consumer.seek_to_beginning()

        def reads(count: int) -> bool:
            for records in consumer.poll(timeout_ms=500).values():
                seen.extend(int(record.value.split()[0]) for record in records)
            return len(seen) >= count

        eventually(lambda: reads(100), DEADLINE_S, "the first records are read")
        cluster.kill(follower)
        try:
            fill(cluster, "back", 50)
            eventually(lambda: reads(150), DEADLINE_S, "the records after the failure are read")
        finally:
            cluster.restart(follower)
    assert seen == [*range(100), *range(50)]


def test_the_command_line_reads_in_a_rack(cluster: LocalCluster) -> None:
    make(cluster, "cli-rack", [1, 2])
    fill(cluster, "cli-rack", 5)
    done = run(cluster, "consume", "cli-rack", "--rack", "b", "--exit-at-end")
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 5), done.stderr


# replication throttles


def test_a_throttled_reassignment_shows_progress_and_its_throttle_is_removed_at_the_end(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    make(cluster, "slow", [1])
    fill(cluster, "slow", 1_000, 2_000)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "slow", "partition": 0, "replicas": [1, 3]}]}))
    started = run(cluster, "reassign", "start", str(plan), "--throttle", "20000")
    assert started.stdout == "1 of 1 moves started, at 20000 bytes a second\n", started.stderr
    with Admin(cluster.bootstrap) as admin:
        listed = {entry.key: entry.value for entry in admin.describe_configs("slow", LISTS)["slow"]}
        assert listed == {LISTS[0]: "0:1", LISTS[1]: "0:3"}
        for broker in (1, 3):
            shown = {each.key: each.value for each in admin.describe_broker_configs([broker])[broker]}
            assert [shown[key] for key in RATES] == ["20000", "20000"]
        assert {each.source for each in admin.describe_broker_configs([2])[2]} == {"built-in default"}
    (row,) = rows(cluster, "reassign", "status", str(plan))
    assert (row["state"], row["throttle"]) == ("copying", 20_000)
    assert 0 < row["bytes_left"] <= 2_200_000
    assert row["bytes_per_s"] is not None and row["bytes_per_s"] < 1_000_000
    # A second start of the same plan changes the rate; the reassignment continues.
    faster = run(cluster, "reassign", "start", str(plan), "--throttle", "100000000")
    assert faster.exit_code == 0, faster.stderr
    done = run(cluster, "reassign", "status", str(plan), "--watch", "--timeout", str(DEADLINE_S))
    assert done.exit_code == 0, done.stdout
    assert "throttle removed from brokers 1, 3 and topics slow" in done.stderr
    with Admin(cluster.bootstrap) as admin:
        assert {each.value for each in admin.describe_configs("slow", LISTS)["slow"]} == {""}
        assert {each.source for each in admin.describe_broker_configs([1])[1]} == {"built-in default"}
    again = run(cluster, "reassign", "status", str(plan))
    assert (again.exit_code, again.stderr) == (0, "")


def test_cancelling_the_last_reassignment_removes_the_throttle(cluster: LocalCluster, tmp_path: Path) -> None:
    make(cluster, "stop", [1])
    fill(cluster, "stop", 500, 2_000)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "stop", "partition": 0, "replicas": [2]}]}))
    assert run(cluster, "reassign", "start", str(plan), "--throttle", "1").exit_code == 0
    cancelled = run(cluster, "reassign", "cancel", "--plan", str(plan))
    assert cancelled.exit_code == 0
    assert "throttle removed from brokers 1, 2 and topics stop" in cancelled.stderr


def test_a_refused_reassignment_leaves_no_throttle(cluster: LocalCluster, tmp_path: Path) -> None:
    make(cluster, "refused", [1])
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "refused", "partition": 0, "replicas": [9]}]}))
    assert run(cluster, "reassign", "start", str(plan), "--throttle", "1").exit_code != 0
    with Admin(cluster.bootstrap) as admin:
        assert {each.value for each in admin.describe_configs("refused", LISTS)["refused"]} == {""}
        found = admin.describe_broker_configs([1, 2, 3])
    assert {entry.source for entries in found.values() for entry in entries} == {"built-in default"}


def test_a_brokers_rate_is_shown_and_altered(cluster: LocalCluster) -> None:
    assert run(cluster, "broker", "alter", "all", "--set", f"{RATES[0]}=5").stdout == "altered all brokers\n"
    shown = {row["key"]: (row["value"], row["source"]) for row in rows(cluster, "broker", "configs", "2")}
    assert shown[RATES[0]] == ("5", "broker default")
    wrong = run(cluster, "broker", "alter", "2", "--set", "retention.ms=5")
    assert wrong.stderr.startswith("INVALID_CONFIG: ")
    assert run(cluster, "broker", "alter", "all", "--delete", RATES[0]).exit_code == 0
    assert run(cluster, "broker", "alter", "all").exit_code == 2
    assert run(cluster, "broker", "alter", "some", "--delete", RATES[0]).exit_code == 2


# log directories


def test_log_directories_list_their_replicas(cluster: LocalCluster) -> None:
    make(cluster, "dirs", [1, 2])
    fill(cluster, "dirs", 100, 100)

    def sizes() -> dict[tuple[str, int], int]:
        found = rows(cluster, "broker", "logdirs", "--replicas", "--topic", "dirs")
        return {(row["partition"], row["broker"]): row["bytes"] for row in found}

    assert set(sizes()) == {("dirs/0", 1), ("dirs/0", 2)}
    eventually(lambda: sizes()["dirs/0", 1] == sizes()["dirs/0", 2] > 0, DEADLINE_S, "both replicas have the same size")
    (one,) = rows(cluster, "broker", "logdirs", "2")
    assert one["directory"] == str(cluster.directory / "broker-2" / "data")
    assert one["state"] == "online"
    gone = run(cluster, "broker", "logdirs", "2", "9")
    assert gone.exit_code == 3
    assert "BROKER_NOT_AVAILABLE: broker 9 is not live" in gone.stderr


def test_a_replica_stays_in_its_log_directory_and_each_refusal_has_a_reason(cluster: LocalCluster) -> None:
    make(cluster, "stays", [1])
    here = str(cluster.directory / "broker-1" / "data")
    with Admin(cluster.bootstrap) as admin:
        assert [one.error for one in admin.alter_replica_log_dirs({("stays", 0, 1): here})] == [None]
        results = admin.alter_replica_log_dirs(
            {("stays", 0, 1): "/elsewhere", ("nobody", 0, 2): str(cluster.directory / "broker-2" / "data")},
            raise_errors=False,
        )
        assert [type(one.error) for one in results] == [LogDirNotFoundError, ReplicaNotAvailableError]
        with pytest.raises(LogDirNotFoundError, match=here):
            admin.alter_replica_log_dirs({("stays", 0, 1): "/elsewhere"})
    assert PolicyViolationError.code is ErrorCode.POLICY_VIOLATION


def test_stubs_alone_are_enough_for_log_directories(cluster: LocalCluster) -> None:
    with open_channel(cluster.controller_addresses[0]) as channel:
        answer = AdminServiceStub(channel).DescribeLogDirs(admin_pb.DescribeLogDirsRequest(), timeout=30)
    assert [broker.broker_id for broker in answer.brokers] == [1, 2, 3]
    assert all(len(broker.log_dirs) == 1 and not broker.HasField("error") for broker in answer.brokers)


# drain and undrain


def test_a_drained_broker_is_restored_by_its_saved_order(cluster: LocalCluster, tmp_path: Path) -> None:
    make(cluster, "drained", [1, 2, 3], [2, 3, 1], [1, 3, 2])

    def leaders() -> list[int | None]:
        with Admin(cluster.bootstrap) as admin:
            (topic,) = admin.describe_topics(["drained"], from_controller=True)
            return [partition.leader for partition in topic.partitions]

    saved = str(tmp_path / "before.json")
    run(cluster, "broker", "drain", "1", "--save", saved)  # may fail for other topics without another replica
    eventually(lambda: 1 not in leaders(), DEADLINE_S, "broker 1 leads nothing")
    back = run(cluster, "broker", "undrain", "1", "--file", saved)
    assert "drained/" not in back.stderr
    eventually(lambda: leaders() == [1, 2, 1], DEADLINE_S, "broker 1 leads again")
