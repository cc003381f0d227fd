"""Ask the servers of an ensemble whether it has lost its data.

A server turns away a client that has seen later transactions than it has itself: it may be behind. It closes the
connection without an answer, and the client retries for ever. A wiped ensemble does the same, and never catches up. So
a client that is turned away asks the servers for their last transaction. A leader or standalone server is not behind.

Source: docs/protocol/zookeeper.md#ensemble-that-lost-its-data.
"""

import re
import socket
from collections.abc import Sequence

_ZXID = re.compile(rb"^Zxid: 0x([0-9a-f]+)$", re.MULTILINE)
_NOT_BEHIND = re.compile(rb"^Mode: (standalone|leader)$", re.MULTILINE)
_ANSWER_BYTES = 65_536


def lost_data(servers: Sequence[tuple[str, int]], seen_zxid: int, timeout_s: float) -> str | None:
    """Return how a server shows that it has lost transactions we have seen, None when none does.

    Uses the four-letter word ``srvr``, the only word that servers answer by default.
    """
    for host, port in servers:
        answer = _ask(host, port, timeout_s)
        zxid = _ZXID.search(answer)
        if zxid and _NOT_BEHIND.search(answer) and int(zxid[1], 16) < seen_zxid:
            return f"{host}:{port} is at transaction 0x{zxid[1].decode()}, and we have seen 0x{seen_zxid:x}"
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
