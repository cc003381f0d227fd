"""`ReplicationQuotas`: rate limits for copying throttled replicas, at their leader and at their follower (KIP-73).

A third limit is for replicas that move between the log directories of the broker (KIP-113).
Source: docs/protocol/replication.md#replication-throttling.
"""

from paceline.log.log_config import LogConfig
from paceline.model.broker_dynamic_config import BrokerDynamicConfig
from paceline.model.settings import BrokerConfig
from paceline.model.throttled_replicas import throttled_partitions
from paceline.replication.replication_quota import ReplicationQuota


class ReplicationQuotas:
    """The quotas of a broker. Rates are broker settings, the throttled replicas are topic settings."""

    def __init__(self, config: BrokerConfig) -> None:
        sample_ms = config.replication_quota_window_size_seconds * 1_000
        self._broker_id = config.broker_id
        self.leader = ReplicationQuota(config.replication_quota_window_num, sample_ms)
        self.follower = ReplicationQuota(config.replication_quota_window_num, sample_ms)
        self.alter_log_dirs = ReplicationQuota(config.replication_quota_window_num, sample_ms)
        self.alter_log_dirs.limit = BrokerDynamicConfig().alter_log_dirs_rate

    def apply_broker_config(self, config: BrokerDynamicConfig) -> None:
        """Set the rates; a fetch that waits for its quota checks the quota again periodically."""
        self.leader.limit = config.leader_throttled_rate
        self.follower.limit = config.follower_throttled_rate
        self.alter_log_dirs.limit = config.alter_log_dirs_rate

    def apply_topic_config(self, topic: str, config: LogConfig) -> None:
        """Throttle the replicas listed in the topic's settings."""
        listed = throttled_partitions(config.leader_replication_throttled_replicas, self._broker_id)
        self.leader.throttle(topic, listed)
        self.follower.throttle(
            topic, throttled_partitions(config.follower_replication_throttled_replicas, self._broker_id)
        )

    def forget(self, topic: str) -> None:
        """Remove the throttle of a topic that is no longer hosted."""
        self.leader.throttle(topic, frozenset())
        self.follower.throttle(topic, frozenset())
