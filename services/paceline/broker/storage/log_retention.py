"""Run retention over all hosted partitions, a slice at a time. Source: docs/protocol/log-format.md#retention."""

import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, Protocol

from paceline.broker.partition.partition import Partition
from paceline.log.damage import DamagedLogError
from paceline.model.errors import KafkaStorageError, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.model.scheduler import Cancellable, Scheduler

LOG: Final = logging.getLogger(__name__)
FIRST_CHECK_MS: Final = 30_000
"""How long after the start the first check is made, unless the interval is shorter."""
_PARTITIONS_AT_ONCE: Final = 200
"""Requests are served between slices."""


class RetentionHost(Protocol):
    """What retention needs of the broker."""

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """Every partition hosted."""

    def storage_failed(self, topic_partition: TopicPartition) -> None:
        """A log operation failed."""

    def deliver_news(self) -> None:
        """Let those who wait look at what has changed."""

    def log_damaged(self, topic_partition: TopicPartition, error: DamagedLogError) -> PacelineError:
        """A log's own bytes are wrong."""


class LogRetention:
    """Lets go of old segments from time to time, leader or not."""

    def __init__(self, host: RetentionHost, scheduler: Scheduler, interval_ms: int) -> None:
        self._host = host
        self._scheduler = scheduler
        self._interval_ms = interval_ms
        self._timer: Cancellable | None = None
        self._stopped = False

    def start(self) -> None:
        """Begin; the first check comes after half a minute."""
        self._timer = self._scheduler.call_later(min(FIRST_CHECK_MS, self._interval_ms), self._check)

    def stop(self) -> None:
        """Delete nothing any more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._go_on(iter(list(self._host.partitions.values())))

    def _go_on(self, remaining: Iterator[Partition]) -> None:
        if self._stopped:
            return
        wall_ms = self._scheduler.wall_ms()
        partition = None
        for partition in islice(remaining, _PARTITIONS_AT_ONCE):
            self._apply(partition, wall_ms)
        self._host.deliver_news()
        if partition is None:
            self._timer = self._scheduler.call_later(self._interval_ms, self._check)
        else:
            self._scheduler.call_soon(lambda: self._go_on(remaining))

    def _apply(self, partition: Partition, wall_ms: int) -> None:
        topic_partition = partition.topic_partition
        if self._host.partitions.get(topic_partition) is not partition:
            return
        try:
            partition.apply_retention(wall_ms)
        except KafkaStorageError:
            self._host.storage_failed(topic_partition)
        except DamagedLogError as error:
            self._host.log_damaged(topic_partition, error)
        except PacelineError:
            LOG.exception("retention of %s failed", topic_partition)
