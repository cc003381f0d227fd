"""Retention on leaders and followers: docs/protocol/log-format.md#retention."""

from dataclasses import replace

import pytest

from paceline.broker.partition.partition import Partition
from paceline.broker.storage import log_retention
from paceline.coordination import znodes
from paceline.coordination.interface import Create, SetData
from paceline.log.log_config import LogConfig
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.log.segment import Segment
from paceline.model.client_io import ProduceData, ProduceResult, RequiredAcks
from paceline.model.errors import CorruptMessageError, ErrorCode
from paceline.model.identifiers import TopicPartition
from tests.support.broker_cluster import TP, BrokerCluster

RETENTION_MS = 60_000
CHECK_MS = 20_000
CONFIG = LogConfig(segment_bytes=200, file_delete_delay_ms=1_000, retention_ms=RETENTION_MS)
"""Two or three batches to a segment."""


def produce(cluster: BrokerCluster, value: bytes, age_ms: int = 0, tp: TopicPartition = TP) -> None:
    answers: list[ProduceResult] = []
    batch = encode_batch([NewRecord(cluster.time.wall_ms() - age_ms, b"k", value)])
    cluster[1].node.produce(RequiredAcks.LEADER, 1_000, [ProduceData(tp, None, batch)], answers.extend)
    cluster.time.run_until(lambda: bool(answers), 1_000)
    assert answers[0].failure is None


def led_by_1(config: LogConfig = CONFIG, replica_lag_time_max_ms: int = 30_000) -> BrokerCluster:
    cluster = BrokerCluster(
        log_config=config,
        log_retention_check_interval_ms=CHECK_MS,
        replica_lag_time_max_ms=replica_lag_time_max_ms,
    )
    cluster.decide(1, 4, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    return cluster


def starts(cluster: BrokerCluster) -> list[int]:
    return [cluster[broker_id].log().log_start_offset for broker_id in (1, 2, 3)]


def test_an_unexpected_error_in_one_log_does_not_end_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = led_by_1()
    for number in range(10):
        produce(cluster, b"%d" % number, age_ms=RETENTION_MS if number < 5 else 0)
    cluster.until_in_sync(1, 2, 3)
    failures: list[int] = []

    def fail(_partition: Partition, wall_ms: int) -> None:
        failures.append(wall_ms)
        raise ZeroDivisionError

    with monkeypatch.context() as patches:
        patches.setattr(Partition, "apply_retention", fail)
        cluster.time.run_until(lambda: len(failures) >= 3, CHECK_MS + 1_000)
    cluster.time.run_until(lambda: min(starts(cluster)) > 0, CHECK_MS + 1_000)


def test_old_segments_are_deleted_on_every_replica_and_their_files_after_the_delay() -> None:
    cluster = led_by_1()
    for number in range(10):
        produce(cluster, b"%d" % number, age_ms=RETENTION_MS if number < 5 else 0)
    cluster.until_in_sync(1, 2, 3)
    segments = [segment.base_offset for segment in cluster[1].log().segments]
    first = max(base for base in segments if base <= 5)
    cluster.time.run_until(lambda: starts(cluster) == [first] * 3, CHECK_MS + 1_000)
    cluster.time.run_for(1_001)
    for broker_id in (1, 2, 3):
        assert not any(path.endswith(".deleted") for path in cluster[broker_id].files.contents)
    (response,) = cluster[1].consume(0)
    failure = response.results[0].failure
    assert failure is not None and failure.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert cluster[2].values() == [b"%d" % number for number in range(first, 10)]


def test_a_log_with_only_old_records_becomes_empty_at_its_log_end() -> None:
    cluster = led_by_1()
    for number in range(4):
        produce(cluster, b"%d" % number)
    cluster.until_in_sync(1, 2, 3)
    cluster.time.run_until(lambda: starts(cluster) == [4, 4, 4], RETENTION_MS + CHECK_MS + 1_000)
    produce(cluster, b"next")
    cluster.until_in_sync(1, 2, 3)
    assert cluster[3].values() == [b"next"] and cluster[3].log().log_end_offset == 5


def test_uncommitted_records_are_never_deleted() -> None:
    cluster = led_by_1(replace(CONFIG, min_insync_replicas=2), replica_lag_time_max_ms=600_000)
    produce(cluster, b"0")
    cluster.until_in_sync(1, 2, 3)
    for broker_id in (2, 3):
        cluster.cuts |= {(broker_id, 1), (1, broker_id)}
    for number in range(1, 6):
        produce(cluster, b"%d" % number)
    cluster.time.run_for(RETENTION_MS + 2 * CHECK_MS)
    assert cluster[1].log().high_watermark == 1
    assert cluster[1].log().log_start_offset <= 1 and cluster[1].log().log_end_offset == 6


def test_bytes_above_the_limit_are_deleted_and_a_changed_limit_counts_at_the_next_check() -> None:
    cluster = led_by_1(replace(CONFIG, retention_ms=-1))
    for number in range(12):
        produce(cluster, b"%d" % number, age_ms=10 * RETENTION_MS)
    cluster.until_in_sync(1, 2, 3)
    cluster.time.run_for(2 * CHECK_MS)
    assert starts(cluster) == [0, 0, 0]
    for broker_id in (1, 2, 3):
        log = cluster[broker_id].log()
        log.config = replace(log.config, retention_bytes=300)
    cluster.time.run_for(CHECK_MS)
    assert all(300 <= cluster[broker_id].log().size_bytes < 300 + 200 for broker_id in (1, 2, 3))
    assert len(set(starts(cluster))) == 1


def test_nothing_is_deleted_without_the_policy_delete() -> None:
    cluster = led_by_1(replace(CONFIG, cleanup_policy=frozenset({"compact"})))
    for number in range(6):
        produce(cluster, b"%d" % number)
    cluster.time.run_for(RETENTION_MS + 2 * CHECK_MS)
    assert starts(cluster) == [0, 0, 0]


def test_the_first_check_waits_half_a_minute_and_none_comes_after_a_stop() -> None:
    cluster = BrokerCluster((1,), log_config=replace(CONFIG, retention_ms=0))
    cluster.decide(1, 4, (1,), is_new=True)
    produce(cluster, b"0", age_ms=10)
    cluster.time.run_for(log_retention.FIRST_CHECK_MS - 1_000)
    assert cluster[1].log().log_start_offset == 0
    cluster.time.run_for(1_000)
    assert cluster[1].log().log_start_offset == 1
    produce(cluster, b"1", age_ms=10)
    cluster[1].node._retention.stop()
    cluster.time.run_for(600_000)
    assert cluster[1].log().log_start_offset == 1


def test_partitions_after_the_first_slice_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_retention, "_PARTITIONS_AT_ONCE", 2)
    cluster = BrokerCluster((1,), log_config=CONFIG, log_retention_check_interval_ms=CHECK_MS)
    partitions = [TopicPartition(TP.topic, number) for number in range(5)]
    for tp in partitions:
        cluster.decide(1, 0, (1,), is_new=True, tp=tp)
        produce(cluster, b"x", age_ms=2 * RETENTION_MS, tp=tp)
    cluster.time.run_for(CHECK_MS + 10)
    assert [cluster[1].log(tp).log_start_offset for tp in partitions] == [1] * 5


@pytest.mark.parametrize(
    "error", [CorruptMessageError("differ from the batch that was written"), OSError("broken")], ids=repr
)
def test_a_log_whose_retention_fails_delays_no_other(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    cluster = BrokerCluster((1,), log_config=CONFIG, log_retention_check_interval_ms=CHECK_MS)
    partitions = [TopicPartition(TP.topic, number) for number in range(2)]
    for tp in partitions:
        cluster.decide(1, 0, (1,), is_new=True, tp=tp)
        produce(cluster, b"x", age_ms=2 * RETENTION_MS, tp=tp)
    bad = cluster[1].log(partitions[0]).segments[0]

    def read(segment: Segment) -> int:
        if segment is bad:
            raise error
        return segment.largest.timestamp

    monkeypatch.setattr(Segment, "newest_ms", property(read))
    cluster.time.run_for(CHECK_MS + 10)
    manager = cluster[1].node.replica_manager
    if isinstance(error, OSError):
        assert partitions[0] in manager.hosted.offline, "its directory has failed"
    else:
        assert partitions[0] in manager.storage.damaged_logs.damaged
        assert cluster[1].log(partitions[1]).log_start_offset == 1


def old_records(cluster: BrokerCluster) -> None:
    cluster.decide(1, 0, (1,), is_new=True)
    for number in range(6):
        produce(cluster, b"%d" % number, age_ms=2 * RETENTION_MS)


@pytest.mark.parametrize("override", ["retention.ms=-1", "cleanup.policy=compact"])
def test_nothing_is_deleted_under_defaults_while_a_topics_settings_are_unread(override: str) -> None:
    """A broker restarts and gets its role; ZooKeeper stops answering before the topic's settings are read."""
    key, _, value = override.partition("=")
    cluster = BrokerCluster((1,), log_config=CONFIG, log_retention_check_interval_ms=500)
    cluster.zk(Create(znodes.topic_config_path(TP.topic), znodes.encode_config({key: value})))
    old_records(cluster)
    cluster[1].logs.checkpoint_high_watermarks()
    cluster.restart(1)
    cluster[1].zookeeper.link.cut()
    cluster.decide(1, 1, (1,))
    cluster.time.run_for(3_000)
    assert cluster[1].node.replica_manager.hosted.topic_configs.get(TP.topic) is None, "precondition of this test"
    assert cluster[1].log().log_start_offset == 0
    cluster[1].zookeeper.link.heal()
    cluster.time.run_until(
        lambda: cluster[1].node.replica_manager.hosted.topic_configs.get(TP.topic) is not None, 30_000
    )
    cluster.time.run_for(3_000)
    assert cluster[1].log().log_start_offset == 0


def test_a_topic_without_a_configuration_node_has_the_brokers_retention() -> None:
    cluster = BrokerCluster((1,), log_config=CONFIG, log_retention_check_interval_ms=500)
    old_records(cluster)
    cluster.time.run_for(3_000)
    assert cluster[1].log().log_start_offset == 6


@pytest.mark.parametrize(
    "node",
    [
        b"what is this?",
        znodes.encode_config({"retention.ms": "for ever"}),
        znodes.encode_config({"cleanup.policy": "-"}),
    ],
    ids=["not JSON", "no number", "no policy"],
)
@pytest.mark.parametrize("restarts", [True, False])
def test_nothing_is_deleted_under_settings_that_cannot_be_read(node: bytes, restarts: bool) -> None:
    cluster = BrokerCluster((1,), log_config=CONFIG, log_retention_check_interval_ms=500)
    path = znodes.topic_config_path(TP.topic)
    cluster.zk(Create(path, znodes.encode_config({"retention.ms": "-1"})))
    old_records(cluster)
    cluster.zk(SetData(path, node))
    if restarts:
        cluster[1].logs.checkpoint_high_watermarks()
        cluster.restart(1)
        cluster.decide(1, 1, (1,))
    else:
        change = znodes.encode_config_change(f"topics/{TP.topic}")
        cluster.zk(Create(znodes.CONFIG_CHANGE_PREFIX, change, sequential=True))
    cluster.time.run_for(30_000)
    assert cluster[1].log().log_start_offset == 0
    cluster.zk(SetData(path, znodes.encode_config({})))
    cluster.time.run_until(lambda: cluster[1].log().log_start_offset == 6, 30_000)
