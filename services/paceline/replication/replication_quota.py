"""How much replication traffic a broker may send, or take in, for the replicas that are throttled (KIP-73).

Time is handed in. The rate is measured as Kafka's ``Rate`` does: over samples of a fixed length, of which the oldest
leave as time goes by; a young measurement counts as if it had lasted all samples but one, so that the first burst does
not look like a flood. Only bytes that follow a measurement above the limit wait, and only until enough samples have
left; so a limit of any size, 0 included, lets every replica get on in the end.

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
        """``samples`` windows of ``sample_ms`` milliseconds each are kept."""
        self._sample_count = samples
        self._sample_ms = sample_ms
        self._samples: deque[list[int]] = deque()
        """Start in ms and bytes of each sample, the oldest first."""
        self._topics: dict[str, frozenset[int] | None] = {}
        self.limit = UNLIMITED
        """Bytes per second."""

    @property
    def lists_any(self) -> bool:
        """Whether any replica of this broker is throttled."""
        return bool(self._topics)

    def throttle(self, topic: str, partitions: frozenset[int] | None) -> None:
        """Replace the throttled partitions of a topic; None means all of them."""
        if partitions is None or partitions:
            self._topics[topic] = partitions
        else:
            self._topics.pop(topic, None)

    def is_throttled(self, topic_partition: TopicPartition) -> bool:
        """Whether the traffic of this partition counts here."""
        topic, partition = topic_partition
        if topic not in self._topics:
            return False
        partitions = self._topics[topic]
        return partitions is None or partition in partitions

    def record(self, byte_count: int, now_ms: int) -> None:
        """Count traffic of throttled replicas."""
        if not byte_count:
            return
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._sample_ms:
            samples.append([now_ms, 0])
            self._expire(now_ms)
        samples[-1][1] += byte_count

    def rate(self, now_ms: int) -> float:
        """Return bytes per second over the samples that still count."""
        self._expire(now_ms)
        samples = self._samples
        if not samples:
            return 0.0
        elapsed_ms = now_ms - samples[0][0]
        full = self._sample_count - 1
        elapsed_ms += max(0, full - elapsed_ms // self._sample_ms) * self._sample_ms
        return sum(byte_count for _, byte_count in samples) * 1000 / max(elapsed_ms, 1)

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether throttled replicas have to wait now."""
        return self.limit != UNLIMITED and self.rate(now_ms) > self.limit

    def holds_back(self, topic_partition: TopicPartition, now_ms: int) -> bool:
        """Whether the replica is throttled and has to wait now."""
        return self.limit != UNLIMITED and self.is_throttled(topic_partition) and self.is_exceeded(now_ms)

    def _expire(self, now_ms: int) -> None:
        age_ms = self._sample_count * self._sample_ms
        while self._samples and now_ms - self._samples[0][0] >= age_ms:
            self._samples.popleft()
