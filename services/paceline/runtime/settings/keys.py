"""The closed table of settings: every key with its default, type and unit, and how it may be changed.

A field is Kafka's key with underscores for dots. Only keys with an effect are listed. A Kafka key without an effect in
Paceline is refused with the reason (`NOT_HERE`), because a key without an effect would mislead operators.
"""

from typing import Final, Literal

from pydantic_settings import SettingsConfigDict

from paceline.runtime.settings.fields import (
    DAY_MS,
    MAX_INT32,
    MAX_INT64,
    OptionalInt,
    OptionalText,
    key,
    key_name,
)
from paceline.runtime.settings.security import SecurityKeys


class ProcessKeys(SecurityKeys):
    """Keys of every process: brokers, controllers and gateways."""

    model_config = SettingsConfigDict(extra="forbid", alias_generator=key_name, validate_default=True, frozen=True)

    listeners: OptionalText = key(None, "", "CLIENT://host:port,...; port 0 takes a free port")
    socket_request_max_bytes: int = key(4 << 20, "bytes", "largest client request", ge=1_024, le=1 << 30)
    max_connections: int = key(
        4_096, "connections", "maximum per listener; further connections are closed at once", ge=16, le=1_000_000
    )
    max_silent_connections_per_ip: int = key(
        512, "connections", "maximum per listener and address without a call; the oldest are closed beyond it", ge=1
    )
    metrics_port: int = key(-1, "", "Prometheus endpoint; -1 for none, 0 for any free port", ge=-1, le=65_535)
    metrics_host: str = key("127.0.0.1", "", "address of the Prometheus endpoint")
    reflection_enable: bool = key(True, "", "gRPC reflection on CLIENT and EXTERNAL")
    logging_format: Literal["console", "json"] = key("console", "", "format of the service's log")
    logging_level: Literal["debug", "info", "warning", "error"] = key("info", "", "minimum severity logged")


class CommonKeys(ProcessKeys):
    """Keys of both brokers and controllers."""

    zookeeper_connect: str = key(..., "", "host:port,...[/chroot]; without a chroot /paceline is used", min_length=1)
    zookeeper_session_timeout_ms: int = key(18_000, "ms", "time until a dead process is detected", ge=100)
    zookeeper_connection_timeout_ms: OptionalInt = key(None, "ms", "first connect only; default: session timeout", ge=1)
    controller_broker_lease_ms: int = key(
        9_000, "ms", "time without heartbeat after which a broker loses its leaders; 0: no lease", ge=0
    )
    request_timeout_ms: int = key(30_000, "ms", "longest wait for the response of another process", ge=1)
    unclean_leader_election_enable: bool = key(
        False, "", "lose records rather than wait", topic="unclean.leader.election.enable"
    )
    min_insync_replicas: int = key(1, "replicas", "for acks=all", topic="min.insync.replicas", ge=1)
    advertised_listeners: OptionalText = key(None, "", "published addresses; default: the listeners")
    control_silent_calls_max: int = key(
        16, "calls", "maximum to CONTROL whose message is missing; the oldest is cancelled beyond it", ge=1, le=1_000
    )
    metrics_partitions_max: int = key(
        500, "partitions", "partitions of a broker, and topics, with their own series; 0: none", ge=0, le=100_000
    )
    cluster_events_topic_enable: bool = key(False, "", "publish state changes to the topic __cluster_events")
    cluster_events_topic_replication_factor: int = key(
        3, "replicas", "replicas of __cluster_events, which is created when as many brokers are live", ge=1, le=32_767
    )
    quota_window_num: int = key(
        11, "samples", "a client may use its quota of so many windows, less one, at once", ge=2, le=1_000
    )
    quota_window_size_seconds: int = key(1, "s", "length of a window", ge=1, le=3_600)
    state_change_log_path: OptionalText = key(None, "", "file of the state-change log; default: the service's log")


class ControllerKeys(CommonKeys):
    """Keys of a controller."""

    control_request_max_bytes: int = key(
        4_096, "bytes", "largest request of a node, such as a heartbeat", ge=4_096, le=1 << 30
    )
    controller_id: int = key(1_000_001, "", "different range than broker ids", ge=1_000_000, le=MAX_INT32)
    broker_suspect_ms: int = key(
        100, "ms", "pause between two connects that test for a dead process; 0: only lease and session", ge=0
    )
    controller_socket_timeout_ms: int = key(
        30_000, "ms", "longest wait for a broker's answer to a control request; request.timeout.ms limits it, too", ge=1
    )
    auto_leader_rebalance_enable: bool = key(True, "", "elect preferred leaders periodically")
    leader_imbalance_check_interval_seconds: int = key(300, "s", "period of the rebalance check", ge=1)
    leader_imbalance_per_broker_percentage: int = key(10, "%", "imbalance above which leaders move", ge=0, le=100)
    delete_topic_enable: bool = key(True, "", "false: delete requests are refused")
    default_replication_factor: int = key(1, "replicas", "of topics created without a factor", ge=1, le=1_000)
    num_partitions: int = key(1, "partitions", "of topics created without a number", ge=1, le=200_000)


class BrokerKeys(CommonKeys):
    """Keys of a broker."""

    broker_id: int = key(-1, "", "-1: the id in meta.properties, else a generated id", ge=-1, le=MAX_INT32)
    broker_id_generation_enable: bool = key(True, "", "generate an id when none is set")
    reserved_broker_max_id: int = key(1_000, "", "largest manual id while generation is enabled", ge=0, le=MAX_INT32)
    broker_rack: OptionalText = key(None, "", "rack, for placement")
    log_dirs: OptionalText = key(None, "", "comma-separated directories")
    log_dir: OptionalText = key(None, "", "a single directory; log.dirs wins")
    log_dir_min_free_bytes: OptionalInt = key(
        None,
        "bytes",
        "free space of a disk below which produce requests get LOG_DIR_FULL, until there is 1.5 times as much; "
        "default: 1 GiB, at most 5 % of the disk; 0: only when a write fails",
        ge=0,
    )
    log_dir_placement: Literal["count", "space"] = key(
        "count", "", "directory of a new replica: the one with the fewest replicas, or with most free bytes"
    )

    replica_lag_time_max_ms: int = key(30_000, "ms", "a follower that lags longer leaves the ISR", ge=1)
    replica_fetch_max_bytes: int = key(1 << 20, "bytes", "per partition of a follower's fetch", ge=0, le=MAX_INT32)
    replica_fetch_response_max_bytes: int = key(10 << 20, "bytes", "largest response to a follower", ge=0, le=48 << 20)
    replica_fetch_min_bytes: int = key(1, "bytes", "a leader answers a follower as soon as it has this many", ge=0)
    replica_fetch_wait_max_ms: int = key(500, "ms", "longest wait for replica.fetch.min.bytes", ge=0)
    replica_fetch_backoff_ms: int = key(1_000, "ms", "pause of a partition after an error", ge=0)
    replica_socket_timeout_ms: int = key(30_000, "ms", "deadline of a follower's fetch", ge=1)
    num_replica_fetchers: int = key(1, "threads", "fetcher threads for each source broker", ge=1, le=64)
    num_replica_alter_log_dirs_threads: int = key(
        2, "replicas", "moves between log directories at a time, one for each target", ge=1, le=64
    )
    replica_high_watermark_checkpoint_interval_ms: int = key(5_000, "ms", "period of writing high watermarks", ge=1)
    max_incremental_fetch_session_cache_slots: int = key(1_000, "sessions", "fetch sessions kept; 0: none", ge=0)
    replication_quota_window_num: int = key(11, "samples", "samples kept to measure throttling", ge=2, le=1_000)
    replication_quota_window_size_seconds: int = key(1, "s", "length of a sample", ge=1, le=3_600)
    fetch_max_bytes: int = key(57_671_680, "bytes", "maximum client response", ge=1_024, le=60 << 20)
    replica_selector_class: Literal[
        "leader",
        "rack-aware",
        "org.apache.kafka.common.replica.LeaderSelector",
        "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    ] = key("leader", "", "rack-aware: consumers with a rack read from a follower in that rack")
    replication_request_max_bytes: int = key(
        16 << 20, "bytes", "largest fetch of a follower; 100 bytes a partition", ge=1 << 20, le=1 << 30
    )
    control_request_max_bytes: int = key(
        64 << 20, "bytes", "largest request of a controller; 200 bytes a partition", ge=4 << 20, le=1 << 30
    )
    socket_receive_buffer_bytes: int = key(
        65_536, "bytes", "part of a request that a client may send before it is read", ge=65_536, le=16 << 20
    )
    queued_max_request_bytes: int = key(64 << 20, "bytes", "produce requests in flight; then THROTTLED", ge=1 << 20)
    queued_max_response_bytes: int = key(
        64 << 20, "bytes", "fetch responses that clients have not read yet; then THROTTLED", ge=1 << 20
    )
    max_waiting_fetches_per_connection: int = key(
        256, "fetches", "maximum in progress for a client's connection; THROTTLED beyond it", ge=1, le=100_000
    )
    controlled_shutdown_enable: bool = key(True, "", "move leadership away before stopping")
    controlled_shutdown_max_retries: int = key(3, "attempts", "total attempts", ge=1)
    controlled_shutdown_retry_backoff_ms: int = key(5_000, "ms", "pause between attempts", ge=0)
    shutdown_timeout_ms: int = key(25_000, "ms", "longest orderly stop; then the process exits", ge=1)

    log_segment_bytes: int = key(1 << 30, "bytes", "", topic="segment.bytes", ge=14, le=MAX_INT32)
    log_roll_ms: OptionalInt = key(None, "ms", "wins over hours", topic="segment.ms", ge=1)
    log_roll_hours: int = key(168, "h", "age at which a segment is closed", ge=1)
    log_roll_jitter_ms: OptionalInt = key(None, "ms", "wins over hours", topic="segment.jitter.ms", ge=0)
    log_roll_jitter_hours: int = key(0, "h", "largest random deduction from log.roll.hours", ge=0)
    log_index_size_max_bytes: int = key(10 << 20, "bytes", "", topic="segment.index.bytes", ge=4, le=MAX_INT32)
    log_index_interval_bytes: int = key(4_096, "bytes", "", topic="index.interval.bytes", ge=0, le=MAX_INT32)
    log_retention_ms: OptionalInt = key(
        None, "ms", "-1 never; wins over minutes and hours", topic="retention.ms", ge=-1
    )
    log_retention_minutes: OptionalInt = key(None, "min", "log.retention.ms in minutes; wins over hours", ge=-1)
    log_retention_hours: int = key(168, "h", "log.retention.ms in hours", ge=-1)
    log_retention_bytes: int = key(-1, "bytes", "-1 no limit", topic="retention.bytes", ge=-1)
    log_retention_check_interval_ms: int = key(300_000, "ms", "period of the search for segments to delete", ge=1)
    log_cleanup_policy: str = key("delete", "", "delete, compact or both", topic="cleanup.policy")
    log_segment_delete_delay_ms: int = key(60_000, "ms", "", topic="file.delete.delay.ms", ge=0)
    log_flush_interval_messages: int = key(
        MAX_INT64, "records", "fsync after this many", topic="flush.messages", ge=1, le=MAX_INT64
    )
    log_flush_interval_ms: OptionalInt = key(
        None, "ms", "fsync after this time; default: never", topic="flush.ms", ge=0
    )
    log_flush_offset_checkpoint_interval_ms: int = key(60_000, "ms", "period of the recovery point checkpoint", ge=1)
    transactional_id_expiration_ms: int = key(
        604_800_000, "ms", "idle time after which the state of a producer is removed", ge=1
    )
    message_max_bytes: int = key(
        1_048_588, "bytes", "largest batch, compressed", topic="max.message.bytes", ge=0, le=4 << 20
    )
    compression_type: str = key("producer", "", "gzip snappy lz4 zstd uncompressed producer", topic="compression.type")
    log_message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = key(
        "CreateTime", "", "", topic="message.timestamp.type"
    )
    log_message_timestamp_difference_max_ms: int = key(
        MAX_INT64, "ms", "", topic="message.timestamp.difference.max.ms", ge=0, le=MAX_INT64
    )
    log_cleaner_enable: bool = key(True, "", "compact topics with cleanup.policy=compact")
    log_cleaner_threads: int = key(1, "", "logs compacted at the same time", ge=1, le=64)
    log_cleaner_dedupe_buffer_size: int = key(
        128 << 20, "bytes", "memory for the keys of all logs being compacted, 200 bytes per key", ge=1 << 20
    )
    log_cleaner_io_buffer_load_factor: float = key(
        0.9, "", "fraction of log.cleaner.dedupe.buffer.size to use", gt=0.0, le=1.0
    )
    log_cleaner_io_max_bytes_per_second: float = key(
        1.7976931348623157e308, "bytes/s", "reads and writes of compaction; default: no limit", gt=0.0
    )
    log_cleaner_backoff_ms: int = key(15_000, "ms", "pause when no log needs compaction", ge=1)
    log_cleaner_delete_retention_ms: int = key(DAY_MS, "ms", "", topic="delete.retention.ms", ge=0)
    log_cleaner_min_compaction_lag_ms: int = key(0, "ms", "", topic="min.compaction.lag.ms", ge=0)
    log_cleaner_max_compaction_lag_ms: int = key(MAX_INT64, "ms", "", topic="max.compaction.lag.ms", ge=1, le=MAX_INT64)
    log_cleaner_min_cleanable_ratio: float = key(0.5, "", "", topic="min.cleanable.dirty.ratio", ge=0.0, le=1.0)

    group_min_session_timeout_ms: int = key(6_000, "ms", "minimum session timeout of a group's member", ge=1)
    group_max_session_timeout_ms: int = key(1_800_000, "ms", "a member's largest session timeout", ge=1, le=MAX_INT32)
    group_initial_rebalance_delay_ms: int = key(3_000, "ms", "wait for more members of an empty group", ge=0)
    group_max_size: int = key(1_000, "members", "maximum members of a group", ge=1, le=MAX_INT32)
    group_max_offsets: int = key(10_000, "partitions", "maximum per group with committed offsets", ge=1, le=MAX_INT32)
    group_max_offsets_bytes: int = key(8 << 20, "bytes", "committed offsets of a group, with their texts", ge=1 << 10)
    group_member_metadata_max_bytes: int = key(
        64 << 10, "bytes", "maximum subscription and user data of a member, for all its assignors", ge=1 << 10
    )
    group_max_metadata_bytes: int = key(4 << 20, "bytes", "subscriptions of all members of a group", ge=1 << 10)
    offsets_topic_replication_factor: int = key(
        3, "replicas", "of __consumer_offsets; groups need as many live brokers", ge=1, le=1_000
    )
    offsets_topic_num_partitions: int = key(
        50, "partitions", "partitions of __consumer_offsets, fixed at creation", ge=1, le=10_000
    )
    offsets_topic_segment_bytes: int = key(
        100 << 20, "bytes", "segments of __consumer_offsets", ge=1 << 20, le=MAX_INT32
    )
    offsets_commit_timeout_ms: int = key(5_000, "ms", "longest wait for the replicas of a commit", ge=1)
    offsets_retention_minutes: int = key(10_080, "min", "retention of offsets of a group without members", ge=1)
    offsets_retention_check_interval_ms: int = key(600_000, "ms", "period of the search for expired offsets", ge=1)
    offset_metadata_max_bytes: int = key(4_096, "bytes", "largest metadata text of a committed offset", ge=0, le=32_767)


class GatewayKeys(ProcessKeys):
    """Keys of a gateway."""

    bootstrap_servers: str = key(..., "", "host:port,... of brokers", min_length=1)
    bootstrap_security_protocol: Literal["PLAINTEXT", "SSL", ""] = key(
        "", "", "how to call brokers, with the files of ssl.ca.file etc.; default: the protocol of CLIENT"
    )
    gateway_token_key_file: OptionalText = key(
        None, "", "keys that sign the tokens of Pull, the same on all gateways; default: a key of this process"
    )
    gateway_session_timeout_ms: int = key(
        10_000, "ms", "time until a group gives the partitions of a dead gateway to others", ge=6_000, le=1_800_000
    )
    gateway_revocation_ms: int = key(
        5_000, "ms", "time that a subscriber has to acknowledge records of a partition that it loses", ge=0, le=60_000
    )
    gateway_commit_interval_ms: int = key(1_000, "ms", "pause between commits of acknowledged positions", ge=50)
    gateway_members_max: int = key(
        200, "members", "maximum number of groups, and of subscribers without a group", ge=1, le=10_000
    )
    gateway_principals_max: int = key(
        200, "principals", "maximum at a time; an idle one is forgotten for a new one", ge=1, le=10_000
    )
    gateway_pull_idle_ms: int = key(
        60_000, "ms", "time without a Pull after which the gateway leaves a group that has no stream", ge=1_000
    )


KEYS: Final[dict[str, str]] = {
    key_name(field): field for keys in (ControllerKeys, BrokerKeys, GatewayKeys) for field in keys.model_fields
}
"""All keys of the shared settings file with their fields. A process ignores the keys of other kinds of processes."""

_ONE_LOOP = "a broker runs on one event loop"
_PEM = "certificates are PEM files: ssl.certificate.file, ssl.key.file and ssl.ca.file"
_LIVE = "it is set while brokers run: paceline broker alter"
NOT_HERE: Final[dict[str, str]] = {
    "leader.replication.throttled.rate": _LIVE,
    "follower.replication.throttled.rate": _LIVE,
    "replica.alter.log.dirs.io.max.bytes.per.second": _LIVE,
    "num.io.threads": _ONE_LOOP,
    "num.network.threads": _ONE_LOOP,
    "background.threads": _ONE_LOOP,
    "queued.max.requests": "requests in flight are limited in bytes, queued.max.request.bytes",
    "security.inter.broker.protocol": "REPLICATION and CONTROL have entries in listener.security.protocol.map",
    "ssl.keystore.location": _PEM,
    "ssl.keystore.password": _PEM,
    "ssl.key.password": _PEM,
    "ssl.truststore.location": _PEM,
    "ssl.truststore.password": _PEM,
    "ssl.keystore.type": _PEM,
    "ssl.truststore.type": _PEM,
    "sasl.enabled.mechanisms": "clients authenticate with certificates",
    "inter.broker.listener.name": "followers always use the REPLICATION listener",
    "control.plane.listener.name": "controllers always use the CONTROL listener",
    "inter.broker.protocol.version": "there is one version",
    "log.message.format.version": "there is one version, 2",
    "log.preallocate": "the file of a segment grows with its records",
    "auto.create.topics.enable": "topics are never created by a typo; use CreateTopics",
    "port": "use listeners",
    "host.name": "use listeners",
    "zookeeper.max.in.flight.requests": "the ZooKeeper client pipelines without a limit",
}
"""Kafka keys that are refused, with the reason."""
