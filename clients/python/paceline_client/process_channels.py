"""Channels that all clients of a process share, for programs that fork or create clients often, as workers of Spark do.

gRPC does not survive a fork, so channels belong to a process id: a child opens its own, and a worker that is reused
keeps its open connections.
"""

import os
import threading

from paceline.model.tls import TlsFiles
from paceline.rpc.channels import ChannelCache, Options, open_channel
from paceline.rpc.security.client_tls import client_credentials

_channels: dict[tuple[int, str, TlsFiles | None], ChannelCache] = {}
_lock = threading.Lock()


def channels_of_this_process(client_id: str, tls: TlsFiles | None = None) -> ChannelCache:
    """Return the channels of this process; channels inherited through a fork are forgotten, not used or closed."""
    key = (os.getpid(), client_id, tls)
    with _lock:
        if key not in _channels:
            for other in [other for other in _channels if other[0] != key[0]]:
                del _channels[other]
            credentials = client_credentials(tls, {})
            ours: Options = [("grpc.primary_user_agent", client_id)]
            _channels[key] = ChannelCache(lambda address: open_channel(address, tls=credentials, more_options=ours))
        return _channels[key]


def close_channels() -> None:
    """Close this process's channels; the next call opens new ones."""
    with _lock:
        closing = [_channels.pop(key) for key in list(_channels) if key[0] == os.getpid()]
    for cache in closing:
        cache.close()
