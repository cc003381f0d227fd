"""`DiskSpaceWatch`: measure the free space of the log directories, and report when a shortage begins and ends.

The directories decide by themselves which appends they take (`log/directory_space.py`). Source:
docs/protocol/log-format.md#full-disk.
"""

import logging
from collections.abc import Callable
from typing import Final

from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.storage.log_retention import LogRetention
from paceline.broker.storage.replica_storage import ReplicaStorage
from paceline.log.directory_space import Room
from paceline.log.log_manager import LogManager
from paceline.model.scheduler import Periodic

LOG: Final = logging.getLogger(__name__)
_INTERVAL_MS: Final = 1_000
"""Appended bytes cause measurements in between; this interval is for other writers of the disk, and for deletions."""


class DiskSpaceWatch:
    """Measures every second."""

    def __init__(
        self,
        logs: LogManager,
        hosted: HostedPartitions,
        retention: LogRetention,
        storage: ReplicaStorage,
        on_change: Callable[[str, bool, str], None],
    ) -> None:
        """``on_change`` receives a directory, whether it is short of room, and a description."""
        self._logs = logs
        self._now_ms = hosted.now_ms
        self._retention = retention
        self._storage = storage
        self._on_change = on_change
        self._reported: dict[str, Room] = {}
        self.timer = Periodic(hosted.scheduler, _INTERVAL_MS, self._measure)

    def _measure(self) -> None:
        spaces = self._logs.measure_space(self._now_ms())
        for path, space in spaces.items():
            before, room = self._reported.get(path, Room.ROOMY), space.room
            if room is before:
                continue
            self._reported[path] = room
            change = "log directory is short of room" if room > before else "log directory has more room"
            LOG.warning("%s: path=%s room=%s cause=%s", change, path, room.name, space.description())
            if Room.ROOMY in (before, room):
                self._on_change(path, room is not Room.ROOMY, space.description())
            if before is Room.FULL:
                self._storage.readmit()  # replicas whose logs could not be created
        self._retention.set_short(any(space.room is not Room.ROOMY for space in spaces.values()))
