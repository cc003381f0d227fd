"""Random histories: members that crash, pause and return, and a coordinator that fails over at any time.

C12: a committed offset that was acknowledged or shown is never followed by a smaller one, since these members commit
larger ones only. One owner per partition and generation. Each disabled guard is detected by some seed.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest

from paceline.broker.groups.group import Group
from paceline.broker.groups.group_storage import GroupStorage
from paceline.broker.groups.requests import JoinResult, SyncResult
from paceline.model.errors import ErrorCode, PacelineError
from tests.support.group_cluster import GroupCluster

PARTITIONS = 3
STEPS = 250


class ModelMember:
    """A member that acts as a client; a zombie acts on its state from before a pause."""

    def __init__(self, history: "History") -> None:
        self.history = history
        self.member_id = ""
        self.joined: JoinResult | None = None
        self.joining: list[Any] | None = None
        self.syncing: list[Any] | None = None
        self.owned: dict[int, int] = {}
        """Next offset of each partition."""

    def step(self) -> None:
        """Process an answer, or send a request."""
        if self.joining is not None:
            self._take_join()
        elif self.syncing is not None:
            self._take_sync()
        elif self.joined is None:
            self.joining = self.history.cluster.join(self.member_id)
        elif self.owned and self.history.rng.random() < 0.6:
            self._commit()
        else:
            self._heed(self.history.cluster.heartbeat(self.joined))

    def _take_join(self) -> None:
        assert self.joining is not None
        if not self.joining:
            return
        answer, self.joining = self.joining[0], None
        if isinstance(answer, PacelineError):
            self._heed(answer)
            return
        self.joined, self.member_id = answer, answer.member_id
        assignments = {}
        for place, index in enumerate(range(PARTITIONS)):
            if answer.members:
                owner = answer.members[place % len(answer.members)].member_id
                assignments[owner] = assignments.get(owner, b"") + bytes([index])
        self.syncing = self.history.cluster.sync(answer, assignments)

    def _take_sync(self) -> None:
        assert self.syncing is not None
        if not self.syncing:
            return
        answer, self.syncing = self.syncing[0], None
        if isinstance(answer, PacelineError):
            self._heed(answer)
            return
        assert isinstance(answer, SyncResult)
        assert self.joined is not None
        begin = {}
        for index in answer.assignment:
            self.history.owns(self.joined.generation, index, self.member_id)
            begin[index] = self.history.committed(index)
        if None in begin.values():
            self.joined = None  # no offset to begin at: join again
        else:
            self.owned = {index: offset or 0 for index, offset in begin.items()}

    def _commit(self) -> None:
        index = self.history.rng.choice(sorted(self.owned))
        self.owned[index] += self.history.rng.randint(1, 5)
        offset, joined = self.owned[index], self.joined
        answers = self.history.cluster.commit(offset, joined, index)
        self.history.commits.append((index, offset, answers))
        if answers and isinstance(answers[0], PacelineError):
            self._heed(answers[0])

    def _heed(self, error: PacelineError | None) -> None:
        if error is None or error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return
        if error.code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        if error.code is not ErrorCode.NOT_COORDINATOR or self.joining is None:
            self.joined, self.owned = None, {}


class History:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = GroupCluster()
        self.members = [ModelMember(self) for _ in range(3)]
        self.commits: list[tuple[int, int, list[Any]]] = []
        self._floor: dict[int, int] = {}
        self._owners: dict[tuple[int, int], str] = {}
        self.acknowledged = 0

    def owns(self, generation: int, index: int, member_id: str) -> None:
        """Record an assignment."""
        owner = self._owners.setdefault((generation, index), member_id)
        assert owner == member_id, f"partition {index} has owners {owner} and {member_id} in generation {generation}"

    def committed(self, index: int) -> int | None:
        """Return the committed offset; 0 without one, None when the request is refused at present."""
        try:
            found = self.cluster.committed(index) or 0
        except PacelineError:
            return None
        assert found >= self._floor.get(index, 0), f"offset of {index} fell to {found} from {self._floor[index]}"
        self._floor[index] = found
        return found

    def _acknowledge(self) -> None:
        waiting = []
        for index, offset, answers in self.commits:
            if not answers:
                waiting.append((index, offset, answers))
            elif isinstance(answers[0], dict) and set(answers[0].values()) == {None}:
                self._floor[index] = max(self._floor.get(index, 0), offset)
                self.acknowledged += 1
        self.commits = waiting

    def run(self) -> None:
        """Take random steps and check after each."""
        rng, cluster = self.rng, self.cluster
        for _ in range(STEPS):
            choice = rng.random()
            if choice < 0.03:
                cluster.fail_over(run=rng.random() < 0.5, lose_uncommitted=rng.random() < 0.5)
            elif choice < 0.06:
                self.members[rng.randrange(len(self.members))] = ModelMember(self)
            elif choice < 0.12:
                cluster.hold_appends = True
            elif choice < 0.24:
                cluster.release_appends()
            elif choice < 0.30:
                cluster.time.run_for(rng.choice([100, 4_000, 12_000]))
            else:
                # Members run unevenly: some pause for long and then act on outdated state.
                rng.choice(self.members[: rng.randint(1, len(self.members))]).step()
                cluster.run()
            self._acknowledge()
            for index in range(PARTITIONS):
                self.committed(index)


@pytest.mark.parametrize("seed", range(30))
def test_offsets_never_fall_and_partitions_have_one_owner(seed: int) -> None:
    History(seed).run()


def test_histories_make_progress() -> None:
    """The histories make progress: members that never join would violate no rule."""
    histories = [History(seed) for seed in range(20)]
    for history in histories:
        history.run()
    assert sum(history.acknowledged for history in histories) > 300
    assert sum(len(history._owners) for history in histories) > 200


def _no_generation_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "check_generation", lambda self, generation: None)
    original = Group.check_member

    def any_member(self: Group, member_id: str, instance_id: str | None) -> Any:
        return next(iter(self.members.values()), None) or original(self, member_id, instance_id)

    monkeypatch.setattr(Group, "check_member", any_member)


def _offsets_before_replication(monkeypatch: pytest.MonkeyPatch) -> None:
    original = GroupStorage.store_offsets

    def eager(self: GroupStorage, group: Group, offsets: Any, on_done: Any) -> None:
        end = self._topic.bounds(group.partition)[2]  # type: ignore[attr-defined]
        for place, (topic_partition, value) in enumerate(offsets.items()):
            group.set_offset(topic_partition, value, end + place)
        original(self, group, offsets, on_done)

    monkeypatch.setattr(GroupStorage, "store_offsets", eager)


def _order_of_the_log_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def smallest(self: Group, topic_partition: Any, value: Any, record_offset: int) -> None:
        from paceline.broker.groups.group import CommittedOffset

        known = self.offsets.get(topic_partition)
        if known is None or value.offset < known.value.offset or record_offset > known.record_offset + 3:
            self.offsets[topic_partition] = CommittedOffset(value, record_offset)

    monkeypatch.setattr(Group, "set_offset", smallest)


def _no_generation_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Group.next_generation

    def frozen(self: Group, now_wall_ms: int) -> None:
        original(self, now_wall_ms)
        self.generation = 1

    monkeypatch.setattr(Group, "next_generation", frozen)


@pytest.mark.parametrize(
    "mutate",
    [_no_generation_check, _offsets_before_replication, _order_of_the_log_ignored, _no_generation_growth],
)
def test_disabled_guard_is_detected(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    for seed in range(30):
        try:
            History(seed).run()
        except AssertionError:
            return
    raise AssertionError("no seed has found it")
