"""A TCP proxy that stops forwarding and resets connections, for tests of clients on a broken network."""

import selectors
import socket
import struct
import threading
from dataclasses import dataclass

_CHUNK = 65_536


@dataclass(eq=False)
class _Pair:
    client: socket.socket
    server: socket.socket


class TcpProxy:
    """Forwards connections to one address; any thread may call its methods, which take effect at once."""

    def __init__(self, host: str, port: int, listener: socket.socket | None = None) -> None:
        """Listen on a free port of 127.0.0.1, or accept the connections of ``listener``."""
        self._target = (host, port)
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.RLock()
        self._pairs: list[_Pair] = []
        self._requests_cut = False
        self._replies_cut = False
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="tcp-proxy", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self, *, requests: bool = True, replies: bool = True) -> None:
        """Stop forwarding without closing a connection; new connections are not forwarded either."""
        with self._lock:
            self._requests_cut = self._requests_cut or requests
            self._replies_cut = self._replies_cut or replies
            self._apply()

    def heal(self) -> None:
        """Forward all traffic again, including data held back since `cut`."""
        with self._lock:
            self._requests_cut = self._replies_cut = False
            self._apply()

    def sever(self) -> None:
        """Reset every connection; data held back since `cut` is lost."""
        with self._lock:
            for pair in list(self._pairs):
                self._drop(pair)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self.sever()
        self._wake_writer.send(b"\0")
        self._thread.join(5)
        for sock in (self._listener, self._wake_reader, self._wake_writer):
            sock.close()
        self._selector.close()

    def _apply(self) -> None:
        self._watch(self._listener, not (self._requests_cut or self._replies_cut))
        for pair in self._pairs:
            self._watch(pair.client, not self._requests_cut)
            self._watch(pair.server, not self._replies_cut)
        self._wake_writer.send(b"\0")

    def _watch(self, sock: socket.socket, wanted: bool) -> None:
        registered = sock.fileno() in self._selector.get_map()
        if wanted and not registered:
            self._selector.register(sock, selectors.EVENT_READ)
        elif registered and not wanted:
            self._selector.unregister(sock)

    def _run(self) -> None:
        while not self._closed:
            ready = self._selector.select(0.5)
            with self._lock:
                if self._closed:
                    return
                for key, _ in ready:
                    if key.fileobj is self._wake_reader:
                        self._wake_reader.recv(_CHUNK)
                    elif key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._forward(key.fileobj)  # type: ignore[arg-type]

    def _accept(self) -> None:
        if self._requests_cut or self._replies_cut:
            return
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self._target, 5)
        except OSError:
            client.close()
            return
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pairs.append(_Pair(client, server))
        self._apply()

    def _forward(self, sock: socket.socket) -> None:
        for pair in self._pairs:
            if sock in (pair.client, pair.server):
                if self._requests_cut if sock is pair.client else self._replies_cut:
                    return
                other = pair.server if sock is pair.client else pair.client
                try:
                    data = sock.recv(_CHUNK)
                    if data:
                        other.sendall(data)
                        return
                except OSError:
                    pass
                self._drop(pair)
                return

    def _drop(self, pair: _Pair) -> None:
        self._pairs.remove(pair)
        for sock in (pair.client, pair.server):
            self._watch(sock, False)
            # SO_LINGER with a timeout of zero makes close() send a TCP reset.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
