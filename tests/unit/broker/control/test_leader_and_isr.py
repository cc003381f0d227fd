"""LeaderAndIsr: the table of docs/protocol/replication.md#leaderandisr-answers, and the effects of a role change."""

from dataclasses import replace

import pytest

from paceline.broker.control.request_fence import ControlRequestDeferredError
from paceline.broker.partition.partition import Partition
from paceline.log.directory_names import directory_name
from paceline.log.partition_log import PartitionLog
from paceline.model.control import LeaderAndIsrPartition, LeaderAndIsrRequest
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import TP, BrokerCluster, BrokerUnderTest

ME = 1
OTHER = TopicPartition("payments", 3)


@pytest.fixture
def cluster() -> BrokerCluster:
    found = BrokerCluster((1, 2))
    # Broker 2 answers no request, so that only the test makes decisions.
    found[2].up = False
    return found


def hosted(broker: BrokerUnderTest, tp: TopicPartition = TP):  # type: ignore[no-untyped-def]
    return broker.node.replica_manager.hosted.online.get(tp)


def send(cluster: BrokerCluster, partition: LeaderAndIsrPartition) -> ErrorCode:
    response = cluster.send(ME, partition)
    assert response.error is ErrorCode.NONE
    return response.partition_errors[partition.topic_partition]


def role(broker: BrokerUnderTest) -> tuple[int, int]:
    partition = hosted(broker)
    return partition.leader_id, partition.leader_epoch


def known(cluster: BrokerCluster) -> None:
    """Let broker 1 know brokers 1 and 2, although 2 does not answer."""
    cluster[2].up = True
    cluster.update_metadata(to=[ME])
    cluster[2].up = False


@pytest.mark.origin("S2-2")
def test_a_new_partition_is_led_from_epoch_0(cluster: BrokerCluster) -> None:
    assert send(cluster, cluster.partition(ME, 0, (1,), is_new=True)) is ErrorCode.NONE
    assert role(cluster[ME]) == (ME, 0)
    assert cluster[ME].epochs() == [(0, 0)]
    assert hosted(cluster[ME]).leader_epoch_start_offset == 0


@pytest.mark.origin("S2-2")
def test_a_leader_in_a_higher_epoch_keeps_end_offsets_and_resets_caught_up_times(cluster: BrokerCluster) -> None:
    send(cluster, cluster.partition(ME, 3, (1, 2)))
    cluster.time.run_due()
    cluster[ME].produce(b"a", b"b")
    follower = hosted(cluster[ME]).followers[2]
    follower.record_fetch(2, 0, 2, cluster.time.now_ms(), 7)
    cluster.time.run_for(500)
    assert send(cluster, cluster.partition(ME, 4, (1,))) is ErrorCode.NONE
    follower = hosted(cluster[ME]).followers[2]
    assert (follower.log_end_offset, follower.last_caught_up_ms) == (2, None)
    assert cluster[ME].epochs() == [(3, 0), (4, 2)]
    assert hosted(cluster[ME]).leader_epoch_start_offset == 2


@pytest.mark.origin("S2-2")
def test_a_leader_that_becomes_follower_fails_waiting_produces_and_fetches_from_its_log_end(
    cluster: BrokerCluster,
) -> None:
    known(cluster)
    send(cluster, cluster.partition(ME, 4, (1, 2)))
    cluster.time.run_due()
    answer = cluster[ME].produce(b"a", b"b")
    assert not answer
    assert send(cluster, cluster.partition(2, 5, (2,))) is ErrorCode.NONE
    assert answer[0].failure is not None and answer[0].failure.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer[0].failure.leader is not None and answer[0].failure.leader.leader_id == 2
    leader_id, request = cluster[ME].transport.fetches[-1]
    assert leader_id == 2
    (named,) = request.partitions
    assert (named.fetch_offset, named.current_leader_epoch, named.last_fetched_epoch) == (2, 5, 4)


@pytest.mark.origin("S2-2")
def test_a_follower_of_the_same_leader_restarts_its_fetcher_in_the_new_epoch(cluster: BrokerCluster) -> None:
    known(cluster)
    send(cluster, cluster.partition(2, 5, (2,)))
    assert send(cluster, cluster.partition(2, 7, (2,))) is ErrorCode.NONE
    assert role(cluster[ME]) == (2, 7)
    state = cluster[ME].node.replica_manager.fetchers.state(TP)
    assert state is not None and state.leader_epoch == 7


@pytest.mark.origin("S2-2")
def test_an_equal_epoch_is_refused_and_changes_nothing(cluster: BrokerCluster) -> None:
    known(cluster)
    send(cluster, cluster.partition(2, 7, (2,)))
    state = cluster[ME].node.replica_manager.fetchers.state(TP)
    assert send(cluster, cluster.partition(2, 7, (2,))) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert cluster[ME].node.replica_manager.fetchers.state(TP) is state


def test_an_equal_epoch_does_not_move_a_leaders_epoch_start(cluster: BrokerCluster) -> None:
    decision = cluster.partition(ME, 3, (1,))
    send(cluster, decision)
    cluster[ME].produce(b"a")
    assert send(cluster, decision) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert hosted(cluster[ME]).leader_epoch_start_offset == 0


@pytest.mark.origin("S2-2")
def test_a_lower_epoch_is_refused(cluster: BrokerCluster) -> None:
    known(cluster)
    send(cluster, cluster.partition(2, 7, (2,)))
    assert send(cluster, cluster.partition(ME, 6, (1,))) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert role(cluster[ME]) == (2, 7)


@pytest.mark.origin("S2-2")
@pytest.mark.parametrize("leader", [9, -1])
def test_an_unknown_leader_is_answered_without_error_and_applied_when_it_is_known(
    cluster: BrokerCluster, leader: int
) -> None:
    known(cluster)
    send(cluster, cluster.partition(2, 7, (2,)))
    fetching = cluster[ME].node.replica_manager.fetchers.state(TP)
    decision = cluster.partition(leader, 8, (1,))
    assert send(cluster, decision) is ErrorCode.NONE
    assert role(cluster[ME]) == (2, 7)
    assert fetching is not None and cluster[ME].node.replica_manager.fetchers.state(TP) is fetching
    if leader == 9:
        cluster.boot(9)
        cluster.time.run_until(lambda: cluster[9].node.ready, 5_000)
        cluster.update_metadata(to=[ME])
        assert send(cluster, decision) is ErrorCode.NONE
        assert role(cluster[ME]) == (9, 8)


def test_a_leader_named_in_the_request_need_not_be_in_the_metadata_cache(cluster: BrokerCluster) -> None:
    cluster[2].up = True
    live = cluster.live([2])
    cluster[2].up = False
    cluster.send(ME, cluster.partition(2, 1, (2,)), live_leaders=live)
    assert role(cluster[ME]) == (2, 1)


@pytest.mark.origin("S2-2")
def test_a_lower_controller_epoch_is_refused_for_every_partition(cluster: BrokerCluster) -> None:
    cluster.set_controller_epoch(2)
    send(cluster, cluster.partition(ME, 0, (1,), is_new=True))
    cluster.time.run_for(10)  # ZooKeeper confirms the higher one
    request = LeaderAndIsrRequest(cluster.stamp(ME, controller_epoch=1), (), (cluster.partition(ME, 9, (1,)),))
    response = cluster[ME].node.handle_control(request)
    assert response.error is ErrorCode.STALE_CONTROLLER_EPOCH
    assert response.partition_errors == {TP: ErrorCode.STALE_CONTROLLER_EPOCH}
    assert role(cluster[ME]) == (ME, 0)


@pytest.mark.origin("S2-2")
def test_a_lower_broker_epoch_is_refused(cluster: BrokerCluster) -> None:
    stamp = replace(cluster.stamp(ME), broker_epoch=cluster[ME].node.broker_epoch - 1)
    response = cluster[ME].node.handle_control(LeaderAndIsrRequest(stamp, (), (cluster.partition(ME, 0, (1,)),)))
    assert response.error is ErrorCode.STALE_BROKER_EPOCH
    assert hosted(cluster[ME]) is None


@pytest.mark.parametrize("broker_epoch", [None, -1, 10**9])
def test_a_missing_or_newer_broker_epoch_is_accepted(cluster: BrokerCluster, broker_epoch: int | None) -> None:
    stamp = replace(cluster.stamp(ME), broker_epoch=broker_epoch)
    response = cluster[ME].node.handle_control(LeaderAndIsrRequest(stamp, (), (cluster.partition(ME, 0, (1,)),)))
    assert response.error is ErrorCode.NONE


@pytest.mark.origin("S2-2")
def test_a_leaderless_partition_gets_its_log_but_no_role(cluster: BrokerCluster) -> None:
    assert send(cluster, cluster.partition(-1, 2, (2,))) is ErrorCode.NONE
    assert role(cluster[ME]) == (-1, -1)
    assert cluster[ME].logs.get(TP) is not None
    assert send(cluster, cluster.partition(ME, 3, (1,))) is ErrorCode.NONE
    assert role(cluster[ME]) == (ME, 3)


@pytest.mark.origin("S2-2")
def test_a_partition_that_is_not_assigned_here_is_unknown_and_not_hosted(
    cluster: BrokerCluster,
) -> None:
    decision = cluster.partition(2, 3, (2,), replicas=(2, 3))
    assert send(cluster, decision) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert hosted(cluster[ME]) is None and cluster[ME].logs.get(TP) is None
    assert send(cluster, cluster.partition(ME, 3, (1,))) is ErrorCode.NONE


@pytest.mark.origin("S2-2")
def test_another_topic_of_the_same_name_is_refused(cluster: BrokerCluster) -> None:
    send(cluster, cluster.partition(ME, 0, (1,), is_new=True))
    refused = cluster.partition(ME, 1, (1,), topic_id="another-id")
    assert send(cluster, refused) is ErrorCode.INCONSISTENT_TOPIC_ID
    assert role(cluster[ME]) == (ME, 0)
    assert send(cluster, cluster.partition(ME, 1, (1,), topic_id=None)) is ErrorCode.NONE


@pytest.mark.origin("S2-2")
def test_a_log_without_a_topic_id_adopts_the_id_of_the_first_request(cluster: BrokerCluster) -> None:
    assert send(cluster, cluster.partition(ME, 0, (1,), is_new=True, topic_id=None)) is ErrorCode.NONE
    assert cluster[ME].log().topic_id is None
    assert send(cluster, cluster.partition(ME, 1, (1,), topic_id="an-id")) is ErrorCode.NONE
    assert cluster[ME].log().topic_id == hosted(cluster[ME]).topic_id == "an-id"
    refused = cluster.partition(ME, 2, (1,), topic_id="another-id")
    assert send(cluster, refused) is ErrorCode.INCONSISTENT_TOPIC_ID


@pytest.mark.origin("S2-3")
def test_one_request_may_make_leader_and_follower(cluster: BrokerCluster) -> None:
    known(cluster)
    response = cluster.send(
        ME, cluster.partition(ME, 0, (1,), is_new=True), cluster.partition(2, 0, (2,), tp=OTHER, is_new=True)
    )
    assert set(response.partition_errors.values()) == {ErrorCode.NONE}
    assert hosted(cluster[ME]).is_leader and not hosted(cluster[ME], OTHER).is_leader
    kinds = [change.kind for change in cluster[ME].said(StateChangeKind.BECAME_LEADER, StateChangeKind.BECAME_FOLLOWER)]
    assert kinds == [StateChangeKind.BECAME_LEADER, StateChangeKind.BECAME_FOLLOWER]


@pytest.mark.origin("S2-5")
def test_a_follower_that_becomes_leader_stops_fetching_first_and_has_no_end_offsets(
    cluster: BrokerCluster,
) -> None:
    known(cluster)
    send(cluster, cluster.partition(2, 3, (2,)))
    assert cluster[ME].node.replica_manager.fetchers.state(TP) is not None
    send(cluster, cluster.partition(ME, 4, (1, 2)))
    assert cluster[ME].node.replica_manager.fetchers.state(TP) is None
    assert cluster[ME].transport.closed == [(2, 0)]
    hosted(cluster[ME]).followers[2].record_fetch(0, 0, 0, cluster.time.now_ms(), 7)
    send(cluster, cluster.partition(2, 5, (1, 2)))
    send(cluster, cluster.partition(ME, 6, (1, 2)))
    follower = hosted(cluster[ME]).followers[2]
    assert (follower.log_end_offset, follower.log_start_offset) == (None, None), (
        "end offsets from its earlier leadership"
    )


@pytest.mark.origin("S2-5")
def test_all_fetchers_stop_before_the_first_role_change(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(cluster)
    cluster.send(ME, *(cluster.partition(2, 3, (2,), tp=tp) for tp in (TP, OTHER)))
    fetchers = cluster[ME].node.replica_manager.fetchers
    fetched: list[list[TopicPartition]] = []
    make_leader = Partition.make_leader

    def traced(partition: Partition, state: LeaderAndIsrPartition, log: PartitionLog) -> bool:
        fetched.append([tp for tp in (TP, OTHER) if fetchers.state(tp) is not None])
        return make_leader(partition, state, log)

    assert all(fetchers.state(tp) is not None for tp in (TP, OTHER))
    monkeypatch.setattr(Partition, "make_leader", traced)
    cluster.send(ME, *(cluster.partition(ME, 4, (1, 2), tp=tp) for tp in (TP, OTHER)))
    assert fetched == [[], []]


@pytest.mark.origin("S2-7")
def test_a_follower_has_no_isr_of_its_own(cluster: BrokerCluster) -> None:
    known(cluster)
    send(cluster, cluster.partition(2, 3, (1, 2)))
    assert hosted(cluster[ME]).isr == ()
    send(cluster, cluster.partition(ME, 4, (1, 2)))
    assert hosted(cluster[ME]).isr == (1, 2) and hosted(cluster[ME]).leader_epoch_start_offset == 0
    send(cluster, cluster.partition(2, 5, (1, 2)))
    assert hosted(cluster[ME]).isr == hosted(cluster[ME]).maximal_isr == ()
    assert hosted(cluster[ME]).leader_epoch_start_offset is None and hosted(cluster[ME]).followers == {}


@pytest.mark.origin("S2-7")
def test_a_new_follower_has_the_assignment_epochs_and_leader_of_the_request_and_keeps_its_records(
    cluster: BrokerCluster,
) -> None:
    known(cluster)
    send(cluster, cluster.partition(ME, 3, (ME,), (ME, 2), is_new=True))
    written = cluster[ME].produce(b"a", b"b")
    cluster.time.run_until(lambda: bool(written), 1_000)
    partition = hosted(cluster[ME])
    log = cluster[ME].log()
    assert (log.log_end_offset, log.high_watermark) == (2, 2)
    moving = replace(
        cluster.partition(2, 4, (ME, 2), (2, ME, 3), zk_version=7), adding_replicas=(3,), removing_replicas=(ME,)
    )
    assert send(cluster, moving) is ErrorCode.NONE
    assert hosted(cluster[ME]) is partition and partition.log is log, "the partition keeps its log"
    assert (partition.replicas, partition.adding_replicas, partition.removing_replicas) == ((2, ME, 3), (3,), (ME,))
    assert (partition.controller_epoch, partition.leader_epoch, partition.zk_version) == (
        moving.controller_epoch,
        4,
        7,
    )
    assert partition.leader_id == 2 and not partition.is_leader
    assert partition.isr == () and partition.followers == {}
    assert (log.log_end_offset, log.high_watermark) == (2, 2), "the fetcher truncates"
    # A new leader in a new epoch starts a fetcher; the same decision again does not.
    fetched_from = cluster[ME].node.replica_manager.fetchers.state(TP)
    assert fetched_from is not None
    assert send(cluster, moving) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert cluster[ME].node.replica_manager.fetchers.state(TP) is fetched_from


@pytest.mark.origin("S2-6")
def test_no_fetch_is_sent_to_the_old_leader_after_the_change() -> None:
    cluster = BrokerCluster()
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    cluster.decide(2, 1, (2, 3))
    sent = len(cluster[3].transport.fetches)
    cluster.time.run_for(5_000)
    assert {leader for leader, _ in cluster[3].transport.fetches[sent:]} == {2}


def test_a_role_change_that_fails_for_storage_leaves_the_leader_epoch_unchanged(cluster: BrokerCluster) -> None:
    cluster[ME].files.fails = lambda operation, path: operation == "make_directory" and directory_name(TP) in path
    assert send(cluster, cluster.partition(ME, 3, (1,))) is ErrorCode.KAFKA_STORAGE_ERROR
    assert hosted(cluster[ME]) is None


def test_a_higher_controller_epoch_is_confirmed_in_zookeeper_before_it_is_accepted(cluster: BrokerCluster) -> None:
    forged = LeaderAndIsrRequest(cluster.stamp(ME, controller_epoch=9_000), (), (cluster.partition(ME, 0, (1,)),))
    for _ in range(3):
        with pytest.raises(ControlRequestDeferredError):
            cluster[ME].node.handle_control(forged)
        cluster.time.run_for(100)
    # The real controller is not locked out.
    assert send(cluster, cluster.partition(ME, 0, (1,), is_new=True)) is ErrorCode.NONE
    cluster.set_controller_epoch(9_000)
    with pytest.raises(ControlRequestDeferredError):
        cluster[ME].node.handle_control(forged)
    cluster.time.run_for(100)
    assert cluster[ME].node.handle_control(forged).error is ErrorCode.NONE


def test_a_new_broker_of_an_old_cluster_knows_its_controller_epoch(cluster: BrokerCluster) -> None:
    cluster.set_controller_epoch(57)
    broker = cluster.boot(5)
    cluster.time.run_until(lambda: broker.node.ready, 5_000)
    request = LeaderAndIsrRequest(cluster.stamp(5), (), (cluster.partition(5, 0, (5,), replicas=(5,)),))
    assert broker.node.handle_control(request).error is ErrorCode.NONE


def test_role_change_events_contain_the_offsets_of_the_replicas(cluster: BrokerCluster) -> None:
    send(cluster, cluster.partition(ME, 0, (1, 2), is_new=True))
    (change,) = cluster[ME].said(StateChangeKind.BECAME_LEADER)
    assert (change.who, change.leader, change.leader_epoch, change.isr) == ("broker-1", ME, 0, (1, 2))
    assert [(one.broker_id, one.log_end_offset, one.high_watermark) for one in change.replicas] == [
        (1, 0, 0),
        (2, None, None),
    ]
