"""Run events from a FIFO queue; the flow of an event ends before the next event starts.

Source: docs/protocol/controller.md#event-queue; Kafka 2.8 ControllerEventManager.
"""

from collections import deque
from collections.abc import Callable

from paceline.controller.events import Event
from paceline.coordination.flow import Flow, FlowRun
from paceline.coordination.interface import ZooKeeper
from paceline.model.scheduler import Scheduler


class EventQueue:
    """Runs events one at a time on the scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        zookeeper: ZooKeeper,
        handle: Callable[[Event], Flow[None]],
        on_handled: Callable[[Event, int, int], None],
    ) -> None:
        """``on_handled`` receives the event, its time in the queue and its handling time, both in milliseconds."""
        self._scheduler = scheduler
        self._zookeeper = zookeeper
        self._handle = handle
        self._on_handled = on_handled
        self._waiting: deque[tuple[Event, int]] = deque()
        self._running: Event | None = None
        self._run: FlowRun[None] | None = None
        self._wake_up_is_due = False
        self._closed = False

    @property
    def size(self) -> int:
        """Number of waiting events, without the running event."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether no event runs or waits."""
        return self._running is None and not self._waiting

    def put(self, event: Event) -> None:
        """Append an event."""
        if self._closed:
            event.preempt()
            return
        self._waiting.append((event, self._scheduler.now_ms()))
        self._wake_up()

    def clear(self) -> None:
        """Abort the running event and preempt all waiting events."""
        run, running, waiting = self._run, self._running, self._waiting
        self._run, self._running, self._waiting = None, None, deque()
        if run is not None:
            run.cancel()
        if running is not None:
            running.abort()
        for event, _ in waiting:
            event.preempt()

    def close(self) -> None:
        """Drop all events and accept no more."""
        self._closed = True
        self.clear()

    def _wake_up(self) -> None:
        if self._running is None and self._waiting and not self._wake_up_is_due:
            self._wake_up_is_due = True
            self._scheduler.call_soon(self._start_next)

    def _start_next(self) -> None:
        self._wake_up_is_due = False
        if self._running is not None or not self._waiting:
            return
        event, queued_ms = self._waiting.popleft()
        started_ms = self._scheduler.now_ms()
        self._running = event

        def finished(_: object) -> None:
            if self._running is not event:
                return
            self._running, self._run = None, None
            self._on_handled(event, started_ms - queued_ms, self._scheduler.now_ms() - started_ms)
            self._wake_up()

        run: FlowRun[None] = FlowRun(self._handle(event), self._zookeeper, self._scheduler, finished, finished)
        self._run = run
        run.start()
