"""Read the times of events in a running cluster from its processes' logs, which does not slow the processes down."""

import json
import re
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from paceline.dev.local_cluster import LocalCluster, Node
from paceline_client import Admin

Record = dict[str, Any]
_TAKEN_OVER = re.compile(r"^(\S+)Z .*cluster state loaded: epoch=\d+ brokers=")


class Gone:
    """Time at which a znode was deleted, observed by a watch of the benchmark."""

    def __init__(self, zookeeper: str, path: str) -> None:
        self._at_ms: int | None = None
        self._client = KazooClient(zookeeper, timeout=30.0)
        self._client.start(30.0)
        if self._client.exists(path, watch=self._fired) is None:
            raise RuntimeError(f"{path} is not there")

    def _fired(self, _event: Any) -> None:
        self._at_ms = now_ms()

    def wait(self, timeout_s: float = 60.0) -> int:
        """Wait for the deletion and return its time in milliseconds; call it once."""
        eventually(lambda: self._at_ms is not None, timeout_s, "the node was deleted")
        self._client.stop()
        self._client.close()
        assert self._at_ms is not None
        return self._at_ms


def now_ms() -> int:
    """Wall clock in milliseconds, as in the state-change logs."""
    return time.time_ns() // 1_000_000


def eventually(condition: Callable[[], bool], timeout_s: float, what: str, poll_s: float = 0.05) -> None:
    """Wait until ``condition`` holds.

    Raises:
        TimeoutError: it did not within ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(poll_s)


class Marks:
    """Records that some processes append to their state-change logs after this object was made."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = list(nodes)
        self._sizes = {node.name: _size(_log(node)) for node in self.nodes}
        self._service_sizes = {node.name: _size(node.log_path) for node in self.nodes}

    def records(self, node: Node, *kinds: str) -> list[Record]:
        """Return a process's later records, of some kinds or all."""
        found = [json.loads(line) for line in _lines(_log(node), self._sizes[node.name]) if line.endswith(b"}")]
        return [record for record in found if not kinds or record["kind"] in kinds]

    def await_record(self, node: Node, kind: str, timeout_s: float = 60.0) -> Record:
        """Wait for the first record of a kind and return it."""
        found: list[Record] = []

        def there() -> bool:
            found[:] = self.records(node, kind)
            return bool(found)

        eventually(there, timeout_s, f"{node.name} says {kind}")
        return found[0]

    def await_takeover(self, node: Node, timeout_s: float = 120.0) -> int:
        """Wait until a controller has finished its failover, with all requests queued, and return that time."""
        found: list[int] = []

        def there() -> bool:
            lines = _lines(node.log_path, self._service_sizes[node.name])
            found[:] = [at_ms for line in lines if (at_ms := _takeover_ms(line.decode(errors="replace"))) is not None]
            return bool(found)

        eventually(there, timeout_s, f"{node.name} has taken over")
        return found[0]

    def await_quiet(self, quiet_s: float = 2.0, timeout_s: float = 300.0) -> None:
        """Wait until none of the logs has grown for a while."""
        deadline = time.monotonic() + timeout_s
        sizes, still_since = {node.name: -1 for node in self.nodes}, time.monotonic()
        while time.monotonic() - still_since < quiet_s:
            now = {node.name: _size(_log(node)) for node in self.nodes}
            if now != sizes:
                sizes, still_since = now, time.monotonic()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the cluster did not come to rest within {timeout_s:g} s")
            time.sleep(0.1)


def of_kind(cluster: LocalCluster, kind: str) -> list[Node]:
    """Return the controllers or the brokers of a cluster."""
    return [node for node in cluster.nodes.values() if node.kind == kind]


def last_ms(records: Iterable[Record], default: int) -> int:
    """Return the time of the latest record."""
    return max((int(record["wall_ms"]) for record in records), default=default)


def _takeover_ms(line: str) -> int | None:
    match = _TAKEN_OVER.match(line)
    if match is None:
        return None
    return int(datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp() * 1000)


def _log(node: Node) -> Path:
    return node.log_path.with_name("state-change.log")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _lines(path: Path, mark: int) -> list[bytes]:
    try:
        with path.open("rb") as log:
            log.seek(mark)
            return log.read().splitlines()
    except OSError:
        return []


def elect_preferred(bootstrap: str) -> None:
    """Elect the preferred leader of every partition."""
    with Admin(bootstrap) as admin:
        admin.elect_leaders("preferred", timeout_ms=60_000)
