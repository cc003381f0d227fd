"""Close a client's connection on the server, for which gRPC's Python server has no method.

If a client does not read a response, the server cannot end the call: the status waits after the response, and gRPC
keeps the response until the connection closes. So this module shuts down the connection's socket. gRPC handles that
like a disconnect of the client: it ends the calls of the connection and frees their memory.
"""

import contextlib
import ipaddress
import os
import socket
import stat
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

_OPEN_FILES = "/proc/self/fd"
Address = tuple[str, int]


def address_of_peer(peer: str) -> Address | None:
    """Return (IP address, port) of the peer in a call's context, such as ``ipv4:10.0.0.7:50123``.

    Return None for a peer without an IP address, such as a Unix socket.
    """
    family, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return _address(host.strip("[]"), int(port))


def cut_connection(peer: str) -> bool:
    """Shut down the connections of this process to ``peer``; return False when no connection was found.

    This function searches all open files of the process: call it rarely, and not on the event loop.
    """
    wanted = address_of_peer(peer)
    return wanted is not None and sum(shut_down(descriptor, wanted) for _, descriptor in open_sockets()) > 0


def open_sockets() -> Iterator[tuple[int, int]]:
    """Yield inode and descriptor of each open socket of this process; nothing on a system without /proc."""
    with contextlib.suppress(OSError):
        for descriptor in [int(entry.name) for entry in os.scandir(_OPEN_FILES)]:
            try:
                status = os.fstat(descriptor)
            except OSError:  # the file was closed in the meantime
                continue
            if stat.S_ISSOCK(status.st_mode):
                yield status.st_ino, descriptor


def shut_down(descriptor: int, wanted: Address) -> bool:
    """Shut down the socket with this descriptor if ``wanted`` is its peer; return False otherwise."""
    with contextlib.suppress(OSError), _duplicate(descriptor) as connection:
        if _end(connection.getpeername) == wanted:
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False


def addresses_of(descriptor: int) -> tuple[Address | None, Address | None]:
    """Return the addresses of both ends of a socket; None where an end has no IP address.

    Raises:
        OSError: the socket was closed in the meantime, or no descriptor is free.
    """
    with _duplicate(descriptor) as connection, contextlib.suppress(OSError):  # it may not be connected
        return _end(connection.getsockname), _end(connection.getpeername)
    return None, None


def _duplicate(descriptor: int) -> socket.socket:
    """Duplicate the descriptor: gRPC may close its own at any time, and another file may then get the same number."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:  # not a socket any more
        os.close(copy)
        raise


def _end(address: Callable[[], Any]) -> Address | None:
    name = address()
    return _address(*name[:2]) if isinstance(name, tuple) and isinstance(name[0], str) else None


def _address(host: str, port: int) -> Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), port
