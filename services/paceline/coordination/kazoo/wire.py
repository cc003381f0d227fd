"""Sockets for the kazoo door: fewer system calls, no blocked wake-ups, and a record of the server's signs of life.

kazoo makes about eight system calls for a request and its answer, most of them to ask whether a socket is ready. The
sockets here know that themselves: the bytes read ahead, the bytes to send, the number of queued requests. Ten
thousand reads become a few hundred calls.
"""

import select
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Any

_CHUNK_BYTES = 256 * 1024


class Contact:
    """Time of the last contact with the server: the time of the request it answered, not of the response."""

    def __init__(self, timeout_s: float) -> None:
        self.allow(timeout_s)
        self.last_s = time.monotonic()
        self._first_unanswered_s: float | None = None

    def allow(self, timeout_s: float) -> None:
        """Say how long a session is."""
        self.give_up_s = timeout_s * 2 / 3

    def opened(self) -> None:
        """A connection was made; requests of the previous connection get no response any more."""
        self._first_unanswered_s = None

    def sent(self) -> None:
        """Something is being sent.

        Raises:
            OSError: nothing has come back for two thirds of the session timeout. kazoo looks for a missing heartbeat
                only when it has nothing to send, so it would sit on a dead connection while requests keep coming.
        """
        now_s = time.monotonic()
        if self._first_unanswered_s is None:
            self._first_unanswered_s = now_s
        elif now_s - self._first_unanswered_s > self.give_up_s:
            raise OSError("no answer from ZooKeeper")

    def received(self) -> None:
        """Something has come back."""
        if self._first_unanswered_s is not None:
            self.last_s = self._first_unanswered_s
            self._first_unanswered_s = None


class BufferedSocket:
    """A non-blocking socket that reads ahead, and sends when nothing else is to be done."""

    def __init__(self, sock: Any, contact: Contact) -> None:
        self._sock = sock
        self._contact = contact
        self._incoming = b""
        self._position = 0
        self._outgoing = bytearray()

    @property
    def ready(self) -> bool:
        """Whether something has been read ahead."""
        return self._position < len(self._incoming)

    def recv(self, size: int) -> bytes:
        """Return up to ``size`` bytes, none at the end of the stream."""
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
            except ssl.SSLWantReadError:  # a record of TLS itself, or half of one
                if not wait([self], [], self._contact.give_up_s):
                    raise OSError("ZooKeeper sends no data") from None

    def send(self, data: Any) -> int:
        """Take data to be sent before the next wait."""
        self._contact.sent()
        self._outgoing += data
        if len(self._outgoing) >= _CHUNK_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Send the buffered bytes, waiting for room for at most the session timeout."""
        while self._outgoing:
            try:
                count = self._sock.send(self._outgoing)
            except (BlockingIOError, ssl.SSLWantWriteError):
                if not wait([], [self], self._contact.give_up_s):
                    raise OSError("ZooKeeper takes no data") from None
                continue
            del self._outgoing[:count]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class WakeUps:
    """Counts kazoo's wake-ups through a socket pair, one byte per request, and sends a byte for the first only.

    A socket holds a few hundred such bytes. Then kazoo would block, under the door's lock, on the thread that alone
    could make room.
    """

    def __init__(self, reader: Any, writer: Any) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._reader = reader
        self._writer = writer

    def add(self) -> None:
        """One request more."""
        with self._lock:
            self.count += 1
            if self.count == 1:
                self._writer.send(b"\0")

    def take(self) -> None:
        """One request less."""
        with self._lock:
            if self.count:
                self.count -= 1
                if self.count == 0:
                    self._reader.recv(1)


class WakeSocket:
    """One end of the pair, as far as kazoo uses it."""

    def __init__(self, sock: Any, wake_ups: WakeUps) -> None:
        self._sock = sock
        self._wake_ups = wake_ups

    @property
    def ready(self) -> bool:
        """Whether there are requests to be sent."""
        return self._wake_ups.count > 0

    def send(self, data: bytes) -> int:
        """Say that there is a request."""
        self._wake_ups.add()
        return len(data)

    def recv(self, size: int) -> bytes:
        """Take notice of a request."""
        self._wake_ups.take()
        return bytes(size)

    def flush(self) -> None:
        """Nothing is held back here."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


Readable = BufferedSocket | WakeSocket


def select_ready(
    readers: Sequence[Readable], writers: Sequence[Readable], timeout_s: float | None
) -> tuple[list[Readable], list[Readable], list[Readable]]:
    """Replace ``select`` for kazoo, asking the kernel only when nothing is known to be ready.

    A `BufferedSocket` can always be written to.
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
    """Return those that are ready, or have failed, within the time given."""
    poll = select.poll()
    by_fd: dict[int, Readable] = {}
    for sockets, events in ((readers, select.POLLIN), (writers, select.POLLOUT)):
        for sock in sockets:
            fd = sock.fileno()
            by_fd[fd] = sock
            poll.register(fd, events)
    timeout_ms = None if timeout_s is None else max(timeout_s, 0) * 1000
    return [by_fd[fd] for fd, _ in poll.poll(timeout_ms)]
