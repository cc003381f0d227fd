"""Settings of the cores, with Kafka's defaults; `runtime.settings` loads them.

A field is Kafka's key with underscores: ``replica.lag.time.max.ms`` is `replica_lag_time_max_ms`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Settings of the group coordinator."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 1_000
    group_max_offsets: int = 10_000
    group_max_offsets_bytes: int = 8 << 20
    group_member_metadata_max_bytes: int = 64 << 10
    group_max_metadata_bytes: int = 4 << 20
    offsets_topic_replication_factor: int = 3
    offsets_topic_num_partitions: int = 50
    offsets_topic_segment_bytes: int = 104_857_600
    offsets_commit_timeout_ms: int = 5_000
    offsets_retention_ms: int = 604_800_000
    offsets_retention_check_interval_ms: int = 600_000
    offset_metadata_max_bytes: int = 4_096


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Settings of a broker's core."""

    broker_id: int
    broker_rack: str | None = None
    ssl_listeners: tuple[str, ...] = ()
    """Listeners that use TLS; the registration publishes them."""
    zookeeper_session_timeout_ms: int = 18_000
    controller_broker_lease_ms: int = 9_000
    """Three times the heartbeat interval; 0 disables leases. Not in Kafka."""
    replica_lag_time_max_ms: int = 30_000
    replica_fetch_max_bytes: int = 1_048_576
    replica_fetch_response_max_bytes: int = 10_485_760
    replica_fetch_min_bytes: int = 1
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_backoff_ms: int = 1_000
    replica_socket_timeout_ms: int = 30_000
    num_replica_fetchers: int = 1
    num_replica_alter_log_dirs_threads: int = 2
    """Number of replicas that move between log directories at the same time, each to another directory."""
    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    log_flush_offset_checkpoint_interval_ms: int = 60_000
    log_retention_check_interval_ms: int = 300_000
    log_cleaner_enable: bool = True
    log_cleaner_threads: int = 1
    """Number of logs compacted in parallel."""
    log_cleaner_dedupe_buffer_size: int = 128 << 20
    """Memory for the keys of all logs being compacted."""
    log_cleaner_io_buffer_load_factor: float = 0.9
    log_cleaner_io_max_bytes_per_second: float = 1.7976931348623157e308
    """Limit for reads and writes of all compactions together."""
    log_cleaner_backoff_ms: int = 15_000
    """Pause when no log needs compaction."""
    transactional_id_expiration_ms: int = 604_800_000
    """Idle time after which the state of an idempotent producer is removed."""
    fetch_max_bytes: int = 57_671_680
    replica_selector_class: str = "leader"
    """``leader``, ``rack-aware`` or Kafka's names of these (KIP-392)."""
    max_incremental_fetch_session_cache_slots: int = 1_000
    replication_quota_window_num: int = 11
    replication_quota_window_size_seconds: int = 1
    min_insync_replicas: int = 1
    """Broker default of the topic key ``min.insync.replicas``."""
    request_timeout_ms: int = 30_000
    controlled_shutdown_enable: bool = True
    controlled_shutdown_max_retries: int = 3
    controlled_shutdown_retry_backoff_ms: int = 5_000
    shutdown_timeout_ms: int = 25_000
    isr_propagation_interval_ms: int = 2_500
    isr_propagation_quiet_ms: int = 5_000
    isr_propagation_max_wait_ms: int = 60_000
    groups: GroupConfig = GroupConfig()


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """Settings of a controller's core."""

    controller_id: int
    zookeeper_session_timeout_ms: int = 18_000
    controller_broker_lease_ms: int = 9_000
    """Time without heartbeat after which a broker loses its leaders (docs/protocol/controller.md#broker-lease); 0:
    never."""
    broker_suspect_ms: int = 100
    """Pause between two connects that test whether a broker process is dead; 0: no such test. Not in Kafka."""
    request_timeout_ms: int = 30_000
    controller_socket_timeout_ms: int = 30_000
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_ms: int = 300_000
    leader_imbalance_per_broker_percentage: int = 10
    unclean_leader_election_enable: bool = False
    min_insync_replicas: int = 1
    """Brokers' default of the topic key ``min.insync.replicas``."""
    delete_topic_enable: bool = True
    default_replication_factor: int = 1
    num_partitions: int = 1
    max_partitions_per_request: int = 200_000
    topic_defaults: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Topic keys whose broker-wide default is set in the shared settings file, for DescribeConfigs."""
    zookeeper_multi_max_bytes: int = 512 * 1024
    """Maximum size of a multi, well below the server's jute.maxbuffer of 1 MiB."""
    zookeeper_multi_max_operations: int = 1_000
