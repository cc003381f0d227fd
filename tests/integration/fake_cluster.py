"""Fake brokers for client tests: real gRPC on loopback, logs in memory, and failures that a test injects.

The brokers follow Kafka's rules where the client depends on them: sequence numbers of idempotent producers, leader
epochs, incremental fetch sessions, diverging epochs. They do not replicate: all brokers of a `FakeCluster` share its
logs, so a leader change loses no record unless the test truncates the log.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paceline.log.record_batch import MAX_INT32, check_crc, parse_header, stamp
from paceline.model.errors import ErrorCode, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.v1 import admin_service_pb2 as admin
from tests.integration.fake_broker import CONTROLLER_ID, FakeBroker

ALWAYS = 1 << 30


class Log:
    """The log of one partition: whole batches, and the latest sequence numbers of each producer."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.leader: int | None = 1
        self.epochs: list[tuple[int, int]] = [(0, 0)]
        self.windows: dict[int, deque[tuple[int, int, int]]] = {}

    def append(self, batch: bytes) -> int | ErrorCode:
        header = parse_header(batch)
        check_crc(batch, 0, header)
        if header.producer_id >= 0:
            window = self.windows.get(header.producer_id)
            if window is not None:
                for base, last, offset in window:
                    if (base, last) == (header.base_sequence, header.last_sequence):
                        return offset
                if header.base_sequence != (window[-1][1] + 1) & MAX_INT32:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            self.windows.setdefault(header.producer_id, deque(maxlen=5)).append(
                (header.base_sequence, header.last_sequence, self.end)
            )
        stamped = bytearray(batch)
        stamp(stamped, self.end, self.epoch)
        self.batches.append(bytes(stamped))
        offset, self.end = self.end, self.end + header.record_count
        return offset

    def elect(self, leader: int | None) -> None:
        self.leader = leader
        self.epoch += 1
        self.epochs.append((self.epoch, self.end))

    def truncate(self, offset: int) -> None:
        """Remove all batches from ``offset``, a batch boundary, to the end, as an unclean election may do."""
        self.batches = [batch for batch in self.batches if parse_header(batch).last_offset < offset]
        self.end = offset
        self.epochs = [(epoch, min(start, offset)) for epoch, start in self.epochs]

    def lose(self, offset: int, leader: int) -> None:
        """Elect a leader that has only the records below ``offset``, and of the producers only what these tell."""
        self.truncate(offset)
        kept = {pid: [batch for batch in window if batch[2] < offset] for pid, window in self.windows.items()}
        self.windows = {pid: deque(batches, maxlen=5) for pid, batches in kept.items() if batches}
        self.elect(leader)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch not above ``epoch``, and the exclusive end offset of that epoch."""
        known = [(e, start) for e, start in self.epochs if e <= epoch]
        later = [start for e, start in self.epochs if e > epoch]
        return known[-1][0], (later[0] if later else self.end)

    def read(self, offset: int, max_bytes: int) -> bytes:
        found: list[bytes] = []
        size = 0
        for batch in self.batches:
            if parse_header(batch).last_offset < offset:
                continue
            if found and size + len(batch) > max_bytes:
                break
            found.append(batch)
            size += len(batch)
        return b"".join(found)


@dataclass
class Faults:
    """Failures that the brokers inject; counters and lists are used up by their failures, other fields persist."""

    drop_before: int = 0
    """Number of Produce requests that fail before the append."""
    drop_after: int = 0
    """Number of Produce requests that fail after the append, so that the response is lost."""
    refuse: list[ErrorCode] = field(default_factory=list)
    """Errors for the next partitions of Produce requests; these partitions append nothing."""
    refuse_always: ErrorCode | None = None
    fetch_refuse: list[ErrorCode] = field(default_factory=list)
    fetch_abort: PacelineError | None = None
    """Error that fails every Fetch request as a whole."""
    hold_produce: threading.Event | None = None
    """Produce waits until this event is set."""
    hold_metadata: threading.Event | None = None
    """DescribeCluster waits until this event is set."""
    cluster_fields: dict[str, Any] = field(default_factory=dict)
    """More fields of DescribeClusterResponse."""
    no_producer_ids: bool = False
    no_streams: bool = False
    """ProduceStream and FetchStream return UNIMPLEMENTED, as on a broker without streams."""
    forget_sessions: int = 0
    read_replica: int | None = None
    """Preferred read replica in the responses to consumers with a rack."""
    follower_refuse: list[ErrorCode] = field(default_factory=list)
    """Errors for the next fetches of consumers with a rack from a follower."""
    knows_nobody: int | None = None
    """Id of a broker that has not received metadata from a controller yet."""
    abort: dict[str, list[PacelineError]] = field(default_factory=dict)
    """Errors that fail the next calls as a whole, by method name."""
    isr: list[int] | None = None
    """ISR of every partition in the metadata; None stands for all brokers."""


class FakeCluster:
    """Fake brokers and controllers with the logs and metadata that they share."""

    def __init__(self, brokers: int = 2) -> None:
        self.lock = threading.Condition()
        self.logs: dict[TopicPartition, Log] = {}
        self.topic_ids: dict[str, str] = {}
        """Ids of re-created topics."""
        self.faults = Faults()
        self.brokers = {broker_id: FakeBroker(self, broker_id) for broker_id in range(1, brokers + 1)}
        self.controller = FakeBroker(self, CONTROLLER_ID)
        self.standby = FakeBroker(self, CONTROLLER_ID + 1)
        self.next_producer_id = 100
        self.hide_leader_changes = False
        self.calls: Counter[str] = Counter()
        """Number of Produce, Fetch, DescribeTopics and CreateTopics calls."""
        self.metadata_requests = 0
        self.produce_requests = 0
        self.producer_id_requests_s: list[float] = []
        """Monotonic time of each InitProducerId request."""
        self.streamed_fetches = 0
        self.streamed_requests = 0
        """Number of Produce requests that arrived over streams."""
        self.fetched_partitions: list[int] = []
        """Number of partitions in each Fetch request."""
        self.served: Counter[int] = Counter()
        """Number of partition reads that returned records, by broker id."""
        self.created: dict[str, admin.NewTopic] = {}
        self.create_error: ErrorCode | None = None

    def start(self) -> "FakeCluster":
        for server in (*self.brokers.values(), self.controller, self.standby):
            server.start()
        return self

    def stop(self) -> None:
        for server in (*self.brokers.values(), self.controller, self.standby):
            server.stop()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    def topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic and spread the leaders of its partitions over the brokers round-robin."""
        with self.lock:
            for index in range(partitions):
                log = self.logs[TopicPartition(name, index)] = Log()
                log.leader = 1 + index % len(self.brokers)

    def make_anew(self, name: str, partitions: int) -> None:
        """Delete a topic and create a topic of the same name with another id."""
        with self.lock:
            for topic_partition in [each for each in self.logs if each.topic == name]:
                del self.logs[topic_partition]
            self.topic_ids[name] = f"another-id-of-{name}"
            self.topic(name, partitions)

    def topic_id(self, name: str) -> str:
        return self.topic_ids.get(name, f"id-of-{name}")

    def begin_at(self, topic_partition: TopicPartition, offset: int) -> None:
        """Set start and end of an empty log to an offset, as if all records before it had been deleted."""
        with self.lock:
            log = self.logs[topic_partition]
            log.start = log.end = offset
            log.epochs = [(log.epoch, offset)]

    def grow(self, name: str, partitions: int) -> None:
        """Add partitions until the topic has ``partitions`` of them."""
        with self.lock:
            for index in range(partitions):
                self.logs.setdefault(TopicPartition(name, index), Log())

    def move(self, topic_partition: TopicPartition, leader: int | None) -> None:
        with self.lock:
            self.logs[topic_partition].elect(leader)
            self.lock.notify_all()

    def values(self, topic: str) -> dict[int, list[bytes]]:
        """Return all record values in offset order, by partition."""
        from paceline.log.record_batch import decode_batch

        with self.lock:
            return {
                tp.partition: [record.value or b"" for batch in log.batches for record in decode_batch(batch)]
                for tp, log in self.logs.items()
                if tp.topic == topic
            }


def wait_for(condition: Callable[[], object], timeout_s: float = 60.0, what: str = "the condition") -> None:
    """Wait until ``condition()`` is true.

    Raises:
        AssertionError: ``condition()`` did not become true within ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not become true within {timeout_s} s"
        time.sleep(0.01)
