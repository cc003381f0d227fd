"""A blocking TLS channel that opens a new connection when its certificate files change.

Calls that begin after a change use the new connection; calls and streams in progress finish on the old connection,
which closes with the last of them. gRPC would otherwise reconnect it, with its old certificate, as long as the process
lives.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from paceline.rpc.security.credentials import Certificates, TlsCredentials


class ReopeningChannel:
    """Has the methods of `grpc.Channel` that stubs and Paceline's streams use.

    Args:
        tls: the certificates, which are loaded again when their files change.
        open_one: opens a channel with the given credentials.
    """

    def __init__(self, tls: TlsCredentials, open_one: Callable[[Any], Any]) -> None:
        self._tls = tls
        self._open_one = open_one
        self._lock = threading.RLock()
        self._certificates: Certificates = tls.current()
        self._now = open_one(self._certificates.channel_credentials())
        self._calls: dict[Any, int] = {self._now: 0}
        """Number of calls in progress of each open connection: the current one, and old ones that have calls."""
        self._callbacks: list[Any] = []
        self._closed = False
        tls.add_channel(self)

    def begin_call(self) -> tuple[Any, Callable[[], None]]:
        """Return the gRPC channel for a new call, and the function to call when the call has ended."""
        with self._lock:
            self.reopen_if_renewed()
            self._calls[self._now] += 1
            return self._now, partial(self._end_call, self._now)

    def reopen_if_renewed(self) -> None:
        """Open another connection if the certificates have changed, and close the old one if it has no calls."""
        with self._lock:
            certificates = self._tls.current()
            if certificates is self._certificates or self._closed:
                return
            before, self._certificates = self._now, certificates
            self._now = self._open_one(certificates.channel_credentials())
            self._calls[self._now] = 0
            for callback in self._callbacks:
                before.unsubscribe(callback)
                callback(grpc.ChannelConnectivity.SHUTDOWN)
                self._now.subscribe(callback, try_to_connect=True)
            self._close_if_unused(before)

    def _end_call(self, channel: Any) -> None:
        with self._lock:
            self._calls[channel] -= 1
            self._close_if_unused(channel)

    def _close_if_unused(self, channel: Any) -> None:
        if channel is not self._now and not self._calls[channel]:
            del self._calls[channel]
            # `close` waits for gRPC's thread, which may be the thread that reports the end of the last call.
            threading.Thread(target=channel.close, name="close-channel", daemon=True).start()

    def unary_unary(self, *args: Any, **kwargs: Any) -> "_Method":
        """See `grpc.Channel`."""
        return _Method(self, "unary_unary", args, kwargs)

    def unary_stream(self, *args: Any, **kwargs: Any) -> "_Method":
        """See `grpc.Channel`."""
        return _Method(self, "unary_stream", args, kwargs)

    def stream_stream(self, *args: Any, **kwargs: Any) -> "_Method":
        """See `grpc.Channel`."""
        return _Method(self, "stream_stream", args, kwargs)

    def subscribe(self, callback: Any, try_to_connect: bool | None = False) -> None:
        """See `grpc.Channel`; after a renewal reports SHUTDOWN, opens the new connection and reports its state.

        ``callback`` must not block.
        """
        with self._lock:
            self._callbacks.append(callback)
            self._now.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Any) -> None:
        """See `grpc.Channel`."""
        with self._lock:
            self._callbacks.remove(callback)
            self._now.unsubscribe(callback)

    def close(self) -> None:
        """Close every connection; calls in progress end with CANCELLED."""
        with self._lock:
            self._closed = True
            channels = list(self._calls)
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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(lambda method: method(*args, **kwargs), self._kind == "unary_unary")

    def future(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(lambda method: method.future(*args, **kwargs), False)

    def _call(self, begin: Callable[[Any], Any], blocks: bool) -> Any:
        """Call through the current connection, and note the end of the call."""
        channel, end = self._channel.begin_call()
        in_progress = False
        try:
            result = begin(self._on(channel))
            in_progress = not blocks and result.add_callback(end)
            return result
        finally:
            if not in_progress:
                end()

    def _on(self, channel: Any) -> Any:
        of, made = self._of, self._made
        if of is not channel:
            made = getattr(channel, self._kind)(*self._args, **self._kwargs)
            self._made, self._of = made, channel
        return made
