"""Repeat requests after connection losses, within one session; docs/protocol/zookeeper.md#connection-loss."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline.coordination.interface import (
    Request,
    Response,
    SessionEvent,
    WatchEvent,
    ZkCode,
    ZooKeeper,
)


class WrappedZooKeeper:
    """Base class of a client that passes all calls except `submit` to another client."""

    def __init__(self, inner: ZooKeeper) -> None:
        self._inner = inner

    @property
    def session_id(self) -> int:
        """Id of the current session, 0 before the first connection."""
        return self._inner.session_id

    @property
    def connected(self) -> bool:
        """Whether requests submitted now would be sent at once."""
        return self._inner.connected

    @property
    def session_may_be_over(self) -> bool:
        """Whether the server may have ended the session by now."""
        return self._inner.session_may_be_over

    def start(self, on_session: Callable[[SessionEvent], None], on_watch: Callable[[WatchEvent], None]) -> None:
        """Connect, and keep connecting until closed."""
        self._inner.start(on_session, on_watch)

    def close(self) -> None:
        """End the session."""
        self._inner.close()


class PatientZooKeeper(WrappedZooKeeper):
    """Wraps a client so that callers never see CONNECTION_LOSS: the request is sent again in the same session.

    The final response of a request that was in doubt has ``in_doubt_before``; the sender of a write then
    reads the node to learn whether the write was applied. A request ends with SESSION_EXPIRED when its session ends, so
    that every retry ends.
    """

    def submit(self, requests: Sequence[Request], on_done: Callable[[list[Response]], None]) -> None:
        """Send requests, again after each connection loss, and call back once with all final responses."""
        requests = tuple(requests)
        self._inner.submit(requests, lambda responses: self._settle(requests, responses, on_done))

    def _settle(
        self, requests: Sequence[Request], responses: list[Response], on_done: Callable[[list[Response]], None]
    ) -> None:
        lost = [index for index, response in enumerate(responses) if response.code is ZkCode.CONNECTION_LOSS]
        if any(response.code is ZkCode.SESSION_EXPIRED for response in responses):
            # The client may have begun a new session already: a retry would be applied in the wrong session.
            for index in lost:
                responses[index] = replace(responses[index], code=ZkCode.SESSION_EXPIRED, in_doubt_before=True)
            lost = []
        if not lost:
            on_done(responses)
            return

        def merge(again: list[Response]) -> None:
            for index, response in zip(lost, again, strict=True):
                responses[index] = replace(response, in_doubt_before=True)
            on_done(responses)

        # The client has not reported a new session yet, so this retry still belongs to the same session: it waits for
        # the connection and is answered SESSION_EXPIRED if the session has ended meanwhile.
        self.submit([requests[index] for index in lost], merge)
