"""How fast consumer groups are: rebalances by number of members, commits a second, a coordinator that dies.

Members are stubs on one event loop, so that the coordinator is what is measured. Figures go into a JSON file.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import grpc

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline.rpc.errors import from_rpc_error
from paceline.v1 import group_service_pb2 as pb
from paceline.v1.group_service_pb2_grpc import GroupServiceStub
from paceline_client import Admin, NewTopic

HEARTBEAT_S: Final = 0.5
MEMBERS: Final = (10, 100, 500)
GROUPS: Final = 1_000
IN_FLIGHT: Final = 40
COMMITS: Final = 50
PAUSE_S: Final = 0.05


async def coordinator_of(addresses: list[str], group_id: str) -> tuple[int, Any]:
    """Return the broker id of a group's coordinator and its stub."""
    while True:
        for address in addresses:
            async with grpc.aio.insecure_channel(address) as channel:
                try:
                    found = await GroupServiceStub(channel).FindCoordinator(
                        pb.FindCoordinatorRequest(group_id=group_id), timeout=5
                    )
                except grpc.aio.AioRpcError:
                    continue
            return found.broker_id, GroupServiceStub(grpc.aio.insecure_channel(f"{found.host}:{found.port}"))
        await asyncio.sleep(PAUSE_S)


async def join(stub: Any, group_id: str, member_id: str) -> Any:
    """Join until the answer is a generation."""
    protocol = pb.GroupProtocol(name="range", subscription=pb.ConsumerSubscription(topics=["t"]))
    while True:
        request = pb.JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            member_id=member_id,
            protocols=[protocol],
            client_id="bench",
        )
        try:
            return await stub.JoinGroup(request, timeout=90)
        except grpc.aio.AioRpcError as failure:
            error = from_rpc_error(failure)
            member_id = error.metadata.get("member_id", "")
            if not member_id:
                await asyncio.sleep(PAUSE_S)


async def member(stub: Any, group_id: str, index: int, generations: dict[int, int]) -> None:
    """Be a member for ever; note the generation of each assignment."""
    member_id = ""
    while True:
        joined = await join(stub, group_id, member_id)
        member_id = joined.member_id
        assignments = [pb.MemberAssignment(member_id=one.member_id) for one in joined.members]
        ids = {"group_id": group_id, "generation_id": joined.generation_id, "member_id": member_id}
        try:
            await stub.SyncGroup(pb.SyncGroupRequest(assignments=assignments, **ids), timeout=60)
            generations[index] = joined.generation_id
            while True:
                await asyncio.sleep(HEARTBEAT_S)
                await stub.Heartbeat(pb.HeartbeatRequest(**ids), timeout=10)
        except grpc.aio.AioRpcError:
            continue


async def rebalances(addresses: list[str]) -> dict[str, Any]:
    """Measure how long a group takes to form, and to take one more member in."""
    figures: dict[str, Any] = {}
    for count in MEMBERS:
        group_id = f"rebalance-{count}"
        _, stub = await coordinator_of(addresses, group_id)
        generations: dict[int, int] = {}

        async def settled(wanted: int, generations: dict[int, int] = generations) -> float:
            begin = time.perf_counter()
            while len(generations) < wanted or len(set(generations.values())) > 1:
                await asyncio.sleep(0.01)
            return time.perf_counter() - begin

        tasks = [asyncio.create_task(member(stub, group_id, index, generations)) for index in range(count)]
        formed_s = await settled(count)
        tasks.append(asyncio.create_task(member(stub, group_id, count, generations)))
        figures[str(count)] = {"formed_s": round(formed_s, 2), "one_more_s": round(await settled(count + 1), 2)}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return figures


def commit_of(group_id: str, offset: int, partition: int = 0) -> pb.CommitOffsetsRequest:
    """Return a commit of a caller that is no member."""
    offsets = [pb.OffsetToCommit(topic="t", partition=partition, offset=offset)]
    return pb.CommitOffsetsRequest(group_id=group_id, offsets=offsets)


async def commits(addresses: list[str]) -> float:
    """Return commits a second, one partition each, to one group."""
    _, stub = await coordinator_of(addresses, "commits")

    async def committer(partition: int) -> None:
        for offset in range(COMMITS):
            await stub.CommitOffsets(commit_of("commits", offset, partition), timeout=30)

    begin = time.perf_counter()
    await asyncio.gather(*(committer(partition) for partition in range(IN_FLIGHT)))
    return round(IN_FLIGHT * COMMITS / (time.perf_counter() - begin), 1)


async def failover(cluster: LocalCluster, addresses: list[str]) -> dict[str, Any]:
    """Kill a coordinator and return how long its groups were without one, detection included."""
    names = [f"group-{number}" for number in range(GROUPS)]
    stubs: dict[int, Any] = {}
    homes: dict[str, int] = {}
    for name in names:
        homes[name], stub = await coordinator_of(addresses, name)
        stubs.setdefault(homes[name], stub)
        await stubs[homes[name]].CommitOffsets(commit_of(name, 7), timeout=30)
    victim = homes[names[0]]
    bereaved = [name for name in names if homes[name] == victim]
    cluster.kill(cluster.nodes[f"broker-{victim}"])
    begin = time.perf_counter()
    waiting = set(bereaved)
    while waiting:
        for name in tuple(waiting):
            try:
                _, stub = await coordinator_of(addresses, name)
                answer = await stub.FetchOffsets(pb.FetchOffsetsRequest(group_id=name), timeout=2)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(PAUSE_S)
                continue
            assert answer.partitions[0].offset == 7, name
            waiting.discard(name)
    return {"groups": len(bereaved), "seconds": round(time.perf_counter() - begin, 2)}


async def measure(cluster: LocalCluster) -> dict[str, Any]:
    """Return all figures."""
    addresses = cluster.bootstrap.split(",")
    figures: dict[str, Any] = {"rebalance": await rebalances(addresses), "commits_per_s": await commits(addresses)}
    figures["failover"] = await failover(cluster, addresses)
    return figures


def main() -> None:
    """Start a cluster, measure, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("build/bench/groups.json"))
    output = parser.parse_args().output
    with tempfile.TemporaryDirectory(prefix="paceline-groups-") as directory:
        cluster = LocalCluster(Path(directory), CONFIG_FILE, controllers=1, heap_mib=64, ports=free_plan(1, 3))
        cluster.start()
        try:
            with Admin(cluster.bootstrap) as admin:
                admin.create_topics([NewTopic("t", partitions=3)])
            figures = asyncio.run(measure(cluster))
        finally:
            cluster.stop(force=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
