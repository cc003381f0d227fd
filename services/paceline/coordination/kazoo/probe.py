"""Query the servers of an ensemble to detect that it has lost data.

A server that lags behind the ensemble refuses a client that has seen later transactions: it closes the connection
without a response, and the client retries. An ensemble whose data was wiped does the same, and the client would retry
for ever. So a refused client queries the servers for their last transaction id. A leader or a standalone server never
lags behind, so a lower transaction id there means lost data.

Source: docs/protocol/zookeeper.md#ensemble-that-lost-its-data.
"""

import contextlib
import re
import socket
import ssl
from collections.abc import Sequence

from paceline.coordination.credentials import NO_SECURITY, ZooKeeperSecurity
from paceline.model.addresses import address_of

_ZXID = re.compile(rb"^Zxid: 0x([0-9a-f]+)$", re.MULTILINE)
_NOT_BEHIND = re.compile(rb"^Mode: (standalone|leader)$", re.MULTILINE)
_ANSWER_BYTES = 65_536


def lost_data(
    servers: Sequence[tuple[str, int]], seen_zxid: int, timeout_s: float, security: ZooKeeperSecurity = NO_SECURITY
) -> str | None:
    """Return a text that names a leader or standalone server that is behind ``seen_zxid``, None without such a server.

    Uses the four-letter word ``srvr``, the only one that servers allow by default.
    """
    for host, port in servers:
        try:
            answer = four_letter_word(host, port, "srvr", timeout_s, security)
        except OSError:
            continue
        zxid = _ZXID.search(answer)
        if zxid and _NOT_BEHIND.search(answer) and int(zxid[1], 16) < seen_zxid:
            return f"{address_of(host, port)} is at transaction 0x{zxid[1].decode()}, and we have seen 0x{seen_zxid:x}"
    return None


def four_letter_word(host: str, port: int, word: str, timeout_s: float, security: ZooKeeperSecurity) -> bytes:
    """Return a server's answer to a four-letter word such as ``srvr``, of which ``timeout_s`` limits each part.

    Raises:
        OSError: the server cannot be reached or does not answer, or its certificate is not of a trusted authority.
    """
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection((host, port), timeout_s))
        if security.tls:
            context = ssl.create_default_context(cafile=security.ca_file)
            context.check_hostname = False  # as kazoo, which connects to the same servers
            connection = stack.enter_context(context.wrap_socket(connection))
        connection.sendall(word.encode("ascii"))
        answer = b""
        while len(answer) < _ANSWER_BYTES and (part := connection.recv(4_096)):
            answer += part
    return answer
