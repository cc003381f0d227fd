"""When logs are compacted, on leaders and followers: settings of the topic and limits of the broker."""

from collections.abc import Callable

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Create
from paceline.log.compaction.cleanable import Cleanable
from paceline.log.compaction.log_compaction import LogCompaction
from paceline.log.log_config import LogConfig
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.log.segment import Segment
from paceline.model.client_io import ProduceData, ProduceResult, RequiredAcks
from paceline.model.identifiers import TopicPartition
from tests.support.broker_cluster import TP, BrokerCluster

BACKOFF_MS = 1_000
COMPACT = frozenset({"compact"})
CONFIG = LogConfig(segment_bytes=300, cleanup_policy=COMPACT, file_delete_delay_ms=500)


def led_by_1(config: LogConfig = CONFIG, **settings: object) -> BrokerCluster:
    cluster = BrokerCluster(log_config=config, log_cleaner_backoff_ms=BACKOFF_MS, **settings)
    cluster.decide(1, 4, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    return cluster


def produce(cluster: BrokerCluster, count: int = 30) -> None:
    for number in range(count):
        answers: list[ProduceResult] = []
        batch = encode_batch([NewRecord(cluster.time.wall_ms(), b"key %d" % (number % 3), b"value %d" % number)])
        cluster[1].node.produce(RequiredAcks.LEADER, 1_000, [ProduceData(TP, None, batch)], answers.extend)
        cluster.time.run_until(lambda answers=answers: bool(answers), 1_000)  # type: ignore[misc]
        assert answers[0].failure is None
    cluster.until_in_sync(1, 2, 3)


def sizes(cluster: BrokerCluster) -> list[int]:
    return [cluster[broker_id].log().size_bytes for broker_id in (1, 2, 3)]


def are_compacted(cluster: BrokerCluster, below: int) -> Callable[[], bool]:
    return lambda: all(size < below for size in sizes(cluster))


def test_every_replica_compacts_its_log_and_writes_the_checkpoint() -> None:
    cluster = led_by_1()
    produce(cluster)
    before = sizes(cluster)[0]
    cluster.time.run_until(are_compacted(cluster, before * 2 // 3), 30_000)
    cluster.time.run_for(1_000)
    for broker_id in (1, 2, 3):
        files = cluster[broker_id].files
        assert not [path for path in files.contents if path.endswith((".cleaned", ".swap", ".deleted"))]
        (checkpoint,) = [path for path in files.contents if path.endswith("cleaner-offset-checkpoint")]
        expected = cluster[broker_id].log().segments[-1].base_offset
        assert files.contents[checkpoint].decode() == f"0\n1\norders 0 {expected}\n"
        numbers = cluster[broker_id].node.metrics_snapshot()
        assert numbers["log_cleaner_runs_total"] >= 1 and numbers["log_cleaner_bytes_removed_total"] > 0
    (response,) = cluster[1].consume(0)
    assert response.results[0].failure is None


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (CONFIG, {"log_cleaner_enable": False}),
        (LogConfig(segment_bytes=300), {}),
        (LogConfig(segment_bytes=300, cleanup_policy=COMPACT, min_cleanable_dirty_ratio=1.0), {}),
        (LogConfig(segment_bytes=300, cleanup_policy=COMPACT, min_compaction_lag_ms=3_600_000), {}),
    ],
    ids=["not enabled", "another policy", "not dirty enough", "too young"],
)
def test_no_log_is_compacted_without_the_policy_compact(config: LogConfig, settings: dict[str, bool]) -> None:
    cluster = led_by_1(config, **settings)
    produce(cluster)
    before = sizes(cluster)
    cluster.time.run_for(60_000)
    assert sizes(cluster) == before


def test_no_log_is_compacted_while_a_setting_for_deletion_does_not_parse() -> None:
    cluster = BrokerCluster(log_config=CONFIG, log_cleaner_backoff_ms=BACKOFF_MS)
    node = znodes.encode_config({"delete.retention.ms": "a day"})
    cluster.zk(Create(znodes.topic_config_path(TP.topic), node))
    cluster.decide(1, 4, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    produce(cluster)
    before = sizes(cluster)
    cluster.time.run_for(60_000)
    assert sizes(cluster) == before


def test_compaction_reads_and_writes_within_the_rate_limit() -> None:
    cluster = led_by_1(log_cleaner_io_max_bytes_per_second=100.0)
    produce(cluster)
    before = sizes(cluster)[0]
    cluster.time.run_until(are_compacted(cluster, before), 120_000)
    start, done = cluster.time.now_ms(), cluster[1].node.metrics_snapshot()["log_cleaner_bytes_total"]
    cluster.time.run_until(lambda: cluster[1].node.metrics_snapshot()["log_cleaner_runs_total"] > 0, 120_000)
    more = cluster[1].node.metrics_snapshot()["log_cleaner_bytes_total"] - done
    assert more > 0 and cluster.time.now_ms() - start >= 0.5 * 1_000 * more / 100.0


def test_a_log_whose_compaction_failed_is_not_compacted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = led_by_1()
    tries = 0

    def fails(_self: Segment, _suffix: str, *, log_first: bool) -> None:
        nonlocal tries
        tries += 1
        raise ValueError("unexpected")

    monkeypatch.setattr(Segment, "change_suffix", fails)
    produce(cluster)
    cluster.time.run_for(60_000)
    assert tries == 3
    assert [cluster[one].node.metrics_snapshot()["uncleanable_partitions"] for one in (1, 2, 3)] == [1, 1, 1]
    monkeypatch.undo()
    (response,) = cluster[1].consume(0)
    assert response.results[0].failure is None


def test_an_unexpected_error_in_one_log_does_not_end_the_compaction_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = led_by_1()
    other = TopicPartition("payments", 0)
    cluster.decide(1, 4, (1, 2, 3), tp=other, is_new=True)
    bad = [cluster[one].log(other).local for one in (1, 2, 3)]
    find = LogCompaction.find_cleanable

    def fails(compaction: LogCompaction, wall_ms: int) -> Cleanable | None:
        if compaction._log in bad:
            raise ZeroDivisionError
        return find(compaction, wall_ms)

    monkeypatch.setattr(LogCompaction, "find_cleanable", fails)
    produce(cluster)
    before = sizes(cluster)[0]
    cluster.time.run_until(are_compacted(cluster, before), 120_000)
    assert cluster[1].node.metrics_snapshot()["uncleanable_partitions"] == 1


def test_a_damaged_log_goes_offline_and_other_logs_are_compacted() -> None:
    cluster = led_by_1(LogConfig(segment_bytes=300, cleanup_policy=COMPACT, min_compaction_lag_ms=30_000))
    produce(cluster)
    before = sizes(cluster)[0]
    cluster[2].files.contents[cluster[2].log().segments[0].log_path][70] ^= 0x40
    cluster.time.run_for(60_000)
    assert [cluster[one].node.metrics_snapshot()["damaged_logs"] for one in (1, 2, 3)] == [0, 1, 0]
    assert [size < before for size in sizes(cluster)] == [True, False, True]
    assert cluster[2].node.metrics_snapshot()["uncleanable_partitions"] == 0


def test_the_broker_stops_while_a_log_is_being_compacted() -> None:
    cluster = led_by_1(log_cleaner_io_max_bytes_per_second=10.0)
    produce(cluster)
    cluster.time.run_for(BACKOFF_MS + 500)
    stopped: list[bool] = []
    cluster[3].node.stop(lambda: stopped.append(True))
    cluster.time.run_until(lambda: bool(stopped), 60_000)
