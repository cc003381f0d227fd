"""Keep operations that wait for a change of a key, or for their timeout.

Check, watch, check again: a single check would lose a change between it and the watch. All calls come from the
owning node's scheduler, so a plain flag makes completion happen exactly once. A completed operation leaves all its
keys at once; there are no stale entries to purge. Source: docs/protocol/replication.md#purgatory.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable

from paceline.model.scheduler import Cancellable, Scheduler

Cancel = Callable[[], None]
"""Ends a wait whose asker has gone away."""


class DelayedOperation(ABC):
    """An operation that waits, such as a fetch or an acks=all produce.

    Subclasses decide when it is complete and respond.
    """

    def __init__(self) -> None:
        self._completed = False
        self._timer: Cancellable | None = None
        self._purgatory: Purgatory | None = None
        self._keys: tuple[Hashable, ...] = ()

    @property
    def completed(self) -> bool:
        """Whether it has been completed, by readiness or by time."""
        return self._completed

    @abstractmethod
    def ready(self) -> bool:
        """Whether it can complete now; also collects the results for the response."""

    @abstractmethod
    def on_complete(self) -> None:
        """Give the answer. Called exactly once."""

    def on_expiration(self) -> None:  # noqa: B027
        """Called after `on_complete` when time, not readiness, completed it."""

    def try_complete(self) -> bool:
        """Complete if ready; return whether this call completed it."""
        return not self._completed and self.ready() and self.force_complete()

    def force_complete(self) -> bool:
        """Complete in any state; return False when it was complete already."""
        if not self._leave():
            return False
        self.on_complete()
        return True

    def _leave(self) -> bool:
        """Count as completed, forgotten by all; return False when that was so already."""
        if self._completed:
            return False
        self._completed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._purgatory is not None:
            self._purgatory.forget(self, self._keys)
        return True

    def on_cancel(self) -> None:  # noqa: B027
        """Called when the caller no longer wants the answer; `on_complete` is not called then."""

    def cancel(self) -> None:
        """Leave without an answer because the caller has left; a completed operation does not change."""
        if self._leave():
            self.on_cancel()

    def enter(self, purgatory: "Purgatory", keys: tuple[Hashable, ...]) -> None:
        """Remember where to leave from; called by the purgatory."""
        self._purgatory = purgatory
        self._keys = keys

    def start_timer(self, scheduler: Scheduler, timeout_ms: float) -> None:
        """Complete by force after ``timeout_ms``, unless it is complete before."""
        self._timer = scheduler.call_later(timeout_ms, self._expire)

    def _expire(self) -> None:
        if self.force_complete():
            if self._purgatory is not None:
                self._purgatory.expired_count += 1
            self.on_expiration()


class Purgatory:
    """The waiting operations of one kind, found by the keys they watch."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._watchers: dict[Hashable, dict[DelayedOperation, None]] = {}
        self._delayed: dict[DelayedOperation, None] = {}
        self.expired_count = 0
        """Operations that time has completed so far."""

    @property
    def delayed_count(self) -> int:
        """Operations that wait now."""
        return len(self._delayed)

    def watched_count(self, key: Hashable) -> int:
        """Return how many operations wait for this key."""
        return len(self._watchers.get(key, ()))

    def await_completion(
        self, operation: DelayedOperation, keys: Iterable[Hashable], timeout_ms: float
    ) -> Cancel | None:
        """`complete_or_watch`; return a function that cancels the wait without a response, None when nothing waits."""
        return None if self.complete_or_watch(operation, keys, timeout_ms) else operation.cancel

    def complete_or_watch(self, operation: DelayedOperation, keys: Iterable[Hashable], timeout_ms: float) -> bool:
        """Complete the operation now, or let it wait for any of its keys or its time; return whether it completed.

        Completing may happen during the call; either way `on_complete` runs exactly once.
        """
        if operation.try_complete():
            return True
        unique = tuple(dict.fromkeys(keys))
        operation.enter(self, unique)
        self._delayed[operation] = None
        for key in unique:
            self._watchers.setdefault(key, {})[operation] = None
        if operation.try_complete():
            return True
        if not operation.completed:
            operation.start_timer(self._scheduler, timeout_ms)
        return operation.completed

    def check_and_complete(self, key: Hashable) -> int:
        """Try every operation that watches ``key``; return how many this completed."""
        watchers = self._watchers.get(key)
        if not watchers:
            return 0
        return sum(operation.try_complete() for operation in tuple(watchers))

    def force(self, key: Hashable) -> int:
        """Complete every operation that watches ``key``, ready or not; return how many this completed."""
        return sum(operation.force_complete() for operation in tuple(self._watchers.get(key, ())))

    def complete_all(self) -> int:
        """Complete everything by force, for shutdown; return how many there were."""
        return sum(operation.force_complete() for operation in tuple(self._delayed))

    def forget(self, operation: DelayedOperation, keys: tuple[Hashable, ...]) -> None:
        """Drop a completed operation from all its keys."""
        self._delayed.pop(operation, None)
        for key in keys:
            watchers = self._watchers.get(key)
            if watchers is not None:
                watchers.pop(operation, None)
                if not watchers:
                    del self._watchers[key]
