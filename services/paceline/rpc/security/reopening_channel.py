"""A blocking TLS channel that opens a new connection when its certificate files change.

Calls that begin after a change use the new connection; calls and streams in progress finish on the old connection.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from paceline.rpc.security.credentials import Certificates, TlsCredentials

_KEPT: Final = 8
"""Maximum number of old connections kept open for their calls in progress; beyond it the oldest is closed."""


class ReopeningChannel:
    """Has the methods of `grpc.Channel` that stubs and Paceline's streams use.

    Args:
        tls: the certificates, which are loaded again when their files change.
        open_one: opens a channel with the given credentials.
    """

    def __init__(self, tls: TlsCredentials, open_one: Callable[[Any], Any]) -> None:
        self._tls = tls
        self._open_one = open_one
        self._lock = threading.Lock()
        self._certificates: Certificates = tls.current()
        self._now = open_one(self._certificates.channel_credentials())
        self._earlier: deque[Any] = deque()
        self._closed = False

    def current(self) -> Any:
        """Return the channel for new calls; open another if the certificates have changed."""
        certificates = self._tls.current()
        if certificates is self._certificates:
            return self._now
        oldest = None
        with self._lock:
            if certificates is not self._certificates and not self._closed:
                self._earlier.append(self._now)
                self._now = self._open_one(certificates.channel_credentials())
                self._certificates = certificates
                if len(self._earlier) > _KEPT:
                    oldest = self._earlier.popleft()
            now = self._now
        if oldest is not None:
            oldest.close()
        return now

    @property
    def _channel(self) -> Any:
        """The internals of the current channel, which `streams.stream_call` uses."""
        return self.current()._channel

    def unary_unary(self, *args: Any, **kwargs: Any) -> "_Method":
        """See `grpc.Channel`."""
        return _Method(self, "unary_unary", args, kwargs)

    def unary_stream(self, *args: Any, **kwargs: Any) -> "_Method":
        """See `grpc.Channel`."""
        return _Method(self, "unary_stream", args, kwargs)

    def stream_unary(self, *args: Any, **kwargs: Any) -> "_Method":
        """See `grpc.Channel`."""
        return _Method(self, "stream_unary", args, kwargs)

    def stream_stream(self, *args: Any, **kwargs: Any) -> "_Method":
        """See `grpc.Channel`."""
        return _Method(self, "stream_stream", args, kwargs)

    def subscribe(self, callback: Any, try_to_connect: bool | None = False) -> None:
        """See `grpc.Channel`; reports the state of the current connection only."""
        self.current().subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Any) -> None:
        """See `grpc.Channel`."""
        self.current().unsubscribe(callback)

    def close(self) -> None:
        """Close every connection; calls in progress end with CANCELLED."""
        with self._lock:
            self._closed = True
            channels = [*self._earlier, self._now]
            self._earlier.clear()
        for channel in channels:
            channel.close()

    def __enter__(self) -> "ReopeningChannel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Method:
    """A stub method that always calls through the current connection."""

    __slots__ = ("_args", "_channel", "_kind", "_kwargs", "_made", "_of")

    def __init__(self, channel: ReopeningChannel, kind: str, args: Any, kwargs: Any) -> None:
        self._channel, self._kind, self._args, self._kwargs = channel, kind, args, kwargs
        self._of: Any = None
        self._made: Any = None

    def _now(self) -> Any:
        channel = self._channel.current()
        of, made = self._of, self._made
        if of is not channel:
            made = getattr(channel, self._kind)(*self._args, **self._kwargs)
            self._made, self._of = made, channel
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._now()(*args, **kwargs)

    def future(self, *args: Any, **kwargs: Any) -> Any:
        return self._now().future(*args, **kwargs)

    def with_call(self, *args: Any, **kwargs: Any) -> Any:
        return self._now().with_call(*args, **kwargs)
