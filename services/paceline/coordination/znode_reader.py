"""`ZnodeReader`: a reader that shares the ZooKeeper session of its node, reads when connected, and follows changes."""

import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Final, Generic, TypeVar

from paceline.coordination.errors import SessionLostError
from paceline.coordination.flow import Flow, FlowRun
from paceline.coordination.interface import Response, SessionEvent, SessionState, WatchEvent, ZooKeeper
from paceline.coordination.patient_zookeeper import PatientZooKeeper, WrappedZooKeeper
from paceline.model.backoff import Retries
from paceline.model.scheduler import Scheduler

LOG: Final = logging.getLogger(__name__)

T = TypeVar("T")


class ZnodeReader(WrappedZooKeeper, ABC, Generic[T]):
    """Wraps a node's client; call the methods of a client on it, as the node does.

    Its own reads begin with the first connection. It reads everything after every connect, because a reader that was
    disconnected has missed watches, and what has changed when a watch on one of the nodes ``watched`` fires.
    """

    def __init__(
        self, inner: ZooKeeper, scheduler: Scheduler, rng: random.Random, watched: Collection[str], kind: str,
        shared: bool = False,
    ) -> None:  # fmt: skip
        """``kind`` names the contents in the log; ``shared`` means that the node watches the same nodes."""
        super().__init__(inner)
        self._patient = PatientZooKeeper(inner)
        self._scheduler = scheduler
        self._retries = Retries(scheduler, rng)
        self._watched = watched
        self._kind = kind
        self._shared = shared
        self._run: FlowRun[T] | None = None
        self._whole = True
        """Whether the next read must read everything."""
        self._again = False
        self._logged = ""

    @abstractmethod
    def _reading(self) -> Flow[T]:
        """Return a flow that reads everything, or what has changed, and sets the watches."""

    @abstractmethod
    def _have_read(self, found: T) -> None:
        """Take over the result of a read."""

    def submit(self, requests: Iterable[object], on_done: Callable[[list[Response]], None]) -> None:
        """Send requests of the node."""
        self._inner.submit(requests, on_done)  # type: ignore[arg-type]

    def start(self, on_session: Callable[[SessionEvent], None], on_watch: Callable[[WatchEvent], None]) -> None:
        """Connect; read when connected, and when the watches fire."""

        def session(event: SessionEvent) -> None:
            on_session(event)
            if event.state is SessionState.CONNECTED:
                self._whole = True
                self._end_run()
                self._read()
            elif event.state in (SessionState.EXPIRED, SessionState.CLOSED):
                self._end_run()

        def watch(event: WatchEvent) -> None:
            is_ours = event.path in self._watched
            if self._shared or not is_ours:
                on_watch(event)
            if is_ours:
                self._read()

        super().start(session, watch)

    def close(self) -> None:
        """Stop reading, and end the session."""
        self._end_run()
        super().close()

    def _end_run(self) -> None:
        if self._run is not None:
            self._run.cancel()
            self._run = None

    def _read(self) -> None:
        if self._run is not None:
            self._again = True
            return
        self._again = False
        self._run = FlowRun(self._reading(), self._patient, self._scheduler, self._done, self._read_failed)
        self._run.start()

    def _done(self, found: T) -> None:
        self._run = None
        self._retries.reset()
        self._logged = ""
        self._have_read(found)
        if self._again:
            self._read()

    def _read_failed(self, error: Exception) -> None:
        self._run = None
        self._whole = True  # which creates missing parents
        if isinstance(error, SessionLostError):
            return  # the next session reads everything
        if str(error) != self._logged:
            self._logged = str(error)
            LOG.warning("%s not read, trying again: error=%s", self._kind, error)
        self._retries.schedule(self._read)
