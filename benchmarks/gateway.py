"""Measure the gateway beside direct Python clients, its idle streams, and the neighbours of a stalled subscriber.

rate         publishers on streams and subscribers in one group, through one gateway and with the Python client, in turn
idle         streams of ten groups on 20 connections: memory and processor of the gateway
neighbours   p99 from publish to delivery beside a subscriber that reads and beside one that has stopped reading
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import grpc.aio
import psutil

from benchmarks.cpu import CpuMeter
from benchmarks.stamp import headline, stamp
from paceline.dev.local_cluster import LocalCluster
from paceline.testing import run_cluster
from paceline.v1 import gateway_service_pb2 as pb
from paceline.v1.gateway_service_pb2_grpc import GatewayServiceStub
from paceline_client import Admin, AsyncProducer, Connections, Consumer, NewTopic

VALUE = b"v" * 100
PROCESSES = 2
Result = dict[str, Any]


def acknowledgement(records: pb.DeliveredRecords) -> pb.SubscribeRequest:
    """Return the acknowledgement of a delivery."""
    return pb.SubscribeRequest(acknowledge=pb.Positions(positions=[records.next]))


def _p99_ms(seconds: list[float]) -> float:
    return round(1000 * sorted(seconds)[int(len(seconds) * 0.99)], 1) if seconds else 0.0


async def _publish_stream(address: str, topic: str, number: int, until: float, records: int) -> tuple[int, list[float]]:
    """Send requests on one stream with eight under way; return the records and the seconds to each answer."""
    async with grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", number % 10 == 0)]) as channel:
        call = GatewayServiceStub(channel).PublishStream()
        sent: dict[int, float] = {}
        count, taken, seconds = 0, 0, []
        rows = [pb.PublishRecord(value=VALUE, key=b"%d" % number)] * records
        while True:
            while len(sent) < 8 and time.monotonic() < until:
                count += 1
                sent[count] = time.monotonic()
                await call.write(
                    pb.PublishStreamRequest(number=count, publish=pb.PublishRequest(topic=topic, records=rows))
                )
            if not sent:
                await call.done_writing()
                return taken, seconds
            answer = await call.read()
            assert not answer.HasField("error"), answer
            seconds.append(time.monotonic() - sent.pop(answer.number))
            taken += records


async def _publish_directly(
    connections: Connections, topic: str, number: int, until: float, records: int
) -> tuple[int, list[float]]:
    taken, seconds = 0, []
    async with AsyncProducer(connections, linger_ms=1) as producer:
        while time.monotonic() < until:
            began = time.monotonic()
            futures = [await producer.send(topic, VALUE, b"%d" % number) for _ in range(8 * records)]
            await asyncio.gather(*futures)
            seconds.append(time.monotonic() - began)
            taken += len(futures)
    return taken, seconds


def publishers(kind: str, address: str, topic: str, numbers: range, seconds: float, records: int, out: Any) -> None:
    """Run publishers in this process and put (records, seconds per answer) into ``out``."""

    async def run() -> list[tuple[int, list[float]]]:
        until = time.monotonic() + seconds
        if kind == "gateway":
            return await asyncio.gather(*(_publish_stream(address, topic, one, until, records) for one in numbers))
        with Connections(address) as connections:
            work = (_publish_directly(connections, topic, one, until, records) for one in numbers)
            return await asyncio.gather(*work)

    found = asyncio.run(run())
    out.put((sum(one[0] for one in found), [each for one in found for each in one[1]]))


def subscribers(kind: str, address: str, topic: str, count: int, seconds: float, out: Any) -> None:
    """Run subscribers of one group in this process and put the number of records into ``out``."""
    group, until = f"bench-{topic}", time.monotonic() + seconds

    async def subscribe() -> int:
        async with grpc.aio.insecure_channel(address) as channel:
            call = GatewayServiceStub(channel).Subscribe()
            await call.write(pb.SubscribeRequest(subscribe=pb.Subscription(topics=[topic], group=group)))
            got = 0
            while (left := until - time.monotonic()) > 0:
                with suppress(TimeoutError):
                    response = await asyncio.wait_for(call.read(), left)
                    if response.HasField("records"):
                        got += len(response.records.records)
                        await call.write(
                            pb.SubscribeRequest(acknowledge=pb.Positions(positions=[response.records.next]))
                        )
            call.cancel()
            return got

    def consume(consumer: Consumer) -> int:
        consumer.subscribe([topic])
        got = 0
        while time.monotonic() < until:
            got += sum(map(len, consumer.poll(200).values()))
        consumer.close()
        return got

    async def run() -> int:
        if kind == "gateway":
            return sum(await asyncio.gather(*(subscribe() for _ in range(count))))
        with Connections(address) as connections:
            made = [Consumer(connections, group_id=group, session_timeout_ms=10_000) for _ in range(count)]
            loop = asyncio.get_running_loop()
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(count) as pool:
                return sum(await asyncio.gather(*(loop.run_in_executor(pool, consume, one) for one in made)))

    out.put(asyncio.run(run()))


def rate(cluster: LocalCluster, kind: str, topic: str, arguments: argparse.Namespace) -> Result:
    """Run publishers and subscribers together; return their rates."""
    address = cluster.bootstrap if kind == "direct" else cluster.nodes["gateway-1"].client_address
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, partitions=50, replication_factor=3)])
    context = multiprocessing.get_context("spawn")
    published, delivered = context.Queue(), context.Queue()
    seconds, share = arguments.seconds, arguments.publishers // PROCESSES
    work = [
        context.Process(target=subscribers, args=(kind, address, topic, arguments.subscribers, seconds + 12, delivered))
    ]
    for index in range(PROCESSES):
        numbers = range(index * share, (index + 1) * share)
        work.append(
            context.Process(
                target=publishers, args=(kind, address, topic, numbers, seconds, arguments.records, published)
            )
        )
    work[0].start()
    time.sleep(8)
    for one in work[1:]:
        one.start()
    found = [published.get(timeout=seconds + 120) for _ in range(PROCESSES)]
    got = delivered.get(timeout=seconds + 120)
    for one in work:
        one.join(60)
    latencies = [each for _, several in found for each in several]
    count = sum(one[0] for one in found)
    return {
        "kind": kind,
        "published_per_s": round(count / seconds),
        "delivered": got,
        "published": count,
        "p99_ms": _p99_ms(latencies),
    }


def idle(cluster: LocalCluster, arguments: argparse.Namespace) -> Result:
    """Open idle streams and return memory and processor of the gateway."""
    node = cluster.nodes["gateway-1"]
    assert node.process is not None
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("idle", partitions=30, replication_factor=3)])

    async def run() -> Result:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(node.client_address, options) for _ in range(20)]
        calls = []
        for index in range(arguments.idle_streams):
            call = GatewayServiceStub(channels[index % 20]).Subscribe()
            subscription = pb.Subscription(topics=["idle"], group=f"idle-{index % 10}")
            await call.write(pb.SubscribeRequest(subscribe=subscription))
            calls.append(call)
        await asyncio.sleep(20)
        assert node.process is not None
        meter, began = CpuMeter([node.process.pid]), time.monotonic()
        await asyncio.sleep(arguments.seconds)
        share = 100 * meter.seconds() / (time.monotonic() - began)
        memory = psutil.Process(node.process.pid).memory_info().rss / 2**20
        for call in calls:
            call.cancel()
        return {"streams": len(calls), "memory_mib": round(memory), "cpu_percent": round(share, 1)}

    return asyncio.run(run())


def neighbour(cluster: LocalCluster, stalled: bool, name: str, seconds: float) -> float:
    """Return the p99 of publish to delivery, in ms, beside a subscriber that has stopped reading or one that reads."""
    node = cluster.nodes["gateway-1"]
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions=2, replication_factor=3)])

    async def run() -> float:
        async with (
            grpc.aio.insecure_channel(node.client_address, [("grpc.use_local_subchannel_pool", 1)]) as one,
            grpc.aio.insecure_channel(node.client_address, [("grpc.use_local_subchannel_pool", 1)]) as two,
        ):
            delays: list[float] = []
            calls = [GatewayServiceStub(channel).Subscribe() for channel in (one, two)]
            wanted = pb.Subscription(topics=[name], start_at=pb.START_AT_LATEST, credit_records=2**31 - 1)

            async def read(call: Any, keep: bool) -> None:
                await call.write(pb.SubscribeRequest(subscribe=wanted))
                while stalled is False or keep:
                    response = await call.read()
                    if keep:
                        delays.extend(time.time() - float(one.key) for one in response.records.records)
                    if response.HasField("records"):
                        await call.write(
                            pb.SubscribeRequest(acknowledge=pb.Positions(positions=[response.records.next]))
                        )

            tasks = [asyncio.create_task(read(call, index == 0)) for index, call in enumerate(calls)]
            await asyncio.sleep(2)
            publish, until = GatewayServiceStub(one), time.monotonic() + seconds
            while time.monotonic() < until:
                await publish.Publish(pb.PublishRequest(topic=name, key=b"%.6f" % time.time(), value=b"v" * 10_000))
            await asyncio.sleep(0.5)
            for task in tasks:
                task.cancel()
            return _p99_ms(delays)

    return asyncio.run(run())


def main() -> None:
    """Run the parts, print their results and write them as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--publishers", type=int, default=200)
    parser.add_argument("--subscribers", type=int, default=50)
    parser.add_argument("--records", type=int, default=10, help="records per request")
    parser.add_argument("--idle-streams", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--neighbour-pairs", type=int, default=7)
    parser.add_argument("--output", type=Path, default=Path("build/bench/gateway.json"))
    arguments = parser.parse_args()
    found = stamp()
    print(headline(found), flush=True)
    results: list[Result] = []
    with TemporaryDirectory() as folder, run_cluster(Path(folder), brokers=3, controllers=1) as running:
        cluster = running.local
        cluster.start_gateway()
        results.append({"idle": idle(cluster, arguments)})
        print(results[-1], flush=True)
        for index in range(arguments.pairs):
            pair = {kind: rate(cluster, kind, f"rate-{kind}-{index}", arguments) for kind in ("gateway", "direct")}
            pair_ratio = pair["gateway"]["published_per_s"] / pair["direct"]["published_per_s"]
            results.append({"rate": pair, "ratio": round(pair_ratio, 2)})
            print(results[-1], flush=True)
        ratios = []
        for index in range(arguments.neighbour_pairs):
            order = (False, True) if index % 2 else (True, False)
            p99 = {one: neighbour(cluster, one, f"near-{index}-{one}", arguments.seconds / 2) for one in order}
            ratios.append(p99[True] / p99[False])
            results.append({"neighbour_p99_ms": {"beside a reader": p99[False], "beside a stalled": p99[True]}})
            print(results[-1], flush=True)
    if ratios:
        print(f"neighbours of a stalled subscriber: ratio of p99, median {statistics.median(ratios):.2f}")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({**found, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
