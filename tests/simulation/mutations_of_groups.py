"""Mutations of group coordinators and of compaction, for `mutants`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline.broker.groups.group import Group
from paceline.broker.groups.group_storage import GroupStorage
from paceline.broker.groups.hosted_offsets_topic import HostedOffsetsTopic
from paceline.broker.groups.member import Member
from paceline.broker.membership.topic_configs import TopicConfigs
from paceline.log.compaction.cleaner import Cleaner, _Output
from paceline.log.compaction.log_compaction import LogCompaction
from paceline.log.compaction.offset_map import OffsetMap
from paceline.log.local_log import LocalLog
from paceline.log.log_loader import _Loader
from paceline.model.client_io import RequiredAcks

if TYPE_CHECKING:
    from tests.simulation.mutants import Patches

# Coordinators


def commit_of_the_leader_alone(patches: "Patches") -> None:
    """A write to the offsets topic counts as committed when the leader has it."""
    real = HostedOffsetsTopic.append

    def append(self: HostedOffsetsTopic, *arguments: Any) -> None:
        produce = self._append
        self._append = lambda _acks, *rest: produce(RequiredAcks.LEADER, *rest)  # type: ignore[assignment]
        try:
            real(self, *arguments)
        finally:
            self._append = produce

    patches.set(HostedOffsetsTopic, "append", append)


def load_to_high_watermark(patches: "Patches") -> None:
    """A load ends at the high watermark, which may still be too low on a new leader."""
    real = HostedOffsetsTopic.bounds

    def bounds(self: HostedOffsetsTopic, partition: int) -> tuple[int, int, int]:
        start, high_watermark, _ = real(self, partition)
        return start, high_watermark, high_watermark

    patches.set(HostedOffsetsTopic, "bounds", bounds)


def load_ends_uncommitted(patches: "Patches") -> None:
    """A load ends at the log end, committed or not."""
    real = HostedOffsetsTopic.bounds

    def bounds(self: HostedOffsetsTopic, partition: int) -> tuple[int, int, int]:
        start, _, end = real(self, partition)
        return start, end, end

    patches.set(HostedOffsetsTopic, "bounds", bounds)


def groups_kept_from_earlier_leaderships(patches: "Patches") -> None:
    """A partition that is led again is not loaded again."""
    real = GroupStorage.become_leader

    def become_leader(self: GroupStorage, partition: int, leader_epoch: int) -> None:
        known = self._owned.get(partition)
        if known is not None and known.loaded:
            known.leader_epoch = max(known.leader_epoch, leader_epoch)
        else:
            real(self, partition, leader_epoch)

    patches.set(GroupStorage, "become_leader", become_leader)
    patches.set(GroupStorage, "become_follower", lambda _self, _partition: None)


def answers_without_proof(patches: "Patches") -> None:
    """A coordinator answers though it cannot prove that its partition has no other leader."""

    def leads(self: HostedOffsetsTopic, partition: int, leader_epoch: int) -> bool:
        return True

    patches.set(HostedOffsetsTopic, "leads", leads)


def any_generation(patches: "Patches") -> None:
    """Requests of earlier generations are accepted."""
    patches.set(Group, "check_generation", lambda _self, _generation: None)


def replaced_members_count(patches: "Patches") -> None:
    """Requests of a static member's process that was replaced are accepted."""
    real = Group.check_member

    def check_member(self: Group, member_id: str, instance_id: str | None) -> Member:
        return real(self, self.static_members.get(instance_id or "", member_id), instance_id)

    patches.set(Group, "check_member", check_member)


def assignments_given_out_before_they_are_kept(patches: "Patches") -> None:
    """Members receive their partitions before the assignment is committed to the group's log."""
    real = GroupStorage.store_group

    def store_group(
        self: GroupStorage, group: Group, assignments: Mapping[str, bytes], on_done: Callable[[Any], None]
    ) -> None:
        real(self, group, assignments, lambda _answer: None)
        on_done(0)

    patches.set(GroupStorage, "store_group", store_group)


def offsets_taken_over_before_they_are_kept(patches: "Patches") -> None:
    """A committed offset is visible before its record is committed to the group's log."""
    real = GroupStorage.store_offsets

    def store_offsets(self: GroupStorage, group: Group, offsets: Any, on_done: Callable[[Any], None]) -> None:
        for topic_partition, value in offsets.items():
            group.set_offset(topic_partition, value, 0)
            group.offsets[topic_partition].value = value
        real(self, group, offsets, on_done)

    patches.set(GroupStorage, "store_offsets", store_offsets)


# Compaction


def compact_uncommitted(patches: "Patches") -> None:
    """Compaction includes uncommitted records below the active segment."""
    patches.set(LocalLog, "last_stable_offset", property(lambda self: self.end_offset))


def end_of_a_batch_taken_for_all_its_keys(patches: "Patches") -> None:
    """A key counts as superseded up to the end of the batch with its last record."""
    real = OffsetMap.add_batch

    def add_batch(self: OffsetMap, keys: dict[bytes, int], end_offset: int) -> bool:
        return real(self, dict.fromkeys(keys, end_offset - 1), end_offset)

    patches.set(OffsetMap, "add_batch", add_batch)


def tombstones_removed_at_once(patches: "Patches") -> None:
    """A tombstone is removed together with the records it deletes, before ``delete.retention.ms``."""
    real = Cleaner._choose
    patches.set(Cleaner, "_choose", lambda self, header, data, _expired: real(self, header, data, True))


def compacted_segments_not_synced(patches: "Patches") -> None:
    """A compacted segment replaces others before it is durable."""
    real = _Output.finish

    class _NoSync:
        def __init__(self, files: Any) -> None:
            self._files = files

        def __getattr__(self, name: str) -> Any:
            return getattr(self._files, name)

        def sync(self, path: str) -> None:
            """Leave the file to the page cache."""

    def finish(self: _Output, sources: Any) -> None:
        files, self._files = self._files, _NoSync(self._files)  # type: ignore[assignment]
        try:
            real(self, sources)
        finally:
            self._files = files

    patches.set(_Output, "finish", finish)


def swap_files_ignored(patches: "Patches") -> None:
    """Loading removes compacted segments that were about to replace others."""

    def finish_swaps(self: _Loader, swaps: list[tuple[int, str, str]], _smallest_cleaned: int | None) -> None:
        for _, _, path in swaps:
            self._files.remove(path)

    patches.set(_Loader, "_finish_swaps", finish_swaps)


def old_segments_kept_beside_compacted_ones(patches: "Patches") -> None:
    """When a compacted segment replaces several segments, these stay."""

    real = LogCompaction.replace_segments

    def replace_segments(self: LogCompaction, task: Any, cleaned: Any) -> list[str]:
        return real(self, task, replace(cleaned, sources=cleaned.sources[:1]))

    patches.set(LogCompaction, "replace_segments", replace_segments)


def compaction_under_unknown_settings(patches: "Patches") -> None:
    """A topic's settings count as known before they were read."""
    patches.set(TopicConfigs, "deletion_is_known", lambda _self, _topic: True)


def cleaning_goes_on_after_truncation(patches: "Patches") -> None:
    """Compaction continues although the log was truncated or replaced meanwhile."""
    real = LogCompaction.begin

    def begin(self: LogCompaction, *arguments: Any) -> Any:
        task = real(self, *arguments)
        task.is_current = lambda: True
        return task

    patches.set(LogCompaction, "begin", begin)
