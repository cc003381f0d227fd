"""Limit the replication traffic that a broker sends or receives for throttled replicas (KIP-73).

The caller passes the time. The rate is computed like Kafka's ``Rate``: over samples of a fixed length, of which the
oldest expire. A new measurement counts as if it had lasted all samples but one, so that a first burst does not exceed
the limit at once. When the rate is above the limit, throttled replicas wait until enough samples have expired; so with
any limit, even 0, every replica makes progress.

Source: docs/protocol/replication.md#replication-throttling; Kafka 2.8 ReplicationQuotaManager, Rate, SampledStat.
"""

from collections import deque
from typing import Final

from paceline.model.broker_dynamic_config import UNLIMITED
from paceline.model.identifiers import TopicPartition

DEFAULT_SAMPLES: Final = 11
DEFAULT_SAMPLE_MS: Final = 1_000


class ReplicationQuota:
    """Replication quota of a leader or follower: the limit, the throttled replicas, and their measured rate."""

    def __init__(self, samples: int = DEFAULT_SAMPLES, sample_ms: int = DEFAULT_SAMPLE_MS) -> None:
        """Measure the rate over ``samples`` windows of ``sample_ms`` milliseconds each."""
        self._sample_count = samples
        self._sample_ms = sample_ms
        self._samples: deque[list[int]] = deque()
        """Start in ms and number of bytes of each sample, oldest first."""
        self._topics: dict[str, frozenset[int] | None] = {}
        self.limit = UNLIMITED
        """Limit in bytes per second."""

    @property
    def lists_any(self) -> bool:
        """Whether any replica of this broker is throttled."""
        return bool(self._topics)

    def throttle(self, topic: str, partitions: frozenset[int] | None) -> None:
        """Replace the throttled partitions of a topic; None means all partitions."""
        if partitions is None or partitions:
            self._topics[topic] = partitions
        else:
            self._topics.pop(topic, None)

    def is_throttled(self, topic_partition: TopicPartition) -> bool:
        """Whether the replica of this partition is throttled, so that its traffic counts."""
        topic, partition = topic_partition
        if topic not in self._topics:
            return False
        partitions = self._topics[topic]
        return partitions is None or partition in partitions

    def record(self, byte_count: int, now_ms: int) -> None:
        """Add traffic of throttled replicas to the measurement."""
        if not byte_count:
            return
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._sample_ms:
            samples.append([now_ms, 0])
            self._expire(now_ms)
        samples[-1][1] += byte_count

    def rate(self, now_ms: int) -> float:
        """Return bytes per second over the samples that have not expired."""
        self._expire(now_ms)
        samples = self._samples
        if not samples:
            return 0.0
        elapsed_ms = now_ms - samples[0][0]
        full = self._sample_count - 1
        elapsed_ms += max(0, full - elapsed_ms // self._sample_ms) * self._sample_ms
        return sum(byte_count for _, byte_count in samples) * 1000 / max(elapsed_ms, 1)

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether the rate is above the limit, so that throttled replicas must wait."""
        return self.limit != UNLIMITED and self.rate(now_ms) > self.limit

    def holds_back(self, topic_partition: TopicPartition, now_ms: int) -> bool:
        """Whether the replica of this partition is throttled and must wait now."""
        return self.limit != UNLIMITED and self.is_throttled(topic_partition) and self.is_exceeded(now_ms)

    def _expire(self, now_ms: int) -> None:
        age_ms = self._sample_count * self._sample_ms
        while self._samples and now_ms - self._samples[0][0] >= age_ms:
            self._samples.popleft()
