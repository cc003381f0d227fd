"""Close a client's connection on the server, for which gRPC's Python server has no method.

If a client does not read a response, the server cannot end the call: the status waits after the response, and gRPC
keeps the response until the connection closes. So this module shuts down the connection's socket. gRPC handles that
like a disconnect of the client: it ends the calls of the connection and frees their memory.
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
    if wanted is None:
        return False
    found = False
    with contextlib.suppress(OSError):  # a system without /proc
        for path in list(_OPEN_FILES.iterdir()):
            with contextlib.suppress(OSError):  # the file was closed in the meantime, or is not a connected socket
                if str(path.readlink()).startswith("socket:"):
                    found = _shut_down(int(path.name), wanted) or found
    return found


def _shut_down(descriptor: int, wanted: Address) -> bool:
    # Duplicate the descriptor: gRPC may close its own at any time, and another file may then get the same number.
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
