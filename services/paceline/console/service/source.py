"""Where the pages get their timeline from: a recording, or a live cluster."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from paceline.console.recording import Recording
from paceline.console.timeline import Timeline
from paceline.model.identifiers import TopicPartition


class Source(Protocol):
    """A timeline with what the pages need to know of its origin."""

    is_live: bool

    @property
    def version(self) -> int:
        """A number that rises with every new entry."""

    @property
    def trouble(self) -> str:
        """Why the timeline is not complete or not current; empty when it is."""

    def timeline(self) -> AbstractContextManager[Timeline]:
        """Return the timeline, locked while the caller uses it."""

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions that can be looked at."""

    def look_at(self, topic_partition: TopicPartition) -> None:
        """Note that a page shows this partition now."""


class ReplaySource:
    """A recording."""

    is_live = False
    version = 0

    def __init__(self, recording: Recording) -> None:
        self._timeline = Timeline(recording.header, recording.entries)
        self.trouble = str(recording.cut or "")

    @contextmanager
    def timeline(self) -> Iterator[Timeline]:
        """Return the timeline, which does not change."""
        yield self._timeline

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions of the recording with at least one sample or event."""
        return sorted(self._timeline.tracks)

    def look_at(self, topic_partition: TopicPartition) -> None:
        """Do nothing: a recording has all its samples."""
