"""Exit code for container health checks: `python -m paceline.runtime.healthcheck [URL]`.

Gets URL, the page ``/healthz`` of a process's metrics port (default ``http://127.0.0.1:9101/healthz``, a broker's).
Exits with 0 when the HTTP status is 200, with 1 on another status or without an answer in time, and with 2 on bad
arguments. A container runs this check every few seconds, and importing gRPC or an HTTP client costs more CPU time than
the check; therefore this module sends the request on a socket.
"""

import argparse
import socket
import sys
import time
from collections.abc import Sequence

DEFAULT_URL = "http://127.0.0.1:9101/healthz"

_MAX_STATUS_LINE_BYTES = 1 << 10


class HealthCheckError(Exception):
    """The address returned no health status; the message has the reason."""


def check(url: str, timeout_s: float) -> str:
    """Return SERVING when the page ``http://HOST:PORT/PATH`` has status 200, otherwise its status.

    Raises:
        HealthCheckError: no answer in time, or the answer is not HTTP.
    """
    authority, _, path = url.removeprefix("http://").partition("/")
    host, _, port = authority.rpartition(":")
    deadline = time.monotonic() + timeout_s
    head = b""
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s) as connection:
            connection.sendall(f"GET /{path} HTTP/1.0\r\nHost: {authority}\r\n\r\n".encode("ascii"))
            while b"\n" not in head and len(head) < _MAX_STATUS_LINE_BYTES:
                connection.settimeout(max(deadline - time.monotonic(), 0.001))
                piece = connection.recv(_MAX_STATUS_LINE_BYTES)
                if not piece:
                    raise ConnectionError("the connection was closed before the response was complete")
                head += piece
    except (OSError, ValueError) as failure:
        raise HealthCheckError(f"{url}: {failure}") from None
    words = head.partition(b"\n")[0].decode("ascii", "replace").split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith("HTTP/"):
        raise HealthCheckError(f"{url}: the response is not HTTP")
    return "SERVING" if words[1] == "200" else " ".join(words[1:]).strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="paceline.runtime.healthcheck", description="Exit 0 when a process is ready to serve, 1 when it is not."
    )
    parser.add_argument("url", nargs="?", default=DEFAULT_URL, help="page /healthz of a metrics port (%(default)s)")
    parser.add_argument("--timeout", type=float, default=3.0, help="longest wait in seconds (%(default)s)")
    options = parser.parse_args(arguments)
    try:
        status = check(options.url, options.timeout)
    except HealthCheckError as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    if status != "SERVING":
        sys.stderr.write(f"{options.url}: {status}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
