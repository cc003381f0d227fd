"""Keep delayed operations until a change of a key completes them or they time out.

An operation is checked before and after it is registered under its keys; with a single check a change between the check
and the registration would be lost. All calls come from the owning node's scheduler, so a flag is enough to complete an
operation exactly once. A completed operation is removed from all its keys at once, so no purge of stale entries is
needed. Source: docs/protocol/replication.md#purgatory.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable

from paceline.model.scheduler import Cancellable, Scheduler

Cancel = Callable[[], None]
"""Cancels a wait whose caller no longer wants the response."""


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
        """Whether the operation was completed, has expired or was cancelled."""
        return self._completed

    @abstractmethod
    def advance(self) -> bool:
        """Return whether the operation can complete now; also collect the results for the response."""

    @abstractmethod
    def on_complete(self) -> None:
        """Send the response; called exactly once unless the operation is cancelled."""

    def try_complete(self) -> bool:
        """Complete the operation if it is ready; return whether this call completed it."""
        return not self._completed and self.advance() and self.force_complete()

    def check(self, _key: Hashable) -> bool:
        """Complete the operation if it is ready after a change of a key; return whether this call completed it."""
        return self.try_complete()

    def force_complete(self) -> bool:
        """Complete the operation whether it is ready or not; return False if it was already completed."""
        if not self._leave():
            return False
        self.on_complete()
        return True

    def _leave(self) -> bool:
        """Mark the operation as completed, and remove its timer and keys; return False if it was already completed."""
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
        """Handle a cancellation; `on_complete` is not called then."""

    def cancel(self) -> None:
        """End the operation without a response because its caller has left; do nothing if it is completed."""
        if self._leave():
            self.on_cancel()

    def enter(self, purgatory: "Purgatory", keys: tuple[Hashable, ...]) -> None:
        """Store the purgatory, which calls this, and the keys under which it has registered the operation."""
        self._purgatory = purgatory
        self._keys = keys

    def start_timer(self, scheduler: Scheduler, timeout_ms: float) -> None:
        """Complete the operation after ``timeout_ms`` unless it was completed before."""
        self._timer = scheduler.call_later(timeout_ms, self._expire)

    def _expire(self) -> None:
        if self.force_complete() and self._purgatory is not None:
            self._purgatory.expired_count += 1


class Purgatory:
    """The delayed operations of one kind, indexed by the keys that they watch."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._watchers: dict[Hashable, dict[DelayedOperation, None]] = {}
        self._delayed: dict[DelayedOperation, None] = {}
        self.expired_count = 0
        """Number of operations that have expired."""

    @property
    def delayed_count(self) -> int:
        """Number of operations that wait now."""
        return len(self._delayed)

    def await_completion(
        self, operation: DelayedOperation, keys: Iterable[Hashable], timeout_ms: float
    ) -> Cancel | None:
        """Call `complete_or_watch`; return a function that cancels the wait, None if the operation is completed."""
        return None if self.complete_or_watch(operation, keys, timeout_ms) else operation.cancel

    def complete_or_watch(self, operation: DelayedOperation, keys: Iterable[Hashable], timeout_ms: float) -> bool:
        """Complete the operation if it is ready, else watch its keys until ``timeout_ms``; return whether it completed.

        The operation may complete at any time during this call; `on_complete` still runs exactly once.
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
        """Check every operation that watches ``key``; return the number of operations that this completed."""
        watchers = self._watchers.get(key)
        if not watchers:
            return 0
        return sum(operation.check(key) for operation in tuple(watchers))

    def force(self, key: Hashable) -> int:
        """Complete every operation that watches ``key``, ready or not; return their number."""
        return sum(operation.force_complete() for operation in tuple(self._watchers.get(key, ())))

    def complete_all(self) -> int:
        """Complete all operations, ready or not, for a shutdown; return their number."""
        return sum(operation.force_complete() for operation in tuple(self._delayed))

    def forget(self, operation: DelayedOperation, keys: tuple[Hashable, ...]) -> None:
        """Remove a completed operation from all its keys."""
        self._delayed.pop(operation, None)
        for key in keys:
            watchers = self._watchers.get(key)
            if watchers is not None:
                watchers.pop(operation, None)
                if not watchers:
                    del self._watchers[key]
