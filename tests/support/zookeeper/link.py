"""The network between an in-memory client and the in-memory server, with the faults that a simulator injects."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from paceline.coordination.interface import Multi, Operation, Request
from paceline.model.scheduler import Scheduler

M = TypeVar("M")


def is_write(request: Request) -> bool:
    """Whether the request may change the tree."""
    return isinstance(request, Multi | Operation)


class Link:
    """Delays, cuts and losses of one client's connections. Override the delay methods, or call the others.

    A cut holds messages back as TCP does: they arrive in order once the link is healed, unless the receiver has closed
    the connection.
    """

    def __init__(self, requests_per_message: int = 32) -> None:
        self.requests_per_message = requests_per_message
        """Number of requests that are sent and applied together; 1 allows requests of other clients between any two."""
        self.requests_cut = False
        self.replies_cut = False
        self._lose_reply_to: list[Callable[[Request], bool]] = []
        self._lose_handshakes = 0
        self._held: list[Callable[[], None]] = []

    def request_delay_ms(self) -> float:
        """Return the delay of the next message to the server."""
        return 0.0

    def reply_delay_ms(self) -> float:
        """Return the delay of the next message to the client."""
        return 0.0

    def cut(self, *, requests: bool = True, replies: bool = True) -> None:
        """Stop messages in one direction or both; neither side is notified."""
        self.requests_cut = self.requests_cut or requests
        self.replies_cut = self.replies_cut or replies

    def heal(self) -> None:
        """End the cut; deliver the messages that were held back first."""
        self.requests_cut = self.replies_cut = False
        held, self._held = self._held, []
        for release in held:
            release()

    def lose_next_reply(self, to: Callable[[Request], bool] = is_write) -> None:
        """Break the connection after the next matching request was applied, before its reply."""
        self._lose_reply_to.append(to)

    def lose_next_handshake(self) -> None:
        """Break the next connection after the server has created its session, before the client learns its id."""
        self._lose_handshakes += 1

    def loses_reply(self, request: Request) -> bool:
        """Whether this reply is lost; the server calls it once per request."""
        for index, fits in enumerate(self._lose_reply_to):
            if fits(request):
                del self._lose_reply_to[index]
                return True
        return False

    def loses_handshake(self) -> bool:
        """Whether this handshake's answer is lost; the server calls it once per handshake."""
        if self._lose_handshakes:
            self._lose_handshakes -= 1
            return True
        return False

    def hold(self, release: Callable[[], None]) -> None:
        """Store a callback for the time when the link is healed; for `Pipe`."""
        self._held.append(release)


class Pipe(Generic[M]):
    """One direction of a connection: messages arrive in the order in which they were sent, whatever their delays."""

    def __init__(
        self,
        scheduler: Scheduler,
        link: Link,
        delay_ms: Callable[[], float],
        is_cut: Callable[[], bool],
        deliver: Callable[[M], None],
    ) -> None:
        self._scheduler = scheduler
        self._link = link
        self._delay_ms = delay_ms
        self._is_cut = is_cut
        self._deliver = deliver
        self._messages: deque[M] = deque()
        self._closed = False

    def send(self, message: M) -> None:
        """Send a message."""
        if not self._closed:
            self._messages.append(message)
            self._scheduler.call_later(self._delay_ms(), self._arrive)

    def close(self) -> None:
        """Deliver no more messages."""
        self._closed = True
        self._messages.clear()

    def _arrive(self) -> None:
        # Every arrival delivers the head of the queue, so that a scheduler's order of ties does not reorder messages.
        if self._closed:
            return
        if self._is_cut():
            self._link.hold(self._arrive)
            return
        self._deliver(self._messages.popleft())
