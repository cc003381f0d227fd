"""Track heartbeats of brokers by the controller's own clock.

A broker that reaches ZooKeeper but not the controller stays registered but receives no requests, so it must not stay
leader (the gap that KIP-343 leaves open).

Source: docs/protocol/controller.md#broker-lease; docs/decisions/0007-broker-lease.md.
"""

from collections.abc import Callable, Iterable

from paceline.model.scheduler import Cancellable, Scheduler


class BrokerLeases:
    """Lease deadlines by broker, and one timer for the earliest deadline."""

    def __init__(self, lease_ms: int, scheduler: Scheduler, on_change: Callable[[int], None]) -> None:
        """``on_change`` receives the id of a broker whose lease expired, or was renewed after it had expired.

        ``lease_ms`` 0 means that leases never expire.
        """
        self._lease_ms = lease_ms
        self._scheduler = scheduler
        self._on_change = on_change
        self._deadlines_ms: dict[int, int] = {}
        self._expired: set[int] = set()
        self._heard_ms: dict[int, int] = {}
        """Time of each broker's last heartbeat."""
        self._timer: Cancellable | None = None
        self._due_ms = 0

    def grant(self, broker_ids: Iterable[int]) -> None:
        """Start a full lease for each broker, whether or not the broker has a lease."""
        for broker_id in broker_ids:
            self._expired.discard(broker_id)
            self._deadlines_ms[broker_id] = self._scheduler.now_ms() + self._lease_ms
        self._schedule()

    def renew(self, broker_id: int) -> None:
        """Renew the lease of a broker after a heartbeat, also after the lease expired."""
        if broker_id not in self._deadlines_ms and broker_id not in self._expired:
            return
        self._heard_ms[broker_id] = self._scheduler.now_ms()
        was_expired = broker_id in self._expired
        self._expired.discard(broker_id)
        self._deadlines_ms[broker_id] = self._scheduler.now_ms() + self._lease_ms
        if was_expired:
            self._schedule()
            self._on_change(broker_id)

    def expire(self, broker_id: int) -> None:
        """End a broker's lease immediately, on evidence that its process is dead.

        Its next heartbeat renews the lease.
        """
        self._deadlines_ms.pop(broker_id, None)
        if broker_id not in self._expired:
            self._expired.add(broker_id)
            self._on_change(broker_id)

    def drop(self, broker_ids: Iterable[int]) -> None:
        """Forget brokers that are no longer registered."""
        for broker_id in broker_ids:
            self._deadlines_ms.pop(broker_id, None)
            self._heard_ms.pop(broker_id, None)
            self._expired.discard(broker_id)

    def has_expired(self, broker_id: int) -> bool:
        """Whether the broker's lease has expired."""
        return broker_id in self._expired

    def silent_ms(self, broker_id: int) -> int | None:
        """Return the time since the broker's last heartbeat, None when this controller has received none."""
        heard_ms = self._heard_ms.get(broker_id)
        return None if heard_ms is None else self._scheduler.now_ms() - heard_ms

    def clear(self) -> None:
        """Forget all leases, because the controller resigned."""
        self._deadlines_ms.clear()
        self._heard_ms.clear()
        self._expired.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        if self._timer is not None or not self._deadlines_ms or self._lease_ms <= 0:
            return
        now_ms = self._scheduler.now_ms()
        self._due_ms = max(now_ms, min(self._deadlines_ms.values()))
        self._timer = self._scheduler.call_later(self._due_ms - now_ms, self._check_leases)

    def _check_leases(self) -> None:
        self._timer = None
        now_ms = self._scheduler.now_ms()
        if now_ms - self._due_ms > self._lease_ms // 3:
            # This process was suspended, and heartbeats that arrived meanwhile are still queued: renew all leases.
            self.grant(sorted(self._deadlines_ms))
            return
        expired = sorted(broker_id for broker_id, deadline in self._deadlines_ms.items() if deadline <= now_ms)
        for broker_id in expired:
            del self._deadlines_ms[broker_id]
            self._expired.add(broker_id)
        self._schedule()
        for broker_id in expired:
            self._on_change(broker_id)
