"""Ending a client's connection from the server's side, which gRPC's Python server has no call for.

A call whose client does not read the response cannot be ended by its status, which waits behind the response, and gRPC
keeps the response until the connection closes. So the connection's socket is shut down under gRPC, which then handles
it like a disconnect of the client: it ends the connection's calls and frees their memory.
"""

import contextlib
import ipaddress
import os
import socket
from pathlib import Path
from urllib.parse import unquote

_OPEN_FILES = Path("/proc/self/fd")
Address = tuple[str, int]


def address_of_peer(peer: str) -> Address | None:
    """Return (IP address, port) from the peer in a call's context: ``ipv4:10.0.0.7:50123``.

    None for a peer without an IP address, such as a Unix socket.
    """
    family, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return _address(host.strip("[]"), int(port))


def cut_connection(peer: str) -> bool:
    """Shut the connections of this process to that peer down; return False when there is none, or none can be found.

    It looks through the process's open files, so it is for rare occasions, and for a thread of its own.
    """
    wanted = address_of_peer(peer)
    if wanted is None:
        return False
    found = False
    with contextlib.suppress(OSError):  # a system without /proc
        for path in list(_OPEN_FILES.iterdir()):
            with contextlib.suppress(OSError):  # closed in the meantime, or no connected socket
                if str(path.readlink()).startswith("socket:"):
                    found = _shut_down(int(path.name), wanted) or found
    return found


def _shut_down(descriptor: int, wanted: Address) -> bool:
    # A copy of the descriptor: gRPC may close its own at any time, and the number may become another file's.
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        host, port = connection.getpeername()[:2]
        if _address(host, port) != wanted:
            return False
        connection.shutdown(socket.SHUT_RDWR)
        return True


def _address(host: str, port: int) -> Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), port
