"""A reader's position in one partition, as plain values."""

from dataclasses import dataclass, field

from paceline.model.identifiers import TopicPartition


@dataclass(slots=True)
class FetchPosition:
    """One partition of a client's or follower's fetch, and the values that a fetch session last sent to the reader."""

    topic_partition: TopicPartition
    topic_id: str | None
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int | None = None
    last_fetched_epoch: int | None = None
    """Leader epoch of the last record before the offset; None when a follower's log is empty."""
    log_start_offset: int = -1
    """A follower's log start offset; -1 for a client."""
    sent_high_watermark: int | None = field(default=None, init=False, compare=False)
    sent_log_start_offset: int | None = field(default=None, init=False, compare=False)
