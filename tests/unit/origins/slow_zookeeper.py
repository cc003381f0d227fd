"""A ZooKeeper client that pays a fixed time per request, with a limit of requests in flight, on virtual time."""

from collections import deque
from collections.abc import Callable, Sequence

from paceline.coordination.interface import Multi, Request, Response, SessionEvent, WatchEvent
from tests.support.virtual_time import VirtualTime
from tests.support.zookeeper.client import MemoryZooKeeper


class SlowZooKeeper:
    """Wraps a client; implements the `ZooKeeper` protocol.

    Args:
        request_ms: round trip of one request.
        operation_ms: what the server needs for each operation of a multi, one request after the other.
        in_flight: requests that may be under way at once.
    """

    def __init__(
        self, inner: MemoryZooKeeper, time: VirtualTime, request_ms: float, operation_ms: float, in_flight: int
    ) -> None:
        self._inner = inner
        self._time = time
        self._request_ms = request_ms
        self._operation_ms = operation_ms
        self._free = in_flight
        self._waiting: deque[tuple[Request, Callable[[Response], None]]] = deque()
        self._server_busy_until_ms = 0.0
        self.requests = 0

    @property
    def session_id(self) -> int:
        return self._inner.session_id

    @property
    def connected(self) -> bool:
        return self._inner.connected

    def start(self, on_session: Callable[[SessionEvent], None], on_watch: Callable[[WatchEvent], None]) -> None:
        self._inner.start(on_session, on_watch)

    def close(self) -> None:
        self._inner.close()

    def submit(self, requests: Sequence[Request], on_done: Callable[[list[Response]], None]) -> None:
        found: dict[int, Response] = {}

        def answered(index: int, response: Response) -> None:
            found[index] = response
            if len(found) == len(requests):
                on_done([found[i] for i in range(len(requests))])

        for index, request in enumerate(requests):
            self._waiting.append((request, lambda response, i=index: answered(i, response)))  # type: ignore[misc]
        self._send()

    def _send(self) -> None:
        while self._waiting and self._free:
            self._free -= 1
            self.requests += 1
            request, reply = self._waiting.popleft()
            operations = len(request.operations) if isinstance(request, Multi) else 1
            now_ms = self._time._now_ms  # The scheduler's own clock, with fractions of a millisecond.
            begin_ms = max(now_ms + self._request_ms / 2, self._server_busy_until_ms)
            self._server_busy_until_ms = begin_ms + operations * self._operation_ms
            delay_ms = self._server_busy_until_ms + self._request_ms / 2 - now_ms
            self._time.call_later(delay_ms, lambda r=request, on=reply: self._carry_out(r, on))  # type: ignore[misc]

    def _carry_out(self, request: Request, reply: Callable[[Response], None]) -> None:
        def done(responses: list[Response]) -> None:
            self._free += 1
            self._send()
            reply(responses[0])

        self._inner.submit([request], done)
