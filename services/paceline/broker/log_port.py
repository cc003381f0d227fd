"""What a broker's core uses of `paceline.log`, as protocols: the real logs satisfy them, and so may a test's.

All offsets that end something are exclusive. Storage failures raise `KafkaStorageError`.
"""

from collections.abc import Iterable
from typing import Protocol

from paceline.model.identifiers import TopicPartition


class ReplicaLogConfig(Protocol):
    """Settings of one log the core decides by."""

    @property
    def min_insync_replicas(self) -> int:
        """Least size of the ISR for acks=all and for the high watermark to move."""


class AppendResult(Protocol):
    """What an append did."""

    @property
    def base_offset(self) -> int:
        """First offset of the batch."""

    @property
    def last_offset(self) -> int:
        """Last offset, inclusive."""

    @property
    def log_append_time_ms(self) -> int:
        """Time the broker stamped, -1 when the producer's stands."""

    @property
    def log_start_offset(self) -> int:
        """First offset of the log."""

    @property
    def duplicate(self) -> bool:
        """Whether the batch was there already and nothing was appended."""


class ReplicaLog(Protocol):
    """One replica on disk."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Whose log it is."""

    @property
    def topic_id(self) -> str | None:
        """Topic id it was created under."""

    @property
    def config(self) -> ReplicaLogConfig:
        """Present settings."""

    @property
    def log_start_offset(self) -> int:
        """First offset."""

    @property
    def log_end_offset(self) -> int:
        """Offset the next record gets."""

    @property
    def high_watermark(self) -> int:
        """First offset not known to be committed."""

    @property
    def latest_epoch(self) -> int | None:
        """Largest leader epoch known."""

    def update_high_watermark(self, high_watermark: int) -> object:
        """Set the high watermark, within log start and log end."""

    def append_as_leader(self, data: bytes, leader_epoch: int, now_ms: int) -> AppendResult:
        """Validate, assign offsets, append."""

    def append_as_follower(self, data: bytes) -> AppendResult | None:
        """Append a leader's batches as they are; a cut batch at the end is left out. None when nothing was whole."""

    def read(self, offset: int, max_bytes: int, limit_offset: int, at_least_one: bool = True) -> bytes:
        """Return whole batches from the one that holds ``offset``, none of them at or above ``limit_offset``."""

    def truncate_to(self, offset: int) -> None:
        """Drop records, and epoch entries, at and above ``offset``."""

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and start anew at ``offset``."""

    def assign_leader_epoch(self, epoch: int, start_offset: int) -> None:
        """Note that an epoch starts."""

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int] | None:
        """Return the largest epoch not above ``epoch`` and its end."""

    def increment_log_start_offset(self, offset: int) -> object:
        """Move the log's start up, never down."""

    def offset_for_timestamp(self, timestamp_ms: int, limit_offset: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record at or after a time, below ``limit_offset``."""


class ReplicaLogs(Protocol):
    """All logs of a broker."""

    def get(self, topic_partition: TopicPartition) -> ReplicaLog | None:
        """Return a log that exists."""

    def get_or_create(self, topic_partition: TopicPartition, topic_id: str | None, is_new: bool) -> ReplicaLog:
        """Return the log; one that is not new is not created while a directory is offline."""

    def delete(self, topic_partition: TopicPartition) -> None:
        """Take the log away; files follow later."""

    def checkpoint_high_watermarks(self) -> None:
        """Write every log's high watermark."""

    def all_logs(self) -> Iterable[ReplicaLog]:
        """Return every log."""

    def shutdown(self) -> None:
        """Flush, close, mark clean."""
