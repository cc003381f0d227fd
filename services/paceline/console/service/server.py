"""Serve the pages over HTTP until interrupted."""

import socket
from collections.abc import Callable, Collection

import uvicorn

from paceline.console.service.access import Access
from paceline.console.service.cluster import Cluster
from paceline.console.service.pages import Pages
from paceline.console.service.source import Source

_BACKLOG = 128
_LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
_STOP_S = 2


def serve(
    source: Source,
    host: str,
    port: int,
    names: Collection[str],
    say: Callable[[str], None],
    cluster: Cluster | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        source: the timeline to show.
        host: address to bind; 0.0.0.0 or :: for all.
        port: port to bind, 0 for any free port.
        names: host names by which browsers may call the console, besides ``host`` and those of this machine.
        say: receives the address to open, again after each first visit of a browser.
        cluster: clients for the screens of a live cluster; None shows only the lens.

    Raises:
        OSError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=_BACKLOG) as listener:
        actual: int = listener.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        here = "127.0.0.1" if host in ("0.0.0.0", "::") else shown

        def tell(token: str) -> None:
            say(f"http://{next(iter(names), here)}:{actual}/?token={token}")

        config = uvicorn.Config(
            Access(
                Pages(source, cluster).application(),
                {*_LOCAL_NAMES, shown, *names},
                actual,
                tell,
                allow_changes=cluster is not None and cluster.allow_changes,
            ),
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_STOP_S,  # open event streams do not end by themselves
        )
        uvicorn.Server(config).run(sockets=[listener])
