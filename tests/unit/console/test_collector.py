"""The collector: what it passes on, and what it says while no broker answers."""

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from paceline.console.recording import EVENT, GAP, SAMPLE, Entry
from paceline.console.service.collector import Collector
from paceline.model.state_change import RequestAnswer, StateChange, StateChangeKind
from paceline_client import Admin
from paceline_client.errors import BootstrapError
from paceline_client.metadata import PartitionDescription, TopicDescription
from tests.support.waiting import eventually
from tests.unit.console.history import TP

LIMIT_S = 20.0


class Cluster:
    """What all fake clients of a test share."""

    def __init__(self) -> None:
        self.is_reachable = True
        self.since: list[int | None] = []
        self.open_watches: list[FakeAdmin] = []
        self.watches: list[tuple[int | None, list[Any], tuple[StateChangeKind, ...]]] = []

    def open(self) -> Admin:
        return cast(Admin, FakeAdmin(self))


class FakeAdmin:
    """A client that knows one partition on one broker; its watches send one event each and wait to be closed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed.set()

    def describe_cluster(self, _timeout_ms: int) -> Any:
        if not self._cluster.is_reachable:
            raise BootstrapError("no address answered")
        return SimpleNamespace(brokers=[SimpleNamespace(broker_id=1)], controller_id=7, controller_epoch=1)

    def describe_topics(self, _names: object, _timeout_ms: int) -> list[TopicDescription]:
        return [TopicDescription(TP.topic, "id", (PartitionDescription(0, 1, 0, (1,), (1,)),))]

    def describe_hosts(self, _topics: object, _timeout_ms: int) -> dict[int, Any]:
        return {1: {}}

    def watch_events(
        self, *, since_ms: int | None, broker_id: int | None, partitions: list[Any], kinds: Any, patience_ms: int
    ) -> Iterator[Any]:
        assert patience_ms < 2_000, "a client that waits longer reports it on stderr"
        self._cluster.since.append(since_ms)
        self._cluster.open_watches.append(self)
        self._cluster.watches.append((broker_id, partitions, tuple(kinds)))
        for kind in (StateChangeKind.CONTROL_REQUEST, StateChangeKind.SESSION_CHANGED):
            answer = RequestAnswer(request="LeaderAndIsr", controller_id=7) if kind.value == "control-request" else None
            change = StateChange(who=f"broker-{broker_id}", wall_ms=1, kind=kind, topic_partition=TP, answer=answer)
            yield SimpleNamespace(events=(change,), gap=None, address="a:1")
        self._closed.wait(LIMIT_S)
        raise BootstrapError("closed")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def entries() -> list[Entry]:
    return []


@pytest.fixture
def collector(cluster: Cluster, entries: list[Entry]) -> Iterator[Collector]:
    collector = Collector(cluster.open, entries.append, lambda: [TP], int(time.time() * 1000))
    collector.start()
    yield collector
    collector.close()


def test_a_brokers_requests_are_asked_for_by_name_and_passed_on_once(
    collector: Collector, cluster: Cluster, entries: list[Entry]
) -> None:
    def requests() -> list[Entry]:
        return [one for one in entries if one.kind == EVENT and one.value["kind"] == "control-request"]

    eventually(lambda: len(requests()) == 1 and len(cluster.watches) == 3, LIMIT_S, "three watches")
    assert (1, [TP], (StateChangeKind.CONTROL_REQUEST,)) in cluster.watches
    # The clock of the event is far from that of this machine, and says so.
    assert requests()[0].value["clock_ahead_ms"] < -1_000
    eventually(lambda: any(one.kind == SAMPLE for one in entries), LIMIT_S, "a sample")
    assert collector.partitions == [TP]


def test_a_watch_that_broke_continues_with_the_events_since_then(collector: Collector, cluster: Cluster) -> None:
    eventually(lambda: len(cluster.watches) == 3, LIMIT_S, "three watches")
    assert cluster.since == [None] * 3
    for each in list(cluster.open_watches):
        each.close()
    eventually(lambda: len(cluster.watches) == 6, LIMIT_S, "the watches again")
    assert all(since is not None for since in cluster.since[3:])


def test_an_unreachable_cluster_is_a_gap_and_is_named_meanwhile(
    collector: Collector, cluster: Cluster, entries: list[Entry]
) -> None:
    eventually(lambda: any(one.kind == SAMPLE for one in entries), LIMIT_S, "a sample")
    cluster.is_reachable = False
    eventually(lambda: "no address answered" in collector.trouble, LIMIT_S, "the trouble")
    assert collector.partitions == [TP]
    cluster.is_reachable = True
    eventually(lambda: not collector.trouble, LIMIT_S, "the end of the trouble")
    (gap,) = [one for one in entries if one.kind == GAP]
    assert gap.value["from"] < gap.t and "no address answered" in gap.value["why"]


def test_nothing_is_passed_on_after_the_end(collector: Collector, entries: list[Entry]) -> None:
    eventually(lambda: bool(entries), LIMIT_S, "an entry")
    collector.close()
    count = len(entries)
    collector._pass_on(SAMPLE, {})
    assert len(entries) == count
