"""The real ZooKeeper and the in-memory one return the same responses and watch events for the same commands.

Commands come from seeds and from Hypothesis, which shrinks a difference to the few commands that show it. For longer
runs, set ``PACELINE_DIFFERENTIAL_STEPS=20000``.
"""

import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.coordination.interface import (
    Check,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Operation,
    Request,
    Response,
    SessionState,
    SetData,
    Stat,
    WatchEvent,
)
from paceline.runtime.embedded_zookeeper import EmbeddedZooKeeper
from tests.integration.zookeeper_backends import Backend, Client, MemoryBackend, RealBackend

pytestmark = pytest.mark.zookeeper

SESSIONS = 3
STEPS = int(os.environ.get("PACELINE_DIFFERENTIAL_STEPS", "1500"))
NAMES = ("/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/z")
DATA = (None, b"", b"1", b"two")


@dataclass(frozen=True)
class Send:
    """Requests of one session, submitted one by one without waiting for responses."""

    session: int
    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Close:
    """Close a session and open another session in its place."""

    session: int


Command = Send | Close


class Zxids:
    """Pairs of zxids that both servers returned at the same place; their order and equality must agree."""

    def __init__(self) -> None:
        self._pairs: set[tuple[int, int]] = set()

    def add(self, real: int, memory: int) -> None:
        self._pairs.add((real, memory))

    def check(self) -> None:
        ordered = sorted(self._pairs)
        for (real_a, memory_a), (real_b, memory_b) in itertools.pairwise(ordered):
            assert real_a < real_b and memory_a < memory_b, f"{(real_a, memory_a)} and {(real_b, memory_b)}"


class Side:
    """One of the two servers with its sessions."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.clients = [backend.client() for _ in range(SESSIONS)]
        self.owners = {client.zookeeper.session_id: number for number, client in enumerate(self.clients)}

    def play(self, command: Command) -> list[list[object]]:
        """Run a command; return the responses and watch events of each session, in order."""
        for client in self.clients:
            client.recorder.log.clear()
        if isinstance(command, Send):
            client = self.clients[command.session]
            answers = [client.recorder.submit(request) for request in command.requests]
            self.backend.time.run_until(lambda: all(answers))
        else:
            self._replace(command.session)
        # The response to a read follows all watch events of earlier changes, so a read serves as a barrier.
        self._barrier()
        return [self._told(client) for client in self.clients]

    def _replace(self, number: int) -> None:
        old = self.clients[number]
        old.zookeeper.close()
        self.backend.time.run_until(lambda: SessionState.CLOSED in old.recorder.states)
        if isinstance(self.backend, MemoryBackend):
            server = self.backend.server
            self.backend.time.run_until(lambda: len(server.session_ids()) == SESSIONS - 1)
        self.clients[number] = self.backend.client()
        self.owners[self.clients[number].zookeeper.session_id] = 100 * len(self.owners) + number
        self.clients[number].recorder.log.clear()

    def _barrier(self) -> None:
        answers = [client.recorder.submit(Exists("/")) for client in self.clients]
        self.backend.time.run_until(lambda: all(answers))
        for client in self.clients:
            client.recorder.log.pop()

    @staticmethod
    def _told(client: Client) -> list[object]:
        return [entry[0] if isinstance(entry, list) else entry for entry in client.recorder.log]


class Pair:
    """Both servers; `play` runs a command on both and compares the results."""

    def __init__(self, real: Side, memory: Side) -> None:
        self.real = real
        self.memory = memory
        self.zxids = Zxids()
        self.steps = 0

    def play(self, command: Command) -> None:
        self.steps += 1
        told = zip(self.real.play(command), self.memory.play(command), strict=True)
        for number, (real, memory) in enumerate(told):
            if isinstance(command, Close):
                # ZooKeeper does not define the order in which a session's ephemeral nodes are deleted.
                real, memory = sorted(real, key=repr), sorted(memory, key=repr)
            assert len(real) == len(memory), f"session {number}: {real} but in memory {memory}"
            for seen, modelled in zip(real, memory, strict=True):
                if isinstance(seen, WatchEvent):
                    assert seen == modelled, f"session {number}"
                else:
                    assert isinstance(seen, Response) and isinstance(modelled, Response), f"session {number}"
                    self._compare(seen, modelled)

    def _compare(self, real: Response, memory: Response) -> None:
        assert real.code is memory.code
        assert (real.data, real.children, real.path) == (memory.data, memory.children, memory.path)
        assert len(real.results) == len(memory.results)
        for one, other in zip(real.results, memory.results, strict=True):
            self._compare(one, other)
        assert (real.stat is None) == (memory.stat is None)
        if real.stat is not None and memory.stat is not None:
            assert self._visible(self.real, real.stat) == self._visible(self.memory, memory.stat)
            self.zxids.add(real.stat.czxid, memory.stat.czxid)
            self.zxids.add(real.stat.mzxid, memory.stat.mzxid)

    @staticmethod
    def _visible(side: Side, stat: Stat) -> tuple[object, ...]:
        owner = side.owners[stat.ephemeral_owner] if stat.ephemeral_owner else None
        return stat.version, stat.cversion, stat.num_children, owner


@pytest.fixture(scope="module")
def pair(zookeeper_server: EmbeddedZooKeeper) -> Iterator[Pair]:
    real, memory = RealBackend(zookeeper_server, "server/differential"), MemoryBackend()
    yield Pair(Side(real), Side(memory))
    real.close()
    memory.close()


def requests_under(root: str) -> st.SearchStrategy[Request]:
    paths = st.sampled_from([root + name for name in NAMES])
    versions = st.sampled_from([-1, -1, 0, 1, 2])
    data = st.sampled_from(DATA)
    bytes_only = st.sampled_from([value for value in DATA if value is not None])
    create = st.builds(Create, paths, data, st.booleans(), st.just(False))
    sequential = st.builds(Create, st.sampled_from([f"{root}/", f"{root}/a/n_"]), data, st.booleans(), st.just(True))
    set_data = st.builds(SetData, paths, bytes_only, versions)
    delete = st.builds(Delete, paths, versions)
    writes: st.SearchStrategy[Operation] = st.one_of(create, create, sequential, set_data, delete)
    operations = st.one_of(writes, writes, st.builds(Check, paths, versions))
    reads = st.one_of(
        st.builds(GetData, paths, st.booleans()),
        st.builds(Exists, paths, st.booleans()),
        st.builds(GetChildren, st.one_of(paths, st.just(root)), st.booleans()),
    )
    multi = st.builds(Multi, st.lists(operations, max_size=5).map(tuple))
    return st.one_of(writes, writes, reads, multi)


def commands_under(root: str) -> st.SearchStrategy[Command]:
    send = st.builds(
        Send, st.integers(0, SESSIONS - 1), st.lists(requests_under(root), min_size=1, max_size=6).map(tuple)
    )
    return st.one_of(*[send] * 12, st.builds(Close, st.integers(0, SESSIONS - 1)))


_examples = itertools.count(1)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(commands_under("/ROOT"), max_size=25))
def test_both_servers_give_the_same_results_for_any_commands(pair: Pair, commands: list[Command]) -> None:
    root = f"/hypothesis-{next(_examples)}"
    pair.play(Send(0, (Create(root),)))
    for command in commands:
        pair.play(at(command, root))
    pair.zxids.check()


def at(command: Command, root: str) -> Command:
    """Return the command with ``root`` in place of the placeholder root."""
    if isinstance(command, Close):
        return command
    return Send(command.session, tuple(_moved(request, root) for request in command.requests))


def _moved(request: Request, root: str) -> Request:
    if isinstance(request, Multi):
        return Multi(tuple(_moved_operation(operation, root) for operation in request.operations))
    moved = request.path.replace("/ROOT", root, 1)
    if isinstance(request, GetData | Exists | GetChildren):
        return type(request)(moved, request.watch)
    operation = _moved_operation(request, root)
    assert not isinstance(operation, Check)
    return operation


def _moved_operation(operation: Operation, root: str) -> Operation:
    path = operation.path.replace("/ROOT", root, 1)
    match operation:
        case Create():
            return Create(path, operation.data, operation.ephemeral, operation.sequential)
        case SetData():
            return SetData(path, operation.data, operation.version)
        case Delete():
            return Delete(path, operation.version)
        case Check():
            return Check(path, operation.version)


class Chance:
    """Generates random commands from a seed."""

    def __init__(self, seed: int, root: str) -> None:
        self._rng = random.Random(seed)
        self._root = root

    def command(self) -> Command:
        session = self._rng.randrange(SESSIONS)
        if self._rng.random() < 0.02:
            return Close(session)
        return Send(session, tuple(self._request() for _ in range(self._rng.randint(1, 5))))

    def _request(self) -> Request:
        roll = self._rng.random()
        if roll < 0.35:
            read = self._rng.choice((GetData, Exists, GetChildren))
            return read(self._path(), self._rng.random() < 0.6)
        if roll < 0.5:
            return Multi(tuple(self._operation() for _ in range(self._rng.randint(0, 4))))
        operation = self._operation()
        return operation if not isinstance(operation, Check) else Exists(operation.path)

    def _operation(self) -> Operation:
        version = self._rng.choice((-1, -1, -1, 0, 1, 2))
        data = self._rng.choice(DATA)
        match self._rng.randrange(9):
            case 0 | 1 | 2:
                return Create(self._path(), data, ephemeral=self._rng.random() < 0.3)
            case 3:
                prefix = self._rng.choice((f"{self._root}/", f"{self._root}/b/n_"))
                return Create(prefix, data, ephemeral=self._rng.random() < 0.3, sequential=True)
            case 4 | 5:
                return SetData(self._path(), data or b"", version)
            case 6 | 7:
                return Delete(self._path(), version)
        return Check(self._path(), version)

    def _path(self) -> str:
        return self._root + self._rng.choice(NAMES)


@pytest.mark.parametrize("seed", [1, 2])
def test_both_servers_give_the_same_results_in_long_seeded_runs(pair: Pair, seed: int) -> None:
    root = f"/seed-{seed}"
    pair.play(Send(0, (Create(root),)))
    chance = Chance(seed, root)
    for step in range(STEPS // 2):
        command = chance.command()
        try:
            pair.play(command)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {step}, {command}: {error}") from error
    pair.zxids.check()
