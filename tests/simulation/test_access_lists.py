"""Access lists with stale brokers: writers, lost connections and ended sessions, in virtual time, from a seed.

Each broker here is an `Authorizer` with an `AccessListReader`, as in a broker's process; the ZooKeeper server and its
clients are those of the simulated clusters. After every step:

1. a broker that never read the rules refuses,
2. the rules of a broker on a resource are those of ZooKeeper at some moment since its last read began, so a decision is
   never older than the last read before a reconnect, and never goes back behind a decision it has made,
3. rules that cannot be parsed refuse.

At the end, when everything is connected, all brokers have the rules of ZooKeeper. Three mutants must fail.
"""

import random
from collections.abc import Callable

import pytest

from paceline.coordination import access_lists, znodes
from paceline.coordination.access_lists import AccessListReader
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.interface import (
    Create,
    Delete,
    GetData,
    Response,
    SessionEvent,
    SessionState,
    SetData,
    WatchEvent,
    ZkCode,
)
from paceline.model.acls import (
    NEVER_READ,
    NO_MATCH,
    AccessRules,
    AclEntry,
    Entries,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    UnreadableResource,
)
from paceline.rpc.security.audit_log import AuditLog
from paceline.rpc.security.authorizer import Authorizer, Mode
from tests.support.virtual_time import VirtualTime
from tests.support.zookeeper.client import Link, MemoryZooKeeper, MemoryZooKeeperServer
from tests.support.zookeeper.recorder import Recorder

SEEDS = range(60)
STEPS = 120
NAMES = ("a", "ab", "b")
RESOURCES = [ResourcePattern(ResourceType.TOPIC, name, pattern) for name in NAMES for pattern in PatternType]
ENTRIES = [AclEntry(f"User:{who}", Permission.ALLOW, Operation.READ) for who in ("alice", "bob")]
BROKEN = b"{"


class ViolatedError(AssertionError):
    """An invariant does not hold."""


class Broker:
    """A broker's authorizer, its reader, and what the reader may know."""

    def __init__(self, world: "World", seed: int) -> None:
        self.world = world
        self.link = Link()
        self.client = MemoryZooKeeper(world.server, world.time, session_timeout_ms=6_000, link=self.link)
        self.authorizer = Authorizer(Mode.ENFORCE, audit=AuditLog(write=lambda _line: None))
        self.known: dict[ResourcePattern, int] = dict.fromkeys(RESOURCES, 0)
        """The oldest moment of each resource that a decision may still reflect: a position in its history."""
        self._since = dict(self.known)
        """The moment of the latest connect."""
        self._connect, self.client.start = self.client.start, self._start  # type: ignore[method-assign]
        self.reader = AccessListReader(self.client, world.time, random.Random(seed), self._use)
        self.node = Recorder(self.reader)

    def check(self) -> None:
        """Check the invariants of one broker after a step."""
        rules = self.authorizer.rules
        for name in NAMES:
            verdict = self.authorizer.decide("User:alice", "", (Operation.READ, ResourceType.TOPIC, name))
            if rules is None and verdict.allowed:
                raise ViolatedError("a broker that never read the rules allows")
        if rules is None:
            return
        for resource in RESOURCES:
            found = rules.resources.get(resource, ())
            broken = isinstance(found, UnreadableResource)
            if broken and rules.decide("User:alice", "", Operation.READ, ResourceType.TOPIC, resource.name).allowed:
                raise ViolatedError(f"{resource} cannot be parsed, but allows")
            history = self.world.histories[resource]
            positions = [
                position
                for position in range(self.known[resource], len(history))
                if (history[position] == BROKEN) == broken and (broken or self.world.parsed(history[position]) == found)
            ]
            if not positions:
                raise ViolatedError(f"{resource}: {found} is older than {self.known[resource]} of {len(history)}")
            self.known[resource] = positions[0]

    def _start(self, on_session: Callable[[SessionEvent], None], on_watch: Callable[[WatchEvent], None]) -> None:
        def session(event: SessionEvent) -> None:
            if event.state is SessionState.CONNECTED:
                self._since = {resource: len(history) - 1 for resource, history in self.world.histories.items()}
            on_session(event)

        self._connect(session, on_watch)

    def _use(self, rules: AccessRules) -> None:
        """Take over rules; those of the first read after a connect are no older than the connect."""
        self.authorizer.use(rules)
        self.known = {one: max(position, self._since[one]) for one, position in self.known.items()}


class World:
    """A ZooKeeper server, a tool that writes as Kafka's does, and brokers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.time = VirtualTime()
        self.server = MemoryZooKeeperServer(self.time)
        self.histories: dict[ResourcePattern, list[bytes | None]] = {resource: [None] for resource in RESOURCES}
        tool = MemoryZooKeeper(self.server, self.time, session_timeout_ms=600_000, link=Link())
        self.tool = Recorder(tool)
        self.time.run_until(lambda: tool.connected)
        self.brokers = [Broker(self, seed * 10 + index) for index in range(3)]

    def parsed(self, data: bytes | None) -> Entries:
        try:
            return () if data is None else znodes.decode_acls("", data)
        except MalformedZnodeError as error:
            return UnreadableResource(str(error))

    def do(self, request: Create | SetData | Delete | GetData) -> Response:
        done = self.tool.submit(request)
        self.time.run_until(lambda: bool(done))
        return done[0]

    def write(self) -> None:
        """Change a resource as kafka-acls.sh does: first the node, then, perhaps later, the change node."""
        resource, data = (
            self.rng.choice(RESOURCES),
            self.rng.choice([None, BROKEN, *(znodes.encode_acls(ENTRIES[:count]) for count in (1, 2))]),
        )
        path = znodes.acl_path(resource)
        exists = self.do(GetData(path)).ok
        if data is None:
            answer = self.do(Delete(path)) if exists else Response(ZkCode.NO_NODE)
        else:
            answer = self.do(SetData(path, data) if exists else Create(path, data))
        if answer.ok:
            self.histories[resource].append(data)
            self.time.run_for(self.rng.choice((0, 1, 50)))
            self.do(
                Create(znodes.acl_change_prefix(resource.pattern), znodes.encode_acl_change(resource), sequential=True)
            )

    def step(self) -> None:
        broker = self.rng.choice(self.brokers)
        kind = self.rng.random()
        if kind < 0.45:
            self.write()
        elif kind < 0.6:
            broker.client.disconnect()
        elif kind < 0.7:
            broker.link.cut()
        elif kind < 0.85:
            broker.link.heal()
        self.time.run_for(self.rng.choice((1, 20, 500, 9_000)))
        for one in self.brokers:
            one.check()

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
        for broker in self.brokers:
            broker.link.heal()
        self.time.run_for(60_000)
        for broker in self.brokers:
            broker.check()
            rules = broker.authorizer.rules
            for resource, history in self.histories.items():
                expected = self.parsed(history[-1])
                found = rules.resources.get(resource, ()) if rules is not None else None
                if isinstance(expected, UnreadableResource) != isinstance(found, UnreadableResource) or (
                    not isinstance(expected, UnreadableResource) and expected != found
                ):
                    raise ViolatedError(f"{resource} is {found} at the end, in ZooKeeper {expected}")


@pytest.mark.parametrize("seed", SEEDS)
def test_brokers_decide_by_rules_that_are_no_older_than_their_last_read(seed: int) -> None:
    World(seed).run()


def first_failing(count: int = 40) -> int | None:
    for seed in range(count):
        try:
            World(seed).run()
        except ViolatedError:
            return seed
    return None


def no_whole_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that was away reads the announced changes only."""
    original: Callable[..., None] = AccessListReader._read

    def read(self: AccessListReader) -> None:
        self._whole = self.rules is None
        original(self)

    monkeypatch.setattr(AccessListReader, "_read", read)
    monkeypatch.setattr(access_lists, "CHANGES_KEPT_MS", 1_000)  # the others delete the changes meanwhile


def open_before_the_first_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has read nothing decides as if there were no rules and everybody were allowed."""
    original = Authorizer.decide

    def decide(self: Authorizer, principal: str, host: str, key: tuple[Operation, ResourceType, str]):  # type: ignore[no-untyped-def]
        if self.rules is None:
            return AccessRules({}).decide(principal, host, *key, allow_without_rules=True)
        return original(self, principal, host, key)

    monkeypatch.setattr(Authorizer, "decide", decide)


def malformed_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that cannot be parsed count as no rules."""
    original = znodes.decode_acls

    def decode(path: str, data: bytes | None) -> tuple[AclEntry, ...]:
        return () if data == BROKEN and path else original(path, data)

    monkeypatch.setattr(znodes, "decode_acls", decode)


@pytest.mark.parametrize("mutant", [no_whole_read, open_before_the_first_read, malformed_is_empty])
def test_a_mutant_is_caught(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert first_failing() is not None


def test_nothing_read_is_a_refusal_with_a_reason() -> None:
    authorizer = Authorizer(Mode.ENFORCE)
    key = (Operation.READ, ResourceType.TOPIC, "a")
    assert authorizer.decide("User:alice", "", key) == NEVER_READ
    authorizer.use(AccessRules({}))
    assert authorizer.decide("User:alice", "", key) == NO_MATCH
