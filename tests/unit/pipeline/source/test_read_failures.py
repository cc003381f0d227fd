"""Reads of partitions whose leader moves, and of brokers that fail or do not answer."""

import pickle
import socket
import threading
import time

import grpc
import pytest

from paceline.model.errors import BrokerNotAvailableError, ErrorCode, LeaderNotAvailableError, UnknownServerError
from paceline.pipeline.data_source import PacelineDataSource
from paceline.v1.errors_pb2 import LeaderHint
from paceline_client import cluster_view
from tests.unit.pipeline.batches import simple_records, to_records
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition
from tests.unit.pipeline.source.reads import fresh_channels, log, read_all, reader

__all__ = ["fresh_channels"]


def test_a_leader_that_moves_during_the_read_is_followed() -> None:
    partition = ServedPartition(log(1_000))
    with ServedCluster({("t", 0): partition}, brokers=2) as served:
        made = reader(served, **{"paceline.fetch.max.bytes": "5000"})
        [task] = made.partitions()
        rows = made.read(task)
        found = to_records([next(rows)])
        partition.leader = 2
        found += to_records(rows)
        assert found == simple_records(1_000)
        assert {1, 2} <= set(served.fetching_brokers)


@pytest.mark.parametrize("gives_hints", [True, False], ids=["with hints", "without hints"])
@pytest.mark.usefixtures("ipv6")
def test_a_leader_that_moves_is_followed_to_an_ipv6_address(gives_hints: bool) -> None:
    partition = ServedPartition(log(1_000))
    with ServedCluster({("t", 0): partition}, brokers=2, host="::1") as served:
        served.gives_hints = gives_hints
        made = reader(served, **{"paceline.fetch.max.bytes": "5000", "kafkaConsumer.pollTimeoutMs": "5000"})
        [task] = made.partitions()
        rows = made.read(task)
        found = to_records([next(rows)])
        lookups = len(served.described)
        partition.leader = 2
        assert found + to_records(rows) == simple_records(1_000)
        assert set(served.fetching_brokers) == {1, 2} and (len(served.described) == lookups) == gives_hints


def test_a_leader_that_moved_after_planning_is_found_without_a_hint() -> None:
    partition = ServedPartition(log(50))
    with ServedCluster({("t", 0): partition}, brokers=2) as served:
        made = reader(served)
        [task] = made.partitions()
        served.gives_hints = False
        partition.leader = 2
        partition.errors = [ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH]
        assert to_records(made.read(task)) == simple_records(50)


def test_a_hint_for_an_earlier_topic_of_the_name_is_not_followed() -> None:
    partition = ServedPartition(log(50))
    with ServedCluster({("t", 0): partition}, brokers=2) as served:
        made = reader(served, **{"kafkaConsumer.pollTimeoutMs": "3000"})
        [task] = made.partitions()
        served.false_hint = LeaderHint(leader_id=1, host="127.0.0.1", port=served.ports[1], topic_id="earlier")
        partition.leader = 2
        assert to_records(made.read(task)) == simple_records(50)


@pytest.mark.parametrize("status", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "INTERNAL", "UNKNOWN"])
def test_a_broker_that_fails_is_retried_and_its_successor_found(status: str) -> None:
    partition = ServedPartition(log(50))
    with ServedCluster({("t", 0): partition}, brokers=2) as served:
        made = reader(served)
        [task] = made.partitions()
        served.failing_brokers[1] = grpc.StatusCode[status]
        partition.leader = 2
        assert to_records(made.read(task)) == simple_records(50)


def test_a_status_that_is_not_retriable_ends_the_read_at_once() -> None:
    with ServedCluster({("t", 0): ServedPartition(log(50))}) as served:
        [task] = (made := reader(served)).partitions()
        served.failing_brokers[1] = grpc.StatusCode.PERMISSION_DENIED
        started = time.monotonic()
        with pytest.raises(UnknownServerError, match="t/0 at offset 0: PERMISSION_DENIED"):
            list(made.read(task))
        assert time.monotonic() - started < 10


def test_retries_end_with_the_poll_timeout_and_the_last_cause() -> None:
    partition = ServedPartition(log(50))
    with ServedCluster({("t", 0): partition}) as served:
        made = reader(served, **{"kafkaConsumer.pollTimeoutMs": "600"})
        [task] = made.partitions()
        partition.leader = None
        started = time.monotonic()
        with pytest.raises(LeaderNotAvailableError, match="t/0"):
            list(made.read(task))
        assert 0.3 < time.monotonic() - started < 10


def test_the_poll_timeout_applies_when_every_broker_is_unreachable() -> None:
    with ServedCluster({("t", 0): ServedPartition(log(3_000))}, brokers=2) as served:
        made = reader(served, **{"paceline.fetch.max.bytes": "5000", "kafkaConsumer.pollTimeoutMs": "600"})
        [task] = made.partitions()
        rows = made.read(task)
        assert next(rows).num_rows > 0
    started = time.monotonic()
    with pytest.raises(BrokerNotAvailableError, match=r"127\.0\.0\.1:"):
        list(rows)
    assert time.monotonic() - started < 10


def test_a_read_that_gives_up_names_broker_partition_and_offset() -> None:
    with ServedCluster({("t", 0): ServedPartition(log(50))}) as served:
        made = reader(served, startingOffsets='{"t": {"0": 7}}', **{"kafkaConsumer.pollTimeoutMs": "300"})
        [task] = made.partitions()
        served.failing_brokers[1] = grpc.StatusCode.UNAVAILABLE
        with pytest.raises(BrokerNotAvailableError, match=f"{served.bootstrap}: t/0 at offset 7: .*planned"):
            list(made.read(task))


def test_a_task_that_loses_every_bootstrap_server_asks_the_brokers_found_by_planning() -> None:
    partitions = {("t", number): ServedPartition(log(50)) for number in range(2)}
    with ServedCluster(partitions, brokers=3) as served:
        made = reader(served, **{"kafkaConsumer.pollTimeoutMs": "5000"})
        [task] = made.partitions()
        served.stop(1)
        for partition in partitions.values():
            partition.leader = 2
        assert len(to_records(made.read(pickle.loads(pickle.dumps(task))))) == 100


def test_a_lookup_names_no_more_topics_than_a_broker_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_view, "MAX_NAMES_PER_LOOKUP", 3)
    partitions = {(f"t{number}", 0): ServedPartition(log(5)) for number in range(8)}
    with ServedCluster(partitions) as served:
        names = ",".join(topic for topic, _ in partitions)
        assert len(read_all(reader(served, subscribe=names))) == 40
        assert max(len(asked) for asked in served.described) == 3


def test_an_unreachable_cluster_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_view, "METADATA_DEADLINE_MS", 500)
    source = PacelineDataSource({"paceline.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    with pytest.raises(BrokerNotAvailableError, match=r"127\.0\.0\.1:1"):
        source.reader(source.schema()).partitions()


def test_a_server_that_hangs_does_not_hide_why_the_others_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_view, "METADATA_DEADLINE_MS", 500)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:1,127.0.0.1:{silent.getsockname()[1]}"
        source = PacelineDataSource({"paceline.bootstrap.servers": servers, "subscribe": "t"})
        with pytest.raises(BrokerNotAvailableError, match=r"127\.0\.0\.1:1: "):
            source.reader(source.schema()).partitions()


def test_a_dead_bootstrap_server_is_skipped() -> None:
    with ServedCluster({("t", 0): ServedPartition(log(5))}) as served:
        made = reader(served, **{"paceline.bootstrap.servers": f"127.0.0.1:1,{served.bootstrap}"})
        assert read_all(made) == simple_records(5)


def test_planning_waits_for_an_election() -> None:
    partition = ServedPartition(log(5), leader=None)
    with ServedCluster({("t", 0): partition}) as served:
        timer = threading.Timer(0.3, lambda: setattr(partition, "leader", 1))
        timer.start()
        try:
            assert read_all(reader(served)) == simple_records(5)
        finally:
            timer.join()
