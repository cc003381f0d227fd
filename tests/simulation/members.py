"""Members of consumer groups: each joins, assigns, polls and commits, until it crashes, pauses or leaves.

A member reads no records: it increments positions and commits them. Each commit has a unique metadata text, its mark,
by which `group_checks` finds the commit in the log of ``__consumer_offsets``.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.broker.groups.coordinator import GroupCoordinator
from paceline.broker.groups.records import OffsetValue
from paceline.broker.groups.requests import (
    CommitRequest,
    CommitResults,
    JoinRequest,
    JoinResult,
    LeavingMember,
    Protocol,
    SyncRequest,
    SyncResult,
)
from paceline.model.consumer_protocol import (
    Assignment,
    Subscription,
    by_topic,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from paceline.model.errors import ErrorCode, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline_client.assignors import Assignor, CooperativeStickyAssignor, GroupMember, RangeAssignor
from tests.simulation.group_client import CALL_TIMEOUT_MS, MOVED, RETRY_MS, GroupClient
from tests.simulation.loose_commits import LooseCommitter
from tests.simulation.offset_observer import OffsetObserver
from tests.simulation.world import MILLISECOND, Timer

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster

TOPIC = "t"
SESSION_TIMEOUT_MS = 2_500
REBALANCE_TIMEOUT_MS = 2_500
_HEARTBEAT_MS = 300
_LOST = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}


class Member(GroupClient):
    """One process of a member."""

    def __init__(
        self,
        cluster: "SimulatedCluster",
        name: str,
        group_id: str,
        assignor: Assignor,
        instance_id: str | None,
        on_fenced: Callable[[], None],
        last_assigned_by: int | None,
    ) -> None:
        super().__init__(cluster, name, group_id)
        self._assignor = assignor
        self._instance_id = instance_id
        """The same in all processes of a static member."""
        self._on_fenced = on_fenced
        self._member_id = ""
        self.generation = -1
        self.assigned: tuple[TopicPartition, ...] = ()
        self._positions: dict[TopicPartition, int] = {}
        """Positions of assigned partitions whose committed offset is known."""
        self.assigned_by: int | None = None
        """Number of partitions at this member's last assignment, None when it does not lead its group."""
        self.stored_by = last_assigned_by
        """The same number, of the last assignment that the coordinator has stored."""
        self._last_assigned_by = -1 if last_assigned_by is None else last_assigned_by
        """The number that the previous process of a static member knew, -1 if it knew none."""
        self._is_joining = False
        self._lost = False
        """Whether partitions were lost since the last JoinGroup was sent, which still lists them as owned."""
        self._is_committing = False
        self._commits = 0
        self.committed_us: dict[TopicPartition, int] = {}
        """Start of the last acknowledged commit, in microseconds, by partition."""

    @property
    def is_stable(self) -> bool:
        """Whether the member has the assignment of its generation."""
        return self.generation >= 0 and not self._is_joining

    def start(self) -> None:
        """Start the member."""
        self.look_around()
        self._join_later(self.chance.uniform(0, 500))
        self._beat()
        self._poll_later()

    def end(self) -> None:
        """Kill the process."""
        self.stopped = True
        self.scheduler.kill()
        self.cluster.network.detach(self.name)

    def leave(self) -> None:
        """Leave the group and end."""
        leaving = [LeavingMember(self._member_id, self._instance_id)]
        self._ask(lambda coordinator, reply: reply(coordinator.leave(self.group_id, leaving)), lambda _answer: None)
        self.stop()
        self.scheduler.call_later(50, self.end)

    # Joining

    def _join_later(self, delay_ms: float = 0) -> None:
        if not self._is_joining and not self.stopped:
            self._is_joining = True
            self.scheduler.call_later(delay_ms, self._join)

    def _join_again(self, error: Exception) -> None:
        """Send JoinGroup again after a pause, as a new member when the coordinator does not know this member."""
        if self.stopped:
            return
        delay_ms = RETRY_MS * self.chance.uniform(0.5, 2)
        if isinstance(error, PacelineError):
            if self._is_fenced(error):
                return
            if error.code is ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id, delay_ms = error.metadata["member_id"], 0
            elif error.code in _LOST:
                self._lose(forget_member=error.code is ErrorCode.UNKNOWN_MEMBER_ID)
        self.scheduler.call_later(delay_ms, self._join)

    def _is_fenced(self, error: PacelineError) -> bool:
        """End the process if a later process of the static member has replaced it; return whether it ends."""
        is_fenced = error.code is ErrorCode.FENCED_INSTANCE_ID
        if is_fenced and not self.stopped:
            self.cluster.checks.places.reach("a replaced static member is refused")
            self.stop()
            self.scheduler.call_later(0, self._on_fenced)
        return is_fenced

    def _lose(self, forget_member: bool) -> None:
        self.generation = -1
        self._lost = True
        self.assigned = ()
        self._positions.clear()
        if forget_member:
            self._member_id = ""

    def _join(self) -> None:
        self._lost = False
        if not self._assignor.cooperative:
            self.assigned = ()
            self._positions.clear()
        subscription = Subscription(
            (TOPIC,),
            self._assignor.user_data(self.assigned, self.generation),
            by_topic((one.topic, one.partition) for one in self.assigned),
            self.generation if self.assigned else None,
        )
        request = JoinRequest(
            self.group_id,
            self._member_id,
            self._instance_id,
            self.name,
            self.name,
            REBALANCE_TIMEOUT_MS,
            SESSION_TIMEOUT_MS,
            "consumer",
            (Protocol(self._assignor.name, encode_subscription(subscription)),),
        )

        def joined(answer: Any) -> None:
            if isinstance(answer, Exception):
                self._join_again(answer)
            else:
                self._sync(answer)

        timeout_ms = 2 * REBALANCE_TIMEOUT_MS + CALL_TIMEOUT_MS
        self._ask(lambda coordinator, reply: coordinator.join(request, reply), joined, timeout_ms)

    def _sync(self, joined: JoinResult) -> None:
        self._member_id, generation = joined.member_id, joined.generation
        assignments: dict[str, bytes] = {}
        self.assigned_by = None
        if joined.skip_assignment:
            # Only this member looks for partitions that were added before its process started (KIP-814).
            self.assigned_by = self._last_assigned_by
        elif joined.leader == joined.member_id:
            assignments = self._assign(joined)
        request = SyncRequest(
            self.group_id, generation, self._member_id, self._instance_id, "consumer", joined.protocol, assignments
        )
        checks, name = self.cluster.checks.groups, self.name

        def ask(coordinator: GroupCoordinator, reply: Callable[[Any], None]) -> None:
            storage = coordinator.storage

            def answer(result: SyncResult | PacelineError) -> None:
                if isinstance(result, SyncResult):
                    owned = storage._owned.get(storage.partition_of(self.group_id))
                    epoch = -1 if owned is None else owned.leader_epoch
                    static_id, partitions = self._instance_id, _partitions(result)
                    checks.assigned(self.group_id, generation, joined.member_id, name, partitions, static_id, epoch)
                reply(result)

            coordinator.sync(request, answer)

        def synced(answer: Any) -> None:
            if isinstance(answer, Exception):
                self._join_again(answer)
            else:
                self.stored_by = self.assigned_by
                self._take(generation, _partitions(answer))

        self._ask(ask, synced, REBALANCE_TIMEOUT_MS + CALL_TIMEOUT_MS)

    def _assign(self, joined: JoinResult) -> dict[str, bytes]:
        members = []
        for one in joined.members:
            said = decode_subscription(one.metadata)
            owned = tuple(
                TopicPartition(topic, index) for topic, some in said.owned_partitions.items() for index in some
            )
            generation = -1 if said.generation_id is None else said.generation_id
            members.append(GroupMember(one.member_id, frozenset(said.topics), owned, generation, "", said.user_data))
        self.assigned_by = known = self._known_partitions()
        shares = self._assignor.assign(members, {TOPIC: known} if known else {})
        return {
            member_id: encode_assignment(Assignment(by_topic((one.topic, one.partition) for one in partitions)))
            for member_id, partitions in shares.items()
        }

    def _known_partitions(self) -> int:
        return self.partition_counts.get(TOPIC, 0)

    def _take(self, generation: int, assigned: tuple[TopicPartition, ...]) -> None:
        self._is_joining = False
        revoked = [one for one in self.assigned if one not in assigned]
        self.generation, self.assigned = generation, assigned
        self._positions = {one: at for one, at in self._positions.items() if one in assigned}
        self.cluster.note(self.name, f"has {len(assigned)} partitions in generation {generation}")
        if revoked or self._lost:
            self._join_later()
        self._fetch_offsets()

    # Between rebalances

    def _beat(self) -> None:
        if self.stopped:
            return
        self.scheduler.call_later(_HEARTBEAT_MS, self._beat)
        if self.generation < 0 or self._is_joining:
            return
        if self.assigned_by not in (None, self._known_partitions()):
            self._join_later()
            return
        generation, member_id = self.generation, self._member_id

        def done(answer: Any) -> None:
            if isinstance(answer, PacelineError) and generation == self.generation:
                self._refused(answer)

        def ask(coordinator: GroupCoordinator, reply: Callable[[Any], None]) -> None:
            coordinator.heartbeat(self.group_id, generation, member_id, self._instance_id)
            reply(None)

        self._ask(ask, done)

    def _refused(self, error: PacelineError) -> None:
        if self._is_fenced(error):
            return
        if error.code in _LOST:
            self._lose(forget_member=error.code is ErrorCode.UNKNOWN_MEMBER_ID)
            self._join_later()
        elif error.code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._join_later()

    def _fetch_offsets(self) -> None:
        """Ask for the committed offsets of partitions that have no position yet."""
        wanted = [one for one in self.assigned if one not in self._positions]
        if not wanted or self.stopped:
            return
        generation = self.generation
        fetch = self.cluster.checks.groups.fetch_begins(self.group_id)

        def done(answer: Any) -> None:
            if isinstance(answer, Exception):
                if generation == self.generation:
                    self.scheduler.call_later(RETRY_MS, self._fetch_offsets)
                return
            self.cluster.checks.groups.fetched(fetch, answer)
            if generation == self.generation:
                for one, value in answer.items():
                    if one in self.assigned:
                        self._positions[one] = 0 if value is None else value.offset

        self._ask(lambda coordinator, reply: reply(coordinator.fetch_offsets(self.group_id, wanted)), done)

    def _poll_later(self) -> None:
        if not self.stopped:
            self.scheduler.call_later(self.chance.uniform(0.3, 1.7) * self.cluster.profile.send_every_ms, self._poll)

    def _poll(self) -> None:
        """Advance positions, sometimes move them back, and commit them."""
        self._poll_later()
        for one in self._positions:
            self._positions[one] += self.chance.randint(0, 3)
            if self.chance.random() < 0.02:
                self._positions[one] //= 2
        if self._positions and not self._is_committing and self.chance.random() < 0.7:
            self._commit()

    def _commit(self) -> None:
        self._is_committing = True
        generation, begun_us = self.generation, self.cluster.world.now_us
        self._commits += 1
        mark = f"{self.name}/{self._commits}"
        now_ms = self.scheduler.wall_ms()
        offsets = {one: OffsetValue(at, -1, mark, now_ms) for one, at in self._positions.items()}
        member_id = self._member_id
        request = CommitRequest(self.group_id, generation, member_id, self._instance_id, offsets)
        checks = self.cluster.checks.groups
        commit = checks.commit_begins(self.group_id, mark)

        def ask(coordinator: GroupCoordinator, reply: Callable[[Any], None]) -> None:
            overtaken = checks.latest_generation(self.group_id) > generation
            overtaken = overtaken or checks.is_replaced(self.group_id, self._instance_id, member_id)

            def answer(result: CommitResults | PacelineError) -> None:
                if not isinstance(result, PacelineError) and overtaken and None in result.values():
                    checks.took_from_earlier_generation(self.group_id, self.name, generation)
                reply(result)

            coordinator.commit(request, answer)

        def done(answer: Any) -> None:
            self._is_committing = False
            error = answer if isinstance(answer, PacelineError) else None
            if not isinstance(answer, Exception):
                kept = [one for one, failure in answer.items() if failure is None]
                checks.committed(commit, kept)
                self.committed_us.update(dict.fromkeys(kept, begun_us))
                error = next((failure for failure in answer.values() if failure is not None), None)
            if error is not None and error.code in MOVED:
                self._coordinator = None
            if error is not None and generation == self.generation:
                self._refused(error)

        self._ask(ask, done)


def _partitions(result: SyncResult) -> tuple[TopicPartition, ...]:
    assigned = decode_assignment(result.assignment).partitions
    return tuple(TopicPartition(topic, index) for topic, indexes in assigned.items() for index in indexes)


class MemberSlot:
    """A place for a member of one group, which runs one process after another."""

    def __init__(
        self, cluster: "SimulatedCluster", name: str, group_id: str, assignor: Assignor, is_static: bool
    ) -> None:
        self._cluster = cluster
        self.name = name
        self._is_static = is_static
        self._replaced: list[Member] = []
        """Paused processes of a static member, of which another process has been started."""
        self.group_id = group_id
        self._assignor = assignor
        self.member: Member | None = None
        self._last: Member | None = None
        """The newest process, which may have ended."""
        self._lives = 0

    def start(self) -> None:
        """Start a member, unless a member is running."""
        if self.member is None:
            self._lives += 1
            name, instance_id = f"{self.name}/{self._lives}", self.name if self._is_static else None
            last_assigned_by = None if self._last is None else self._last.stored_by
            member = Member(
                self._cluster,
                name,
                self.group_id,
                self._assignor,
                instance_id,
                lambda: self._fenced(member),
                last_assigned_by,
            )
            self.member = self._last = member
            member.start()

    def _fenced(self, member: Member) -> None:
        """Replace a process that another process of the same static member has replaced, unless that is running."""
        member.end()
        if self.member is member:
            # A late copy of an earlier process's JoinGroup has replaced it.
            self.member = None
            self.start()

    def crash(self) -> None:
        """Kill the member."""
        member, self.member = self.member, None
        if member is not None:
            self._cluster.note(member.name, "crashes")
            member.end()

    def leave(self) -> None:
        """Make the member leave its group."""
        member, self.member = self.member, None
        if member is not None:
            self._cluster.note(member.name, "leaves")
            member.leave()

    def pause(self) -> None:
        """Pause the process; for a static member another process is started meanwhile."""
        if self.member is not None:
            self.member.scheduler.pause()
        if self.member is not None and self._is_static:
            self._cluster.note(self.member.name, "pauses, and is replaced")
            self._replaced.append(self.member)
            self.member = None
            self.start()

    def resume(self) -> None:
        """Resume the process, and those that were replaced."""
        for one in self._replaced:
            one.scheduler.resume()
        self._replaced.clear()
        if self.member is not None and self.member.scheduler.paused:
            self.member.scheduler.resume()


class Groups:
    """The groups of one run, and the faults of their members."""

    def __init__(self, cluster: "SimulatedCluster") -> None:
        self._cluster = cluster
        self._begun_us = 0
        self._healed_us: int | None = None
        self._observer = OffsetObserver(cluster, TOPIC) if cluster.profile.groups else None
        chance = cluster.world.chance("group members")
        self._loose = [LooseCommitter(cluster, group_id, TOPIC) for group_id in cluster.profile.loose_groups]
        self.slots: list[MemberSlot] = []
        for number in range(cluster.profile.groups):
            assignor = chance.choice((RangeAssignor(), CooperativeStickyAssignor()))
            for place in range(cluster.profile.group_members):
                name, group_id = f"member-{number}-{place}", f"group-{number}"
                self.slots.append(MemberSlot(cluster, name, group_id, assignor, cluster.profile.static_members))

    def start(self) -> None:
        """Start every member."""
        for slot in self.slots:
            slot.start()
        for loose in self._loose:
            loose.start()
        if self._observer is not None:
            self._observer.start()

    def stop(self) -> None:
        """Stop all members from starting new work."""
        if self._observer is not None:
            self._observer.stop()
        for loose in self._loose:
            loose.stop()
        for slot in self.slots:
            if slot.member is not None:
                slot.member.stop()

    def schedule_faults(self) -> None:
        """Crash, pause and remove members during the faults."""
        world, profile = self._cluster.world, self._cluster.profile
        for index in range(profile.member_faults if self.slots else 0):
            chance = world.chance(f"member fault/{index}")
            slot, kind = chance.choice(self.slots), chance.choice(("crash", "pause", "leave"))
            at_ms, for_ms = chance.randint(0, profile.fault_ms), chance.choice((50, 500, 2_000, 6_000))
            world.after(at_ms * MILLISECOND, self._doing(slot, kind, for_ms))

    def _doing(self, slot: MemberSlot, kind: str, for_ms: int) -> Callable[[], None]:
        def do() -> None:
            if self._healed_us is None:
                getattr(slot, kind)()
                self._timer(for_ms, slot.resume if kind == "pause" else slot.start)

        return do

    def _timer(self, delay_ms: int, do: Callable[[], None]) -> Timer:
        return self._cluster.world.after(delay_ms * MILLISECOND, lambda: None if self._healed_us is not None else do())

    def heal(self) -> None:
        """Start or resume every member."""
        self._healed_us = self._cluster.world.now_us
        for slot in self.slots:
            slot.resume()
            slot.start()

    def why_not_settled(self) -> str | None:
        """Return the group that does not work yet, None when every partition has an owner that has committed."""
        count = self._cluster.checks.records.partitions_of(TOPIC)
        wanted = [TopicPartition(TOPIC, index) for index in range(count)]
        for group_id in sorted({slot.group_id for slot in self.slots}):
            if not self._cluster.checks.groups.can_commit(group_id):
                continue
            members = [slot.member for slot in self.slots if slot.group_id == group_id and slot.member is not None]
            if len({one.generation for one in members}) > 1 or not all(one.is_stable for one in members):
                return f"{group_id}: its members are in generations {[one.generation for one in members]}"
            owned = sorted(partition for one in members for partition in one.assigned)
            if owned != wanted:
                return f"{group_id}: its members own {owned}"
            late = [
                partition
                for one in members
                for partition in one.assigned
                if one.committed_us.get(partition, -1) < (self._healed_us or 0)
            ]
            if late:
                return f"{group_id}: no commit of {late}"
        for loose in self._loose if wanted else ():
            if self._cluster.checks.groups.can_commit(loose.group_id) and loose.committed_us < (self._healed_us or 0):
                return f"{loose.group_id}: no commit"
        return None
