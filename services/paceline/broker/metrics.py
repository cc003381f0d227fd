"""Counters and gauges of a broker, which the service layer exports to Prometheus (docs/metrics.md)."""

from dataclasses import dataclass, fields
from itertools import islice
from typing import TYPE_CHECKING, Final

from paceline.broker.traffic import FOLLOWING, LEADING, Traffic

if TYPE_CHECKING:
    from paceline.broker.groups.coordinator import GroupCoordinator
    from paceline.broker.partition.partition import Partition
    from paceline.broker.partition.replica_manager import ReplicaManager


@dataclass(slots=True)
class BrokerMetrics:
    """Counters of the core, except where noted."""

    isr_shrinks: int = 0
    isr_expands: int = 0
    failed_isr_updates: int = 0
    log_cleaner_runs: int = 0
    log_cleaner_bytes: int = 0
    log_cleaner_bytes_removed: int = 0
    log_cleaner_max_dirty_percent: float = 0.0
    """Gauge: of the dirtiest log at the cleaner's last check."""
    uncleanable_partitions: int = 0
    """Gauge: logs whose compaction has failed."""


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """All metrics at one time. ``*_total`` never decrease while the process lives."""

    partition_count: int
    leader_count: int
    offline_replica_count: int
    under_replicated_partitions: int
    under_min_isr_partitions: int
    at_min_isr_partitions: int
    reassigning_partitions: int
    isr_shrinks_total: int
    isr_expands_total: int
    failed_isr_updates_total: int
    produce_requests_total: int
    produce_failures_total: int
    fetch_requests_total: int
    fetch_failures_total: int
    messages_in_total: int
    bytes_in_total: int
    bytes_rejected_total: int
    bytes_out_total: int
    replication_bytes_in_total: int
    replication_bytes_out_total: int
    reassignment_bytes_in_total: int
    reassignment_bytes_out_total: int
    invalid_crc_total: int
    """Batches of producers whose checksum did not match."""
    replica_fetch_requests_total: int
    produce_purgatory_size: int
    fetch_purgatory_size: int
    delete_records_purgatory_size: int
    produce_expirations_total: int
    fetch_expirations_total: int
    fetch_sessions: int
    fetcher_count: int
    failed_partitions_count: int
    replica_max_lag_records: int
    leader_throttled_bytes_per_second: float
    """Rate at which all throttled replicas together fetch from this broker."""
    follower_throttled_bytes_per_second: float
    """Rate at which throttled replicas on this broker fetch."""
    offline_log_directory_count: int
    damaged_logs: int
    damaged_reads_total: int
    logs_set_aside: int
    log_cleaner_runs_total: int
    log_cleaner_bytes_total: int
    """Bytes read and written by compaction."""
    log_cleaner_bytes_removed_total: int
    log_cleaner_max_dirty_percent: float
    """Dirty part of the dirtiest log that is compacted."""
    uncleanable_partitions: int
    """Logs whose compaction has failed; they grow until the broker starts again."""
    topics_with_unknown_settings: int
    """Topics whose settings have been unknown or unreadable for more than a minute: none of their records is
    deleted."""
    group_members: int
    """Members of the groups coordinated here."""
    committed_offsets: int
    group_partitions_loading: int
    """Partitions of the offsets topic whose groups are being read."""
    offset_commits_total: int
    """Committed offsets, counted per partition of a commit."""
    offset_expirations_total: int
    group_rebalances_total: int
    """Generations begun."""
    group_loads_total: int
    group_load_seconds_total: float
    broker_epoch: int


def snapshot_of(manager: "ReplicaManager", groups: "GroupCoordinator") -> MetricsSnapshot:
    """Return the metrics of a broker at present."""
    group_numbers = groups.numbers()
    led = manager.hosted.led()
    traffic = manager.traffic.all
    margins = [len(one.isr) - one.log.config.min_insync_replicas for one in led if one.log is not None]
    fetchers = manager.fetchers.fetchers
    log_dirs = manager.logs.log_dirs
    return MetricsSnapshot(
        partition_count=len(manager.partitions),
        leader_count=len(led),
        offline_replica_count=len(manager.offline),
        under_replicated_partitions=sum(partition.is_under_replicated for partition in led),
        under_min_isr_partitions=sum(margin < 0 for margin in margins),
        at_min_isr_partitions=sum(margin == 0 for margin in margins),
        reassigning_partitions=sum(bool(one.adding_replicas or one.removing_replicas) for one in led),
        isr_shrinks_total=manager.metrics.isr_shrinks,
        isr_expands_total=manager.metrics.isr_expands,
        failed_isr_updates_total=manager.metrics.failed_isr_updates,
        produce_requests_total=manager.produces.request_count,
        produce_failures_total=traffic.produce_failures,
        fetch_requests_total=manager.fetches.request_count,
        fetch_failures_total=traffic.fetch_failures,
        messages_in_total=traffic.messages_in,
        bytes_in_total=traffic.bytes_in,
        bytes_rejected_total=traffic.bytes_rejected,
        bytes_out_total=traffic.bytes_out,
        replication_bytes_in_total=manager.fetchers.bytes_in,
        replication_bytes_out_total=traffic.replication_bytes_out,
        reassignment_bytes_in_total=traffic.reassignment_bytes_in,
        reassignment_bytes_out_total=traffic.reassignment_bytes_out,
        invalid_crc_total=traffic.invalid_crc,
        replica_fetch_requests_total=manager.fetchers.request_count,
        produce_purgatory_size=manager.produce_purgatory.delayed_count,
        fetch_purgatory_size=manager.fetch_purgatory.delayed_count,
        delete_records_purgatory_size=manager.delete_records_purgatory.delayed_count,
        produce_expirations_total=manager.produce_purgatory.expired_count,
        fetch_expirations_total=manager.fetch_purgatory.expired_count,
        fetch_sessions=len(manager.fetches.sessions),
        fetcher_count=len(fetchers),
        failed_partitions_count=len(manager.fetchers.failed),
        replica_max_lag_records=manager.fetchers.max_lag(),
        leader_throttled_bytes_per_second=manager.quotas.leader.rate(manager.now_ms()),
        follower_throttled_bytes_per_second=manager.quotas.follower.rate(manager.now_ms()),
        offline_log_directory_count=len(log_dirs) - len(manager.logs.live_log_dirs),
        damaged_logs=len(manager.damaged_logs.damaged),
        damaged_reads_total=manager.damaged_logs.damaged_reads,
        logs_set_aside=len(manager.logs.set_aside),
        log_cleaner_runs_total=manager.metrics.log_cleaner_runs,
        log_cleaner_bytes_total=manager.metrics.log_cleaner_bytes,
        log_cleaner_bytes_removed_total=manager.metrics.log_cleaner_bytes_removed,
        log_cleaner_max_dirty_percent=manager.metrics.log_cleaner_max_dirty_percent,
        uncleanable_partitions=manager.metrics.uncleanable_partitions,
        topics_with_unknown_settings=len(manager.topic_configs.long_unknown()),
        group_members=group_numbers.members,
        committed_offsets=group_numbers.offsets,
        group_partitions_loading=groups.storage.loading_count,
        offset_commits_total=groups.metrics.offset_commits,
        offset_expirations_total=groups.metrics.offset_expirations,
        group_rebalances_total=groups.metrics.rebalances,
        group_loads_total=groups.metrics.loads,
        group_load_seconds_total=groups.metrics.load_ms / 1000,
        broker_epoch=manager.broker_epoch,
    )


@dataclass(frozen=True, slots=True)
class PartitionNumbers:
    """A hosted partition; the names are those of the series, after ``partition_``."""

    topic: str
    partition: int
    under_replicated: int
    """0 when this broker does not lead the partition, like the two metrics about min.insync.replicas."""
    in_sync_replicas: int | None
    """None when this broker does not lead the partition, so that a minimum over all brokers is correct."""
    under_min_isr: int
    at_min_isr: int
    replicas: int
    last_stable_offset_lag: int
    """High watermark minus last stable offset; without transactions they are equal."""
    log_segments: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    log_size_bytes: int
    replica_lag_records: int | None
    """-1 before the first response, None when the partition is not fetched."""


def partition_numbers_of(manager: "ReplicaManager", limit: int) -> list[PartitionNumbers]:
    """Return the metrics of hosted partitions with a log, at most ``limit``, the longest hosted first."""
    online = (one for one in manager.partitions.values() if one.log is not None)
    return [_partition_numbers(manager, one) for one in islice(online, limit)]


def _partition_numbers(manager: "ReplicaManager", one: "Partition") -> PartitionNumbers:
    log = one.log
    assert log is not None
    margin = len(one.isr) - log.config.min_insync_replicas
    fetching = None if one.is_leader else manager.fetchers.state(one.topic_partition)
    return PartitionNumbers(
        topic=one.topic_partition.topic,
        partition=one.topic_partition.partition,
        under_replicated=int(one.is_under_replicated),
        in_sync_replicas=len(one.isr) if one.is_leader else None,
        under_min_isr=int(one.is_leader and margin < 0),
        at_min_isr=int(one.is_leader and margin == 0),
        replicas=len(one.replicas),
        last_stable_offset_lag=0,
        log_segments=log.segment_count,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        high_watermark=log.high_watermark,
        log_size_bytes=log.size_bytes,
        replica_lag_records=None if fetching is None else -1 if fetching.lag is None else fetching.lag,
    )


Rows = dict[tuple[str, ...], float]


def label_families_of(manager: "ReplicaManager", limit: int) -> dict[str, Rows]:
    """Return the labelled series by family: of ``limit`` partitions and topics, and of fetchers and directories."""
    found: dict[str, Rows] = {f"partition_{name}": {} for name in _PARTITION_NUMBERS}
    found.update({f"topic_{name}_total": {} for name in _TOPIC_NUMBERS})
    for numbers in partition_numbers_of(manager, limit):
        labels = (numbers.topic, str(numbers.partition))
        for name in _PARTITION_NUMBERS:
            number = getattr(numbers, name)
            if number is not None:
                found[f"partition_{name}"][labels] = number
    for topic, traffic in islice(manager.traffic.topics.items(), limit):
        leads, follows = manager.hosted.roles(topic)
        for name in _TOPIC_NUMBERS:
            count = getattr(traffic, name)
            if count or not ((name in LEADING and not leads) or (name in FOLLOWING and not follows)):
                found[f"topic_{name}_total"][(topic,)] = count
    found["replica_fetcher_requests_total"] = {
        (str(fetcher.leader.broker_id), str(fetcher.fetcher_id)): fetcher.request_count
        for fetcher in manager.fetchers.fetchers
    }
    live = manager.logs.live_log_dirs
    found["log_directory_offline"] = {(path,): float(path not in live) for path in manager.logs.log_dirs}
    return found


_PARTITION_NUMBERS: Final = tuple(
    field.name for field in fields(PartitionNumbers) if field.name not in ("topic", "partition")
)
_TOPIC_NUMBERS: Final = tuple(field.name for field in fields(Traffic))
