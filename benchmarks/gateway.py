"""Measure the gateway beside clients that call the brokers, its idle streams, and neighbours of a stalled subscriber.

rate         publishers on streams, which wait for each answer, and subscribers, in turn: through one gateway (the
             subscribers in a group) and on streams to the leaders (without a group); a Go program on stubs alone
idle         streams of ten groups on 20 connections: memory and processor of the gateway
neighbours   p99 from publish to delivery beside a subscriber that reads and beside one that has stopped reading
"""

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import grpc.aio
import psutil

from benchmarks.callers import go_program, measured
from benchmarks.cpu import CpuMeter
from benchmarks.stamp import headline, stamp
from paceline.dev.local_cluster import LocalCluster
from paceline.testing import run_cluster
from paceline.v1 import gateway_service_pb2 as pb
from paceline.v1.gateway_service_pb2_grpc import GatewayServiceStub
from paceline_client import Admin, NewTopic

Result = dict[str, Any]


def _p99_ms(seconds: list[float]) -> float:
    return round(1000 * sorted(seconds)[int(len(seconds) * 0.99)], 1) if seconds else 0.0


def rate(cluster: LocalCluster, program: Path, mode: str, topic: str, arguments: argparse.Namespace) -> Result:
    """Run publishers and subscribers together, through the gateway or on streams to the leaders; return their rates."""
    with Admin(cluster.bootstrap) as admin:
        settings = {"min.insync.replicas": "2"}
        admin.create_topics([NewTopic(topic, partitions=50, replication_factor=3, configs=settings)])
    command = [
        str(program), "-mode", mode, "-topic", topic, "-bootstrap", cluster.bootstrap.split(",")[0],
        "-gateway", cluster.nodes["gateway-1"].client_address, "-count", str(arguments.publishers),
        "-subscribers", str(arguments.subscribers), "-records", topic.split("-")[1],
        "-warm-up", "6s", "-length", f"{arguments.seconds:.0f}s",
    ]  # fmt: skip
    serving = [node.process.pid for name, node in cluster.nodes.items() if not name.startswith("zoo") and node.process]
    found = measured(command, int(arguments.seconds), lambda: serving)
    return {
        "requests_per_s": round(found.rate),
        "delivered_per_s": round(found.delivered / arguments.seconds),
        "p50_ms": round(found.p50_ms, 1),
        "p99_ms": round(found.p99_ms, 1),
        "cpu_us": round(found.cpu_us),
        "errors": found.errors,
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
    parser.add_argument("--records", type=int, nargs="*", default=[1, 10], help="records per request")
    parser.add_argument("--idle-streams", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--neighbour-pairs", type=int, default=7)
    parser.add_argument("--output", type=Path, default=Path("build/bench/gateway.json"))
    arguments = parser.parse_args()
    found = stamp()
    print(headline(found), flush=True)
    program = go_program()
    results: list[Result] = []
    with TemporaryDirectory() as folder, run_cluster(Path(folder), brokers=3, controllers=1) as running:
        cluster = running.local
        cluster.start_gateway()
        results.append({"idle": idle(cluster, arguments)})
        print(results[-1], flush=True)
        for records in arguments.records:
            shares = []
            for index in range(arguments.pairs):
                order = ("gateway", "stream") if index % 2 else ("stream", "gateway")
                pair = {mode: rate(cluster, program, mode, f"{mode}-{records}-{index}", arguments) for mode in order}
                shares.append(pair["gateway"]["requests_per_s"] / pair["stream"]["requests_per_s"])
                results.append({"rate": pair, "records per request": records, "ratio": round(shares[-1], 2)})
                print(results[-1], flush=True)
            print(f"rate with {records} records per request: median ratio {statistics.median(shares):.2f}", flush=True)
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
