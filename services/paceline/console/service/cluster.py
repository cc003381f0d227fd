"""A running cluster as the screens see it: its clients, and pictures of it that all viewers share."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar

import grpc

from paceline.console.service.lags import Lags
from paceline.console.values import Decoder
from paceline.findings.cluster import judge
from paceline.findings.explain import Finding
from paceline.findings.service.gather_cluster import gather_cluster
from paceline.model.errors import PacelineError, ThrottledError, UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from paceline.operations.reassign_progress import NO_SPEED, Progress, measure, move_row, throttled_brokers
from paceline_client import Admin, Consumer
from paceline_client.errors import BootstrapError

T = TypeVar("T")

CALL_MS: Final = 3_000
"""Longest wait of a call; the RPC deadline of a call to the controller is up to two seconds later."""
CONNECT_MS: Final = 1_500
"""Longest wait while no address accepts a connection."""
_MOST_PICTURES: Final = 128
_MOST_READERS: Final = 4
"""Requests that read records at the same time, because each may hold some ten MiB."""
_BUFFER_BYTES: Final = 16 << 20
"""Prefetched bytes of a reader, unless a single batch is larger."""
_MOST_ASKED: Final = 64
"""Brokers that are asked for their contact with the controller."""


class UnreachableError(PacelineError):
    """The cluster did not answer, and there is no earlier picture."""


@dataclass(frozen=True, slots=True)
class Picture(Generic[T]):
    """Facts of one moment."""

    value: T
    taken_ms: int
    trouble: str = ""
    """Why the facts are old; empty when they are not."""


@dataclass(slots=True)
class _Place:
    lock: threading.Lock = field(default_factory=threading.Lock)
    picture: Picture[Any] | None = None
    trouble: str = ""
    checked_s: float = -1e9


class Pictures:
    """Keeps the last picture of each key. Thread-safe: viewers that ask at the same time share one gathering."""

    def __init__(self) -> None:
        self._places: OrderedDict[object, _Place] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: object, gather: Callable[[], T], fresh_s: float = 1.0, otherwise: Any = None) -> Picture[T]:
        """Return a picture that is at most ``fresh_s`` old, or an older one with its trouble when there is none.

        Raises:
            UnreachableError: there is no picture because the cluster did not answer, and no value for that case.
            PacelineError: the cluster refused.
        """
        with self._lock:
            place = self._places.setdefault(key, _Place())
            self._places.move_to_end(key)
            while len(self._places) > _MOST_PICTURES:
                self._places.popitem(last=False)
        with place.lock:
            if time.monotonic() - place.checked_s >= fresh_s:
                try:
                    place.picture, place.trouble = Picture(gather(), int(time.time() * 1000)), ""
                except (PacelineError, grpc.RpcError) as error:
                    if isinstance(error, PacelineError) and not is_silence(error):
                        raise
                    place.trouble = str(error)
                place.checked_s = time.monotonic()
            if place.picture is None and otherwise is None:
                raise UnreachableError(place.trouble)
            picture = place.picture or Picture(otherwise, 0)
            return replace(picture, trouble=f"The picture is old: {place.trouble}") if place.trouble else picture


def is_silence(error: Exception) -> bool:
    """Return whether an error says nothing about the request: no answer, no leader, no coordinator, no controller."""
    if not isinstance(error, PacelineError) or isinstance(error, UnknownTopicOrPartitionError):
        return False
    return error.retriable or isinstance(error, BootstrapError)


class Cluster:
    """The clients of the screens. Close it after use."""

    def __init__(
        self,
        bootstrap: str,
        *,
        show_records: bool = False,
        allow_changes: bool = False,
        decoders: Mapping[str, Decoder] | None = None,
    ) -> None:
        """Create the clients; does not wait for the cluster.

        Args:
            bootstrap: addresses of brokers.
            show_records: whether pages show the contents of records.
            allow_changes: whether viewers may change the cluster.
            decoders: Protobuf messages of the values of topics, by topic.
        """
        self.bootstrap = bootstrap
        self.show_records = show_records
        self.allow_changes = allow_changes
        self.decoders = decoders or {}
        self.admin = open_admin(bootstrap)
        self.pictures = Pictures()
        self.lags = Lags(self.admin)
        self._progress = Progress()
        self._readers = threading.BoundedSemaphore(_MOST_READERS)

    def moves(self) -> list[tuple[TopicPartition, dict[str, Any]]]:
        """Return the running reassignments; their speed is that since the call before."""
        found = self.admin.list_partition_reassignments()
        speeds = measure(self.admin, found, self._progress, time.monotonic())
        throttled = throttled_brokers(self.admin) if found else {}
        return [
            (one.topic_partition, move_row(one, speeds.get(one.topic_partition, NO_SPEED), throttled)) for one in found
        ]

    @contextmanager
    def reader(self) -> Iterator[Consumer]:
        """Return a consumer for the records of one request.

        Raises:
            ThrottledError: four other requests read.
        """
        if not self._readers.acquire(timeout=CALL_MS / 1000):
            raise ThrottledError(f"{_MOST_READERS} other requests read records now; try again")
        try:
            with self.consumer(max_buffered_bytes=_BUFFER_BYTES) as consumer:
                yield consumer
        finally:
            self._readers.release()

    def consumer(self, **settings: Any) -> Consumer:
        """Return a consumer whose calls end within `CALL_MS`."""
        return Consumer(self.bootstrap, default_api_timeout_ms=CALL_MS, request_timeout_ms=CALL_MS, **settings)

    def controller_silences(self, brokers: "Mapping[int, str]") -> dict[int, int | None]:
        """Return for each broker that answers the time in ms since a controller answered one of its heartbeats.

        ``brokers`` are addresses by id; at most 64 are asked.
        """

        def ask(address: str) -> int | None:
            with open_admin(address) as admin:
                return admin.describe_cluster(CONNECT_MS).controller_silent_ms

        found = {}
        with ThreadPoolExecutor(8) as threads:
            calls = {broker: threads.submit(ask, address) for broker, address in list(brokers.items())[:_MOST_ASKED]}
            for broker, call in calls.items():
                with suppress(PacelineError, grpc.RpcError):
                    found[broker] = call.result()
        return found

    def health(self) -> list[Finding]:
        """Return the findings about the whole cluster, the worst first."""
        return judge(gather_cluster(self.bootstrap), int(time.time() * 1000))

    def start(self) -> None:
        """Start to sample the lag of groups."""
        self.lags.start()

    def close(self) -> None:
        """Stop sampling and close the clients."""
        self.admin.close()
        self.lags.close()


def open_admin(bootstrap: str) -> Admin:
    """Return an `Admin` whose calls end within seconds."""
    return Admin(bootstrap, default_timeout_ms=CALL_MS, describe_timeout_ms=CALL_MS, connect_timeout_ms=CONNECT_MS)
