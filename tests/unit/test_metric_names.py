"""The served metrics, docs/metrics.md and Kafka's metrics are three lists that must agree."""

import dataclasses
import re
from pathlib import Path

import pytest

from paceline.broker.metrics import label_families_of
from paceline.broker.traffic import Traffic
from paceline.controller import events
from paceline.controller.admin import admin_requests
from paceline.runtime.metrics import FAMILIES, Metrics
from tests.support.broker_cluster import BrokerCluster

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")

DESIGN = """
    under_replicated_partitions offline_partitions active_controller isr_shrinks_total isr_expands_total
    leader_elections_total leader_election_seconds replica_lag_records controller_queue_size controller_event_seconds
    zk_request_seconds event_loop_lag_seconds request_seconds request_errors_total
"""
CONTROLLER = """
    ActiveControllerCount OfflinePartitionsCount PreferredReplicaImbalanceCount ControllerState GlobalTopicCount
    GlobalPartitionCount TopicsToDeleteCount ReplicasToDeleteCount TopicsIneligibleToDeleteCount
    ReplicasIneligibleToDeleteCount UncleanLeaderElectionsPerSec ControllerChangeRateAndTimeMs
    LeaderElectionRateAndTimeMs TopicChangeRateAndTimeMs TopicDeletionRateAndTimeMs
    PartitionReassignmentRateAndTimeMs AutoLeaderBalanceRateAndTimeMs ManualLeaderBalanceRateAndTimeMs
    ControlledShutdownRateAndTimeMs IsrChangeRateAndTimeMs LeaderAndIsrResponseReceivedRateAndTimeMs
    LogDirChangeRateAndTimeMs ControllerShutdownRateAndTimeMs UncleanLeaderElectionEnableRateAndTimeMs
    TopicUncleanLeaderElectionEnableRateAndTimeMs ListPartitionReassignmentRateAndTimeMs UpdateFeaturesRateAndTimeMs
    EventQueueSize EventQueueTimeMs TotalQueueSize QueueSize RequestRateAndQueueTimeMs SessionState
    ZooKeeperDisconnectsPerSec ZooKeeperSyncConnectsPerSec ZooKeeperAuthFailuresPerSec
    ZooKeeperReadOnlyConnectsPerSec ZooKeeperSaslAuthenticationsPerSec ZooKeeperExpiresPerSec
    ZooKeeperRequestLatencyMs
"""
BROKER = """
    LeaderCount PartitionCount OfflineReplicaCount UnderReplicatedPartitions UnderMinIsrPartitionCount
    AtMinIsrPartitionCount ReassigningPartitions IsrExpandsPerSec IsrShrinksPerSec FailedIsrUpdatesPerSec
    UnderReplicated InSyncReplicasCount UnderMinIsr AtMinIsr ReplicasCount LastStableOffsetLag NumLogSegments
    LogStartOffset LogEndOffset Size OfflineLogDirectoryCount LogDirectoryOffline LogFlushRateAndTimeMs
    max-clean-time-secs cleaner-recopy-percent max-buffer-utilization-percent max-compaction-delay-secs DeadThreadCount
    max-dirty-percent time-since-last-run-ms uncleanable-partitions-count uncleanable-bytes MaxLag MinFetchRate
    FailedPartitionsCount RequestsPerSec BytesPerSec ConsumerLag MessagesInPerSec BytesInPerSec BytesOutPerSec
    BytesRejectedPerSec TotalProduceRequestsPerSec TotalFetchRequestsPerSec FailedProduceRequestsPerSec
    FailedFetchRequestsPerSec ReplicationBytesInPerSec ReplicationBytesOutPerSec ReassignmentBytesInPerSec
    ReassignmentBytesOutPerSec InvalidMessageCrcRecordsPerSec PurgatorySize NumDelayedOperations ExpiresPerSec byte-rate
    NumGroups NumGroupsPreparingRebalance NumGroupsCompletingRebalance NumGroupsStable NumGroupsEmpty NumGroupsDead
    NumOffsets offset-commit-rate offset-expiration-rate group-completed-rebalance-rate partition-load-time-avg
    partition-load-time-max
"""
"""Kafka 2.8's metrics of the controller, the replica manager, partitions, fetchers, the log and group coordinators."""


def section(title: str) -> str:
    found = re.search(rf"(?ms)^## {title}\n(.*?)(?=^## |\Z)", DOCUMENT)
    assert found is not None, title
    return found[1]


def first_column(text: str) -> set[str]:
    return {name for row in re.findall(r"(?m)^\| ([^|]*) \|", text) for name in row.split(", ")}


def named(text: str) -> set[str]:
    return set(re.findall(r"paceline_([a-z_]+)", text))


def served() -> set[str]:
    metrics = Metrics()
    metrics.refresh(BrokerCluster()[1].node.metrics_snapshot())
    own = {metric.name + ("_total" if metric.type == "counter" else "") for metric in metrics.registry.collect()}
    own = {name for name in own if not name.startswith(("process_", "python_"))}
    return {name.removeprefix("paceline_") for name in own} | set(FAMILIES)


def test_every_name_of_the_design_is_served() -> None:
    assert set(DESIGN.split()) <= served()


@pytest.mark.parametrize(("title", "names"), [("Controller", CONTROLLER), ("Broker", BROKER)])
def test_the_document_has_a_row_for_every_metric_of_kafka(title: str, names: str) -> None:
    assert set(names.split()) == first_column(section(title)) - {"Kafka", "---"}


def test_every_metric_in_the_document_is_served() -> None:
    assert named(DOCUMENT) - served() == set()


def test_every_served_metric_is_in_the_document() -> None:
    assert served() - named(DOCUMENT) == set()


def test_the_events_that_the_document_names_exist() -> None:
    listed = re.findall(r"`paceline_controller_event_seconds`: ([A-Za-z, ]+)", section("Controller"))
    names = {name.strip() for text in listed for name in text.split(",")}
    names |= set(re.findall(r'event="(\w+)"', DOCUMENT))
    known = {name for room in (events, admin_requests) for name in vars(room)}
    assert names and names <= known


def test_a_running_broker_serves_the_declared_families() -> None:
    cluster = BrokerCluster()
    cluster.decide(1, 0, (1, 2), (1, 2), is_new=True)
    cluster[1].produce(b"a")
    cluster.time.run_for(1_000)
    families = label_families_of(cluster[2].node.replica_manager, 10)
    leading = label_families_of(cluster[1].node.replica_manager, 10)
    assert set(families) <= set(FAMILIES)
    for name, rows in families.items():
        assert all(len(labels) == len(FAMILIES[name][0]) for labels in rows), name
    assert families["replica_fetcher_requests_total"][("1", "0")] > 0
    partitions = {name for name in (*families, *leading) if name.startswith("partition_")}
    topics = {field.name for field in dataclasses.fields(Traffic)}
    declared = {name for name in FAMILIES if name.startswith(("partition_", "topic_"))}
    assert declared == partitions | {f"topic_{name}_total" for name in topics}


def test_partition_series_are_limited_and_removed_with_their_partitions() -> None:
    metrics = Metrics()
    metrics.families.rows = {"partition_replicas": {("a", "0"): 3.0, ("b", "0"): 3.0}}
    labels = {"topic": "a", "partition": "0"}
    assert metrics.registry.get_sample_value("paceline_partition_replicas", labels) == 3.0
    metrics.families.rows = {"partition_replicas": {("b", "0"): 3.0}}
    assert metrics.registry.get_sample_value("paceline_partition_replicas", labels) is None
    metrics.families.rows = {"topic_bytes_in_total": {("a",): 7.0}}
    assert metrics.registry.get_sample_value("paceline_topic_bytes_in_total", {"topic": "a"}) == 7.0
