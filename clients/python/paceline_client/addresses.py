"""Parse bootstrap addresses."""

import socket
from collections.abc import Iterable, Mapping
from typing import Final

from paceline.model.addresses import is_address
from paceline.model.errors import InvalidRequestError
from paceline.model.tls import CA_FILE


def parse_bootstrap(bootstrap: str | Iterable[str]) -> list[str]:
    """Return ``host:port`` addresses, in order and without duplicates, from ``"a:1,b:2"`` or a list of such strings.

    Raises:
        InvalidRequestError: there is no address, or an address is not ``host:port`` or ``[IPv6 host]:port``.
    """
    texts = [bootstrap] if isinstance(bootstrap, str) else list(bootstrap)
    addresses = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    if not addresses:
        raise InvalidRequestError("no bootstrap address; expected host:port,host:port")
    for address in addresses:
        if not is_address(address):
            raise InvalidRequestError(f"bootstrap address {address!r} is not host:port or [IPv6 host]:port")
    return list(dict.fromkeys(addresses))


ZOOKEEPER_PORT: Final = "this is a port of ZooKeeper, not of a broker or controller"


def is_zookeeper(address: str, timeout_s: float = 0.5) -> bool:
    """Return whether the server at ``host:port`` answers ZooKeeper's command ``srvr``, or refuses it as ZooKeeper."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(b"srvr")
            answer = connection.recv(64)
    except OSError:
        return False
    return answer.startswith((b"Zookeeper version", b"srvr is not executed"))


def advised(address: str, cause: str) -> str:
    """Return why a call to ``host:port`` failed; after a failure of TLS ask the server whether it is ZooKeeper."""
    return ZOOKEEPER_PORT if CA_FILE in cause and is_zookeeper(address) else cause


def by_cause(causes: Mapping[str, str]) -> str:
    """Return addresses and causes as text, each cause once: ``a, b: cause; c: other cause``."""
    addresses: dict[str, list[str]] = {}
    for address, cause in causes.items():
        addresses.setdefault(cause, []).append(address)
    return "; ".join(f"{', '.join(group)}: {cause}" for cause, group in addresses.items())
