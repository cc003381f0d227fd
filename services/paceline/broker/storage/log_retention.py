"""Run retention over all hosted partitions, a slice at a time. Source: docs/protocol/log-format.md#retention."""

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Final

from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.partition.partition import Partition
from paceline.broker.storage.replica_storage import ReplicaStorage
from paceline.log.damage import DamagedLogError
from paceline.model.errors import KafkaStorageError
from paceline.model.scheduler import Cancellable

LOG: Final = logging.getLogger(__name__)
FIRST_CHECK_MS: Final = 30_000
"""Time from the start to the first check, unless the interval is shorter."""
_SHORT_CHECK_MS: Final = 10_000
"""Longest interval between checks while a disk is short of room."""
_PARTITIONS_AT_ONCE: Final = 200
"""Partitions per slice; requests are served between slices."""


class LogRetention:
    """Deletes old segments periodically, as leader and as follower."""

    def __init__(self, hosted: HostedPartitions, storage: ReplicaStorage) -> None:
        self._hosted = hosted
        self._storage = storage
        self._scheduler = hosted.scheduler
        self._interval_ms = hosted.config.log_retention_check_interval_ms
        self._is_short = False
        self._is_checking = False
        self._timer: Cancellable | None = None
        self._stopped = False

    def start(self) -> None:
        """Start; the first check comes after half a minute."""
        self._timer = self._scheduler.call_later(min(FIRST_CHECK_MS, self._interval_ms), self._check)

    def stop(self) -> None:
        """Stop deleting."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def set_short(self, is_short: bool) -> None:
        """Check now and at short intervals while a disk ``is_short`` of room, so that it gets room soon."""
        begins, self._is_short = is_short and not self._is_short, is_short
        if begins and not self._is_checking and not self._stopped:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._scheduler.call_later(0, self._check)

    def _check(self) -> None:
        self._is_checking = True
        self._check_some(iter(list(self._hosted.online.values())))

    def _check_some(self, remaining: Iterator[Partition]) -> None:
        if self._stopped:
            return
        wall_ms = self._scheduler.wall_ms()
        partition = None
        for partition in islice(remaining, _PARTITIONS_AT_ONCE):
            self._apply(partition, wall_ms)
        self._hosted.deliver_changes()
        if partition is None:
            self._is_checking = False
            interval_ms = min(self._interval_ms, _SHORT_CHECK_MS) if self._is_short else self._interval_ms
            self._timer = self._scheduler.call_later(interval_ms, self._check)
        else:
            self._scheduler.call_soon(lambda: self._check_some(remaining))

    def _apply(self, partition: Partition, wall_ms: int) -> None:
        topic_partition = partition.topic_partition
        if self._hosted.online.get(topic_partition) is not partition:
            return
        try:
            partition.apply_retention(wall_ms)
        except KafkaStorageError:
            self._storage.storage_failed()
        except DamagedLogError as error:
            self._storage.log_damaged(topic_partition, error)
        except Exception:  # an error of one log must not end the retention of all logs
            LOG.exception("retention failed: partition=%s", topic_partition)
