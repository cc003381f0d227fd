"""Connections are counted by listener, from the kernel's own table."""

import socket

from paceline.runtime.connection_count import ConnectionCount, established_connections

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2384 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   1: 0100007F:2384 0100007F:C000 01 00000000:00000000 00:00000000 00000000     0        0 2
   2: 0100007F:C000 0100007F:2384 01 00000000:00000000 00:00000000 00000000     0        0 3
   3: 0100007F:2384 0100007F:C001 06 00000000:00000000 00:00000000 00000000     0        0 4
   4: 0000000000000000FFFF00000100007F:2385 0000000000000000FFFF00000100007F:C002 01 0:0 0:0 0 0 0 5
"""


def test_established_connections_are_counted_at_their_local_port() -> None:
    assert established_connections(TABLE) == {0x2384: 1, 0xC000: 1, 0x2385: 1}


def test_a_listener_reports_its_connections_and_its_limit() -> None:
    count = ConnectionCount()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        count.watch({"CLIENT": port}, 7)
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        samples = {sample.name: sample.value for family in count.collect() for sample in family.samples}
        for client in clients:
            client.close()
    assert samples == {"paceline_connections": 3, "paceline_connections_max": 7}
