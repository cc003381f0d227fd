"""`Connections`: channels to brokers and cluster metadata, which several clients of a process can share."""

from collections.abc import Callable, Iterable
from itertools import cycle
from typing import Final

from paceline.model.errors import InvalidRequestError
from paceline.model.tls import TlsFiles
from paceline.rpc.channels import ChannelCache, Options, open_channel
from paceline.rpc.security.client_tls import client_credentials
from paceline.rpc.security.named_channel import NamedChannel
from paceline_client.addresses import parse_bootstrap
from paceline_client.metadata_refresher import METADATA_MAX_AGE_MS, MetadataRefresher

NAMED_CONNECTIONS: Final = 8
"""Connections to a broker for all named clients, which take turns: a broker takes 256 calls at a time on each."""


class Connections:
    """Channels and metadata, to pass to `Producer` and `Consumer` in place of addresses. Thread-safe.

    Clients that share them open one connection per broker and refresh the metadata on one thread. Close them after the
    clients.

        with Connections("localhost:9092") as connections:
            consumers = [Consumer(connections, group_id=name) for name in ("billing", "audit")]
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        tls: TlsFiles | None = None,
        metadata_max_age_ms: int = METADATA_MAX_AGE_MS,
        user_agent: str = "",
        name: str = "paceline",
    ) -> None:
        """Create them; does not wait for the cluster.

        Args:
            bootstrap: ``"host:port,host:port"`` or a list; addresses that do not answer are skipped.
            tls: certificate files; default: the files in ``PACELINE_SSL_CA_FILE`` etc., otherwise plaintext.
            metadata_max_age_ms: interval between refreshes of the metadata.
            user_agent: the name that brokers see; empty means ``paceline``.
            name: prefix of the thread's name.

        Raises:
            InvalidRequestError: an address or a certificate file is not valid.
        """
        addresses = parse_bootstrap(bootstrap)
        credentials = client_credentials(tls)
        options: Options = [("grpc.primary_user_agent", user_agent)] if user_agent else []
        self.addresses = addresses
        self._max_age_ms = metadata_max_age_ms

        def channels(own_connection: bool) -> ChannelCache:
            return ChannelCache(
                lambda address: open_channel(
                    address, tls=credentials, own_connection=own_connection, more_options=options
                )
            )

        self.channels = channels(False)
        self._all_channels = [self.channels, *(channels(True) for _ in range(1, NAMED_CONNECTIONS))]
        self._next_channels = cycle(self._all_channels)
        self.metadata = MetadataRefresher(
            addresses, self.channels, max_age_ms=metadata_max_age_ms, name=f"{name}-metadata"
        )

    def named(self, principal: str) -> "Connections":
        """Return connections for the calls of a client, over the channels of these; brokers take them of gateways only.

        Its metadata has the topics that the client may see. Close it before these.

        Args:
            principal: the client, ``User:<name>``.
        """
        return _NamedConnections(self, principal, next(self._next_channels))

    def close(self) -> None:
        """Close the channels and join the thread; calls in progress end with CANCELLED."""
        self.metadata.stop()
        for one in self._all_channels:
            one.close()
        self.metadata.close()

    def __enter__(self) -> "Connections":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _NamedConnections(Connections):
    def __init__(self, shared: Connections, principal: str, channels: ChannelCache) -> None:
        self.addresses, self._max_age_ms = shared.addresses, shared._max_age_ms
        self.channels = ChannelCache(lambda address: NamedChannel(channels.get(address), principal))
        self._all_channels = []  # `close` leaves the channels open for the clients that share them
        self.metadata = MetadataRefresher(
            self.addresses, self.channels, max_age_ms=self._max_age_ms, name=f"{principal}-metadata"
        )


class ClientConnections:
    """The connections of one client: its own, which it closes, or shared ones, which it leaves open."""

    def __init__(
        self,
        bootstrap: "str | Iterable[str] | Connections",
        *,
        tls: TlsFiles | None,
        metadata_max_age_ms: int = METADATA_MAX_AGE_MS,
        user_agent: str = "",
        name: str,
    ) -> None:
        """See `Connections`.

        Raises:
            InvalidRequestError: an address or a certificate file is not valid, or shared connections come with ``tls``.
        """
        self._owned: Connections | None = None
        if isinstance(bootstrap, Connections):
            if tls is not None:
                raise InvalidRequestError("the shared connections have certificates already: leave out tls")
            shared = bootstrap
        else:
            shared = self._owned = Connections(
                bootstrap, tls=tls, metadata_max_age_ms=metadata_max_age_ms, user_agent=user_agent, name=name
            )
        self.channels = shared.channels
        self.metadata = shared.metadata
        self._listener: Callable[[], None] | None = None

    def listen(self, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` on the metadata's thread after every refresh, until `close`."""
        self._listener = on_change
        self.metadata.add_listener(on_change)

    def close(self) -> None:
        """Close own connections; leave shared connections open."""
        if self._listener is not None:
            self.metadata.remove_listener(self._listener)
        if self._owned is not None:
            self._owned.close()
