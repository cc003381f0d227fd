"""Keep the revision of each topic's latest change, so that a metadata watcher can be sent the changes it lacks.

A topic has one entry, not a history: a slow watcher costs no memory and misses only superseded changes. The latest
deleted topics keep their entries.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, NamedTuple

CLUSTER: Final = ""
"""The entry for brokers and controller; no topic has the empty name."""
DELETED_TOPICS_KEPT: Final = 1_000


class MetadataPosition(NamedTuple):
    """Position of a reader: the latest revision that it has read, and the revision of its snapshot."""

    revision: int
    """Revision of the latest change that the reader has read."""
    began: int
    """Revision at which the reader's snapshot was taken; the snapshot has no topic deleted before that revision."""


@dataclass(frozen=True, slots=True)
class MetadataRead:
    """Changes since a revision."""

    entries: tuple[tuple[str, int], ...]
    """Topics, and `CLUSTER`, with the revisions of their latest changes, sorted by revision."""
    position: MetadataPosition
    """Position after all entries; a reader that uses only some of them continues after the last entry it used."""
    is_snapshot: bool
    """Whether the entries are a complete snapshot, because the reader has no state or must discard its state.

    A reader must discard its state when deletions after its revision were forgotten, or when its revision is above the
    latest revision.
    """
    more: bool
    """Whether changes remain after these entries."""


class MetadataRevisions:
    """Metadata revisions of a process; each change of a topic, or of the cluster, raises the revision by one."""

    def __init__(
        self, deleted_topics_kept: int = DELETED_TOPICS_KEPT, on_change: Callable[[], None] = lambda: None
    ) -> None:
        """``on_change`` is called after each recorded change and after `restart`."""
        self._deleted_topics_kept = deleted_topics_kept
        self._revision = 0
        self._oldest = 0
        """Revision of the latest deletion that was forgotten."""
        self._entries: dict[str, int] = {}
        """Revision by name, in rising order."""
        self._deleted: dict[str, None] = {}
        self._cluster: Hashable = None
        self.generation = 0
        """Incremented by `restart`; revisions of different generations cannot be compared."""
        self._on_change = on_change

    @property
    def revision(self) -> int:
        """Revision of the latest change."""
        return self._revision

    def changed(self, topics: Iterable[str], cluster: Hashable) -> None:
        """Record changed topics; ``cluster``, the state of brokers and controller, is recorded when it has changed."""
        for topic in dict.fromkeys(topics):
            self._deleted.pop(topic, None)
            self._move_to_end(topic)
        if cluster != self._cluster:
            self._cluster = cluster
            self._move_to_end(CLUSTER)
        self._on_change()

    def topic_deleted(self, topic: str) -> None:
        """Record that a topic was deleted."""
        self._move_to_end(topic)
        self._deleted.pop(topic, None)
        self._deleted[topic] = None
        while len(self._deleted) > self._deleted_topics_kept:
            forgotten = next(iter(self._deleted))
            del self._deleted[forgotten]
            self._oldest = max(self._oldest, self._entries.pop(forgotten))
        self._on_change()

    def restart(self) -> None:
        """Forget all revisions and start a new generation."""
        self.generation += 1
        self._revision = self._oldest = 0
        self._entries.clear()
        self._deleted.clear()
        self._cluster = None
        self._on_change()

    def since(self, position: MetadataPosition | None, max_names: int) -> MetadataRead:
        """Return the changes after a position, oldest first; None returns everything."""
        is_snapshot = position is None or position.revision > self._revision or max(position) < self._oldest
        start = MetadataPosition(0, self._revision) if position is None or is_snapshot else position
        later = list(takewhile(lambda entry: entry[1] > start.revision, reversed(self._entries.items())))
        later.reverse()
        chosen, more = later[:max_names], len(later) > max_names
        reached = chosen[-1][1] if more else self._revision
        return MetadataRead(tuple(chosen), start._replace(revision=reached), is_snapshot, more)

    def _move_to_end(self, name: str) -> None:
        self._revision += 1
        self._entries.pop(name, None)
        self._entries[name] = self._revision
