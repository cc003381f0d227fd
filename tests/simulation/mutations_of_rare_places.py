"""Mutations of guards that only the rare places of `places` need, for `mutants`."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from paceline.broker.groups.coordinator import GroupCoordinator
from paceline.broker.groups.group import Group
from paceline.broker.groups.loaded import LoadedGroups
from paceline.broker.partition.isr_updates import IsrUpdates
from paceline.broker.partition.partition import Partition
from paceline.log.record_batch import Record
from paceline.model.identifiers import TopicPartition
from paceline.replication.leadership_proof import LeadershipProof

if TYPE_CHECKING:
    from tests.simulation.mutants import Patches


def session_without_proof(patches: "Patches") -> None:
    """A new ZooKeeper session proves the leaderships of the previous session."""

    def began(self: LeadershipProof, now_ms: int) -> None:
        self._controller_ms = max(self._controller_ms, now_ms)

    patches.set(LeadershipProof, "session_began", began)


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

    def unknown(self: IsrUpdates, proposal: Any, reason: str) -> None:
        real(self, proposal, reason)
        if self._partition.proposal is proposal:
            self._partition.proposal = None

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
