"""Where the pages get their timeline from: a recording, or a live cluster."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from paceline.console.moments import Moment, moments
from paceline.console.recording import Entry, Header, Recording
from paceline.console.service.collector import Collector
from paceline.console.timeline import Timeline
from paceline.model.identifiers import TopicPartition
from paceline_client import Admin

_LOOKED_AT_MS: Final = 600_000
"""Time for which a partition is sampled after a page has shown it."""
_EVENTS_MS, _SAMPLES_MS = 3_600_000, 900_000
"""Ages of the oldest events and samples that a live console keeps."""
_FORGET_EVERY: Final = 1_000
_FOLLOWED_S: Final = 5.0


class ReplaySource:
    """A recording."""

    is_live = False
    version = (0, 0)
    """A value that changes with every new entry."""

    def __init__(self, recording: Recording) -> None:
        self._timeline = Timeline(recording.header, recording.entries)
        self._moments: dict[TopicPartition, tuple[Moment, ...]] = {}
        self.trouble = recording.cut or ""

    @contextmanager
    def timeline(self) -> Iterator[Timeline]:
        """Return the timeline, which does not change."""
        yield self._timeline

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions of the recording with at least one sample or event."""
        return sorted(self._timeline.tracks)

    def moments(self, topic_partition: TopicPartition) -> tuple[Moment, ...]:
        """Return the moments at which the partition got a new finding; the first call takes some tenths of a second."""
        if (found := self._moments.get(topic_partition)) is None:
            found = self._moments[topic_partition] = moments(self._timeline, topic_partition)
        return found

    def look_at(self, topic_partition: TopicPartition) -> None:
        """Do nothing: a recording has all its samples."""

    def close(self) -> None:
        """Do nothing."""


class LiveSource:
    """A running cluster. Starts to collect at once; close it after use."""

    is_live = True

    def __init__(self, open_admin: Callable[[], Admin], title: str) -> None:
        """``open_admin`` returns a new client of the cluster."""
        began_ms = int(time.time() * 1000)
        self._lock = threading.Lock()
        self._timeline = Timeline(Header(title=title, origin="cluster", began_ms=began_ms))
        self._looked_at: dict[TopicPartition, float] = {}
        self._version = 0
        self._follows_until = 0.0
        self._collector = Collector(open_admin, self._add, self._sampled, began_ms)
        self._collector.start()

    @property
    def version(self) -> tuple[int, int]:
        """A value that changes with every new entry, and every second while a screen is open."""
        now = time.monotonic()
        return self._version, int(now) if now < self._follows_until else 0

    @property
    def trouble(self) -> str:
        """Why the picture is old; empty when it is not."""
        return self._collector.trouble

    @contextmanager
    def timeline(self) -> Iterator[Timeline]:
        """Return the timeline, locked."""
        with self._lock:
            yield self._timeline

    def metadata(self) -> tuple[Any, list[Any], int] | None:
        """Return cluster, topics, and their Unix time in ms, as last read; None before the first answer."""
        return self._collector.metadata

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions of the cluster."""
        return self._collector.partitions

    def moments(self, _topic_partition: TopicPartition) -> tuple[Moment, ...]:
        """Return no moments: only a recording is looked through."""
        return ()

    def look_at(self, topic_partition: TopicPartition) -> None:
        """Sample this partition for the next ten minutes."""
        with self._lock:
            self._looked_at[topic_partition] = time.monotonic()

    def follow(self) -> None:
        """Let the stream tell of news every second for some seconds: an open screen then asks again."""
        self._follows_until = time.monotonic() + _FOLLOWED_S

    def close(self) -> None:
        """Stop collecting."""
        self._collector.close()

    def _sampled(self) -> list[TopicPartition]:
        since = time.monotonic() - _LOOKED_AT_MS / 1000
        with self._lock:
            self._looked_at = {one: at for one, at in self._looked_at.items() if at >= since}
            return sorted(self._looked_at, key=self._looked_at.__getitem__, reverse=True)

    def _add(self, entry: Entry) -> None:
        with self._lock:
            self._timeline.add(entry)
            self._version += 1
            if self._version % _FORGET_EVERY == 0:
                self._timeline.forget(entry.t - _EVENTS_MS, entry.t - _SAMPLES_MS)


Source: TypeAlias = ReplaySource | LiveSource
"""A timeline and the facts about its origin that the pages need."""
