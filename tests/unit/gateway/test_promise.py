"""The promise of Subscribe under deaths of gateways, coordinators and callers, on a model of the log and the group.

A run draws its events from a seed: records are appended and fetched, callers acknowledge and die, commits are lost or
applied, gateways die or give partitions back. Then everything calms down, and every record must be acknowledged and
committed. Three mutants of the gateway must break the checks.
"""

import random
from collections.abc import Callable

import pytest

from paceline.gateway.credits import Credits
from paceline.gateway.held_partition import HeldPartition, Holding
from paceline.gateway.member import Member
from paceline.gateway.values import Assigned, Batch, Deliver, Pause, Revoked, Seek
from paceline.model.identifiers import TopicPartition

PARTITIONS = [TopicPartition("t", index) for index in range(4)]
SEEDS = 150
STEPS = 250
REVOCATION_MS = 5_000


class Caller:
    """A subscriber with one stream; it acknowledges deliveries in their order."""

    def __init__(self) -> None:
        self.inbox: list[tuple[TopicPartition, int]] = []
        """Next position of each delivery that is not acknowledged."""
        self.has: set[TopicPartition] = set()
        self.next: dict[TopicPartition, int] = {}


class Gateway:
    """A member with a model of its consumer."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.member = Member(REVOCATION_MS)
        self.positions: dict[TopicPartition, int] = {}
        self.epochs: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.callers: dict[int, Caller] = {}
        self.leaving: list[TopicPartition] = []
        self.commit: dict[TopicPartition, int] = {}
        """The commit in flight."""

    def apply(self) -> None:
        for effect in self.member.drain():
            match effect:
                case Seek(tp, position, epoch, _):
                    self.positions[tp], self.epochs[tp] = position, epoch
                case Pause(tp, paused):
                    (self.paused.add if paused else self.paused.discard)(tp)
                case Assigned(stream, tp, _) if stream in self.callers:
                    self.callers[stream].has.add(tp)
                    self.callers[stream].next.pop(tp, None)
                case Revoked(stream, tp, _, _) if stream in self.callers:
                    self.callers[stream].has.discard(tp)
                case Deliver(stream, tp, batch):
                    self.world.check_delivery(self, stream, tp, batch)
                    caller = self.callers[stream]
                    caller.next[tp] = batch.next_offset
                    caller.inbox.append((tp, batch.next_offset))

    def give_back_finished(self, partitions: list[TopicPartition]) -> None:
        positions = self.member.final_commits(partitions)
        # The last commit waits for the commit in flight, and the next generation fences it.
        self.commit = {tp: position for tp, position in self.commit.items() if tp not in partitions}
        if positions and self.world.rng.random() < 0.8:  # else the coordinator has died
            self.world.apply_commit(self, positions)
            self.member.committed(positions)
        self.member.drop(partitions)
        self.apply()
        for tp in partitions:
            self.world.owners.pop(tp, None)
            self.positions.pop(tp, None)


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.ends = dict.fromkeys(PARTITIONS, 0)
        self.committed = dict.fromkeys(PARTITIONS, 0)
        self.processed = dict.fromkeys(PARTITIONS, 0)
        """Highest acknowledged position."""
        self.owners: dict[TopicPartition, Gateway] = {}
        self.gateways: list[Gateway] = []
        self.next_stream = 1
        for _ in range(2):
            self.add_gateway()

    # Checks

    def check_delivery(self, gateway: Gateway, stream: int, tp: TopicPartition, batch: Batch) -> None:
        caller = gateway.callers[stream]
        assert tp in caller.has, "delivered after revocation"
        assert self.owners.get(tp) is gateway
        assert batch.offsets[0] >= self.committed[tp], "delivered a committed record again"
        assert batch.offsets[0] == caller.next.get(tp, batch.offsets[0]), "a gap, or out of order"
        assert list(batch.offsets) == list(range(batch.offsets[0], batch.next_offset))
        if tp not in caller.next:
            assert batch.offsets[0] <= self.processed[tp], "skipped records that no caller has acknowledged"

    def apply_commit(self, gateway: Gateway, positions: dict[TopicPartition, int]) -> None:
        for tp, position in positions.items():
            if self.owners.get(tp) is gateway:  # else the coordinator fences the commit
                assert position <= self.processed[tp], "committed before the acknowledgement"
                self.committed[tp] = position

    # Events

    def add_gateway(self) -> None:
        gateway = Gateway(self)
        self.gateways.append(gateway)
        self.add_caller(gateway)

    def add_caller(self, gateway: Gateway) -> None:
        stream, self.next_stream = self.next_stream, self.next_stream + 1
        gateway.callers[stream] = Caller()
        gateway.member.join(stream, lambda _: True, Credits(self.rng.randint(1, 8), 10_000), self.now_ms)
        gateway.apply()

    def assign(self) -> None:
        for tp in PARTITIONS:
            if tp not in self.owners and self.gateways:
                gateway = self.rng.choice(self.gateways)
                self.owners[tp] = gateway
                gateway.positions[tp], gateway.epochs[tp] = self.committed[tp], 0
                gateway.paused.discard(tp)
                gateway.member.assigned({tp: self.committed[tp]}, self.now_ms)
                gateway.apply()

    def step(self) -> None:
        rng = self.rng
        self.ends[rng.choice(PARTITIONS)] += rng.randint(0, 3)
        gateway = rng.choice(self.gateways)
        event = rng.random()
        if event < 0.02 and len(self.gateways) > 1:
            self.kill(gateway)
        elif event < 0.04 and len(self.gateways) < 4:
            self.add_gateway()
        elif event < 0.08 and len(gateway.callers) < 4:
            self.add_caller(gateway)
        elif event < 0.12 and len(gateway.callers) > 1:
            stream = rng.choice(list(gateway.callers))
            del gateway.callers[stream]
            gateway.member.leave(stream, self.now_ms)
            gateway.apply()
        elif event < 0.16 and not gateway.leaving:
            owned = [tp for tp, owner in self.owners.items() if owner is gateway]
            gateway.leaving = rng.sample(owned, rng.randint(0, len(owned)))
            gateway.member.revoke(gateway.leaving, self.now_ms)
            gateway.apply()
        elif event < 0.45:
            self.fetch(gateway)
        elif event < 0.75:
            self.acknowledge(gateway, all_of_it=False)
        elif event < 0.85:
            self.commit(gateway)
        else:
            self.pass_time(rng.randint(1, 3_000))
        self.assign()

    def kill(self, gateway: Gateway) -> None:
        if gateway.commit and self.rng.random() < 0.5:
            self.apply_commit(gateway, gateway.commit)  # it had reached the coordinator
        self.gateways.remove(gateway)
        self.owners = {tp: owner for tp, owner in self.owners.items() if owner is not gateway}

    def fetch(self, gateway: Gateway) -> None:
        for tp, position in list(gateway.positions.items()):
            count = min(self.rng.randint(0, 5), self.ends[tp] - position)
            if count <= 0 or tp in gateway.paused:
                continue
            offsets = list(range(position, position + count))
            gateway.positions[tp] = position + count
            one = Batch(offsets, offsets, [1] * count, position + count, self.ends[tp], count)
            gateway.member.fetched(tp, one, gateway.epochs[tp])
        gateway.apply()

    def acknowledge(self, gateway: Gateway, all_of_it: bool) -> None:
        for stream, caller in list(gateway.callers.items()):
            for _ in range(len(caller.inbox) if all_of_it else self.rng.randint(0, len(caller.inbox))):
                tp, position = caller.inbox.pop(0)
                if gateway.member.acknowledge(stream, tp, position, self.now_ms):
                    self.processed[tp] = max(self.processed[tp], position)
            gateway.apply()

    def commit(self, gateway: Gateway) -> None:
        if not gateway.commit:
            gateway.commit = gateway.member.take_commits()
            return
        positions, gateway.commit = gateway.commit, {}
        outcome = self.rng.random()
        if outcome < 0.8:
            self.apply_commit(gateway, positions)
            gateway.member.committed(positions)
        else:
            if outcome < 0.9:  # applied, but the coordinator died before its answer
                self.apply_commit(gateway, positions)
            gateway.member.commit_failed(positions)
        gateway.apply()

    def pass_time(self, time_ms: int) -> None:
        self.now_ms += time_ms
        for gateway in self.gateways:
            gateway.member.tick(self.now_ms)
            gateway.apply()
            if gateway.leaving and gateway.member.is_settled(gateway.leaving, self.now_ms):
                leaving, gateway.leaving = gateway.leaving, []
                gateway.give_back_finished(leaving)

    def calm_down(self) -> None:
        for _ in range(1_000):  # a caller with a credit of 1 takes one record a round
            if self.committed == self.ends:
                break
            self.pass_time(REVOCATION_MS)
            self.assign()
            for gateway in self.gateways:
                self.fetch(gateway)
                self.acknowledge(gateway, all_of_it=True)
                positions = gateway.commit | gateway.member.take_commits()
                gateway.commit = {}
                self.apply_commit(gateway, positions)
                gateway.member.committed(positions)
                gateway.apply()
        assert self.committed == self.ends, "a record was not delivered, or not committed"
        for gateway in self.gateways:
            for stream in gateway.callers:
                credit = gateway.member._streams[stream].credit
                assert (credit.records_used, credit.bytes_used) == (0, 0), "lost credit"


def play(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.calm_down()


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_the_promise_holds_under_deaths(first: int) -> None:
    for seed in range(first, first + 10):
        try:
            play(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def _commit_before_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_commit(held: HeldPartition) -> int | None:
        if held.committing is not None or held._delivered_end == held.committed:
            return None
        held.committing = held._delivered_end
        return held.committing

    monkeypatch.setattr(HeldPartition, "take_commit", take_commit)


def _delivery_after_revocation(monkeypatch: pytest.MonkeyPatch) -> None:
    deliver = Member._deliver

    def anyway(member: Member, held: HeldPartition) -> None:
        before = held.state
        if before is Holding.MOVING:
            held.state = Holding.OPEN
        deliver(member, held)
        held.state = before

    monkeypatch.setattr(Member, "_deliver", anyway)


def _lost_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Member, "_give_back", lambda _member, _held: None)


@pytest.mark.parametrize("mutant", [_commit_before_acknowledgement, _delivery_after_revocation, _lost_credit])
def test_a_mutant_is_caught(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(SEEDS):
            play(seed)
