"""`AsyncProducer`: send records from asyncio, with standard futures."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from paceline_client.aio.client import AsyncClient, arguments_of
from paceline_client.batch import ProducerBatch, RecordMetadata
from paceline_client.codec import Headers
from paceline_client.connections import Connections
from paceline_client.producer import Producer
from paceline_client.records import without_collection


class AsyncProducer(AsyncClient[Producer]):
    """Sends records; takes the arguments of `Producer`.

    ``await producer.send(...)`` returns a future as soon as the record is in the buffer. Awaiting that future returns
    the `RecordMetadata` when the record is delivered.

        async with AsyncProducer("localhost:9092") as producer:
            futures = [await producer.send("flights", b"landed") for _ in range(1_000)]
            print((await futures[-1]).offset)
    """

    @arguments_of(Producer.__init__)
    def __init__(self, bootstrap: str | Iterable[str] | Connections, **settings: Any) -> None:
        super().__init__(Producer, bootstrap, settings, "paceline-async-producer")
        self._waiting: dict[ProducerBatch, dict[int, asyncio.Future[RecordMetadata]]] = {}
        """Futures of the records of each unresolved batch, by index; the loop is woken once for a batch."""

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
    ) -> "asyncio.Future[RecordMetadata]":
        """Enqueue one record; waits only for cluster metadata and buffer memory.

        Returns:
            A future of the record's metadata. Awaiting it waits for the delivery; without awaiting it, `flush` does.

        Raises:
            PacelineError: as `Producer.send`; a later delivery failure is the future's exception.
        """
        producer = self._started()
        loop = asyncio.get_running_loop()
        if producer.sends_at_once(topic, partition):
            sent = producer.send(topic, value, key, partition, headers, timestamp_ms)
        else:
            sent = await self._run(producer.send, topic, value, key, partition, headers, timestamp_ms)
        future: asyncio.Future[RecordMetadata] = asyncio.Future(loop=loop)  # half the cost of loop.create_future()
        waiting = self._waiting.get(sent.batch)
        if waiting is None:
            waiting = self._waiting[sent.batch] = {}
            # `_settle` runs on this loop, so it cannot run between these statements.
            sent.batch.when_resolved(partial(self._wake, loop))
        waiting[sent.index] = future
        return future

    def _wake(self, loop: asyncio.AbstractEventLoop, batch: ProducerBatch) -> None:
        with suppress(RuntimeError):  # the program has closed the loop, so no task waits for the futures
            loop.call_soon_threadsafe(self._settle, batch)

    def _settle(self, batch: ProducerBatch) -> None:
        waiting = self._waiting.pop(batch)
        with without_collection():
            for index, future in waiting.items():
                if future.done():
                    continue  # the caller has cancelled it
                if batch.error is not None:
                    future.set_exception(batch.error)
                else:
                    future.set_result(batch.metadata(index))

    async def send_and_wait(
        self, topic: str, value: bytes | None, key: bytes | None = None, **more: Any
    ) -> RecordMetadata:
        """Send one record and return its metadata.

        Raises:
            PacelineError: the record was not delivered.
        """
        return await (await self.send(topic, value, key, **more))

    async def flush(self, timeout_s: float | None = None) -> None:
        """Return when every sent record has a result."""
        await self._run(self._started().flush, timeout_s)
