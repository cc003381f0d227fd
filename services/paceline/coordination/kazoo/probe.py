"""Query the servers of an ensemble to detect that it has lost data.

A server that lags behind the ensemble refuses a client that has seen later transactions: it closes the connection
without a response, and the client retries. An ensemble whose data was wiped does the same, and the client would retry
for ever. So a refused client queries the servers for their last transaction id. A leader or a standalone server never
lags behind, so a lower transaction id there means lost data.

Source: docs/protocol/zookeeper.md#ensemble-that-lost-its-data.
"""

import re
import socket
from collections.abc import Sequence

from paceline.model.addresses import address_of

_ZXID = re.compile(rb"^Zxid: 0x([0-9a-f]+)$", re.MULTILINE)
_NOT_BEHIND = re.compile(rb"^Mode: (standalone|leader)$", re.MULTILINE)
_ANSWER_BYTES = 65_536


def lost_data(servers: Sequence[tuple[str, int]], seen_zxid: int, timeout_s: float) -> str | None:
    """Return a text that names a leader or standalone server that is behind ``seen_zxid``, None without such a server.

    Uses the four-letter word ``srvr``, the only one that servers allow by default.
    """
    for host, port in servers:
        answer = _ask(host, port, timeout_s)
        zxid = _ZXID.search(answer)
        if zxid and _NOT_BEHIND.search(answer) and int(zxid[1], 16) < seen_zxid:
            return f"{address_of(host, port)} is at transaction 0x{zxid[1].decode()}, and we have seen 0x{seen_zxid:x}"
    return None


def _ask(host: str, port: int, timeout_s: float) -> bytes:
    answer = b""
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(b"srvr")
            while len(answer) < _ANSWER_BYTES and (part := connection.recv(4_096)):
                answer += part
    except OSError:
        pass
    return answer
