"""Rows S2-1, S2-3, S2-6 and S2-11, as far as other tests leave something to show."""

from collections.abc import Callable, Iterable

import pytest

from paceline.broker.metrics import label_families_of
from paceline.broker.traffic import FOLLOWING, LEADING
from paceline.log.directory_names import directory_name
from paceline.model.client_io import (
    DeleteRecordsQuery,
    DeleteRecordsResult,
    EpochQuery,
    OffsetKind,
    OffsetQuery,
    ProduceData,
    ProduceResult,
    RequiredAcks,
)
from paceline.model.control import LeaderAndIsrRequest
from paceline.model.errors import ErrorCode
from paceline.model.fetch_position import FetchPosition
from paceline.model.identifiers import TopicPartition
from paceline.model.replica_fetch import ReplicaFetchRequest, ReplicaFetchResponse
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import TP, BrokerCluster, BrokerUnderTest, batch

OTHER = TopicPartition("orders", 1)
THIRD = TopicPartition("orders", 2)
FOURTH = TopicPartition("orders", 3)
ME = 1


def answers(broker: BrokerUnderTest, tp: TopicPartition) -> dict[str, ErrorCode | None]:
    """What every public operation on a partition answers; None is success."""
    node = broker.node
    found: dict[str, ErrorCode | None] = {}

    def note(name: str, failure: object) -> None:
        found[name] = getattr(failure, "code", None)

    for acks in RequiredAcks.LEADER, RequiredAcks.ALL:
        (produced,) = broker.produce(b"x", tp=tp, acks=acks)
        note(f"produce {acks.name}", produced.failure)
    (consumed,) = broker.consume(0, tp=tp)
    note("fetch", consumed.results[0].failure)
    (from_follower,) = broker.consume(0, tp=tp, rack="a")
    note("fetch with a rack", from_follower.results[0].failure)
    for kind in OffsetKind:
        (listed,) = broker.list_offsets(OffsetQuery(tp, kind, timestamp_ms=0))
        note(f"list offsets {kind.name}", listed.failure)
    (epoch,) = broker.epoch_ends(EpochQuery(tp, 0))
    note("offsets for leader epoch", epoch.failure)
    (described,) = node.describe_replicas(tp.topic, [tp.partition])
    note("describe replicas", described.failure)
    fetched: list[ReplicaFetchResponse] = []
    asked = FetchPosition(tp, None, 0, 1_000, 0, None, 0)
    node.handle_replica_fetch(ReplicaFetchRequest(2, 1, 0, 1, 1_000, 0, -1, [asked], []), fetched.append)
    error = fetched[0].results[0].error
    found["replica fetch"] = None if error is ErrorCode.NONE else error
    deleted: list[DeleteRecordsResult] = []
    node.proved_calls.delete_records([DeleteRecordsQuery(tp, None, 0)], 0, deleted.extend)
    note("delete records", deleted[0].failure)
    return found


@pytest.mark.origin("S2-1")
def test_every_operation_on_a_partition_without_metadata_answers_unknown() -> None:
    cluster = BrokerCluster((1, 2))
    assert set(answers(cluster[ME], TP).values()) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert TP not in cluster[ME].node.replica_manager.hosted.online and cluster[ME].logs.get(TP) is None


@pytest.mark.origin("S2-1")
def test_every_operation_on_a_partition_hosted_elsewhere_answers_not_leader() -> None:
    cluster = BrokerCluster((1, 2))
    cluster.decide(2, 0, (2,), (2,), is_new=True)
    assert set(answers(cluster[ME], TP).values()) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert set(answers(cluster[2], TP).values()) == {None, ErrorCode.REPLICA_NOT_AVAILABLE}, (
        "a broker does not follow itself"
    )


@pytest.mark.origin("S2-1")
def test_every_operation_on_an_offline_partition_answers_a_storage_error_until_it_is_repaired() -> None:
    cluster = BrokerCluster((2,))
    broker = cluster.boot(ME, dirs=("/one", "/two"))
    cluster.time.run_until(lambda: broker.node.ready, 5_000)
    cluster.update_metadata()
    for tp in (TP, OTHER):
        cluster.decide(ME, 0, (ME,), (ME,), tp=tp, is_new=True)
        broker.produce(b"a", tp=tp)
    folder = broker.log(TP).directory.path
    assert broker.log(OTHER).directory.path != folder
    broker.files.fails = lambda operation, path: path.startswith(folder) and operation in ("append", "sync", "create")
    for _ in range(100):
        broker.produce(b"b", tp=TP)
    cluster.time.run_for(1_000)
    assert list(broker.node.replica_manager.hosted.offline) == [TP]
    assert set(answers(broker, TP).values()) == {ErrorCode.KAFKA_STORAGE_ERROR}
    served = {name: code for name, code in answers(broker, OTHER).items() if name != "replica fetch"}
    assert set(served.values()) == {None}, "the partition on the other disk is unchanged"
    broker.crash()
    broker.files.fails = lambda _operation, _path: False
    cluster.server.expire(broker.zookeeper.session_id)
    again = cluster.boot(ME, broker.files, dirs=("/one", "/two"))
    cluster.time.run_until(lambda: again.node.ready, 5_000)
    repaired = cluster.send(ME, cluster.partition(ME, 1, (ME,), (ME,)))
    assert repaired.partition_errors[TP] is ErrorCode.NONE
    answer = again.produce(b"c")
    cluster.time.run_until(lambda: bool(answer), 5_000)
    assert (answer[0].failure, list(again.node.replica_manager.hosted.offline)) == (None, [])


@pytest.mark.origin("S2-3")
def test_one_request_makes_leaders_and_followers_and_a_dead_disk_fails_only_its_own_partition() -> None:
    cluster = BrokerCluster((2,))
    broker = cluster.boot(ME, dirs=("/one", "/two"))
    cluster.time.run_until(lambda: broker.node.ready, 5_000)
    cluster.update_metadata()
    for tp in (TP, OTHER, THIRD):
        cluster.decide(2, 0, (1, 2), (1, 2), tp=tp, is_new=True)
    folder = broker.log(THIRD).directory.path
    lost = [tp for tp in (TP, OTHER, THIRD) if broker.log(tp).directory.path == folder]
    sound = [tp for tp in (TP, OTHER, THIRD) if tp not in lost]
    assert lost and sound
    broker.files.fails = lambda _operation, path: path.startswith(folder)
    cluster.decide(ME, 1, (1, 2), (1, 2), tp=lost[0], to=[ME])
    broker.produce(b"a", tp=lost[0])
    cluster.time.run_for(500)
    before = len(broker.changes)
    response = cluster.send(
        ME,
        *(cluster.partition(ME, 2, (1, 2), (1, 2), tp=tp) for tp in lost),
        *(cluster.partition(ME, 2, (1, 2), (1, 2), tp=tp) for tp in sound),
        cluster.partition(2, 0, (1, 2), (1, 2), tp=FOURTH, is_new=True),
    )
    assert response.error is ErrorCode.NONE
    expected = dict.fromkeys(lost, ErrorCode.KAFKA_STORAGE_ERROR) | dict.fromkeys([*sound, FOURTH], ErrorCode.NONE)
    assert response.partition_errors == expected
    roles = [(change.kind, change.topic_partition) for change in broker.changes[before:]]
    assert roles == [
        *((StateChangeKind.BECAME_LEADER, tp) for tp in sound),
        (StateChangeKind.BECAME_FOLLOWER, FOURTH),
    ]


@pytest.mark.origin("S2-3")
def test_disks_that_die_during_role_changes_fail_only_their_partitions() -> None:
    cluster = BrokerCluster((2,))
    broker = cluster.boot(ME, dirs=("/one", "/two", "/three", "/four"))
    cluster.time.run_until(lambda: broker.node.ready, 5_000)
    cluster.update_metadata()
    broker.files.fails = lambda operation, path: (
        operation == "make_directory" and path.endswith((directory_name(TP), directory_name(THIRD)))
    )
    response = cluster.send(
        ME,
        cluster.partition(ME, 0, (1, 2), (1, 2), tp=TP, is_new=True),
        cluster.partition(ME, 0, (1, 2), (1, 2), tp=OTHER, is_new=True),
        cluster.partition(2, 0, (1, 2), (1, 2), tp=THIRD, is_new=True),
        cluster.partition(2, 0, (1, 2), (1, 2), tp=FOURTH, is_new=True),
    )
    storage, fine = ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE
    assert response.error is ErrorCode.NONE
    assert response.partition_errors == {TP: storage, OTHER: fine, THIRD: storage, FOURTH: fine}
    manager = broker.node.replica_manager
    assert list(manager.hosted.offline) == [TP, THIRD] and len(broker.logs.live_log_dirs) == 2
    assert {tp: one.leader_id for tp, one in manager.hosted.online.items()} == {OTHER: ME, FOURTH: 2}


@pytest.mark.origin("S2-3")
def test_the_metrics_of_a_role_end_with_the_role() -> None:
    cluster = BrokerCluster((1, 2))
    cluster.decide(1, 0, (1,), (1, 2), is_new=True)
    cluster.cuts.add((2, 1))
    before = cluster[ME].node.metrics_snapshot()
    assert (before["leader_partitions"], before["under_replicated_partitions"], before["replica_fetchers"]) == (1, 1, 0)
    cluster.decide(2, 1, (1, 2), (1, 2))
    after = cluster[ME].node.metrics_snapshot()
    assert (after["leader_partitions"], after["under_replicated_partitions"], after["replica_fetchers"]) == (0, 0, 1)
    cluster.decide(1, 2, (1, 2), (1, 2))
    cluster.time.run_for(20_000)
    again = cluster[ME].node.metrics_snapshot()
    assert (again["leader_partitions"], again["replica_fetchers"], again["replica_lag_records"]) == (1, 0, 0)


def topic_series(broker: BrokerUnderTest, topic: str) -> set[str]:
    """Which of a topic's counters the broker shows."""
    families = label_families_of(broker.node.replica_manager, 10)
    return {name for name, rows in families.items() if name.startswith("topic_") and (topic,) in rows}


@pytest.mark.origin("S2-3")
def test_a_topics_counters_of_a_role_are_removed_when_no_partition_has_the_role() -> None:
    cluster = BrokerCluster((1, 2))
    for tp in (TP, OTHER):
        cluster.decide(1, 0, (1, 2), (1, 2), tp=tp, is_new=True)
        cluster[1].produce(b"a", tp=tp)
        cluster.until_in_sync(1, 2, tp=tp)
    leading = {f"topic_{name}_total" for name in LEADING}
    following = {f"topic_{name}_total" for name in FOLLOWING}
    traffic = cluster[ME].node.replica_manager.hosted.traffic
    counted = traffic.of(TP.topic)
    assert counted.bytes_in and counted.messages_in == 2 and counted.replication_bytes_out
    assert leading <= topic_series(cluster[ME], TP.topic) and not following & topic_series(cluster[ME], TP.topic)
    cluster.decide(2, 1, (1, 2), (1, 2))
    assert leading | following <= topic_series(cluster[ME], TP.topic), "it still leads the other partition"
    assert counted.messages_in == 2
    cluster.decide(2, 1, (1, 2), (1, 2), tp=OTHER)
    assert following <= topic_series(cluster[ME], TP.topic) and not leading & topic_series(cluster[ME], TP.topic)
    assert (counted.messages_in, counted.bytes_in, counted.replication_bytes_out) == (0, 0, 0)
    assert traffic.all.messages_in == 2, "the counters of the broker are not reset"
    cluster[2].produce(b"b")
    cluster.until_in_sync(1, 2)
    assert counted.replication_bytes_in
    lag = ("orders", "0")
    assert label_families_of(cluster[ME].node.replica_manager, 10)["partition_replica_lag_records"][lag] == 0
    for tp in (TP, OTHER):
        cluster.decide(1, 2, (1, 2), (1, 2), tp=tp)
    assert leading <= topic_series(cluster[ME], TP.topic) and not following & topic_series(cluster[ME], TP.topic)
    assert counted.replication_bytes_in == 0
    assert label_families_of(cluster[ME].node.replica_manager, 10)["partition_replica_lag_records"] == {}


@pytest.mark.origin("S2-6")
def test_the_steps_of_becoming_a_follower_run_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = BrokerCluster()
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    # Broker 3 alone has a record of epoch 0, then 2 leads: 3 must wait, stop, follow and truncate.
    cluster.cuts |= {(1, 3), (2, 3)}
    cluster.decide(3, 1, (1, 2, 3), to=[3])
    trace: list[str] = []
    waiting: list[ProduceResult] = []

    def answered(results: list[ProduceResult]) -> None:
        waiting.extend(results)
        trace.append("waiting failed")

    cluster[3].node.produce(RequiredAcks.ALL, 30_000, [ProduceData(TP, None, batch(b"only here"))], answered)
    cluster.cuts.clear()
    cluster.decide(2, 2, (1, 2), to=[1, 2])
    manager = cluster[3].node.replica_manager
    hosted = manager.hosted.online[TP]
    log = cluster[3].log()

    def traced(owner: object, name: str, label: Callable[..., str]) -> None:
        original = getattr(owner, name)

        def call(*args: object, **kwargs: object) -> object:
            text = label(*args)
            if text:
                trace.append(text)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call, raising=True)

    stop = manager.fetchers.stop

    def stopped(partitions: Iterable[TopicPartition]) -> None:
        named = list(partitions)
        trace.extend(f"fetcher of {tp} stopped" for tp in named)
        stop(named)

    monkeypatch.setattr(manager.fetchers, "stop", stopped)
    traced(type(hosted), "make_follower", lambda _self, state, _log: f"follows {state.leader}/{state.leader_epoch}")
    traced(manager.fetchers, "start", lambda following: f"fetchers started at {log.log_end_offset}")
    traced(type(log), "truncate_to", lambda one, offset: f"truncated to {offset}" if one is log else "")
    sent = len(cluster[3].transport.fetches)
    decision = cluster.partition(2, 2, (1, 2), zk_version=cluster.state().zk_version)
    request = LeaderAndIsrRequest(cluster.stamp(3), (), (decision,))
    cluster[3].node.handle_control(request)
    cluster.time.run_for(2_000)
    # The log knows epochs, so it is fetched from the end, and the leader's answer tells where the logs part.
    assert trace == [
        "fetcher of orders/0 stopped",
        "follows 2/2",
        "waiting failed",
        "fetchers started at 2",
        "truncated to 1",
    ]
    failure = waiting[0].failure
    assert failure is not None and failure.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert {leader for leader, _ in cluster[3].transport.fetches[sent:]} == {2}, "no request from another broker"
    assert cluster[3].values() == [b"a"]


@pytest.mark.origin("S2-11")
def test_a_successful_isr_write_lists_exactly_its_partition_until_it_is_notified() -> None:
    cluster = BrokerCluster(replica_lag_time_max_ms=2_000)
    for tp in (TP, OTHER):
        cluster.decide(1, 0, (1, 2, 3), tp=tp, is_new=True)
        cluster[1].produce(b"a", tp=tp)
        cluster.until_in_sync(1, 2, 3, tp=tp)
    manager = cluster[1].node.replica_manager
    assert manager.hosted.isr_updates.propagation.pending == ()
    # Only the first partition lacks something at 3, so only its ISR shrinks.
    cluster.cuts.add((3, 1))
    cluster[1].produce(b"b", acks=RequiredAcks.LEADER)
    seen: set[tuple[TopicPartition, ...]] = set()

    def shrunk() -> bool:
        seen.add(manager.hosted.isr_updates.propagation.pending)
        return manager.hosted.online[TP].isr == (1, 2)

    cluster.time.run_until(shrunk, 10_000)
    seen.add(manager.hosted.isr_updates.propagation.pending)
    assert seen == {(), (TP,)} and manager.hosted.online[OTHER].isr == (1, 2, 3)
    cluster.time.run_until(lambda: manager.hosted.isr_updates.propagation.pending == (), 10_000)
