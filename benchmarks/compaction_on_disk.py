"""Measure a compaction of a running broker by its files, in the same way for Paceline and for Kafka.

A topic with one replica is filled while its policy is ``delete``, then its policy becomes ``compact``. The compaction
lasts from the first ``.cleaned`` file to the topic's line in ``cleaner-offset-checkpoint``.
"""

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as KafkaTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from paceline_client import Admin, NewTopic, Producer

TOPIC: Final = "compacted"
RECORDS: Final = 60_000
KEYS: Final = 10_000
VALUE_BYTES: Final = 1_000
DEADLINE_S: Final = 180.0
BEFORE: Final = {
    "cleanup.policy": "delete",
    "segment.bytes": str(8 << 20),
    "file.delete.delay.ms": "0",
    "min.insync.replicas": "1",
}
AFTER: Final = {**BEFORE, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


def records() -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values, the same for both systems."""
    chance = random.Random(7)
    for _ in range(RECORDS):
        yield b"key-%08d" % chance.randrange(KEYS), chance.randbytes(VALUE_BYTES)


class PacelineTopic:
    """The measured topic in Paceline."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    async def fill(self) -> None:
        """Create and fill the topic."""
        with Admin(self._bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, 1, 1, configs=BEFORE)])
        with Producer(self._bootstrap) as producer:
            for key, value in records():
                producer.send(TOPIC, value, key=key)

    async def compact(self) -> None:
        """Change the policy."""
        with Admin(self._bootstrap) as admin:
            admin.alter_configs({TOPIC: AFTER})


class KafkaCompactedTopic:
    """The measured topic in Kafka."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    async def fill(self) -> None:
        """Create and fill the topic."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        try:
            await admin.create_topics([KafkaTopic(TOPIC, 1, 1, topic_configs=BEFORE)])
        finally:
            await admin.close()
        async with AIOKafkaProducer(bootstrap_servers=self._bootstrap, linger_ms=5) as producer:
            for key, value in records():
                await producer.send(TOPIC, value, key=key)

    async def compact(self) -> None:
        """Change the policy."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        try:
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, TOPIC, configs=AFTER)])
        finally:
            await admin.close()


async def compaction_figures(
    topic: PacelineTopic | KafkaCompactedTopic, directories: list[Path], rate: Callable[[], Awaitable[float]]
) -> dict[str, float]:
    """Return MB/s of a compaction, and the rate of other requests during it divided by their rate without it."""
    await topic.fill()
    log = next(path for directory in directories for path in directory.rglob(f"{TOPIC}-0"))
    size = sum(path.stat().st_size for path in sorted(log.glob("*.log"))[:-1])
    checkpoint = log.parent / "cleaner-offset-checkpoint"
    alone = await rate()
    compacting = asyncio.create_task(_seconds(log, checkpoint))
    await topic.compact()
    await _until(lambda: any(log.glob("*.cleaned")) or compacting.done(), "the compaction begins")
    beside = await rate()
    seconds = await compacting
    return {"compaction_mb_per_s": size / 1e6 / seconds, "commits_beside_compaction": beside / alone}


async def _seconds(log: Path, checkpoint: Path) -> float:
    """Wait for the next compaction and return its duration."""
    await _until(lambda: any(log.glob("*.cleaned")), "the compaction begins")
    begin = time.perf_counter()
    line = re.compile(rf"^{TOPIC} 0 [1-9]", re.MULTILINE)
    await _until(lambda: checkpoint.exists() and line.search(checkpoint.read_text()) is not None, "the compaction ends")
    return time.perf_counter() - begin


async def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.perf_counter() + DEADLINE_S
    while not condition():
        if time.perf_counter() > deadline:
            raise TimeoutError(f"not within {DEADLINE_S:.0f} s: {what}")
        await asyncio.sleep(0.005)
