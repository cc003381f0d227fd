"""`AIOKafkaConsumer` and `AIOKafkaProducer` with aiokafka's arguments: change the import and the address."""

import asyncio
from collections.abc import Iterable
from typing import Any, Self

from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition
from paceline_client.aio.consumer import AsyncConsumer
from paceline_client.aio.producer import AsyncProducer
from paceline_client.batch import RecordMetadata
from paceline_client.compat.arguments import (
    ConsumerRecord,
    Deserializer,
    Serializer,
    consumer_settings,
    converted,
    producer_settings,
    serialized,
)
from paceline_client.groups.values import OffsetAndMetadata

__all__ = [
    "AIOKafkaConsumer",
    "AIOKafkaProducer",
    "ConsumerRecord",
    "KafkaError",
    "OffsetAndMetadata",
    "TopicPartition",
]

KafkaError = PacelineError


class AIOKafkaConsumer:
    """Reads records like aiokafka's consumer, through the `AsyncConsumer` in `consumer`."""

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str | Iterable[str] = "localhost:9092",
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        **arguments: Any,
    ) -> None:
        self.consumer = AsyncConsumer(*topics, bootstrap=bootstrap_servers, **consumer_settings(arguments))
        self._deserializers = (key_deserializer, value_deserializer)

    async def getone(self) -> ConsumerRecord:
        """Return the next record."""
        return converted(await self.consumer.getone(), *self._deserializers)

    async def getmany(
        self, *, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return records by partition."""
        polled = await self.consumer.getmany(timeout_ms, max_records)
        return {tp: [converted(one, *self._deserializers) for one in records] for tp, records in polled.items()}

    def __getattr__(self, name: str) -> Any:
        """Delegate methods with the same meaning: start, stop, assignment, commit, position, seek and so on."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.consumer, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        return await self.getone()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class AIOKafkaProducer:
    """Sends records like aiokafka's producer, through the `AsyncProducer` in `producer`."""

    def __init__(
        self,
        *,
        bootstrap_servers: str | Iterable[str] = "localhost:9092",
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        **arguments: Any,
    ) -> None:
        self.producer = AsyncProducer(bootstrap_servers, **producer_settings(arguments))
        self._serializers = (key_serializer, value_serializer)

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Any = None,
    ) -> "asyncio.Future[RecordMetadata]":
        """Enqueue one record and return a future of its metadata."""
        key_serializer, value_serializer = self._serializers
        value, key = serialized(value, value_serializer), serialized(key, key_serializer)
        return await self.producer.send(topic, value, key, partition, headers, timestamp_ms)

    async def send_and_wait(self, topic: str, value: Any = None, **more: Any) -> RecordMetadata:
        """Send one record and return its metadata."""
        return await (await self.send(topic, value, **more))

    def __getattr__(self, name: str) -> Any:
        """Delegate methods with the same meaning: start, stop and flush."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.producer, name)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
