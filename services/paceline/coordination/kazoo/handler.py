"""kazoo's event handler without worker threads and with buffered sockets."""

from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from paceline.coordination.kazoo.wire import BufferedSocket, Contact, WakeSocket, WakeUps, select_ready


class ConnectionHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Runs watch callbacks on kazoo's connection thread, and wraps kazoo's sockets with those of `wire.py`."""

    def __init__(self, contact: Contact) -> None:
        super().__init__()
        self._contact = contact

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def create_connection(self, *args: Any, **kwargs: Any) -> BufferedSocket:
        sock = super().create_connection(*args, **kwargs)
        self._contact.opened()
        return BufferedSocket(sock, self._contact)

    def create_socket_pair(self) -> tuple[WakeSocket, WakeSocket]:
        reader, writer = super().create_socket_pair()
        wake_ups = WakeUps(reader, writer)
        return WakeSocket(reader, wake_ups), WakeSocket(writer, wake_ups)

    def select(self, readers: Any, writers: Any, exceptional: Any, timeout: float | None = None) -> Any:
        return select_ready(readers, writers, timeout)
