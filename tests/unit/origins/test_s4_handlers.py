"""Rows S4-1, S4-4, S4-13 and S4-14: watches and their events, the seven steps of a new topic, the reassignment walk."""

import json
from collections.abc import Callable

import pytest

from paceline.controller import events as ev
from paceline.coordination import znodes
from paceline.coordination.interface import Create, Delete, GetData, SetData
from paceline.model.admin import NewTopic
from paceline.model.state_change import StateChangeKind
from tests.support.reassignments import running_reassignments
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp


def started(*topics: tuple[str, tuple[int, ...]], brokers: tuple[int, ...] = (1, 2, 3)) -> Cluster:
    cluster = Cluster()
    cluster.start_broker(*brokers)
    cluster.start_controller()
    if topics:
        cluster.create(*(NewTopic(name, assignments=(replicas,)) for name, replicas in topics))
    cluster.told()
    return cluster


def events_of(cluster: Cluster, happening: Callable[[Cluster], object]) -> list[str]:
    """Names of the events that watches cause, answers of brokers left out."""
    queue = cluster.controller._queue
    seen: list[str] = []
    put = queue.put

    def noted(event: ev.Event) -> None:
        if "Response" not in event.name:
            seen.append(event.name)
        put(event)

    queue.put = noted  # type: ignore[method-assign]
    happening(cluster)
    cluster.settle()
    queue.put = put  # type: ignore[method-assign]
    return seen


def rewrite(path: str) -> Callable[[Cluster], object]:
    return lambda cluster: cluster.zk(SetData(path, cluster.zk(GetData(path)).data or b""))


REASSIGNMENT = znodes.encode_reassignment({tp("a-0"): (3, 2)})
PREFERRED = znodes.encode_partition_set([tp("a-0")])

WATCHES: list[tuple[str, Callable[[Cluster], object], str]] = [
    ("a broker starts", lambda c: c.start_broker(4), "BrokerChange"),
    ("a broker dies", lambda c: c.kill_broker(3), "BrokerChange"),
    ("a registration changes", rewrite(znodes.broker_path(1)), "BrokerModifications"),
    ("a topic appears", lambda c: c.create_topic_node("b", [[1]]), "TopicChange"),
    ("a topic's node changes", rewrite(znodes.topic_path("a")), "PartitionModifications"),
    ("a marker appears", lambda c: c.zk(Create(znodes.delete_topic_path("a"))), "TopicDeletion"),
    (
        "an ISR change is noted",
        lambda c: c.zk(Create(znodes.ISR_CHANGE_PREFIX, PREFERRED, sequential=True)),
        "IsrChangeNotification",
    ),
    (
        "a directory fails",
        lambda c: c.zk(Create(znodes.LOG_DIR_EVENT_PREFIX, znodes.encode_log_dir_event(1), sequential=True)),
        "LogDirEventNotification",
    ),
    (
        "a configuration changes",
        lambda c: c.zk(
            Create(f"{znodes.CONFIG_CHANGES}/config_change_", znodes.encode_config_change("topics/a"), sequential=True)
        ),
        "ConfigChange",
    ),
    (
        "a reassignment is asked for",
        lambda c: c.zk(Create(znodes.REASSIGN_PARTITIONS, REASSIGNMENT)),
        "PartitionReassignmentFromNode",
    ),
    (
        "a preferred election is asked for",
        lambda c: c.zk(Create(znodes.PREFERRED_REPLICA_ELECTION, PREFERRED)),
        "PreferredReplicaElectionFromNode",
    ),
    ("/controller has another owner", rewrite(znodes.CONTROLLER), "ControllerChange"),
    ("/controller is deleted", lambda c: c.zk(Delete(znodes.CONTROLLER)), "Reelect"),
]


@pytest.mark.origin("S4-1")
@pytest.mark.parametrize(("name", "happening", "event"), WATCHES, ids=[row[0] for row in WATCHES])
def test_each_watch_fires_its_event_repeatedly(name: str, happening: Callable[[Cluster], object], event: str) -> None:
    cluster = started(("a", (1, 2)))
    assert events_of(cluster, happening)[0] == event
    # The handler has armed the watch again.
    again: dict[str, Callable[[Cluster], object]] = {
        "a broker starts": lambda c: c.start_broker(5),
        "a broker dies": lambda c: c.kill_broker(2),
        "a topic appears": lambda c: c.create_topic_node("c", [[1]]),
        "a marker appears": lambda c: c.zk(Create(znodes.delete_topic_path("nosuch"))),
        "a reassignment is asked for": finish_and_ask_again,
    }
    assert event in events_of(cluster, again.get(name, happening))


@pytest.mark.origin("S4-1")
@pytest.mark.parametrize(("name", "happening", "event"), WATCHES, ids=[row[0] for row in WATCHES])
def test_each_watch_is_set_again_after_a_reconnection_within_the_session(
    name: str, happening: Callable[[Cluster], object], event: str
) -> None:
    cluster = started(("a", (1, 2)))
    reconnect(cluster)
    assert event in events_of(cluster, happening)


def reconnect(cluster: Cluster) -> None:
    """Interrupt the controller's connection, which ends all its watches, within its session."""
    client = cluster.controller_clients[CONTROLLER_ID]
    session_id = client.session_id
    client.disconnect()
    cluster.time.run_for(1_000)
    assert client.session_id == session_id and cluster.controller.is_active


def finish_and_ask_again(cluster: Cluster) -> None:
    """Complete the request; its node is deleted then, and can be created again."""
    rewritten = events_of(cluster, rewrite(znodes.REASSIGN_PARTITIONS))
    assert rewritten == ["ReassignmentNodeChanged"], "a rewritten node is no new request"
    cluster.change_isr("a-0", [1, 2, 3], notify=False)
    cluster.settle()
    cluster.zk(Create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({tp("a-0"): (1, 2)})))


@pytest.mark.origin("S4-1")
@pytest.mark.parametrize("reconnected", [False, True])
@pytest.mark.parametrize("during", [True, False])
def test_a_state_node_is_watched_only_while_its_partition_is_reassigned(during: bool, reconnected: bool) -> None:
    cluster = started(("a", (1, 2)))
    if during:
        cluster.reassign({tp("a-0"): (3, 2)})
        cluster.settle()
    if reconnected:
        reconnect(cluster)
    seen = events_of(cluster, rewrite(znodes.partition_state_path(tp("a-0"))))
    assert seen == (["PartitionReassignmentIsrChange"] if during else [])


# S4-3


@pytest.mark.origin("S4-3")
def test_a_dead_broker_receives_none_of_the_requests_that_waited_for_it() -> None:
    cluster = started(("a", (1, 2)), ("b", (2, 1)))
    cluster.brokers.silent.add(2)
    cluster.change_isr("a-0", [1])
    cluster.change_isr("b-0", [2])
    cluster.settle()
    assert len(cluster.told()[2]) == 1, "one request is in flight, another waits"
    cluster.kill_broker(2)
    cluster.settle()
    cluster.brokers.release(2)
    cluster.settle()
    assert 2 not in cluster.told() and cluster.brokers.closed == [2]


# S4-4


def by_client(cluster: Cluster) -> None:
    (result,) = cluster.create(NewTopic("new", assignments=((1, 2),)))
    assert result.error is None


def by_node(cluster: Cluster) -> None:
    cluster.create_topic_node("new", [[1, 2]])


@pytest.mark.origin("S4-4")
@pytest.mark.parametrize("create", [by_client, by_node])
def test_a_new_topic_takes_the_seven_steps_in_order(create: Callable[[Cluster], None]) -> None:
    cluster = started(("old", (1, 2)))
    cluster.state_changes.clear()
    cluster.writes.clear()
    trace: list[str] = []
    client = cluster.controller_clients[CONTROLLER_ID]
    submit = client.submit

    def noted(requests, on_done):  # type: ignore[no-untyped-def]
        trace.extend(
            f"{type(r).__name__} {getattr(r, 'path', '')}{' watched' * getattr(r, 'watch', False)}" for r in requests
        )
        submit(requests, on_done)

    client.submit = noted  # type: ignore[method-assign]
    create(cluster)
    cluster.settle()
    listed = trace.index("GetChildren /brokers/topics watched")  # 1: the list, which arms the watch again
    read = trace.index("GetData /brokers/topics/new watched")  # 2, 3: the new topic's node, with a watch of its own
    created = max(n for n, text in enumerate(trace) if text.startswith("Multi"))
    assert listed < read < created
    kinds = (StateChangeKind.TRANSITION, StateChangeKind.TOPIC_CREATED)
    moves = [(c.topic_partition, c.replica, c.to_state) for c in cluster.state_changes if c.kind in kinds]
    assert moves == [
        (None, None, None),  # 4, 5: known, with its assignment
        (tp("new-0"), None, "NewPartition"),  # 6: four transitions in strict order
        (tp("new-0"), 1, "NewReplica"),
        (tp("new-0"), 2, "NewReplica"),
        (tp("new-0"), None, "OnlinePartition"),
        (tp("new-0"), 1, "OnlineReplica"),
        (tp("new-0"), 2, "OnlineReplica"),
    ]
    assert cluster.told()[1] == ["LAI new-0 1/0 [1, 2] new", "UM {new-0 1/0 [1, 2]}"]  # 7: the brokers receive it
    assert cluster.state("new-0") == "1/0 isr [1, 2] ce 1 v0"


@pytest.mark.origin("S4-4")
def test_a_topic_deleted_between_watch_and_read_leaves_no_state() -> None:
    cluster = started(("old", (1, 2)))
    client = cluster.controller_clients[CONTROLLER_ID]
    submit = client.submit

    def vanishing(requests, on_done):  # type: ignore[no-untyped-def]
        if any(getattr(request, "path", "") == "/brokers/topics/new" for request in requests):
            cluster.tool.submit([Delete("/brokers/topics/new")], list)
            cluster.time.call_later(0.5, lambda: submit(requests, on_done))
        else:
            submit(requests, on_done)

    client.submit = vanishing  # type: ignore[method-assign]
    cluster.create_topic_node("new", [[1, 2]])
    cluster.time.run_for(10)
    client.submit = submit  # type: ignore[method-assign]
    assert [topic.name for topic in cluster.controller.describe_topics([])] == ["old"]
    assert not any("new-0" in text for texts in cluster.told().values() for text in texts)
    cluster.create_topic_node("new", [[2, 1]], topic_id="n" * 22)
    cluster.settle()
    assert cluster.state("new-0") == "2/0 isr [2, 1] ce 1 v0"


# S4-13, S4-14


@pytest.mark.origin("S4-13")
def test_a_reassignment_passes_the_states_of_the_table() -> None:
    cluster = started(("a", (1, 2, 3)), brokers=(1, 2, 3, 4, 5, 6))
    path = znodes.partition_state_path(tp("a-0"))
    for epoch in range(1, 10):  # The table begins at leader epoch 9.
        cluster.zk(SetData(path, json.dumps({**cluster.data(path), "leader_epoch": epoch}).encode()))
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.start_controller(CONTROLLER_ID + 1)
    cluster.writes.clear()
    cluster.told()
    cluster.reassign({tp("a-0"): (4, 5, 6)})
    cluster.settle()
    cluster.change_isr("a-0", [1, 2, 3, 4, 5, 6], notify=False)
    cluster.settle()
    walk = []
    for write in cluster.writes:
        if write.change.path == znodes.topic_path("a"):
            node = znodes.decode_topic_assignment(write.change.path, write.change.new_data).partitions[0]
            walk.append(f"topic {list(node.replicas)} +{list(node.adding)} -{list(node.removing)}")
        elif write.change.path == path:
            state = znodes.decode_partition_state(path, write.change.new_data, 0).leader_and_isr
            walk.append(f"state {state.leader}/{state.leader_epoch} {list(state.isr)}")
    assert walk == [
        "topic [4, 5, 6, 1, 2, 3] +[4, 5, 6] -[1, 2, 3]",  # U
        "state 1/10 [1, 2, 3]",  # A1: only the epoch rises, no leader is elected
        "state 1/10 [1, 2, 3, 4, 5, 6]",  # the leader's own write
        "state 4/11 [1, 2, 3, 4, 5, 6]",  # B3
        "state 4/12 [2, 3, 4, 5, 6]",  # B4, one write for each replica removed
        "state 4/13 [3, 4, 5, 6]",
        "state 4/14 [4, 5, 6]",
        "topic [4, 5, 6] +[] -[]",  # B6
    ]


@pytest.mark.origin("S4-14")
def test_the_event_of_the_state_node_completes_a_reassignment_without_a_notification() -> None:
    cluster = started(("a", (1, 2)))
    cluster.reassign({tp("a-0"): (3, 2)})
    cluster.settle()
    seen = events_of(cluster, lambda c: c.change_isr("a-0", [1, 2, 3], notify=False))
    assert seen[0] == "PartitionReassignmentIsrChange"
    assert cluster.data(znodes.topic_path("a"))["partitions"] == {"0": [3, 2]}
    assert running_reassignments(cluster.controller) == {}
    # And nothing listens any more.
    assert events_of(cluster, rewrite(znodes.partition_state_path(tp("a-0")))) == []
