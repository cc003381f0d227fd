"""Writes of many partition states in one multi: epoch check, versions, size limits, smaller multis after conflicts."""

from dataclasses import replace

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Check, Multi, Request, SetData
from paceline.model.admin import NewTopic
from paceline.model.assignment import ReplicaAssignment
from paceline.model.identifiers import TopicPartition
from paceline.model.settings import ControllerConfig
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster

PARTITIONS = 40


class Recorder:
    """Records the requests that a controller submits to the server."""

    def __init__(self, cluster: Cluster) -> None:
        self.requests: list[Request] = []
        client = cluster.controller_clients[CONTROLLER_ID]
        submit = client.submit

        def recorded(requests, on_done):  # type: ignore[no-untyped-def]
            self.requests.extend(requests)
            submit(requests, on_done)

        client.submit = recorded  # type: ignore[method-assign]

    def state_writes(self) -> list[int]:
        """Return the number of states in each multi, in order."""
        return [
            sum(isinstance(op, SetData) and op.path.endswith("/state") for op in request.operations)
            for request in self.requests
            if isinstance(request, Multi)
            and any(isinstance(op, SetData) and op.path.endswith("/state") for op in request.operations)
        ]


def cluster_of(config: ControllerConfig) -> tuple[Cluster, Recorder]:
    """Return a cluster in which broker 1 leads every partition and broker 2 follows."""
    cluster = Cluster(config)
    cluster.start_broker(1, 2)
    cluster.start_controller()
    recorder = Recorder(cluster)
    cluster.create(NewTopic("a", assignments=((1, 2),) * PARTITIONS))
    return cluster, recorder


CONFIG = ControllerConfig(CONTROLLER_ID, auto_leader_rebalance_enable=False)


def states(cluster: Cluster) -> set[str]:
    return {cluster.state(f"a-{partition}") for partition in range(PARTITIONS)}


@pytest.mark.origin("S1-14")
def test_all_elections_of_a_dead_broker_are_one_multi_with_one_check() -> None:
    cluster, recorder = cluster_of(CONFIG)
    recorder.requests.clear()
    cluster.kill_broker(1)
    cluster.settle()
    assert states(cluster) == {"2/1 isr [2] ce 1 v1"}
    assert recorder.state_writes() == [PARTITIONS]
    (multi,) = [request for request in recorder.requests if isinstance(request, Multi)]
    checks = [operation for operation in multi.operations if isinstance(operation, Check)]
    assert [check.path for check in checks] == [znodes.CONTROLLER_EPOCH]
    reads = [request for request in recorder.requests if getattr(request, "path", "").endswith("/state")]
    assert reads == [], "elections use cached states"


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (replace(CONFIG, zookeeper_multi_max_operations=17), [16, 16, 8]),
        (replace(CONFIG, zookeeper_multi_max_operations=2), [1] * PARTITIONS),
        (replace(CONFIG, zookeeper_multi_max_bytes=1), [1] * PARTITIONS),
        (replace(CONFIG, zookeeper_multi_max_operations=1), [1] * PARTITIONS),
    ],
)
def test_multis_are_limited_by_operations_and_by_bytes(config: ControllerConfig, sizes: list[int]) -> None:
    cluster, recorder = cluster_of(config)
    recorder.requests.clear()
    cluster.kill_broker(1)
    cluster.settle()
    assert recorder.state_writes() == sizes
    assert states(cluster) == {"2/1 isr [2] ce 1 v1"}


def test_multis_stay_within_their_limit_of_bytes() -> None:
    limit = 2_000
    cluster, recorder = cluster_of(replace(CONFIG, zookeeper_multi_max_bytes=limit))
    recorder.requests.clear()
    cluster.kill_broker(1)
    cluster.settle()
    written = recorder.state_writes()
    assert sum(written) == PARTITIONS
    assert 1 < len(written) < PARTITIONS
    for request in recorder.requests:
        if isinstance(request, Multi):
            data = [op for op in request.operations if isinstance(op, SetData) and op.path.endswith("/state")]
            assert sum(len(op.path) + len(op.data or b"") for op in data) <= limit


def test_after_a_conflict_the_whole_multi_is_read_again_and_written_in_halves() -> None:
    cluster, recorder = cluster_of(CONFIG)
    # The leader of one partition has shrunk its ISR, and the controller does not know this yet.
    cluster.change_isr("a-7", [1], notify=False)
    recorder.requests.clear()
    cluster.kill_broker(1)
    cluster.settle()
    reads = [r for r in recorder.requests if not isinstance(r, Multi) and getattr(r, "path", "").endswith("/state")]
    assert len(reads) == PARTITIONS
    # The limit is now half of 999, so one multi still holds the 39 elections. a-7 has no eligible replica: leader -1.
    assert recorder.state_writes() == [PARTITIONS, PARTITIONS - 1, 1]
    assert cluster.state("a-7") == "-1/1 isr [1] ce 1 v2"
    assert states(cluster) == {"2/1 isr [2] ce 1 v1", "-1/1 isr [1] ce 1 v2"}


def test_multis_get_smaller_while_conflicts_continue() -> None:
    cluster, recorder = cluster_of(replace(CONFIG, zookeeper_multi_max_operations=PARTITIONS + 1))
    recorder.requests.clear()
    client = cluster.controller_clients[CONTROLLER_ID]
    submit = client.submit
    rounds = 0

    def disturbed(requests, on_done):  # type: ignore[no-untyped-def]
        nonlocal rounds
        is_write = any(isinstance(r, Multi) and any(isinstance(o, SetData) for o in r.operations) for r in requests)
        if is_write and rounds < 2:
            rounds += 1
            state = cluster.server.tree.get(znodes.partition_state_path(TopicPartition("a", 0)))
            assert state is not None
            # The leader of a-0 writes its ISR between each decision of the controller and its multi.
            cluster.tool.submit([SetData(znodes.partition_state_path(TopicPartition("a", 0)), state.data or b"")], list)
            cluster.time.call_later(0.001, lambda: submit(requests, on_done))
        else:
            submit(requests, on_done)

    client.submit = disturbed  # type: ignore[method-assign]
    cluster.kill_broker(1)
    cluster.time.run_for(10)
    assert cluster.state("a-0") == "2/1 isr [2] ce 1 v3"
    assert states(cluster) == {"2/1 isr [2] ce 1 v1", "2/1 isr [2] ce 1 v3"}
    # One multi of 40 states fails; then multis of 20, of which the multi with a-0 fails again; then multis of 10.
    assert recorder.state_writes() == [40, 20, 20, 10, 10]


def test_a_write_whose_reply_was_lost_is_recognised_and_not_repeated() -> None:
    cluster, _ = cluster_of(CONFIG)
    link = cluster.controller_clients[CONTROLLER_ID].link
    link.lose_next_reply(lambda r: isinstance(r, Multi) and any(isinstance(o, SetData) for o in r.operations))
    cluster.kill_broker(1)
    cluster.time.run_for(2_000)
    assert states(cluster) == {"2/1 isr [2] ce 1 v1"}, "the leader epoch rose by one, not by two"
    assert any(text.startswith("LAI a-0 2/1") for text in cluster.told()[2])


def test_a_creation_whose_reply_was_lost_is_recognised() -> None:
    cluster = Cluster(CONFIG)
    cluster.start_broker(1, 2)
    cluster.start_controller()
    link = cluster.controller_clients[CONTROLLER_ID].link
    link.lose_next_reply(lambda r: isinstance(r, Multi) and any(o.path.endswith("/state") for o in r.operations))
    (result,) = cluster.create(NewTopic("a", assignments=((1, 2),) * PARTITIONS))
    assert result.error is None
    assert states(cluster) == {"1/0 isr [1, 2] ce 1 v0"}


def test_parents_that_exist_already_do_not_stop_a_creation() -> None:
    cluster = Cluster(CONFIG)
    cluster.start_broker(1)
    cluster.start_controller()
    from paceline.coordination.interface import Create
    from paceline.coordination.interface import Multi as Transaction

    assignment = znodes.encode_topic_assignment(
        znodes.TopicAssignment({p: ReplicaAssignment((1,)) for p in range(3)}, "i" * 22)
    )
    cluster.zk(
        Transaction(
            (
                Create(znodes.topic_path("a"), assignment),
                Create(znodes.topic_partitions_path("a")),
                Create(znodes.partition_path(TopicPartition("a", 1))),
            )
        )
    )
    cluster.settle()
    assert {cluster.state(f"a-{p}") for p in range(3)} == {"1/0 isr [1] ce 1 v0"}
