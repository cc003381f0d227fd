"""`KafkaConsumer` and `KafkaProducer` with kafka-python's arguments: change the import and the address."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from paceline.model.errors import PacelineError, RequestTimedOutError
from paceline.model.identifiers import TopicPartition
from paceline_client.batch import RecordFuture, RecordMetadata
from paceline_client.compat.arguments import (
    ConsumerRecord,
    Deserializer,
    Serializer,
    consumer_settings,
    converted,
    producer_settings,
    serialized,
)
from paceline_client.consumer import Consumer
from paceline_client.groups.values import OffsetAndMetadata, RebalanceListener
from paceline_client.producer import Producer

__all__ = [
    "ConsumerRecord",
    "KafkaConsumer",
    "KafkaError",
    "KafkaProducer",
    "KafkaTimeoutError",
    "OffsetAndMetadata",
    "TopicPartition",
]

KafkaError = PacelineError
KafkaTimeoutError = RequestTimedOutError


class KafkaConsumer:
    """Reads records like kafka-python's consumer, through the `Consumer` in `consumer`."""

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str | Iterable[str] = "localhost:9092",
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        consumer_timeout_ms: float = float("inf"),
        **arguments: Any,
    ) -> None:
        self.consumer = Consumer(bootstrap_servers, **consumer_settings(arguments))
        self._deserializers = (key_deserializer, value_deserializer)
        self._timeout_ms = consumer_timeout_ms
        self._records: Iterator[Any] | None = None
        if topics:
            self.subscribe(topics)

    def subscribe(
        self, topics: Iterable[str] = (), pattern: str | None = None, listener: RebalanceListener | None = None
    ) -> None:
        """Subscribe to topics, or to topics that match a pattern."""
        self.consumer.subscribe(topics, pattern=pattern, listener=listener)

    def poll(
        self, timeout_ms: int = 0, max_records: int | None = None, update_offsets: bool = True
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return records by partition; wait up to ``timeout_ms`` for the first records."""
        if not update_offsets:
            raise TypeError("update_offsets=False has no counterpart; use seek to go back")
        polled = self.consumer.poll(timeout_ms, max_records)
        return {tp: [converted(one, *self._deserializers) for one in records] for tp, records in polled.items()}

    def committed(self, partition: TopicPartition) -> int | None:
        """Return the group's committed offset, None if the group has not committed one for this partition."""
        found = self.consumer.committed([partition])[partition]
        return None if found is None else found.offset

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions."""
        return set(self.consumer.assignment())

    def partitions_for_topic(self, topic: str) -> set[int]:
        """Return the partition numbers of a topic."""
        return set(range(self.consumer.partitions_for(topic)))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue reading at the first record of these or all partitions."""
        self.consumer.seek_to_beginning(partitions or None)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue reading at the end of these or all partitions."""
        self.consumer.seek_to_end(partitions or None)

    def pause(self, *partitions: TopicPartition) -> None:
        self.consumer.pause(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self.consumer.resume(partitions)

    def close(self, autocommit: bool = True) -> None:
        """Commit if auto-commit is on, leave the group and close."""
        self.consumer.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        if self._records is None:
            self._records = self.consumer.records(self._timeout_ms)
        try:
            return converted(next(self._records), *self._deserializers)
        except StopIteration:
            self._records = None  # the next loop starts where this loop ended
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        """Delegate methods with the same meaning: assign, commit, seek, position, unsubscribe and so on."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.consumer, name)


class FutureRecordMetadata:
    """The result of a `send`."""

    def __init__(self, sent: RecordFuture) -> None:
        self._sent = sent

    @property
    def is_done(self) -> bool:
        """Whether the result is known."""
        return self._sent.done()

    @property
    def exception(self) -> PacelineError | None:
        """The error, once the delivery has failed."""
        return self._sent.exception(0) if self.is_done else None

    @property
    def value(self) -> RecordMetadata | None:
        """The record's metadata, once it was delivered."""
        return self._sent.result(0) if self.succeeded() else None

    def succeeded(self) -> bool:
        """Return whether the record was delivered."""
        return self.is_done and self.exception is None

    def failed(self) -> bool:
        """Return whether the delivery has failed."""
        return self.exception is not None

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the result and return the record's metadata.

        Raises:
            RequestTimedOutError: there is no result after ``timeout`` seconds; the record may still be delivered.
            PacelineError: the record was not delivered.
        """
        return self._sent.result(timeout)

    def add_callback(self, function: Callable[..., object], *arguments: Any, **named: Any) -> Self:
        """Call the function with the metadata when the record is delivered; it must not block."""
        self._sent.add_done_callback(lambda _: self.succeeded() and function(*arguments, self.value, **named))
        return self

    def add_errback(self, function: Callable[..., object], *arguments: Any, **named: Any) -> Self:
        """Call the function with the error when the delivery fails; it must not block."""
        self._sent.add_done_callback(lambda _: self.failed() and function(*arguments, self.exception, **named))
        return self

    def add_both(self, function: Callable[..., object], *arguments: Any, **named: Any) -> Self:
        """Call the function with the metadata or the error."""
        return self.add_callback(function, *arguments, **named).add_errback(function, *arguments, **named)


class KafkaProducer:
    """Sends records like kafka-python's producer, through the `Producer` in `producer`."""

    def __init__(
        self,
        *,
        bootstrap_servers: str | Iterable[str] = "localhost:9092",
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        **arguments: Any,
    ) -> None:
        self.producer = Producer(bootstrap_servers, **producer_settings(arguments))
        self._serializers = (key_serializer, value_serializer)

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> FutureRecordMetadata:
        """Send one record; the future's `get` waits for its metadata."""
        key_serializer, value_serializer = self._serializers
        value, key = serialized(value, value_serializer), serialized(key, key_serializer)
        return FutureRecordMetadata(self.producer.send(topic, value, key, partition, headers, timestamp_ms))

    def flush(self, timeout: float | None = None) -> None:
        """Return when every sent record has a result."""
        self.producer.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Deliver all records and close."""
        self.producer.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
