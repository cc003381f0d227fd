"""Topic settings: read when a topic is hosted, applied when they change; every wait for them ends."""

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from paceline.broker.membership import topic_configs
from paceline.broker.membership.topic_configs import TopicConfigs
from paceline.coordination import znodes
from paceline.coordination.interface import Create, GetData, Multi, Request, Response, SetData, ZkCode, ZooKeeper
from paceline.log.log_config import LogConfig
from paceline.model.client_io import ProduceData, ProduceResult, RequiredAcks
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import TopicPartition
from tests.support.broker_cluster import TP, BrokerCluster, batch
from tests.support.virtual_time import VirtualTime


def configure(cluster: BrokerCluster, announce: bool = True, **overrides: str) -> None:
    """Write a topic's settings and their notification, as a controller does."""
    data = znodes.encode_config({key.replace("_", "."): value for key, value in overrides.items()})
    path = znodes.topic_config_path(TP.topic)
    cluster.zk(Create(path, data))
    cluster.zk(SetData(path, data))
    if announce:
        change = znodes.encode_config_change(f"topics/{TP.topic}")
        cluster.zk(Create(znodes.CONFIG_CHANGE_PREFIX, change, sequential=True))


def min_isr(cluster: BrokerCluster, broker_id: int = 1) -> int:
    return cluster[broker_id].log().config.min_insync_replicas


def test_a_new_partition_gets_its_topics_settings() -> None:
    cluster = BrokerCluster(log_config=LogConfig(segment_bytes=10_000))
    configure(cluster, announce=False, min_insync_replicas="2")
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(10)
    assert [min_isr(cluster, one) for one in (1, 2, 3)] == [2, 2, 2]
    assert cluster[1].log().config.segment_bytes == 10_000


def test_a_topic_without_settings_has_the_defaults() -> None:
    cluster = BrokerCluster(log_config=LogConfig(min_insync_replicas=3))
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(10)
    assert min_isr(cluster) == 3


def test_nothing_is_committed_before_the_settings_are_known() -> None:
    cluster = BrokerCluster((1,))
    configure(cluster, announce=False, min_insync_replicas="2")
    cluster[1].zookeeper.link.cut()
    cluster.send(1, cluster.partition(1, 0, (1,), is_new=True))
    partition = cluster[1].node.replica_manager.hosted.online[TP]
    answer = cluster[1].produce(b"a")
    early = cluster[1].produce(b"b", timeout_ms=100)
    cluster.time.run_for(1_000)
    assert not answer and not partition.has_enough_replicas
    assert early[0].failure is not None and early[0].failure.code is ErrorCode.NOT_ENOUGH_REPLICAS
    cluster[1].zookeeper.link.heal()
    cluster.time.run_until(lambda: bool(answer), 20_000)
    assert answer[0].failure is not None and answer[0].failure.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert cluster[1].log().log_end_offset == 0


def test_a_produce_to_a_new_topic_waits_until_its_settings_are_read() -> None:
    cluster = BrokerCluster((1,))
    cluster.send(1, cluster.partition(1, 0, (1,), is_new=True))
    answer = cluster[1].produce(b"a")
    cluster.time.run_until(lambda: bool(answer), 100)
    assert answer[0].failure is None and cluster[1].log().high_watermark == 1


def test_a_request_does_not_overtake_an_earlier_one_of_its_producer_that_waits_for_settings() -> None:
    cluster = BrokerCluster((1,))
    broker, other = cluster[1], TopicPartition("new", 0)
    cluster.send(1, cluster.partition(1, 0, (1,), is_new=True))
    cluster.time.run_for(100)
    broker.zookeeper.link.cut()
    cluster.send(1, cluster.partition(1, 0, (1,), is_new=True, tp=other, topic_id="topic-id-of-new-one"))
    first: list[ProduceResult] = []
    data = [ProduceData(TP, None, batch(b"first")), ProduceData(other, None, batch(b"x"))]
    broker.node.produce(RequiredAcks.LEADER, 5_000, data, first.extend, producer="p")
    second = broker.produce(b"second", producer="p", acks=RequiredAcks.LEADER, timeout_ms=6_000)
    foreign = broker.produce(b"foreign", producer="q", acks=RequiredAcks.LEADER)
    assert (first, second) == ([], []) and foreign[0].failure is None
    cluster.time.run_for(5_100)
    assert [one.base_offset for one in (first[0], second[0])] == [1, 2], "after the time-out of the first"


def test_a_wait_for_settings_and_for_replication_take_one_timeout_together() -> None:
    cluster = BrokerCluster((1, 2))
    configure(cluster, announce=False, min_insync_replicas="2")
    cluster[1].zookeeper.link.cut()
    cluster.send(1, cluster.partition(1, 0, (1, 2), is_new=True))
    answer = cluster[1].produce(b"a", timeout_ms=3_000)
    cluster.time.run_for(2_500)
    cluster[1].zookeeper.link.heal()
    cluster.time.run_until(lambda: cluster[1].log().log_end_offset == 1, 10_000)
    cluster.time.run_for(600)
    assert answer and answer[0].failure is not None and answer[0].failure.code is ErrorCode.REQUEST_TIMED_OUT


def test_a_change_takes_effect_on_every_broker() -> None:
    cluster = BrokerCluster()
    cluster.decide(1, 0, (1,), is_new=True, to=[1])
    configure(cluster, min_insync_replicas="2")
    cluster.time.run_until(lambda: min_isr(cluster) == 2, 1_000)
    (refused,) = cluster[1].produce(b"a")
    assert refused.failure is not None and refused.failure.code is ErrorCode.NOT_ENOUGH_REPLICAS
    cluster[1].produce(b"b", acks=RequiredAcks.LEADER)
    assert cluster[1].log().high_watermark == 0
    configure(cluster, min_insync_replicas="1")
    cluster.time.run_until(lambda: cluster[1].log().high_watermark == 1, 1_000)


def test_a_change_during_a_lost_connection_is_not_missed() -> None:
    cluster = BrokerCluster()
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    configure(cluster, min_insync_replicas="2")
    cluster.time.run_for(100)
    cluster[1].zookeeper.link.cut()
    configure(cluster, min_insync_replicas="3")
    cluster.time.run_for(100)
    assert min_isr(cluster, 2) == 3 and min_isr(cluster, 1) == 2
    cluster[1].zookeeper.link.heal()
    cluster.time.run_until(lambda: min_isr(cluster) == 3, 20_000)


@pytest.mark.parametrize("unread", ["the notification", "the settings", "the settings of brokers"])
def test_a_change_that_zookeeper_refuses_to_read_applies_when_it_can_be_read(unread: str) -> None:
    cluster = BrokerCluster((1,))
    cluster.decide(1, 0, (1,), is_new=True)
    cluster.time.run_for(100)
    path = {
        "the notification": f"{znodes.CONFIG_CHANGE_PREFIX}{0:010d}",
        "the settings": znodes.topic_config_path(TP.topic),
        "the settings of brokers": znodes.broker_config_path(1),
    }[unread]
    rate = {"leader.replication.throttled.rate": "1000"}
    cluster.server.tree.unreadable.add(path)
    cluster.zk(Create(znodes.broker_config_path(1), znodes.encode_config(rate)))
    change = znodes.encode_config_change("brokers/1")
    cluster.zk(Create(znodes.CONFIG_CHANGE_PREFIX, change, sequential=True))
    configure(cluster, min_insync_replicas="2")

    def applied() -> tuple[bool, bool]:
        return min_isr(cluster) == 2, cluster[1].node.replica_manager.hosted.quotas.leader.limit == 1_000

    cluster.time.run_for(5_000)
    assert not all(applied())
    cluster.server.tree.unreadable.clear()
    cluster.time.run_until(lambda: all(applied()), 5_000)


def test_a_new_session_reads_changes_without_a_notification() -> None:
    cluster = BrokerCluster()
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(100)
    configure(cluster, announce=False, min_insync_replicas="3")
    cluster.server.expire(cluster[1].zookeeper.session_id)
    cluster.time.run_until(lambda: min_isr(cluster) == 3, 20_000)
    assert min_isr(cluster, 2) == 1


def test_a_log_loaded_at_the_start_gets_settings_that_another_partition_had_requested() -> None:
    cluster = BrokerCluster((1,))
    late = TopicPartition(TP.topic, 1)
    configure(cluster, min_insync_replicas="2")
    for tp in (TP, late):
        cluster.decide(1, 0, (1,), tp=tp, is_new=True)
    cluster.time.run_for(10)
    cluster[1].produce(b"a", tp=late, acks=RequiredAcks.LEADER)
    cluster.restart(1)
    cluster.decide(1, 1, (1,))
    cluster.time.run_until(lambda: min_isr(cluster) == 2, 1_000)
    cluster.decide(1, 1, (1,), tp=late)
    (refused,) = cluster[1].produce(b"b", tp=late)
    assert refused.failure is not None and refused.failure.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert cluster[1].values(late) == [b"a"] and cluster[1].log(late).high_watermark == 0


def test_an_invalid_setting_does_not_affect_the_others() -> None:
    cluster = BrokerCluster()
    configure(cluster, announce=False, min_insync_replicas="2", retention_ms="soon", unheard_of="1")
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(10)
    assert min_isr(cluster) == 2 and cluster[1].log().config.retention_ms == -1, "the broker's default"


def test_a_re_created_topic_does_not_inherit_settings() -> None:
    cluster = BrokerCluster((1,))
    configure(cluster, min_insync_replicas="2")
    cluster.decide(1, 0, (1,), is_new=True)
    cluster.time.run_for(10)
    cluster.stop_replica(1, -2, delete=True)
    cluster.delete(znodes.topic_config_path(TP.topic))
    cluster.send(1, cluster.partition(1, 0, (1,), is_new=True, topic_id="new"))
    cluster.time.run_for(10)
    assert min_isr(cluster) == 1


def test_settings_of_a_topic_whose_log_was_set_aside_do_not_apply_to_a_re_created_topic() -> None:
    cluster = BrokerCluster((1,))
    configure(cluster, min_insync_replicas="2")
    cluster.decide(1, 0, (1,), is_new=True)
    cluster.time.run_for(10)
    cluster.delete(znodes.topic_config_path(TP.topic))
    cluster.set_controller_epoch(cluster.controller_epoch + 1)
    cluster.send(1, cluster.partition(1, 0, (1,), is_new=True, topic_id="new"))
    cluster.time.run_for(10)
    assert len(cluster[1].logs.set_aside) == 1
    assert min_isr(cluster) == 1


def test_a_read_started_for_a_deleted_topic_does_not_apply_to_a_re_created_topic() -> None:
    asked: list[Callable[[list[Response]], None]] = []
    zookeeper = SimpleNamespace(submit=lambda _requests, on_done: asked.append(on_done))
    time = VirtualTime()
    configs = TopicConfigs(
        cast(ZooKeeper, zookeeper), time, LogConfig(), lambda _topic, _config: None, random.Random(1)
    )
    configs.want([TP.topic])
    configs.forget(TP.topic)
    configs.want([TP.topic])
    asked.pop()([Response(ZkCode.OK, data=znodes.encode_config({"min.insync.replicas": "2"}))])
    assert configs.get(TP.topic) is None
    asked.pop()([Response(ZkCode.OK, data=znodes.encode_config({}))])
    assert configs.get(TP.topic) == LogConfig()


def test_a_missing_node_on_a_lagging_server_does_not_mean_the_defaults() -> None:
    asked: list[tuple[Sequence[Request], Callable[[list[Response]], None]]] = []
    zookeeper = SimpleNamespace(submit=lambda requests, on_done: asked.append((requests, on_done)))
    configs = TopicConfigs(
        cast(ZooKeeper, zookeeper), VirtualTime(), LogConfig(), lambda _topic, _config: None, random.Random(1)
    )
    configs.want(["lagging", "known", "without"])
    known = znodes.encode_config({"min.insync.replicas": "3"})
    requests, on_done = asked.pop()
    assert requests == [GetData(znodes.topic_config_path(topic)) for topic in ("lagging", "known", "without")]
    on_done([Response(ZkCode.NO_NODE), Response(ZkCode.OK, data=known), Response(ZkCode.NO_NODE)])
    (written,), on_done = asked.pop()
    assert isinstance(written, Multi) and configs.get("lagging") is None, "a write makes the server catch up"
    on_done([Response(ZkCode.BAD_VERSION)])
    requests, on_done = asked.pop()
    assert requests == [GetData(znodes.topic_config_path(topic)) for topic in ("lagging", "without")]
    late = znodes.encode_config({"min.insync.replicas": "2"})
    on_done([Response(ZkCode.OK, data=late), Response(ZkCode.NO_NODE)])
    found = [configs.get(topic) for topic in ("lagging", "known", "without")]
    assert [None if one is None else one.min_insync_replicas for one in found] == [2, 3, 1]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_change_announced_during_a_read_is_read_again(is_known: bool) -> None:
    asked: list[tuple[Sequence[Request], Callable[[list[Response]], None]]] = []
    zookeeper = SimpleNamespace(submit=lambda requests, on_done: asked.append((requests, on_done)))
    configs = TopicConfigs(
        cast(ZooKeeper, zookeeper), VirtualTime(), LogConfig(), lambda _topic, _config: None, random.Random(1)
    )
    before, after = (Response(ZkCode.OK, data=znodes.encode_config({"min.insync.replicas": n})) for n in "23")
    missing = Response(ZkCode.NO_NODE)

    def answer(*responses: Response) -> None:
        _, on_done = asked.pop(0)
        on_done(list(responses))

    configs.want(["changed", "without"])
    answer(before, missing)
    if is_known:
        answer(missing)
        answer(missing)
        configs.connected(new_session=True)
        answer(before, missing)
    else:
        configs.announced()
    # The check of the missing node and the announcements are asked for; the announcements are answered first.
    asked.sort(key=lambda one: isinstance(one[0][0], Multi))
    answer(Response(ZkCode.OK, children=(znodes.CONFIG_CHANGE_PREFIX.rpartition("/")[2] + "0000000001",)))
    asked.reverse()
    answer(Response(ZkCode.OK, data=znodes.encode_config_change("topics/changed")))
    answer(missing)
    answer(missing)
    answer(after)
    found = configs.get("changed")
    assert found is not None and found.min_insync_replicas == 3


def test_a_refused_request_for_a_deleted_topic_reads_no_settings_for_a_re_created_topic() -> None:
    cluster = BrokerCluster((1,))
    decision = cluster.decide(1, 0, (1,), is_new=True)
    cluster.time.run_for(10)
    cluster.stop_replica(1, -2, delete=True)
    assert cluster.send(1, decision).partition_errors[TP] is ErrorCode.INCONSISTENT_TOPIC_ID, "the request is late"
    cluster.time.run_for(10)
    configure(cluster, announce=False, min_insync_replicas="2")
    cluster.send(1, cluster.partition(1, 0, (1,), is_new=True, topic_id="new"))
    cluster.time.run_for(10)
    assert min_isr(cluster) == 2


def test_a_remaining_partition_of_a_deleted_topic_does_not_pass_its_settings_to_a_re_created_topic() -> None:
    cluster = BrokerCluster((1,))
    other = TopicPartition(TP.topic, 1)
    for tp in (TP, other):
        cluster.decide(1, 0, (1,), tp=tp, is_new=True)
    cluster.time.run_for(10)
    configure(cluster, announce=False, min_insync_replicas="2")
    cluster.set_controller_epoch(cluster.controller_epoch + 1)
    cluster.send(1, cluster.partition(1, 0, (1,), is_new=True, topic_id="new", tp=other))
    cluster.time.run_for(10)
    assert cluster[1].log(other).config.min_insync_replicas == 2


def test_a_foreign_node_among_the_notifications_does_not_hide_later_ones() -> None:
    cluster = BrokerCluster((1,))
    cluster.decide(1, 0, (1,), is_new=True)
    configure(cluster, min_insync_replicas="2")
    for foreign in ("zookeeper", "config_change_test"):
        cluster.zk(Create(f"{znodes.CONFIG_CHANGES}/{foreign}", b"what is this?"))
    cluster.time.run_until(lambda: min_isr(cluster) == 2, 1_000)
    configure(cluster, min_insync_replicas="3")
    cluster.time.run_until(lambda: min_isr(cluster) == 3, 1_000)


def test_notifications_whose_numbers_restart_are_read() -> None:
    cluster = BrokerCluster((1,))
    cluster.decide(1, 0, (1,), is_new=True)
    for value in ("2", "3"):
        configure(cluster, min_insync_replicas=value)
    cluster.time.run_until(lambda: min_isr(cluster) == 3, 1_000)
    # The parent node is deleted, and its counter with it; the next registration creates it again.
    for child in cluster.server.tree.children(znodes.CONFIG_CHANGES) or ():
        cluster.delete(f"{znodes.CONFIG_CHANGES}/{child}")
    cluster.delete(znodes.CONFIG_CHANGES)
    cluster.zk(Create(znodes.CONFIG_CHANGES, None))
    cluster.time.run_for(5_000)
    configure(cluster, min_insync_replicas="4")
    cluster.time.run_until(lambda: min_isr(cluster) == 4, 1_000)


def test_many_changes_at_once_end_in_the_last_one() -> None:
    cluster = BrokerCluster((1,))
    cluster.decide(1, 0, (1,), is_new=True)
    for value in range(1, 30):
        configure(cluster, min_insync_replicas=str(value))
    cluster.time.run_until(lambda: min_isr(cluster) == 29, 1_000)


def test_settings_that_stay_unknown_are_a_metric_and_one_log_line_after_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = BrokerCluster((1,))
    node = cluster[1].node
    cluster.zk(Create(znodes.topic_config_path(TP.topic), b"what is this?"))
    cluster.decide(1, 0, (1,), is_new=True)
    cluster.time.run_for(topic_configs.LONG_UNKNOWN_MS - 1_000)
    assert node.metrics_snapshot()["topics_with_unknown_settings"] == 0
    cluster.time.run_for(2_000)
    assert node.metrics_snapshot()["topics_with_unknown_settings"] == 1
    cluster.time.run_for(300_000)
    lines = [record.getMessage() for record in caplog.records if "topic settings unknown" in record.getMessage()]
    assert len(lines) == 1 and f"topic={TP.topic}" in lines[0] and "/config/topics/orders" in lines[0]
    cluster.zk(SetData(znodes.topic_config_path(TP.topic), znodes.encode_config({"min.insync.replicas": "1"})))
    cluster.time.run_for(topic_configs.UNREADABLE_RETRY_MS + 1_000)
    assert node.metrics_snapshot()["topics_with_unknown_settings"] == 0
    assert cluster[1].produce(b"a")[0].failure is None


def test_the_last_read_settings_apply_while_their_node_does_not_parse() -> None:
    cluster = BrokerCluster((1,))
    configure(cluster, announce=False, min_insync_replicas="1", retention_ms="1000")
    cluster.decide(1, 0, (1,), is_new=True)
    cluster.time.run_for(10)
    cluster.zk(SetData(znodes.topic_config_path(TP.topic), b"what is this?"))
    change = znodes.encode_config_change(f"topics/{TP.topic}")
    cluster.zk(Create(znodes.CONFIG_CHANGE_PREFIX, change, sequential=True))
    cluster.time.run_for(100)
    assert not cluster[1].node.replica_manager.hosted.topic_configs.deletion_is_known(TP.topic)
    assert cluster[1].produce(b"a")[0].failure is None
    assert cluster[1].log().config.retention_ms == 1_000


def test_with_unreadable_settings_the_brokers_defaults_apply_and_nothing_is_deleted() -> None:
    """Kafka uses its defaults for both, and so deletes records that the topic's settings would keep."""
    cluster = BrokerCluster((1,))
    cluster.zk(Create(znodes.topic_config_path(TP.topic), b"what is this?"))
    cluster.decide(1, 0, (1,), is_new=True)
    cluster.time.run_for(100)
    manager = cluster[1].node.replica_manager
    assert manager.hosted.online[TP].min_insync_replicas == cluster[1].logs.default_config.min_insync_replicas
    assert cluster[1].produce(b"a")[0].failure is None
    assert not manager.hosted.topic_configs.deletion_is_known(TP.topic)


def test_a_broker_that_restarts_with_unreadable_settings_accepts_acks_all() -> None:
    cluster = BrokerCluster((1,))
    configure(cluster, announce=False, min_insync_replicas="1", retention_ms="1000")
    cluster.decide(1, 0, (1,), is_new=True)
    cluster.time.run_for(10)
    assert cluster[1].produce(b"a")[0].failure is None
    cluster.zk(SetData(znodes.topic_config_path(TP.topic), b"what is this?"))
    cluster.restart(1)
    cluster.decide(1, 1, (1,))
    cluster.time.run_for(100)
    assert cluster[1].produce(b"b")[0].failure is None
    assert not cluster[1].node.replica_manager.hosted.topic_configs.deletion_is_known(TP.topic)
    cluster.time.run_for(3_600_000)
    assert cluster[1].log().log_start_offset == 0, "nothing is deleted under defaults"


def leader_with_small_segments() -> BrokerCluster:
    cluster = BrokerCluster((1, 2))
    configure(cluster, announce=False, segment_bytes="300", index_interval_bytes="100")
    cluster.decide(1, 0, (1,), replicas=(1,), is_new=True)
    cluster.time.run_for(10)
    for number in range(40):
        (answer,) = cluster[1].produce(b"%d" % number, acks=RequiredAcks.LEADER)
        assert answer.failure is None
    return cluster


@pytest.mark.parametrize("zookeeper_is_slow", [False, True])
def test_a_new_followers_first_records_are_appended_under_its_topics_settings(zookeeper_is_slow: bool) -> None:
    cluster = leader_with_small_segments()
    leader = cluster[1].log()
    assert leader.segment_count >= 10
    if zookeeper_is_slow:
        cluster[2].zookeeper.link.cut()
    cluster.decide(1, 1, (1,), replicas=(1, 2))
    if zookeeper_is_slow:
        cluster.time.run_for(3_000)
        assert cluster[2].log().log_end_offset == 0
        cluster[2].zookeeper.link.heal()
    cluster.until_in_sync(1, 2)
    for broker_id in (1, 2):
        cluster[broker_id].log().flush()
    follower = cluster[2].log()
    assert [segment.base_offset for segment in follower.segments] == [one.base_offset for one in leader.segments]
    for name, content in cluster[1].files.contents.items():
        if name.endswith((".log", ".index")) and "/orders-0/" in name:
            assert bytes(cluster[2].files.contents[name]) == bytes(content), name


def test_a_new_follower_does_not_wait_for_settings_until_it_is_out_of_sync() -> None:
    cluster = leader_with_small_segments()
    cluster[2].zookeeper.link.cut()
    cluster.decide(1, 1, (1,), replicas=(1, 2))
    cluster.time.run_for(cluster[2].config.replica_lag_time_max_ms)
    assert cluster[2].log().log_end_offset == 40


def test_a_new_follower_does_not_wait_for_settings_that_cannot_be_read() -> None:
    cluster = leader_with_small_segments()
    cluster.zk(SetData(znodes.topic_config_path(TP.topic), b"what is this?"))
    cluster.decide(1, 1, (1,), replicas=(1, 2))
    cluster.time.run_for(100)
    assert cluster[2].log().log_end_offset == 40


def test_a_follower_that_is_stopped_while_it_waits_for_settings_fetches_nothing() -> None:
    cluster = leader_with_small_segments()
    cluster[2].zookeeper.link.cut()
    cluster.decide(1, 1, (1,), replicas=(1, 2))
    cluster.stop_replica(2, 1, delete=False)
    cluster[2].zookeeper.link.heal()
    cluster.time.run_for(60_000)
    assert cluster[2].log().log_end_offset == 0
