"""Delete expired committed offsets, and groups without members and offsets.

Source: docs/protocol/groups.md#expiring-offsets; KIP-211.
"""

import logging
from collections.abc import Sequence

from paceline.broker.groups.group import Group, GroupState
from paceline.broker.groups.group_storage import GroupStorage
from paceline.broker.groups.metrics import GroupMetrics
from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.model.scheduler import Periodic, Scheduler
from paceline.model.settings import GroupConfig

LOG = logging.getLogger("paceline.broker.groups")


class OffsetExpiration:
    """Checks the groups every ``offsets.retention.check.interval.ms``."""

    def __init__(self, config: GroupConfig, scheduler: Scheduler, storage: GroupStorage, metrics: GroupMetrics) -> None:
        self._config = config
        self._metrics = metrics
        self._scheduler = scheduler
        self._storage = storage
        self.timer = Periodic(scheduler, config.offsets_retention_check_interval_ms, self._check_groups)

    def _check_groups(self) -> None:
        now_ms = self._scheduler.wall_ms()
        for group in self._storage.loaded_groups():
            expired = group.expired_offsets(now_ms, self._config.offsets_retention_ms)
            self._metrics.offset_expirations += len(expired)
            self._delete(group, expired)

    def partitions_deleted(self, partitions: frozenset[TopicPartition]) -> None:
        """Delete the offsets of partitions that were deleted."""
        if partitions:
            for group in self._storage.loaded_groups():
                self._delete(group, [one for one in group.offsets if one in partitions])

    def _delete(self, group: Group, offsets: Sequence[TopicPartition]) -> None:
        """Write tombstones, and remove the offsets when all in-sync replicas have the tombstones."""
        if not offsets:
            self._maybe_delete_group(group)
            return

        def stored(answer: int | PacelineError) -> None:
            if isinstance(answer, PacelineError):
                LOG.warning("offsets not deleted: group=%s count=%d error=%s", group.group_id, len(offsets), answer)
                return
            for place, topic_partition in enumerate(offsets):
                committed = group.offsets.get(topic_partition)
                if committed is not None and committed.record_offset < answer + place:
                    del group.offsets[topic_partition]
            self._maybe_delete_group(group)

        self._storage.store_tombstones(group, offsets, False, stored)

    def _maybe_delete_group(self, group: Group) -> None:
        """Delete the group if it has no members, no offsets and no commits in progress."""
        if not group.is_in(GroupState.EMPTY) or group.offsets or group.pending_members or +group.pending_commits:
            return
        self._storage.discard(group)
        if group.generation == 0:
            return  # it was never written

        def stored(answer: int | PacelineError) -> None:
            if isinstance(answer, PacelineError):
                LOG.warning("group not deleted: group=%s error=%s", group.group_id, answer)
                self._storage.restore(group, answer)

        self._storage.store_tombstones(group, (), True, stored)
