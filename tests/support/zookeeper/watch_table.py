"""One-shot watches of a server, by path and watcher."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from paceline.coordination.interface import WatchEvent, WatchType
from tests.support.zookeeper.data_tree import Change, parent_of

W = TypeVar("W")


class WatchTable(Generic[W]):
    """Watches by node; a watcher is a connection. Watches fire in the order in which they were set."""

    def __init__(self) -> None:
        self._data: dict[str, dict[W, None]] = {}
        self._children: dict[str, dict[W, None]] = {}
        self._paths: dict[W, dict[str, None]] = {}

    def watch_data(self, path: str, watcher: W) -> None:
        """Fire once when the node is created, deleted or given new data."""
        self._data.setdefault(path, {})[watcher] = None
        self._paths.setdefault(watcher, {})[path] = None

    def watch_children(self, path: str, watcher: W) -> None:
        """Fire once when a child is created or deleted, or the node itself deleted."""
        self._children.setdefault(path, {})[watcher] = None
        self._paths.setdefault(watcher, {})[path] = None

    def forget(self, watcher: W) -> None:
        """Drop all watches of a watcher."""
        for path in self._paths.pop(watcher, {}):
            for table in (self._data, self._children):
                watchers = table.get(path)
                if watchers is not None:
                    watchers.pop(watcher, None)
                    if not watchers:
                        del table[path]

    def clear(self) -> None:
        """Drop all watches."""
        self._data.clear()
        self._children.clear()
        self._paths.clear()

    def fire(self, change: Change) -> Iterator[tuple[W, WatchEvent]]:
        """Remove and yield the watches of a change; a watcher with both kinds on a deleted node gets one event."""
        fired = self._data.pop(change.path, {})
        if change.type is WatchType.DELETED:
            fired = {**fired, **self._children.pop(change.path, {})}
        event = WatchEvent(change.type, change.path)
        for watcher in fired:
            yield watcher, event
        if change.type is not WatchType.DATA_CHANGED:
            parent = parent_of(change.path)
            event = WatchEvent(WatchType.CHILDREN_CHANGED, parent)
            for watcher in self._children.pop(parent, {}):
                yield watcher, event
