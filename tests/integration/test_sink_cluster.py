"""The sink against a real cluster: staging, commits, and leaders and controllers killed between the steps."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from paceline.dev.local_cluster import LocalCluster, Node
from paceline.pipeline.data_source import PacelineDataSource
from paceline.pipeline.sink.options import WriteOptions, parse_write_options
from paceline.pipeline.sink.publisher import Publisher
from paceline.pipeline.sink.staging import Staged
from paceline.pipeline.sink.writer import write_task
from paceline_client import Admin, NewTopic

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

PARTITIONS = 3
ROWS = 6_000
STEPS = ["list", "decide", "read decision", "append", "append 1", "append 3", "done"]


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)[:200]
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, 3, configs={"min.insync.replicas": "2"})])
    return name


def options(cluster: LocalCluster, topic: str, guarantee: str = "exactly-once") -> WriteOptions:
    return parse_write_options(
        {
            "paceline.bootstrap.servers": cluster.bootstrap,
            "topic": topic,
            "deliveryGuarantee": guarantee,
            "paceline.batch.size": "16384",
        }
    )


def task(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"%08d" % n + b"." * 92 for n in numbers], pa.binary()),
            "partition": pa.array([n % PARTITIONS for n in numbers], pa.int32()),
        }
    )


def stage(chosen: WriteOptions, batch_id: int, tasks: int) -> Staged:
    found: dict[Any, list[Any]] = {}
    share = ROWS // tasks
    for number in range(tasks):
        rows = task(batch_id * ROWS + number * share, share)
        message = write_task(chosen, ("value", "partition"), iter([rows]), "query")
        assert message.staged is not None
        for tp, places in message.staged.batches.items():
            found.setdefault(tp, []).extend(places)
    return Staged(found)


def numbers(cluster: LocalCluster, topic: str) -> dict[int, list[int]]:
    source = PacelineDataSource({"paceline.bootstrap.servers": cluster.bootstrap, "subscribe": topic})
    reader = source.reader(source.schema())
    found: dict[int, list[tuple[int, int]]] = {number: [] for number in range(PARTITIONS)}
    for planned in reader.partitions():
        for batch in reader.read(planned):
            for partition, offset, value in zip(
                *(batch[name].to_pylist() for name in ("partition", "offset", "value")), strict=True
            ):
                found[partition].append((offset, int(value[:8])))
    return {number: [value for _, value in sorted(each)] for number, each in found.items()}


def leader_of(cluster: LocalCluster, topic: str, partition: int) -> Node:
    with Admin(cluster.bootstrap) as admin:
        leader = admin.describe_topics([topic])[0].partitions[partition].leader
    assert leader is not None
    return cluster.broker(leader)


def of_partitions(count: int) -> dict[int, list[int]]:
    return {number: list(range(number, count, PARTITIONS)) for number in range(PARTITIONS)}


class DriverDiedError(Exception):
    """Ends a publish at the step where a driver would be killed."""


class At:
    """Calls a function once, before the first step with the given name."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self.name, self._action, self.is_done = name, action, False

    def __call__(self, name: str) -> None:
        if name == self.name and not self.is_done:
            self.is_done = True
            self._action()


@pytest.mark.parametrize("step", STEPS)
def test_a_leader_that_dies_before_a_step_loses_and_repeats_nothing(
    cluster: LocalCluster, topic: str, step: str
) -> None:
    chosen = options(cluster, topic)
    staged = stage(chosen, 0, tasks=2)
    victim = leader_of(cluster, topic, 0)
    killed = At(step, lambda: cluster.kill(victim))
    try:
        done = Publisher(chosen.view(), chosen, killed).publish(f"leader {step}", 0, staged)
        assert done.records == ROWS
        again = Publisher(chosen.view(), chosen).publish(f"leader {step}", 0, stage(chosen, 0, tasks=3))
        assert (again.repeated, again.appended) == (True, 0)
        assert killed.is_done
        assert numbers(cluster, topic) == of_partitions(ROWS)
    finally:
        if killed.is_done:
            cluster.restart(victim)


def test_a_controller_that_dies_during_the_publish_changes_nothing(cluster: LocalCluster, topic: str) -> None:
    chosen = options(cluster, topic)
    staged = stage(chosen, 0, tasks=2)
    with Admin(cluster.bootstrap) as admin:
        active = admin.describe_cluster().controller_id
    victim = next(node for node in (cluster.controller(0), cluster.controller(1)) if node.node_id == active)
    killed = At("append 1", lambda: cluster.kill(victim))
    try:
        Publisher(chosen.view(), chosen, killed).publish("controller", 0, staged)
        assert numbers(cluster, topic) == of_partitions(ROWS)
    finally:
        cluster.restart(victim)


def test_a_driver_and_a_leader_that_die_together_lose_and_repeat_nothing(cluster: LocalCluster, topic: str) -> None:
    chosen = options(cluster, topic)
    victim = leader_of(cluster, topic, 1)

    def die() -> None:
        cluster.kill(victim)
        raise DriverDiedError

    try:
        with pytest.raises(DriverDiedError):
            Publisher(chosen.view(), chosen, At("append 3", die)).publish("both", 0, stage(chosen, 0, tasks=2))
        done = Publisher(chosen.view(), chosen).publish("both", 0, stage(chosen, 0, tasks=3))
        assert done.repeated
        assert 0 < done.appended < ROWS
        assert numbers(cluster, topic) == of_partitions(ROWS)
    finally:
        cluster.restart(victim)


def test_tasks_at_least_once_survive_a_dead_leader(cluster: LocalCluster, topic: str) -> None:
    chosen = options(cluster, topic, "at-least-once")
    victim = leader_of(cluster, topic, 0)

    def rows() -> Iterator[pa.RecordBatch]:
        yield task(0, ROWS // 2)
        cluster.kill(victim)
        yield task(ROWS // 2, ROWS // 2)

    try:
        write_task(chosen, ("value", "partition"), rows(), "")
        assert numbers(cluster, topic) == of_partitions(ROWS)
    finally:
        cluster.restart(victim)


def test_large_batches_for_many_partitions_of_a_leader_do_not_exceed_the_request_limit(
    cluster: LocalCluster,
) -> None:
    count, value_bytes = 12, 900_000
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("one-leader", assignments=[[1]] * count, configs={"min.insync.replicas": "1"})])
    chosen = parse_write_options(
        {
            "paceline.bootstrap.servers": cluster.bootstrap,
            "topic": "one-leader",
            "paceline.batch.size": "1000000",
            "paceline.delivery.timeout.ms": "15000",
        }
    )
    rows = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([os.urandom(value_bytes) for _ in range(count)], pa.binary()),
            "partition": pa.array(range(count), pa.int32()),
        }
    )
    assert write_task(chosen, ("value", "partition"), iter([rows]), "").records == count


def test_a_value_of_a_target_with_a_raised_limit_passes_a_staging_topic_of_an_earlier_version(
    cluster: LocalCluster, topic: str
) -> None:
    chosen, value = options(cluster, topic), os.urandom(1_500_000)
    stage(chosen, 0, tasks=1)
    with Admin(cluster.bootstrap) as admin:
        admin.alter_configs({topic: {"max.message.bytes": "3000000"}})
        admin.alter_configs({chosen.staging_topic: {"max.message.bytes": None}})
    row = pa.RecordBatch.from_pydict({"value": [value], "partition": pa.array([1], pa.int32())})
    message = write_task(chosen, ("value", "partition"), iter([row]), "large")
    assert message.staged is not None
    Publisher(chosen.view(), chosen).publish("large", 0, message.staged)
    source = PacelineDataSource({"paceline.bootstrap.servers": cluster.bootstrap, "subscribe": topic})
    reader = source.reader(source.schema())
    found = [batch["value"].to_pylist() for planned in reader.partitions() for batch in reader.read(planned)]
    assert found == [[value]]
