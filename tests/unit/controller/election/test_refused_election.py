"""ZooKeeper refuses one request after another: no refusal ends a process's part in elections."""

from dataclasses import dataclass, field

import pytest

from paceline.coordination.interface import Multi, Request, Response, ZkCode
from tests.support.zookeeper.server import MemoryZooKeeperServer, ServerConnection
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster

LONGEST_PAUSE_MS = 61_000
"""Longest pause between two attempts, and an election."""


@dataclass
class Refusals:
    """Refuses requests with these numbers; counts from the last `begin`."""

    numbers: range = range(0)
    count: int = 0
    refused: list[Request] = field(default_factory=list)

    def begin(self, numbers: range) -> None:
        self.numbers, self.count, self.refused = numbers, 0, []

    def refuses(self, request: Request) -> bool:
        self.count += 1
        if self.count - 1 in self.numbers:
            self.refused.append(request)
            return True
        return False


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> Refusals:
    found = Refusals()
    execute = MemoryZooKeeperServer._execute

    def maybe_refuse(server: MemoryZooKeeperServer, connection: ServerConnection, request: Request) -> Response:
        if not found.refuses(request):
            return execute(server, connection, request)
        results = [Response(ZkCode.ROLLED_BACK)] * len(request.operations) if isinstance(request, Multi) else []
        return Response(ZkCode.OTHER, results=(*results[1:], Response(ZkCode.OTHER)))

    monkeypatch.setattr(MemoryZooKeeperServer, "_execute", maybe_refuse)
    return found


@pytest.mark.parametrize("length", [1, 3, 1_000])
@pytest.mark.parametrize("is_failover", [False, True])
def test_a_process_takes_part_in_elections_whichever_requests_zookeeper_refused(
    refusals: Refusals, is_failover: bool, length: int
) -> None:
    first = 0
    while True:
        refusals.begin(range(0))
        cluster = Cluster()
        cluster.start_broker(1)
        if is_failover:
            cluster.start_controller()
            cluster.start_controller(CONTROLLER_ID + 1)
            cluster.settle()
        refusals.begin(range(first, first + length))
        if is_failover:
            cluster.controllers.pop(CONTROLLER_ID).stop()
        else:
            cluster.start_controller()
        cluster.time.run_for(2_000)
        refused = refusals.refused
        refusals.begin(range(0))
        cluster.time.run_for(LONGEST_PAUSE_MS)
        (node,) = cluster.controllers.values()
        assert node.is_active, refused
        if not refused:
            break
        first += 1
    assert first > 20, "each request of the election was refused once"
