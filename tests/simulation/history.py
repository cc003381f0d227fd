"""Record each operation of a client with its outcome (docs/protocol/simulator.md#client-history)."""

from dataclasses import dataclass, field
from enum import Enum

from paceline.model.client_io import RequiredAcks
from paceline.model.identifiers import TopicPartition


class Outcome(Enum):
    """How an operation ended for the client."""

    OPEN = "open"
    OK = "ok"
    FAIL = "fail"
    """Definitely not written."""
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Send:
    """A batch that a producer sent, with all its attempts."""

    client: str
    topic_partition: TopicPartition
    topic_id: str
    acks: RequiredAcks
    batch: bytes
    crc: int
    count: int
    producer_id: int
    """-1 without idempotence."""
    sequence: int
    invoked_us: int
    completed_us: int | None = None
    outcome: Outcome = Outcome.OPEN
    offset: int | None = None
    tries: int = 0
    leader_epoch: int = -1
    """Leader epoch of the leader that acknowledged it."""
    in_doubt: bool = False
    """Whether an attempt may have been written."""
    told_by_deposed: bool = False
    """Whether the last answer came from a leader that had a successor."""
    timestamp_ms: int = 0
    """Timestamp of each of its records."""


@dataclass(slots=True)
class Poll:
    """The result of one poll."""

    at_us: int
    base: int
    end: int
    crc: int


@dataclass(slots=True)
class Reading:
    """All polls of one reader from one partition, without seeks."""

    client: str
    topic_partition: TopicPartition
    topic_id: str
    polls: list[Poll] = field(default_factory=list)
    latest: int = -1
    """Largest end offset received so far."""
    latest_epoch: int = -1
    """Leader epoch of the last record."""
    told_by_deposed: bool = False
    """Whether the last fetch was answered by a leader that had a successor."""
    end_by_deposed: bool = False
    """Whether the last end offset came from a leader that had a successor."""


class History:
    """The operations of all clients of one run."""

    def __init__(self) -> None:
        self.sends: list[Send] = []
        self.by_crc: dict[int, Send] = {}
        self.readings: list[Reading] = []

    def add(self, send: Send) -> None:
        """Note a new send."""
        self.sends.append(send)
        self.by_crc[send.crc] = send
