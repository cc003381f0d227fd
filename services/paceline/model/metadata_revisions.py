"""When which topic changed last: what a watcher of metadata needs to be brought up to date from where it was.

State, not history: a topic has one entry, with the revision of its latest change, so a slow watcher costs nothing and
misses nothing but what was overtaken. Topics that are gone stay for a while as entries of nothing.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, NamedTuple

CLUSTER: Final = ""
"""The entry of brokers and controller; no topic has the empty name."""
GONE_TOPICS_KEPT: Final = 1_000


class MetadataPosition(NamedTuple):
    """Where a reader stands."""

    revision: int
    """Revision of the latest change it has read."""
    began: int
    """Revision at which it started to read everything: it never knew what was deleted before."""


@dataclass(frozen=True, slots=True)
class MetadataRead:
    """What has changed since a revision."""

    entries: tuple[tuple[str, int], ...]
    """Topics, and `CLUSTER`, with the revisions of their latest changes, in that order."""
    position: MetadataPosition
    """Where to go on after all of them; a reader that takes only some goes on at the last one's revision."""
    anew: bool
    """Whether the reader has to forget what it knows: changes since its revision are not all known any more."""
    more: bool
    """Whether there is more to read at once."""


class MetadataRevisions:
    """Revisions of one process's metadata; they rise by one with each change of a topic, or of the cluster."""

    def __init__(self, gone_topics_kept: int = GONE_TOPICS_KEPT, on_change: Callable[[], None] = lambda: None) -> None:
        """``on_change`` is called after changes."""
        self._gone_topics_kept = gone_topics_kept
        self._revision = 0
        self._oldest = 0
        """Revision of the latest change that is forgotten: a topic that went."""
        self._entries: dict[str, int] = {}
        """Revision by name, in rising order."""
        self._gone: dict[str, None] = {}
        self._cluster: Hashable = None
        self.generation = 0
        """Rises when all was forgotten; a revision means something within one generation only."""
        self._on_change = on_change

    @property
    def revision(self) -> int:
        """Revision of the latest change."""
        return self._revision

    def changed(self, topics: Iterable[str], cluster: Hashable) -> None:
        """Note that topics have changed; ``cluster`` stands for brokers and controller, and counts when it differs."""
        for topic in dict.fromkeys(topics):
            self._gone.pop(topic, None)
            self._move_to_end(topic)
        if cluster != self._cluster:
            self._cluster = cluster
            self._move_to_end(CLUSTER)
        self._on_change()

    def gone(self, topic: str) -> None:
        """Note that a topic is not there any more."""
        self._move_to_end(topic)
        self._gone.pop(topic, None)
        self._gone[topic] = None
        while len(self._gone) > self._gone_topics_kept:
            forgotten = next(iter(self._gone))
            del self._gone[forgotten]
            self._oldest = max(self._oldest, self._entries.pop(forgotten))
        self._on_change()

    def restart(self) -> None:
        """Forget everything: what was known is known no more."""
        self.generation += 1
        self._revision = self._oldest = 0
        self._entries.clear()
        self._gone.clear()
        self._cluster = None
        self._on_change()

    def since(self, position: MetadataPosition | None, max_names: int) -> MetadataRead:
        """Return what has changed after a position, the oldest change first; None asks for everything."""
        anew = position is None or position.revision > self._revision or max(position) < self._oldest
        start = MetadataPosition(0, self._revision) if position is None or anew else position
        later = list(takewhile(lambda entry: entry[1] > start.revision, reversed(self._entries.items())))
        later.reverse()
        chosen, more = later[:max_names], len(later) > max_names
        reached = chosen[-1][1] if more else self._revision
        return MetadataRead(tuple(chosen), start._replace(revision=reached), anew, more)

    def _move_to_end(self, name: str) -> None:
        self._revision += 1
        self._entries.pop(name, None)
        self._entries[name] = self._revision
