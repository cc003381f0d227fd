"""Counters of a broker's data path, in total and by topic."""

from paceline.broker.metrics import label_families_of
from paceline.broker.replica_manager import ReplicaManager
from paceline.broker.traffic import BrokerTraffic
from paceline.log.log_config import LogConfig
from tests.support.broker_cluster import TP, BrokerCluster


def test_a_batch_counts_for_the_broker_and_for_its_topic() -> None:
    traffic = BrokerTraffic()
    traffic.produced("a", 100, 3)
    traffic.produced("b", 50, 1)
    traffic.produced("a", 100, 0)  # the batch was already in the log
    assert (traffic.all.messages_in, traffic.all.bytes_in, traffic.all.produce_requests) == (4, 150, 3)
    assert (traffic.of("a").messages_in, traffic.of("a").bytes_in, traffic.of("a").produce_requests) == (3, 100, 2)


def test_requests_for_a_topic_that_is_not_hosted_create_no_counters() -> None:
    traffic = BrokerTraffic()
    for number in range(1_000):
        traffic.refused(f"guess-{number}", 10, hosted=False, invalid_crc=False)
        traffic.fetched(f"guess-{number}", 0, failed=True)
    assert traffic.topics == {}
    assert (traffic.all.produce_failures, traffic.all.bytes_rejected, traffic.all.fetch_failures) == (
        1_000,
        10_000,
        1_000,
    )


def test_bytes_to_followers_and_bytes_to_consumers_are_counted_separately() -> None:
    traffic = BrokerTraffic()
    traffic.fetched("a", 10, failed=False)
    traffic.sent_to_follower("a", 100, is_added=False)
    traffic.sent_to_follower("a", 1_000, is_added=True)
    traffic.copied("a", 7, is_added=True)
    counted = traffic.of("a")
    assert (counted.bytes_out, counted.replication_bytes_out, counted.reassignment_bytes_out) == (10, 1_100, 1_000)
    assert (counted.replication_bytes_in, counted.reassignment_bytes_in) == (7, 7)


def test_a_topics_counters_are_removed_with_its_last_replica() -> None:
    traffic = BrokerTraffic()
    traffic.produced("a", 100, 3)
    traffic.forget("a")
    assert traffic.topics == {} and traffic.all.bytes_in == 100
    traffic.forget("a")


def test_a_running_broker_counts_produced_fetched_and_replicated_bytes() -> None:
    cluster = BrokerCluster()
    cluster.decide(1, 0, (1, 2, 3), (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    before = cluster[1].node.metrics_snapshot()
    cluster[1].produce(b"a", b"bb")
    cluster.time.run_for(1_000)
    cluster[1].consume(0)
    cluster.time.run_for(1_000)
    after = cluster[1].node.metrics_snapshot()
    assert after["messages_in_total"] - before["messages_in_total"] == 2
    size = after["bytes_in_total"] - before["bytes_in_total"]
    assert size > 0 and after["bytes_out_total"] - before["bytes_out_total"] == size
    assert after["replication_bytes_out_total"] - before["replication_bytes_out_total"] == 2 * size
    follower = cluster[2].node.metrics_snapshot()
    assert (follower["replication_bytes_in_total"], follower["bytes_in_total"]) == (size, 0)
    assert follower["reassignment_bytes_in_total"] == 0
    assert list(cluster[1].node.replica_manager.hosted.traffic.topics) == [TP.topic]


def numbers_of_partition(manager: ReplicaManager, limit: int = 10) -> dict[str, float]:
    """Return the partition's metrics by name."""
    labels = (TP.topic, str(TP.partition))
    families = label_families_of(manager, limit)
    return {
        name.removeprefix("partition_"): rows[labels]
        for name, rows in families.items()
        if name.startswith("partition_") and labels in rows
    }


def test_a_partitions_metrics_are_those_of_its_log_and_role() -> None:
    cluster = BrokerCluster(log_config=LogConfig(min_insync_replicas=3))
    cluster.decide(1, 0, (1, 2, 3), (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    cluster[1].produce(b"a")
    cluster.time.run_for(1_000)
    leading = numbers_of_partition(cluster[1].node.replica_manager)
    assert (leading["in_sync_replicas"], leading["at_min_isr"], leading["under_min_isr"]) == (3, 1, 0)
    assert leading["replicas"] == 3
    assert (leading["log_start_offset"], leading["log_end_offset"], leading["high_watermark"]) == (0, 1, 1)
    assert leading["log_segments"] == 1 and leading["log_size_bytes"] > 0 and "replica_lag_records" not in leading
    following = numbers_of_partition(cluster[2].node.replica_manager)
    assert "in_sync_replicas" not in following
    assert (following["at_min_isr"], following["replica_lag_records"]) == (0, 0)
    assert numbers_of_partition(cluster[1].node.replica_manager, 0) == {}


def test_a_deleted_partition_has_no_metrics() -> None:
    cluster = BrokerCluster()
    cluster.decide(1, 0, (1,), (1,), is_new=True)
    cluster[1].produce(b"a")
    manager = cluster[1].node.replica_manager
    assert manager.hosted.traffic.topics and numbers_of_partition(manager)
    cluster.stop_replica(1, 1, delete=True)
    cluster.time.run_for(100)
    assert (manager.hosted.traffic.topics, numbers_of_partition(manager)) == ({}, {})


def test_a_leader_returns_the_load_of_each_partition() -> None:
    cluster = BrokerCluster()
    cluster.decide(1, 0, (1, 2, 3), (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    cluster[1].produce(b"a", b"bb")
    cluster.time.run_for(1_000)
    (quiet,) = cluster[1].node.describe_replicas(TP.topic, [0])
    assert quiet.bytes_in == cluster[1].node.metrics_snapshot()["bytes_in_total"] > 0
    assert quiet.bytes_out == 0, "bytes sent to followers do not count as bytes sent to consumers"
    cluster[1].consume(0)
    cluster.time.run_for(1_000)
    (read,) = cluster[1].node.describe_replicas(TP.topic, [0])
    assert read.bytes_out == read.bytes_in == quiet.bytes_in
