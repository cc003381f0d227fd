"""Client channels: their options, and a cache of channels by address."""

import threading
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from paceline.rpc.security.credentials import TlsCredentials
from paceline.rpc.security.reopening_channel import ReopeningChannel

CLIENT_MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Largest message on Paceline's client channels; servers keep responses below 1 MiB unless a request asks for more."""
REPLICATION_MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
CONTROL_MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""A LeaderAndIsr of 200,000 partitions has about 25 MB."""
KEEPALIVE_TIME_MS: Final = 30_000
KEEPALIVE_TIMEOUT_MS: Final = 10_000

Options = list[tuple[str, int | str]]


def channel_options(max_message_bytes: int = CLIENT_MAX_MESSAGE_BYTES, own_connection: bool = False) -> Options:
    """Return the options of a channel.

    Args:
        max_message_bytes: largest message sent or received.
        own_connection: True prevents gRPC from sharing one TCP connection between channels to the same address. A
            replica fetcher uses it so that a slow response on one channel does not delay another channel.
    """
    options: Options = [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # A broker restarts in seconds; with gRPC's default back-off its peers would wait for up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # rpc/retry.py does the retries, because they need sequence numbers and leader hints.
        ("grpc.enable_retries", 0),
        ("grpc.primary_user_agent", "paceline"),
    ]
    if own_connection:
        options.append(("grpc.use_local_subchannel_pool", 1))
    return options


def open_channel(
    address: str,
    max_message_bytes: int = CLIENT_MAX_MESSAGE_BYTES,
    own_connection: bool = False,
    tls: TlsCredentials | None = None,
    more_options: Options = [],  # noqa: B006 - never changed
) -> Any:
    """Return a blocking channel to ``host:port``; it connects with the first call.

    Args:
        address: ``host:port``.
        max_message_bytes: see `channel_options`.
        own_connection: see `channel_options`.
        tls: certificates; None for plaintext.
        more_options: further gRPC options, which override those of `channel_options`.
    """
    options = list((dict(channel_options(max_message_bytes, own_connection)) | dict(more_options)).items())
    if tls is None:
        return grpc.insecure_channel(address, options)
    return ReopeningChannel(tls, lambda credentials: grpc.secure_channel(address, credentials, options))


def open_aio_channel(
    address: str, max_message_bytes: int = CLIENT_MAX_MESSAGE_BYTES, tls: TlsCredentials | None = None
) -> Any:
    """Return an asyncio channel to ``host:port`` for a few calls; it does not reload changed certificates."""
    options = channel_options(max_message_bytes)
    if tls is None:
        return grpc.aio.insecure_channel(address, options)
    return grpc.aio.secure_channel(address, tls.current().channel_credentials(), options)


class ChannelCache:
    """One blocking channel per address, opened on first use; thread-safe.

    Args:
        open_one: opens a channel to an address; by default `open_channel`.
        tls: certificates for `open_channel`; None for plaintext.
    """

    def __init__(self, open_one: Callable[[str], Any] | None = None, tls: TlsCredentials | None = None) -> None:
        self._open_one = open_one or (lambda address: open_channel(address, tls=tls))
        self._channels: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._closed = False

    def get(self, address: str) -> Any:
        """Return the channel to ``host:port``."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the channels are closed")
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = self._open_one(address)
            return channel

    def close(self) -> None:
        """Close every channel; calls in progress end with CANCELLED."""
        with self._lock:
            self._closed = True
            channels = list(self._channels.values())
            self._channels.clear()
        for channel in channels:
            channel.close()
