"""Serve metrics, health and configuration over HTTP, on threads of the endpoint.

The server of ``prometheus_client`` has no idle timeout: a silent or disappeared client occupies a thread and a file
descriptor until the process ends. This server limits idle time and the number of connections.
"""

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

LONGEST_SILENCE_S: Final = 10.0
"""Idle time after which a connection is closed."""
MAX_CONNECTIONS: Final = 32
"""Maximum number of connections; further connections are closed at once."""

LOG = logging.getLogger("paceline.runtime.metrics")


class MetricsEndpoint(ThreadingMixIn, WSGIServer):
    """HTTP server for a metrics registry; it serves between `start` and `stop`."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        longest_silence_s: float = LONGEST_SILENCE_S,
        is_serving: Callable[[], bool] = lambda: True,
        config: Callable[[], str] = lambda: "",
    ) -> None:
        """Bind the port, 0 for any free port.

        ``/healthz`` and ``/readyz`` answer 200 while ``is_serving`` returns True, else 503; ``/config`` returns
        ``config()``; ``/livez`` always answers 200.

        Raises:
            OSError: the port is in use or the host is not a local address.
        """
        self.address_family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self.longest_silence_s = longest_silence_s
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((str(address[0]), int(address[1])), _Handler)
        self._metrics_app = make_wsgi_app(registry)
        self._is_serving = is_serving
        self._config = config
        self._accepting = threading.Thread(target=self.serve_forever, name="metrics", daemon=True)
        self.set_app(self._answer)

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path in ("/", "/metrics"):
            answer: Iterable[bytes] = self._metrics_app(environ, start_response)
            return answer
        if path == "/livez" or (path in ("/healthz", "/readyz") and self._is_serving()):
            status, text = "200 OK", b"ok\n"
        elif path in ("/healthz", "/readyz"):
            status, text = (
                "503 Service Unavailable",
                b"not ready: the process is starting or stopping, or has no ZooKeeper or active controller\n",
            )
        elif path == "/config":
            status, text = "200 OK", f"{self._config()}\n".encode()
        else:
            status, text = "404 Not Found", b"there are /metrics, /config, /healthz, /readyz and /livez\n"
        start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
        return [text]

    def start(self) -> None:
        """Start the thread that accepts connections."""
        self._accepting.start()

    def stop(self) -> None:
        """Close the port; scrapes in progress continue."""
        if self._accepting.is_alive():  # Otherwise shutdown() would wait without end.
            self.shutdown()
        self.server_close()

    def server_bind(self) -> None:
        """Bind without a DNS look-up of this host's name, which may take long and is not needed."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on its own thread, unless the limit is reached."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection on its thread, then make room for another connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error, unless the client disconnected or was idle for too long."""
        if not isinstance(sys.exception(), OSError):
            LOG.exception("metrics request failed: client=%s", client_address)


class _Handler(WSGIRequestHandler):
    server: MetricsEndpoint

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.longest_silence_s)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Do nothing: requests are not logged."""
