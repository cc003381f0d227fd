"""Writes records into a Kafka cluster, for comparisons."""

import asyncio
from collections.abc import Mapping, Sequence

Record = tuple[int, bytes | None, bytes | None, int, list[tuple[str, bytes]]]
"""Partition, key, value, timestamp in milliseconds, headers."""


def write(bootstrap: str, records: Mapping[str, Sequence[Record]]) -> None:
    """Write the records of each topic in order and wait until they are acknowledged."""
    asyncio.run(_write(bootstrap, records))


async def _write(bootstrap: str, records: Mapping[str, Sequence[Record]]) -> None:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    await producer.start()
    try:
        sent = [
            await producer.send(topic, value, key, partition, timestamp_ms, headers)
            for topic, found in records.items()
            for partition, key, value, timestamp_ms, headers in found
        ]
        await asyncio.gather(*sent)
    finally:
        await producer.stop()
