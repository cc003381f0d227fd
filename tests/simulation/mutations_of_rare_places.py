"""Mutations of guards that only the rare places of `places` need, for `mutants`."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from paceline.broker.groups.coordinator import GroupCoordinator
from paceline.broker.groups.group import Group
from paceline.broker.groups.loaded import LoadedGroups
from paceline.broker.partition.isr_updates import IsrUpdates
from paceline.broker.partition.partition import Partition
from paceline.broker.requests.offsets import offsets_for_leader_epoch
from paceline.broker.requests.proof_waits import _ProofWait
from paceline.broker.requests.proved_calls import ProvedCalls
from paceline.controller.channel.channel_manager import ChannelManager
from paceline.log.record_batch import Record
from paceline.model.identifiers import TopicPartition
from paceline.replication.follower_progress import FetchClock, FollowerProgress
from paceline.replication.isr import JoinRefusal
from paceline.replication.leadership_proof import LeadershipProof

if TYPE_CHECKING:
    from tests.simulation.mutants import Patches


def session_without_proof(patches: "Patches") -> None:
    """A new ZooKeeper session proves the leaderships of the previous session."""

    def began(self: LeadershipProof, now_ms: int) -> None:
        self._controller_ms = max(self._controller_ms, now_ms)

    patches.set(LeadershipProof, "session_began", began)


def lease_without_proof(patches: "Patches") -> None:
    """A lease that is renewed late proves the leaderships of the time without contact."""

    def answered(self: LeadershipProof, asked_ms: int, now_ms: int) -> None:
        self._controller_ms = max(self._controller_ms, asked_ms)

    patches.set(LeadershipProof, "controller_answered", answered)


def epoch_look_ups_without_proof(patches: "Patches") -> None:
    """A leader tells clients where leader epochs ended although it cannot prove its leadership."""

    def look_up(self: ProvedCalls, queries: Any, _timeout_ms: int, reply: Any) -> None:
        reply(offsets_for_leader_epoch(self._hosted, queries, from_client=True))

    patches.set(ProvedCalls, "offsets_for_leader_epoch", look_up)


def fetches_prove_their_arrival(patches: "Patches") -> None:
    """A fetch proves the time at which it arrived, although it may have been sent long before."""
    real = FollowerProgress.record_fetch

    def record_fetch(self: FollowerProgress, offset: int, start: int, end: int, now_ms: int, epoch: int) -> bool:
        changed = real(self, offset, start, end, now_ms, epoch)
        self.proved_ms = now_ms
        return changed

    def fetched(self: FetchClock, now_ms: int) -> None:
        self.last_fetch_ms = self.proved_ms = now_ms

    patches.set(FollowerProgress, "record_fetch", record_fetch)
    patches.set(FetchClock, "fetched", fetched)


def waits_end_with_an_answer(patches: "Patches") -> None:
    """A request that waited in vain for a proof is answered if the followers have fetched recently."""

    def on_complete(self: _ProofWait) -> None:
        self._further = self._act()

    patches.set(_ProofWait, "on_complete", on_complete)


def joiners_prove_nothing(patches: "Patches") -> None:
    """A leader asks the committed ISR for a proof, and not the replica that may have joined since."""
    real = Partition.__dict__["is_leadership_proved"].fget

    def is_leadership_proved(self: Partition) -> bool:
        proposal, self.proposal = self.proposal, None
        try:
            return bool(real(self))
        finally:
            self.proposal = proposal

    patches.set(Partition, "is_leadership_proved", property(is_leadership_proved))


def deposition_forgotten(patches: "Patches") -> None:
    """A leader that has read that it was deposed answers on until a request of the controller arrives."""
    real = IsrUpdates.conflict

    def conflict(self: IsrUpdates, partition: Partition, proposal: Any, state: Any) -> None:
        real(self, partition, proposal, state)
        partition.is_deposed = False

    patches.set(IsrUpdates, "conflict", conflict)


def join_below_log_start(patches: "Patches") -> None:
    """A replica that starts below its leader's log start joins the ISR."""
    real = IsrUpdates.why_not_join

    def why_not_join(self: IsrUpdates, partition: Partition, follower: FollowerProgress) -> JoinRefusal | None:
        start, follower.log_start_offset = follower.log_start_offset, None
        try:
            return real(self, partition, follower)
        finally:
            follower.log_start_offset = start

    patches.set(IsrUpdates, "why_not_join", why_not_join)


def unanswered_requests_ignored(patches: "Patches") -> None:
    """A heartbeat is contact although a request of the controller has not arrived, which may name a successor."""
    patches.set(ChannelManager, "unanswered_ms", lambda *_: 0)


def confirmation_in_doubt(patches: "Patches") -> None:
    """A LeaderAndIsr confirms a leadership although it may have waited in a buffer while a successor was elected."""

    real = Partition.make_leader

    def make_leader(self: Partition, *args: Any) -> bool:
        is_new = real(self, *args)
        self.confirmed_ms = self._host.now_ms()
        return is_new

    patches.set(Partition, "make_leader", make_leader)


def unknown_result_dropped(patches: "Patches") -> None:
    """An ISR write with an unknown result counts as not applied."""
    real = IsrUpdates.unknown

    def unknown(self: IsrUpdates, partition: Partition, proposal: Any, reason: str) -> None:
        real(self, partition, proposal, reason)
        if partition.proposal is proposal:
            partition.proposal = None

    patches.set(IsrUpdates, "unknown", unknown)


def tombstones_of_offsets_ignored(patches: "Patches") -> None:
    """A load restores committed offsets that were deleted."""
    real = LoadedGroups._record

    def record(self: LoadedGroups, one: Record) -> None:
        if one.value is not None:
            real(self, one)

    patches.set(LoadedGroups, "_record", record)


def commits_in_flight_expire(patches: "Patches") -> None:
    """An expiration does not spare offsets with a later commit that is not stored yet."""
    real = Group.expired_offsets

    def expired(self: Group, now_wall_ms: int, retention_ms: int) -> list[TopicPartition]:
        pending, self.pending_commits = self.pending_commits, Counter()
        try:
            return real(self, now_wall_ms, retention_ms)
        finally:
            self.pending_commits = pending

    patches.set(Group, "expired_offsets", expired)


def commits_in_flight_survive_a_deletion(patches: "Patches") -> None:
    """The deletion of a group writes no tombstones for offsets whose commits are not stored yet."""
    real = GroupCoordinator.delete

    def delete(self: GroupCoordinator, group_id: str, reply: Any) -> None:
        for group in self.storage.loaded_groups():
            if group.group_id == group_id:
                group.pending_commits.clear()
        real(self, group_id, reply)

    patches.set(GroupCoordinator, "delete", delete)
