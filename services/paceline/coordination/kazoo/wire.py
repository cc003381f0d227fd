"""Sockets for kazoo, with fewer system calls, wake-ups that never block, and the time of the server's last response.

kazoo makes about eight system calls for a request and its response, most of them to check whether a socket is ready.
The sockets in this module know their readiness without a system call, from the bytes read ahead, the bytes to send and
the number of queued requests. Ten thousand reads then need a few hundred system calls.
"""

import select
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Any

_CHUNK_BYTES = 256 * 1024


class Contact:
    """Time of the last contact with the server: when the answered request was sent, not when its response arrived.

    The answers of a new connection count once the server has accepted the session: the first one may say that the
    session has expired.
    """

    def __init__(self, timeout_s: float) -> None:
        self.set_session_timeout(timeout_s)
        self.last_s = time.monotonic()
        self._first_unanswered_s: float | None = None
        self._accepted = True
        self._opening_s = self.last_s

    def set_session_timeout(self, timeout_s: float) -> None:
        """Set the session timeout, of which two thirds is the longest wait for the server."""
        self.give_up_s = timeout_s * 2 / 3

    def opened(self) -> None:
        """Record a new connection; requests on the previous connection will not receive a response."""
        self._first_unanswered_s = None
        self._accepted = False
        self._opening_s = time.monotonic()

    def accepted(self) -> None:
        """Record that the server has accepted the session on this connection."""
        self._accepted = True
        self.last_s = self._opening_s

    def sent(self) -> None:
        """Record that data is sent.

        Raises:
            OSError: the server has sent no data for two thirds of the session timeout. kazoo checks for missing
                heartbeats only when it has nothing to send, so with a steady flow of requests it would keep a dead
                connection.
        """
        now_s = time.monotonic()
        if self._first_unanswered_s is None:
            self._first_unanswered_s = now_s
        elif now_s - self._first_unanswered_s > self.give_up_s:
            raise OSError("no answer from ZooKeeper")

    def received(self) -> None:
        """Record that data was received."""
        if self._first_unanswered_s is not None:
            if self._accepted:
                self.last_s = self._first_unanswered_s
            self._first_unanswered_s = None


class BufferedSocket:
    """A non-blocking socket that reads ahead and buffers sent data until kazoo waits."""

    def __init__(self, sock: Any, contact: Contact) -> None:
        self._sock = sock
        self._contact = contact
        self._incoming = b""
        self._position = 0
        self._outgoing = bytearray()

    @property
    def ready(self) -> bool:
        """Whether data was read ahead."""
        return self._position < len(self._incoming)

    def recv(self, size: int) -> bytes:
        """Return up to ``size`` bytes, no bytes at the end of the stream."""
        if not self.ready:
            self._incoming = self._receive()
            self._position = 0
            if not self._incoming:
                return b""
            self._contact.received()
        data = self._incoming[self._position : self._position + size]
        self._position += len(data)
        return data

    def _receive(self) -> bytes:
        while True:
            try:
                return bytes(self._sock.recv(_CHUNK_BYTES))
            except ssl.SSLWantReadError:  # received only a TLS control record or an incomplete record
                if not wait([self], [], self._contact.give_up_s):
                    raise OSError("timed out reading from ZooKeeper") from None

    def send(self, data: Any) -> int:
        """Buffer data, which is sent before the next wait, or at once when the buffer is full."""
        self._contact.sent()
        self._outgoing += data
        if len(self._outgoing) >= _CHUNK_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Send the buffered bytes.

        Raises:
            OSError: the server has accepted no data for two thirds of the session timeout.
        """
        while self._outgoing:
            try:
                count = self._sock.send(self._outgoing)
            except (BlockingIOError, ssl.SSLWantWriteError):
                if not wait([], [self], self._contact.give_up_s):
                    raise OSError("timed out writing to ZooKeeper") from None
                continue
            del self._outgoing[:count]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class WakeUps:
    """Counts queued requests, for each of which kazoo sends a wake-up byte on a socket pair; sends only the first byte.

    A socket buffers only a few hundred bytes. With a full buffer, the thread that submits requests would block in kazoo
    while it holds the client's lock, and the thread that reads the bytes may be waiting for that lock.
    """

    def __init__(self, reader: Any, writer: Any) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._reader = reader
        self._writer = writer

    def add(self) -> None:
        """Count a request, and send a byte if it is the only one."""
        with self._lock:
            self.count += 1
            if self.count == 1:
                self._writer.send(b"\0")

    def take(self) -> None:
        """Remove a request from the count, and read the byte if it was the last."""
        with self._lock:
            if self.count:
                self.count -= 1
                if self.count == 0:
                    self._reader.recv(1)


class WakeSocket:
    """One socket of the pair, with the methods that kazoo uses."""

    def __init__(self, sock: Any, wake_ups: WakeUps) -> None:
        self._sock = sock
        self._wake_ups = wake_ups

    @property
    def ready(self) -> bool:
        """Whether there are queued requests."""
        return self._wake_ups.count > 0

    def send(self, data: bytes) -> int:
        """Count a queued request."""
        self._wake_ups.add()
        return len(data)

    def recv(self, size: int) -> bytes:
        """Remove a queued request from the count."""
        self._wake_ups.take()
        return bytes(size)

    def flush(self) -> None:
        """Do nothing: this socket has no buffer."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


Readable = BufferedSocket | WakeSocket


def select_ready(
    readers: Sequence[Readable], writers: Sequence[Readable], timeout_s: float | None
) -> tuple[list[Readable], list[Readable], list[Readable]]:
    """Replace ``select`` for kazoo; ask the kernel only when no socket is known to be ready.

    A `BufferedSocket` is always ready for writing.
    """
    if writers:
        return [], list(writers), []
    known = [reader for reader in readers if reader.ready]
    if known:
        return known, [], []
    for reader in readers:
        reader.flush()
    return wait(readers, [], timeout_s), [], []


def wait(readers: Sequence[Readable], writers: Sequence[Readable], timeout_s: float | None) -> list[Readable]:
    """Wait up to ``timeout_s`` and return the sockets that are ready or have failed."""
    poll = select.poll()
    by_fd: dict[int, Readable] = {}
    for sockets, events in ((readers, select.POLLIN), (writers, select.POLLOUT)):
        for sock in sockets:
            fd = sock.fileno()
            by_fd[fd] = sock
            poll.register(fd, events)
    timeout_ms = None if timeout_s is None else max(timeout_s, 0) * 1000
    return [by_fd[fd] for fd, _ in poll.poll(timeout_ms)]
