"""Rows S1-1 to S1-15 that have no test elsewhere: what the draft of a controller asked for, and how it is done."""

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Create, SetData
from paceline.model.admin import NewTopic
from paceline.model.client_io import RequiredAcks
from paceline.model.control import LeaderAndIsrRequest, StopReplicaRequest
from paceline.model.errors import ErrorCode
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import TP, BrokerCluster
from tests.unit.controller.cluster import SESSION_TIMEOUT_MS, Cluster, short, tp
from tests.unit.origins.whole_cluster import WholeCluster

TICK_MS = 500


def started(*topics: tuple[str, tuple[int, ...]], brokers: tuple[int, ...] = (1, 2, 3)) -> Cluster:
    cluster = Cluster()
    cluster.start_broker(*brokers)
    cluster.start_controller()
    cluster.create(*(NewTopic(name, assignments=(replicas,)) for name, replicas in topics))
    cluster.told()
    return cluster


def allow_unclean_election(cluster: Cluster, topic: str) -> None:
    allowed = znodes.encode_config({"unclean.leader.election.enable": "true"})
    cluster.zk(SetData(znodes.topic_config_path(topic), allowed))
    notice = znodes.encode_config_change(f"topics/{topic}")
    cluster.zk(Create(f"{znodes.CONFIG_CHANGES}/config_change_", notice, sequential=True))
    cluster.settle()


# S1-1, S1-2


@pytest.mark.origin("S1-1")
def test_only_partitions_whose_leader_died_get_another_leader() -> None:
    cluster = started(("a", (1, 2)), ("b", (2, 3)), ("c", (3, 2)), ("d", (2, 1)))
    before = {topic: cluster.state(f"{topic}-0") for topic in "abc"}
    cluster.kill_broker(1)
    cluster.settle()
    assert cluster.state("a-0") == "2/1 isr [2] ce 1 v1"
    assert {topic: cluster.state(f"{topic}-0") for topic in "bc"} == {topic: before[topic] for topic in "bc"}
    assert cluster.state("d-0") == "2/1 isr [2] ce 1 v1", "the leader stays, only the dead follower leaves the ISR"
    elected = [c.topic_partition for c in cluster.state_changes if c.kind is StateChangeKind.LEADER_ELECTED]
    assert elected == [tp("a-0")]


@pytest.mark.origin("S1-2")
@pytest.mark.parametrize(
    ("row", "assigned", "before", "online", "unclean", "after", "told"),
    [
        ("E1", (1, 2, 3), (1, 5, [1, 2, 3]), (2, 3), False, "2/6 isr [2, 3]", (2, 3)),
        ("E2", (3, 1, 2), (1, 5, [1, 2]), (2, 3), False, "2/6 isr [2]", (2, 3)),
        ("E3", (1, 2, 3), (1, 5, [1]), (2, 3), False, "-1/6 isr [1]", ()),
        ("E4", (1, 2, 3), (1, 5, [1]), (2, 3), True, "2/7 isr [2]", (2, 3)),
        ("E5 gone", (1,), (1, 0, [1]), (), False, "-1/1 isr [1]", ()),
        ("E5 back", (1,), (-1, 1, [1]), (1,), False, "1/2 isr [1]", (1,)),
    ],
)
def test_change_leaders_after_the_table(
    row: str,
    assigned: tuple[int, ...],
    before: tuple[int, int, list[int]],
    online: tuple[int, ...],
    unclean: bool,
    after: str,
    told: tuple[int, ...],
) -> None:
    cluster = Cluster()
    cluster.start_broker(*{1, *online} if before[0] == 1 else online)
    cluster.create_topic_node("a", [assigned])
    cluster.zk(Create(znodes.topic_config_path("a"), znodes.encode_config({})))
    path = znodes.partition_state_path(tp("a-0"))
    for parent in znodes.parent_paths(path):
        cluster.zk(Create(parent), must_succeed=False)
    leader, epoch, isr = before
    cluster.zk(Create(path, znodes.encode_partition_state(LeaderAndIsr(leader, epoch, tuple(isr), 0, 0))))
    cluster.start_controller()
    if leader == 1:
        cluster.told()
        cluster.kill_broker(1)
        cluster.settle()
    if unclean:
        allow_unclean_election(cluster, "a")
    assert cluster.state("a-0").startswith(f"{after} "), row
    heard = cluster.told()
    new_leader = after.split(" ")[0]
    got = tuple(b for b in sorted(heard) if any(f"LAI a-0 {new_leader}" in text for text in heard[b]))
    assert new_leader.startswith("-1") or got == told, row


# S1-3


@pytest.mark.origin("S1-3")
def test_an_isr_write_with_an_old_version_fails_and_changes_nothing() -> None:
    cluster = BrokerCluster(replica_lag_time_max_ms=2_000)
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    # A controller has made another decision, which the old leader does not know.
    cluster.decide(2, 1, (1, 2, 3), to=[2, 3])
    cluster.cuts |= {(2, 1), (3, 1)}
    cluster[1].produce(b"b", acks=RequiredAcks.LEADER)
    cluster.time.run_until(lambda: bool(cluster[1].said(StateChangeKind.ISR_PROPOSED)), 10_000)
    cluster.time.run_for(1_000)
    found = cluster.state()
    assert (found.leader, found.leader_epoch) == (2, 1) and {2, 3} <= set(found.isr)
    assert not cluster[1].said(StateChangeKind.ISR_SHRUNK)
    assert cluster[1].log().high_watermark == 1, "a record on one replica only is not committed"


# S1-5


@pytest.mark.origin("S1-5")
def test_a_killed_controller_is_succeeded_within_a_session_timeout_and_all_states_are_sent_again() -> None:
    cluster = WholeCluster(controllers=2)
    cluster.create("orders", (1, 2, 3))
    cluster.create("other", (2, 3))
    cluster.write(TP, b"a")
    roles = [len(cluster[b].changes) for b in (1, 2, 3)]
    fetches = [cluster[b].transport.closed.copy() for b in (1, 2, 3)]
    state = cluster.state()
    begun_ms = cluster.time.now_ms()
    cluster.kill_controller(0)
    cluster.time.run_until(lambda: any(node.is_active for node in cluster.controllers), 20_000)
    took_ms = cluster.time.now_ms() - begun_ms
    assert took_ms <= SESSION_TIMEOUT_MS + 2 * TICK_MS
    cluster.time.run_for(100)
    (control,) = cluster.controls
    hosted = {1: {"orders-0"}, 2: {"orders-0", "other-0"}, 3: {"orders-0", "other-0"}}
    for broker_id, partitions in hosted.items():
        answers = [
            (request, response)
            for to, request, response in control.answers
            if to == broker_id and isinstance(request, LeaderAndIsrRequest)
        ]
        assert {short(p.topic_partition) for request, _ in answers for p in request.partitions} == partitions
        for _, response in answers:
            assert response.error is ErrorCode.NONE
            assert set(response.partition_errors.values()) == {ErrorCode.STALE_CONTROLLER_EPOCH}, (
                "the repeated partitions are refused as stale"
            )
    assert [len(cluster[b].changes) for b in (1, 2, 3)] == roles, "no role changed"
    assert [cluster[b].transport.closed for b in (1, 2, 3)] == fetches, "no fetcher was restarted"
    assert cluster.state() == state
    cluster.write(TP, b"b")
    cluster.until_in_sync(1, 2, 3)


# S1-7


@pytest.mark.origin("S1-7")
def test_a_reassignment_completes_on_the_event_of_the_isr_change_without_polling() -> None:
    cluster = started(("a", (1, 2)))
    cluster.reassign({tp("a-0"): (3, 2)})
    cluster.settle()
    before = cluster.server.counters.requests
    cluster.time.run_for(600_000)
    assert cluster.server.counters.requests == before, "ten minutes without a single request"
    cluster.told()
    cluster.change_isr("a-0", [1, 2, 3], notify=False)
    cluster.settle()
    assert cluster.data(znodes.topic_path("a"))["partitions"] == {"0": [3, 2]}, "no time has passed"


@pytest.mark.origin("S1-7")
def test_a_dead_old_replica_does_not_block_a_reassignment() -> None:
    cluster = started(("a", (1, 2)), brokers=(1, 2, 3, 4))
    cluster.reassign({tp("a-0"): (3, 4)})
    cluster.kill_broker(2)
    cluster.settle()
    cluster.change_isr("a-0", [1, 3, 4])
    cluster.settle()
    assert cluster.data(znodes.topic_path("a"))["partitions"] == {"0": [3, 4]}


# S1-8


@pytest.mark.origin("S1-8")
def test_duplicate_and_reordered_old_requests_have_no_effect() -> None:
    cluster = BrokerCluster()
    first = cluster.decide(1, 0, (1, 2, 3), is_new=True)
    second = cluster.decide(2, 1, (1, 2, 3))
    third = cluster.decide(3, 2, (1, 2, 3))
    cluster[3].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    for broker_id in (1, 2, 3):
        before = (len(cluster[broker_id].changes), cluster[broker_id].values(), cluster[broker_id].epochs())
        for old in (third, first, second, first, third):
            response = cluster.send(broker_id, old)
            assert response.partition_errors[TP] is ErrorCode.STALE_CONTROLLER_EPOCH
        stopped = cluster.stop_replica(broker_id, 1, delete=True)
        assert stopped.partition_errors[TP] is ErrorCode.FENCED_LEADER_EPOCH
        assert before == (len(cluster[broker_id].changes), cluster[broker_id].values(), cluster[broker_id].epochs())
    cluster[3].produce(b"b")
    cluster.until_in_sync(1, 2, 3)
    assert cluster[1].values() == [b"a", b"b"]


# S1-10, S1-11


@pytest.mark.origin("S1-10")
def test_a_broker_that_was_down_receives_the_new_leader_when_it_starts() -> None:
    cluster = WholeCluster(replica_lag_time_max_ms=2_000)
    cluster.create("orders", (1, 2, 3))
    cluster.write(TP, b"a")
    cluster.kill(3)
    cluster.write(TP, b"b")
    cluster.kill(1)
    cluster.time.run_until(lambda: cluster.partition_of(TP).leader == 2, 5_000)
    sent_while_down = [to for to, _ in cluster.controls[0].sent if to == 3]
    cluster.write(TP, b"c")
    assert [to for to, _ in cluster.controls[0].sent if to == 3] == sent_while_down, (
        "no request is sent to a broker that is down"
    )
    broker = cluster.restart(3)
    cluster.time.run_until(lambda: TP in broker.node.replica_manager.hosted.online, 5_000)
    hosted = broker.node.replica_manager.hosted.online[TP]
    cluster.time.run_until(lambda: hosted.leader_id == 2, 5_000)
    cluster.until_in_sync(2, 3)
    assert broker.values() == [b"a", b"b", b"c"]


@pytest.mark.origin("S1-11")
def test_a_failed_disk_moves_its_own_partitions_and_no_others() -> None:
    cluster = started(("a", (1, 2)), ("b", (1, 2)), ("c", (2, 1)), ("d", (1, 3)))
    for failed in ("a-0", "c-0"):
        cluster.brokers.failed_dirs[1].add(tp(failed))
    cluster.zk(Create(znodes.LOG_DIR_EVENT_PREFIX, znodes.encode_log_dir_event(1), sequential=True))
    cluster.settle()
    assert cluster.state("a-0").startswith("2/1 isr [2]"), "led on the failed disk"
    assert cluster.state("c-0").startswith("2/1 isr [2]"), "followed on the failed disk"
    assert (cluster.state("b-0"), cluster.state("d-0")) == ("1/0 isr [1, 2] ce 1 v0", "1/0 isr [1, 3] ce 1 v0")
    stopped = [r for b, r in cluster.brokers.received if b == 1 and isinstance(r, StopReplicaRequest)]
    assert {s.topic_partition for r in stopped for s in r.partitions} == {tp("a-0"), tp("c-0")}


@pytest.mark.origin("S1-11")
def test_unclean_election_may_be_allowed_without_any_broker_failing() -> None:
    cluster = started(("a", (1, 2)))
    cluster.change_isr("a-0", [1])
    cluster.kill_broker(1)
    cluster.settle()
    assert cluster.state("a-0").startswith("-1/1 isr [1]")
    allow_unclean_election(cluster, "a")
    assert cluster.state("a-0").startswith("2/2 isr [2]")
