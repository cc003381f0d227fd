"""Numbers a broker keeps and shows (spec/replica-manager.md section 22); the doors give them to Prometheus."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.broker.replica_manager import ReplicaManager


@dataclass(slots=True)
class BrokerMetrics:
    """Counters of the core; they only rise."""

    isr_shrinks: int = 0
    isr_expands: int = 0
    failed_isr_updates: int = 0


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """All numbers at one moment. ``*_total`` only rise while the process lives."""

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
    bytes_in_total: int
    bytes_out_total: int
    replication_bytes_in_total: int
    replica_fetch_requests_total: int
    produce_purgatory_size: int
    fetch_purgatory_size: int
    produce_expirations_total: int
    fetch_expirations_total: int
    fetch_sessions: int
    fetcher_count: int
    failed_partitions_count: int
    replica_max_lag_records: int
    leader_throttled_bytes_per_second: float
    """What throttled replicas fetch here, all of them together."""
    follower_throttled_bytes_per_second: float
    """What throttled replicas here fetch."""
    offline_log_directory_count: int
    damaged_logs: int
    damaged_reads_total: int
    logs_set_aside: int
    broker_epoch: int


def snapshot_of(manager: "ReplicaManager") -> MetricsSnapshot:
    """Return the numbers of a broker at this moment; looks at every partition once."""
    led = manager.led_partitions()
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
        produce_failures_total=manager.produces.failed_count,
        fetch_requests_total=manager.fetches.request_count,
        bytes_in_total=manager.produces.bytes_in,
        bytes_out_total=manager.fetches.bytes_out,
        replication_bytes_in_total=manager.fetchers.bytes_in,
        replica_fetch_requests_total=manager.fetchers.request_count,
        produce_purgatory_size=manager.produce_purgatory.delayed_count,
        fetch_purgatory_size=manager.fetch_purgatory.delayed_count,
        produce_expirations_total=manager.produce_purgatory.expired_count,
        fetch_expirations_total=manager.fetch_purgatory.expired_count,
        fetch_sessions=len(manager.fetches.sessions),
        fetcher_count=len(fetchers),
        failed_partitions_count=len(manager.fetchers.failed),
        replica_max_lag_records=manager.fetchers.max_lag(),
        leader_throttled_bytes_per_second=manager.leader_quota.rate(manager.now_ms()),
        follower_throttled_bytes_per_second=manager.follower_quota.rate(manager.now_ms()),
        offline_log_directory_count=len(log_dirs) - len(manager.logs.live_log_dirs),
        damaged_logs=len(manager.healing.damaged),
        damaged_reads_total=manager.healing.damaged_reads,
        logs_set_aside=len(manager.logs.set_aside),
        broker_epoch=manager.broker_epoch,
    )
