"""One measurement of `benchmarks.python_clients`, run as a script in the environment of the client that it measures.

    python python_client_runs.py CLIENT BOOTSTRAP TOPIC SIZE RECORDS

Prints one JSON object, records a second by name. Every client sends with acks=all, linger 5 ms and without compression,
one record per call, after a tenth as many records to warm up; a rate includes the acknowledgement of every record. The
consumers read all six partitions from the beginning and access every value; the rate begins with the first records.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

PARTITIONS = 6
KAFKA_BATCH_BYTES = 262_144
WAIT_S = 60.0


def measure(client: str, bootstrap: str, topic: str, size: int, records: int) -> dict[str, float]:
    """Return records a second of every measurement of one client."""
    value = (bytes(range(256)) * (size // 256 + 1))[:size]
    if client == "confluent":
        return dict(_confluent(bootstrap, topic, value, records))
    if client == "paceline":
        return dict(_paceline(bootstrap, topic, value, records))
    return asyncio.run(
        {"aiokafka": _aiokafka, "paceline_async": _paceline_async}[client](bootstrap, topic, value, records)
    )


class Meter:
    """Counts records until all have been read; the time begins with the first."""

    def __init__(self, total: int) -> None:
        self.total, self.read, self._began = total, 0, 0.0
        self._deadline = time.monotonic() + WAIT_S

    def add(self, count: int) -> bool:
        """Count records; return whether all have been read."""
        if count and not self._began:
            self._began = time.monotonic()
        self.read += count
        if not count and time.monotonic() > self._deadline:
            raise TimeoutError(f"read {self.read} of {self.total} records within {WAIT_S:g} s")
        return self.read >= self.total

    def rate(self) -> float:
        """Return records a second."""
        return self.read / (time.monotonic() - self._began)


def _confluent(bootstrap: str, topic: str, value: bytes, records: int) -> Iterator[tuple[str, float]]:
    from confluent_kafka import Consumer, Producer, TopicPartition

    failed: list[Any] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failed.append(error)

    for count in (records // 10, records):
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 5,
                "batch.size": KAFKA_BATCH_BYTES,
                "queue.buffering.max.messages": 500_000,
                "queue.buffering.max.kbytes": 1_048_576,
            }
        )
        began = time.monotonic()
        for _ in range(count):
            while True:
                try:
                    producer.produce(topic, value, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.01)
            producer.poll(0)
        left = producer.flush(WAIT_S)
        assert not failed and not left, (failed[:1], left)
        elapsed = time.monotonic() - began
    yield "send", records / elapsed
    for name, chunk in (("consume", 500), ("poll", 1)):
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"bench-{name}", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
        meter, ended = Meter(records + records // 10), False
        while not ended:
            if chunk == 1:
                one = consumer.poll(1.0)
                messages = [] if one is None else [one]
            else:
                messages = consumer.consume(chunk, 1.0)
            for message in messages:
                assert message.error() is None
                message.value()
            ended = meter.add(len(messages))
        yield name, meter.rate()
        consumer.close()


async def _aiokafka(bootstrap: str, topic: str, value: bytes, records: int) -> dict[str, float]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    found = {}
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=5, max_batch_size=KAFKA_BATCH_BYTES)
    await producer.start()
    found["send"] = await _sent(producer, topic, value, records)
    await producer.stop()
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    for name in ("getmany", "async_for"):
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        await consumer.start()
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        found[name] = await _read(consumer, name, records + records // 10)
        await consumer.stop()
    return found


async def _sent(producer: Any, topic: str, value: bytes, records: int) -> float:
    """Send with a tenth of the records as a warm-up, keep every future, and await each."""
    for count in (records // 10, records):
        began = time.monotonic()
        futures = [await producer.send(topic, value) for _ in range(count)]
        for future in futures:
            await future
        elapsed = time.monotonic() - began
    return records / elapsed


async def _read(consumer: Any, name: str, total: int) -> float:
    meter = Meter(total)
    if name == "async_for":
        async for record in consumer:
            assert record.value is not None
            if meter.add(1):
                break
    else:
        ended = False
        while not ended:
            polled = await consumer.getmany(timeout_ms=1_000)
            assert all(record.value is not None for records in polled.values() for record in records)
            ended = meter.add(sum(map(len, polled.values())))
    return meter.rate()


def _paceline(bootstrap: str, topic: str, value: bytes, records: int) -> Iterator[tuple[str, float]]:
    from paceline_client import Consumer, Producer, TopicPartition

    for count in (records // 10, records):
        with Producer(bootstrap, linger_ms=5) as producer:
            began = time.monotonic()
            for _ in range(count):
                future = producer.send(topic, value)
            producer.flush(WAIT_S)
            elapsed = time.monotonic() - began
            assert future.exception(0) is None
    yield "send", records / elapsed
    with Producer(bootstrap, linger_ms=5) as producer:
        began = time.monotonic()
        producer.send_many(topic, ((None, value) for _ in range(records))).result(WAIT_S)
        yield "send_many", records / (time.monotonic() - began)
    with Consumer(bootstrap) as consumer:
        partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        meter, ended = Meter(2 * records + records // 10), False
        while not ended:
            polled = consumer.poll(timeout_ms=1_000)
            assert all(record.value is not None for found in polled.values() for record in found)
            ended = meter.add(sum(map(len, polled.values())))
        yield "poll", meter.rate()


async def _paceline_async(bootstrap: str, topic: str, value: bytes, records: int) -> dict[str, float]:
    from paceline_client import AsyncConsumer, AsyncProducer

    found = {}
    async with AsyncProducer(bootstrap, linger_ms=5) as producer:
        found["send"] = await _sent(producer, topic, value, records)
    for name in ("getmany", "async_for"):
        async with AsyncConsumer(topic, bootstrap=bootstrap) as consumer:
            found[name] = await _read(consumer, name, records + records // 10)
    return found


if __name__ == "__main__":
    # Started with `python -P`: without it this folder would be first on the path, where kafka.py would hide modules.
    print(json.dumps(measure(*sys.argv[1:4], *map(int, sys.argv[4:6]))))
