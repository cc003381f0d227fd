"""`AsyncConsumer`: read records from asyncio, alone or in a group."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Final, Unpack

from paceline.model.identifiers import TopicPartition
from paceline_client.aio.client import AsyncClient
from paceline_client.consumer import Consumer, ConsumerSettings
from paceline_client.groups.values import OffsetAndMetadata, RebalanceListener
from paceline_client.records import ConsumerRecord

_POLL_MS: Final = 200


class AsyncConsumer(AsyncClient[Consumer]):
    """Reads records; takes topics and the arguments of `Consumer`.

        async with AsyncConsumer("flights", bootstrap="localhost:9092", group_id="billing") as consumer:
            async for record in consumer:
                print(record.offset, record.value)

    With a group, a background thread sends heartbeats, but the member takes part in a rebalance only while the program
    reads records: it loses its membership if the program reads none for ``max_poll_interval_ms``.
    """

    def __init__(
        self,
        *topics: str,
        bootstrap: str | Iterable[str],
        listener: RebalanceListener | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        """``listener`` is called on the consumer's thread, not on the event loop."""
        super().__init__(Consumer, bootstrap, settings, "paceline-async-consumer")
        self._topics, self._listener = topics, listener
        self._reading = asyncio.Lock()
        """Held during a poll: the records of a `getmany` must not be taken one by one before it returns them."""

    async def start(self) -> None:
        """Create the consumer and subscribe to its topics."""
        if self._client is None:
            await super().start()
            if self._topics:
                await self.subscribe(self._topics, listener=self._listener)

    async def subscribe(
        self, topics: Iterable[str] = (), *, pattern: str | None = None, listener: RebalanceListener | None = None
    ) -> None:
        """Subscribe to topics, as `Consumer.subscribe`."""
        await self._run(self._started().subscribe, topics, pattern=pattern, listener=listener)

    async def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions."""
        self._started().give_back()
        await self._run(self._started().assign, partitions)

    async def getone(self) -> ConsumerRecord:
        """Return the next record; a commit covers only the records that were returned."""
        consumer = self._started()
        record = None if self._reading.locked() else next(consumer.held_records(), None)
        while record is None:
            record = await self._polled(consumer)
        return record

    async def _polled(self, consumer: Consumer) -> ConsumerRecord | None:
        """Poll, unless another coroutine has polled meanwhile; return a record."""
        async with self._reading:
            record = next(consumer.held_records(), None)
            if record is None:
                await self._run(_hold, consumer, _POLL_MS, None)
                record = next(consumer.held_records(), None)
            return record

    async def getmany(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return records as soon as some are available, or an empty dict after ``timeout_ms``."""
        consumer = self._started()
        async with self._reading:
            polled = await self._run(_hold, consumer, timeout_ms, max_records)
            consumer.take_all_held()
        return polled

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Commit these offsets, or the positions after all returned records."""
        await self._run(self._started().commit, offsets)

    async def committed(self, partition: TopicPartition) -> int | None:
        """Return the offset that the group has committed for a partition, None if it has committed no offset."""
        found = (await self._run(self._started().committed, [partition]))[partition]
        return None if found is None else found.offset

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record."""
        return await self._run(self._started().next_offset, partition)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue reading a partition at an offset."""
        self._started().give_back()
        await self._run(self._started().seek, partition, offset)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue reading at the first record of these partitions, or of all assigned partitions if none is given."""
        self._started().give_back()
        await self._run(self._started().seek_to_beginning, partitions or None)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue reading at the end of these partitions, or of all assigned partitions if none is given."""
        self._started().give_back()
        await self._run(self._started().seek_to_end, partitions or None)

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return await self._run(self._started().beginning_offsets, partitions)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offset of each partition."""
        return await self._run(self._started().end_offsets, partitions)

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions."""
        return set(self._started().assignment())

    async def stop(self) -> None:
        """Commit if auto-commit is on, leave the group and close."""
        if self._client is not None:
            self._client.give_back()
        await super().stop()

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        # A generator that does not wait costs a third of a coroutine for each record.
        consumer = self._started()
        while True:
            if not self._reading.locked():
                for record in consumer.held_records():  # A poll of another coroutine ends this iterator.
                    yield record
            polled = await self._polled(consumer)
            if polled is not None:
                yield polled

    async def __anext__(self) -> ConsumerRecord:
        """Return the next record, as `getone`, for ``await anext(consumer)``."""
        return await self.getone()


def _hold(consumer: Consumer, timeout_ms: int, max_records: int | None) -> dict[TopicPartition, list[ConsumerRecord]]:
    """Poll; the result begins with the records of an earlier poll whose coroutine was cancelled."""
    consumer.give_back()
    return consumer.poll_held(timeout_ms, max_records)
