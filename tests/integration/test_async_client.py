"""The asyncio clients."""

import asyncio

import pytest

from paceline.dev.local_cluster import LocalCluster
from paceline.model.errors import UnknownTopicOrPartitionError
from paceline_client import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, NewTopic, RecordMetadata

pytestmark = pytest.mark.timeout(120)

QUICK = {"heartbeat_interval_ms": 200, "session_timeout_ms": 3_000}


def make_topic(cluster: LocalCluster, name: str) -> str:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions=2, replication_factor=3)])
    return name


def test_send_gives_a_standard_future_and_the_loop_is_never_blocked(local_cluster: LocalCluster) -> None:
    topic = make_topic(local_cluster, "async-send")

    async def program() -> None:
        gaps: list[float] = []

        async def tick() -> None:
            while True:
                begin = asyncio.get_running_loop().time()
                await asyncio.sleep(0.01)
                gaps.append(asyncio.get_running_loop().time() - begin)

        ticking = asyncio.create_task(tick())
        async with AsyncProducer(local_cluster.bootstrap) as producer:
            futures = [await producer.send(topic, b"%d" % value, partition=0) for value in range(100)]
            assert all(isinstance(one, asyncio.Future) for one in futures)
            placed: list[RecordMetadata] = await asyncio.gather(*futures)
            assert [one.offset for one in placed] == list(range(100))
            assert (await producer.send_and_wait(topic, b"x", partition=1)).offset == 0
            with pytest.raises(UnknownTopicOrPartitionError):
                await producer.send("no-such-topic", b"x")
        async with AsyncAdmin(local_cluster.bootstrap) as admin:
            assert topic in await admin.list_topics()
        ticking.cancel()
        assert max(gaps) < 2.0, "the event loop was blocked"

    asyncio.run(program())


def test_two_async_members_share_a_topic_and_commit_only_what_they_returned(local_cluster: LocalCluster) -> None:
    topic = make_topic(local_cluster, "async-group")
    bootstrap = local_cluster.bootstrap

    async def program() -> None:
        async with AsyncProducer(bootstrap) as producer:
            for value in range(20):
                await producer.send(topic, b"%d" % value, partition=value % 2)
            await producer.flush()
        consumer = AsyncConsumer(topic, bootstrap=bootstrap, group_id="async", **QUICK)
        await consumer.start()
        first = [(await consumer.getone()).value for _ in range(5)]
        await consumer.stop()
        members = [AsyncConsumer(topic, bootstrap=bootstrap, group_id="async", **QUICK) for _ in range(2)]
        seen: list[bytes | None] = []

        async def read(member: AsyncConsumer) -> None:
            async for record in member:
                seen.append(record.value)  # noqa: PERF401

        async with members[0], members[1]:
            tasks = [asyncio.create_task(read(member)) for member in members]
            async with asyncio.timeout(30):
                while len(seen) < 15 or {len(member.assignment()) for member in members} != {1}:
                    await asyncio.sleep(0.1)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(set(seen) | set(first)) == sorted(b"%d" % value for value in range(20))
        assert not set(seen) & set(first), "a record that was returned and committed was returned again"

    asyncio.run(program())


def test_record_whose_reader_was_cancelled_is_returned_again(local_cluster: LocalCluster) -> None:
    topic = make_topic(local_cluster, "async-cancelled")

    async def program() -> None:
        async with (
            AsyncProducer(local_cluster.bootstrap) as producer,
            AsyncConsumer(topic, bootstrap=local_cluster.bootstrap, group_id="cancelled", **QUICK) as consumer,
        ):
            found: list[bytes | None] = []
            for value in range(20):
                waiting = asyncio.create_task(consumer.getone())
                await producer.send_and_wait(topic, b"%d" % value, partition=0)
                waiting.cancel()
                for one in await asyncio.gather(waiting, return_exceptions=True):
                    found += [] if isinstance(one, BaseException) else [one.value]
            while len(found) < 20:
                found.append((await asyncio.wait_for(consumer.getone(), 20)).value)
        assert found == [b"%d" % value for value in range(20)]

    asyncio.run(program())
