"""Counters and gauges of a broker, which the service layer exports to Prometheus (docs/metrics.md)."""

from collections import defaultdict
from dataclasses import fields
from itertools import islice
from typing import Final

from paceline.broker.groups.coordinator import GroupCoordinator
from paceline.broker.partition.partition import Partition
from paceline.broker.replica_manager import ReplicaManager
from paceline.broker.requests.log_dirs import log_dir_spaces
from paceline.broker.storage.log_cleaner import LogCleaner
from paceline.broker.traffic import FOLLOWING, LEADING, Traffic
from paceline.log.partition_log import PartitionLog


def snapshot_of(manager: ReplicaManager, cleaner: LogCleaner, groups: GroupCoordinator) -> dict[str, float]:
    """Return the metrics of a broker at present, by their names (docs/metrics.md) without ``paceline_``."""
    group_numbers = groups.numbers()
    led = manager.hosted.led()
    traffic = manager.hosted.traffic.all
    margins = [len(one.isr) - one.log.config.min_insync_replicas for one in led if one.log is not None]
    fetchers = manager.fetchers.fetchers
    log_dirs = manager.logs.log_dirs
    return {
        "hosted_partitions": len(manager.hosted.online),
        "leader_partitions": len(led),
        "offline_replicas": len(manager.hosted.offline),
        "under_replicated_partitions": sum(partition.is_under_replicated for partition in led),
        "under_min_isr_partitions": sum(margin < 0 for margin in margins),
        "at_min_isr_partitions": sum(margin == 0 for margin in margins),
        "reassigning_partitions": sum(bool(one.adding_replicas or one.removing_replicas) for one in led),
        "isr_shrinks_total": manager.hosted.isr_updates.shrink_count,
        "isr_expands_total": manager.hosted.isr_updates.expand_count,
        "failed_isr_updates_total": manager.hosted.isr_updates.failed_count,
        "produce_requests_total": manager.produces.request_count,
        "produce_failures_total": traffic.produce_failures,
        "fetch_requests_total": manager.fetches.request_count,
        "fetch_failures_total": traffic.fetch_failures,
        "messages_in_total": traffic.messages_in,
        "bytes_in_total": traffic.bytes_in,
        "bytes_rejected_total": traffic.bytes_rejected,
        "bytes_out_total": traffic.bytes_out,
        "replication_bytes_in_total": manager.fetchers.bytes_in,
        "replication_bytes_out_total": traffic.replication_bytes_out,
        "reassignment_bytes_in_total": traffic.reassignment_bytes_in,
        "reassignment_bytes_out_total": traffic.reassignment_bytes_out,
        "invalid_crc_total": traffic.invalid_crc,
        "replica_fetch_requests_total": manager.fetchers.request_count,
        "produce_purgatory_size": manager.hosted.waiting_produces.delayed_count,
        "fetch_purgatory_size": manager.hosted.waiting_fetches.delayed_count,
        "delete_records_purgatory_size": manager.hosted.waiting_deletes.delayed_count,
        "produce_expirations_total": manager.hosted.waiting_produces.expired_count,
        "fetch_expirations_total": manager.hosted.waiting_fetches.expired_count,
        "proof_waits_total": manager.proofs.wait_count,
        "fetch_sessions": len(manager.fetches.sessions),
        "replica_fetchers": len(fetchers),
        "failed_partitions": len(manager.fetchers.failed),
        "replica_lag_records": manager.fetchers.max_lag(),
        "leader_throttled_bytes_per_second": manager.hosted.quotas.leader.rate(manager.hosted.now_ms()),
        "follower_throttled_bytes_per_second": manager.hosted.quotas.follower.rate(manager.hosted.now_ms()),
        "offline_log_directories": len(log_dirs) - len(manager.logs.live_log_dirs),
        "moving_replicas": len(manager.moves.moves),
        "replicas_moved_total": manager.moves.moved_count,
        "moved_bytes_total": manager.moves.bytes_copied,
        "damaged_logs": len(manager.storage.damaged_logs.damaged),
        "damaged_reads_total": manager.storage.damaged_logs.damaged_reads,
        "logs_set_aside": len(manager.logs.set_aside),
        "log_cleaner_runs_total": cleaner.run_count,
        "log_cleaner_bytes_total": cleaner.bytes_processed,
        "log_cleaner_bytes_removed_total": cleaner.bytes_removed,
        "log_cleaner_max_dirty_percent": cleaner.max_dirty_percent,
        "uncleanable_partitions": len(cleaner.uncleanable),
        "topics_with_unknown_settings": len(manager.hosted.topic_configs.long_unknown()),
        "group_members": group_numbers.members,
        "committed_offsets": group_numbers.offsets,
        "group_partitions_loading": groups.storage.loading_count,
        "offset_commits_total": groups.metrics.offset_commits,
        "offset_expirations_total": groups.metrics.offset_expirations,
        "group_rebalances_total": groups.metrics.rebalances,
        "group_loads_total": groups.metrics.loads,
        "group_load_seconds_total": groups.metrics.load_ms / 1000,
    }


def _partition_numbers(manager: ReplicaManager, one: Partition, log: PartitionLog) -> dict[str, float | None]:
    """Return the metrics of a hosted partition, by the names of the series after ``partition_``; None has no series."""
    margin = len(one.isr) - log.config.min_insync_replicas
    fetching = None if one.is_leader else manager.fetchers.state(one.topic_partition)
    return {
        "under_replicated": int(one.is_under_replicated),
        # None when this broker does not lead the partition, so that a minimum over all brokers is correct.
        "in_sync_replicas": len(one.isr) if one.is_leader else None,
        "under_min_isr": int(one.is_leader and margin < 0),
        "at_min_isr": int(one.is_leader and margin == 0),
        "replicas": len(one.replicas),
        # High watermark minus last stable offset; without transactions they are equal.
        "last_stable_offset_lag": 0,
        "log_segments": log.segment_count,
        "log_start_offset": log.log_start_offset,
        "log_end_offset": log.log_end_offset,
        "high_watermark": log.high_watermark,
        "log_size_bytes": log.size_bytes,
        "replica_lag_records": None if fetching is None else -1 if fetching.lag is None else fetching.lag,
    }


Rows = dict[tuple[str, ...], float]


def label_families_of(manager: ReplicaManager, limit: int) -> defaultdict[str, Rows]:
    """Return the labelled series by family: of ``limit`` partitions and topics, and of fetchers and directories.

    Partitions with a log have series, the longest hosted first. A family without series may be missing.
    """
    found: defaultdict[str, Rows] = defaultdict(dict)
    for partition in islice((one for one in manager.hosted.online.values() if one.log is not None), limit):
        assert partition.log is not None
        labels = (partition.topic_partition.topic, str(partition.topic_partition.partition))
        for name, number in _partition_numbers(manager, partition, partition.log).items():
            if number is not None:
                found[f"partition_{name}"][labels] = number
    for topic, traffic in islice(manager.hosted.traffic.topics.items(), limit):
        leads, follows = manager.hosted.roles(topic)
        for name in _TOPIC_NUMBERS:
            count = getattr(traffic, name)
            if count or not ((name in LEADING and not leads) or (name in FOLLOWING and not follows)):
                found[f"topic_{name}_total"][(topic,)] = count
    for fetcher in manager.fetchers.fetchers:
        labels = (str(fetcher.leader.broker_id), str(fetcher.fetcher_id))
        found["replica_fetcher_requests_total"][labels] = fetcher.request_count
        unanswered_ms = fetcher.contact.unanswered_ms(manager.hosted.now_ms())
        found["replica_fetcher_unanswered_seconds"][labels] = unanswered_ms / 1_000
    for path, space in log_dir_spaces(manager.logs).items():
        for field in fields(space):
            found[f"log_directory_{field.name}"][(path,)] = getattr(space, field.name)
    live = manager.logs.live_log_dirs
    found["log_directory_offline"] = {(path,): float(path not in live) for path in manager.logs.log_dirs}
    return found


def group_lags_of(manager: ReplicaManager, groups: GroupCoordinator, limit: int) -> Rows:
    """Return how many committed records each group coordinated here has not read yet, by group.

    Only groups all of whose partitions have a replica here have a series: the ends of others are not known. Together
    the groups have at most ``limit`` partitions.
    """
    found: Rows = {}
    for group in groups.storage.loaded_groups():
        limit -= len(group.offsets)
        if limit < 0:
            break
        lag = 0
        for topic_partition, committed in group.offsets.items():
            partition = manager.hosted.online.get(topic_partition)
            if partition is None or partition.log is None:
                break
            lag += max(0, partition.log.high_watermark - committed.value.offset)
        else:
            if group.offsets:
                found[(group.group_id,)] = lag
    return found


_TOPIC_NUMBERS: Final = tuple(field.name for field in fields(Traffic))
