"""Measure decisions of access lists in this process: one decision, a check on an open stream, indexing the rules.

    python -m benchmarks.access --output build/bench/access.json
    python -m benchmarks.access --read 100000

With ``--read`` it measures the first read of so many resources from a ZooKeeper server of its own instead.

Rules: half literal, half prefixed, of 100 principals; asked are topics that a rule allows, that a rule denies, and that
none is about, of a caller that no cache knows. The limit of a decision with 10,000 rules is 10 us, of a check on a
stream 2 us.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from paceline.coordination import znodes
from paceline.coordination.access_lists import AccessListReader
from paceline.coordination.flow import Flow, Zk
from paceline.coordination.interface import Create, Multi
from paceline.coordination.kazoo.client import KazooZooKeeper
from paceline.coordination.patient_zookeeper import PatientZooKeeper
from paceline.coordination.recipes import ensure_paths
from paceline.dev.ports import free_ports
from paceline.model.acls import AccessRules, AclEntry, Operation, PatternType, Permission, ResourcePattern, ResourceType
from paceline.rpc.security.authorizer import Authorizer, Call, Caller, Mode
from paceline.runtime.asyncio_scheduler import AsyncioScheduler
from paceline.runtime.embedded_zookeeper import EmbeddedZooKeeper
from paceline.runtime.zookeeper_flow import ask_zookeeper

ROUNDS = 7
CALLS = 20_000


def rules_of(count: int, rng: random.Random) -> dict[ResourcePattern, tuple[AclEntry, ...]]:
    """Return ``count`` rules on as many topics."""
    found: dict[ResourcePattern, tuple[AclEntry, ...]] = {}
    for index in range(count):
        pattern = PatternType.PREFIXED if index % 2 else PatternType.LITERAL
        name = f"team-{rng.randrange(100)}.{index:06d}" + "." * (index % 2)
        permission = Permission.DENY if index % 10 == 0 else Permission.ALLOW
        entry = AclEntry(f"User:{rng.randrange(100)}", permission, Operation.READ)
        found[ResourcePattern(ResourceType.TOPIC, name, pattern)] = (entry,)
    return found


def nanoseconds(call: Callable[[], object], calls: int = CALLS) -> float:
    """Return the median over rounds of the mean time of a call."""
    rounds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        for _ in range(calls):
            call()
        rounds.append((time.perf_counter_ns() - begin) / calls)
    return statistics.median(rounds)


def measured(count: int) -> dict[str, float]:
    """Return the figures with ``count`` rules."""
    rng = random.Random(count)
    resources = rules_of(count, rng)
    begin = time.perf_counter()
    rules = AccessRules(resources)
    index_s = time.perf_counter() - begin
    asked = [f"{pattern.name}x" if pattern.pattern is PatternType.PREFIXED else pattern.name for pattern in resources]
    asked = rng.choices(asked, k=500) + [f"absent-{index}" for index in range(500)]
    names, principals = iter(asked * (CALLS // 100)), [f"User:{index}" for index in range(100)]

    def decide() -> None:
        rules.decide(principals[7], "10.0.0.1", Operation.READ, ResourceType.TOPIC, next(names))

    changed = {next(iter(resources)): ()}
    authorizer = Authorizer(Mode.ENFORCE)
    everything = (AclEntry("User:*", Permission.ALLOW, Operation.ALL),)
    authorizer.use(rules.changed({ResourcePattern(ResourceType.TOPIC, "*"): everything}))
    stream = Call(Caller("User:7"), authorizer, "", "CLIENT", "ipv4:10.0.0.1:1", None, None)
    return {
        "rules": count,
        "decision_us": nanoseconds(decide) / 1_000,
        "stream_check_us": nanoseconds(lambda: stream.may(Operation.READ, ResourceType.TOPIC, "rides")) / 1_000,
        "index_s": index_s,
        "one_change_ms": nanoseconds(lambda: rules.changed(changed), 5) / 1_000_000,
    }


async def read_all(address: str, count: int) -> dict[str, float]:
    """Write ``count`` resources; return the seconds of the first read of them all, on the clock and of this process."""
    scheduler = AsyncioScheduler(asyncio.get_running_loop())
    resources = list(rules_of(count, random.Random(count)).items())

    def fill() -> Flow[None]:
        yield from ensure_paths(znodes.ACL_NODES)
        for first in range(0, count, 1_000):
            some = resources[first : first + 1_000]
            creates = [Create(znodes.acl_path(resource), znodes.encode_acls(entries)) for resource, entries in some]
            (written,) = yield Zk([Multi(tuple(creates))])
            assert written.ok, written.code

    await ask_zookeeper(PatientZooKeeper(KazooZooKeeper(address, 30_000, scheduler.post)), scheduler, fill(), 600_000)
    done: asyncio.Future[AccessRules] = asyncio.get_running_loop().create_future()
    client = KazooZooKeeper(address, 30_000, scheduler.post)
    reader = AccessListReader(client, scheduler, random.Random(1), done.set_result)
    begin_s, cpu_s = time.perf_counter(), time.process_time()
    reader.start(lambda _event: None, lambda _event: None)
    assert len((await done).resources) == count
    figures = {"resources": count, "read_s": time.perf_counter() - begin_s, "cpu_s": time.process_time() - cpu_s}
    reader.close()
    return figures


def read_from_own_server(count: int) -> dict[str, float]:
    """Start a server, measure, and stop the server."""
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedZooKeeper(folder, free_ports(1, "127.0.0.1")[0], heap_mib=512)
        server.start()
        try:
            return asyncio.run(read_all(server.address, count))
        finally:
            server.kill()


def main() -> None:
    """Measure with several numbers of rules, print the figures and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--read", type=int, metavar="COUNT")
    arguments = parser.parse_args()
    output = arguments.output
    if arguments.read:
        results = [read_from_own_server(arguments.read)]
    else:
        results = [measured(count) for count in (100, 10_000, 100_000)]
    for result in results:
        print("  ".join(f"{name}={figure:.3f}" for name, figure in result.items()))
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
