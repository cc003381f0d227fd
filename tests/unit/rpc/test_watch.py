"""Watching: cursors, gaps, limits; and every state change on the wire."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from paceline.controller.context import PartitionState, ReplicaState
from paceline.model.acls import (
    CLUSTER_NAME,
    AccessRules,
    AclEntry,
    Operation,
    Permission,
    ResourcePattern,
    ResourceType,
)
from paceline.model.errors import (
    ClusterAuthorizationError,
    InvalidRequestError,
    NotControllerError,
    ShuttingDownError,
    ThrottledError,
)
from paceline.model.event_ring import EventRing
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import ReplicaOffsets, RequestAnswer, StateChange, StateChangeKind, state_change_fields
from paceline.rpc.convert.events import (
    MAX_NAMED_PARTITIONS,
    event_from_proto,
    event_kind_to_proto,
    event_to_proto,
    without_broker_epoch,
)
from paceline.rpc.security.audit_log import AuditLog
from paceline.rpc.security.authorized_requests import check_call
from paceline.rpc.security.authorizer import Authorizer, Call, Caller, Mode, acting_as
from paceline.rpc.security.rpc_needs import RPC_NEEDS
from paceline.rpc.watch import watch_servicer
from paceline.rpc.watch.watch_hub import WatchHub
from paceline.rpc.watch.watch_servicer import WatchServicer
from paceline.v1 import cluster_event_pb2
from paceline.v1 import metadata_service_pb2 as pb

SOON_S = 60.0


class Served(WatchServicer):
    """A process that serves only WatchEvents."""

    def __init__(self, capacity: int = 100, max_watchers: int = 10) -> None:
        super().__init__(WatchHub("run1", EventRing(capacity), max_watchers))
        self.hub = self._hub
        self.active = True

    def say(self, *causes: str, kind: StateChangeKind = StateChangeKind.TRANSITION, topic: str | None = None) -> None:
        for cause in causes:
            self.hub.put(StateChange(who="broker-1", wall_ms=int(cause) * 1_000, kind=kind, topic=topic, cause=cause))

    async def DescribeCluster(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    async def DescribeTopics(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    async def DescribeReplicas(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    def _check_active(self) -> None:
        if not self.active:
            raise NotControllerError("not active")


async def first(stream: AsyncIterator[Any], count: int = 1) -> list[Any]:
    return [await asyncio.wait_for(anext(stream), SOON_S) for _ in range(count)]


def causes(batch: pb.EventBatch) -> list[str]:
    return [event.cause for event in batch.events]


async def batches(served: Served, count: int = 1, **request: Any) -> list[pb.EventBatch]:
    """Return the first batches of a stream."""
    async with contextlib.aclosing(served.WatchEvents(pb.WatchEventsRequest(**request), None)) as stream:
        return [message.batch for message in await first(stream, count)]


async def test_a_watcher_gets_a_cursor_at_once_and_each_event_as_it_happens() -> None:
    served = Served()
    served.say("1")
    stream = served.WatchEvents(pb.WatchEventsRequest(), None)
    (opened,) = await first(stream)
    assert causes(opened.batch) == [] and opened.batch.cursor
    served.say("2", "3")
    (said,) = await first(stream)
    assert causes(said.batch) == ["2", "3"]
    await stream.aclose()
    assert served.hub.watcher_count == 0
    served.say("4")
    again = served.WatchEvents(pb.WatchEventsRequest(cursor=said.batch.cursor), None)
    (resumed,) = await first(again)
    assert causes(resumed.batch) == ["4"] and not resumed.batch.HasField("gap")


async def test_a_watcher_sees_topics_it_may_describe_and_its_stream_ends_with_a_withdrawn_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_servicer, "RULES_S", 0.01)
    described = AclEntry("User:alice", Permission.ALLOW, Operation.DESCRIBE)
    on_cluster = ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME)
    authorizer = Authorizer(Mode.ENFORCE, audit=AuditLog(write=lambda _line: None))
    authorizer.use(AccessRules({on_cluster: (described,), ResourcePattern(ResourceType.TOPIC, "mine"): (described,)}))
    method = "/paceline.v1.MetadataService/WatchEvents"
    call = Call(Caller("User:alice"), authorizer, method, row=RPC_NEEDS[method], exempt=None)
    served = Served()
    with acting_as(call):
        check_call(call, pb.WatchEventsRequest())  # as the interceptor does
        stream = served.WatchEvents(pb.WatchEventsRequest(since_ms=0), None)
        served.say("1", topic="mine")
        served.say("2", topic="theirs")
        served.say("3")
        (opened,) = await first(stream)
        assert causes(opened.batch) == ["1", "3"]
        authorizer.use(AccessRules({}))
        with pytest.raises(ClusterAuthorizationError):
            await first(stream)


async def test_a_slow_watcher_gets_a_gap_with_the_number_of_lost_events_and_continues() -> None:
    served = Served(capacity=3)
    stream = served.WatchEvents(pb.WatchEventsRequest(), None)
    await first(stream)
    served.say(*(str(number) for number in range(10)))
    (late,) = await first(stream)
    assert causes(late.batch) == ["7", "8", "9"]
    assert (late.batch.gap.reason, late.batch.gap.lost_events) == (pb.EVENT_GAP_REASON_LAGGED, 7)
    served.say("10")
    (after,) = await first(stream)
    assert causes(after.batch) == ["10"] and not after.batch.HasField("gap")


async def test_a_cursor_of_another_process_gives_a_gap_and_begins_as_requested() -> None:
    served = Served()
    served.say("1", "2", "3")
    (everything,) = await batches(served, cursor="e.run0.17")
    assert causes(everything) == ["1", "2", "3"]
    assert everything.gap.reason == pb.EVENT_GAP_REASON_OTHER_PROCESS and not everything.gap.HasField("lost_events")
    (later,) = await batches(served, cursor="e.run0.17", since_ms=2_000)
    assert causes(later) == ["2", "3"]


async def test_events_are_picked_by_topic_and_by_kind() -> None:
    served = Served()
    served.say("1", kind=StateChangeKind.TOPIC_CREATED, topic="a")
    served.say("2", kind=StateChangeKind.TOPIC_CREATED, topic="b")
    served.say("3", kind=StateChangeKind.TOPIC_DELETED, topic="a")
    of_a = pb.EventFilter(topics=["a"])
    (about,) = await batches(served, since_ms=0, filter=of_a)
    assert causes(about) == ["1", "3"]
    gone = pb.EventFilter(topics=["a"], kinds=[event_kind_to_proto(StateChangeKind.TOPIC_DELETED)])
    (found,) = await batches(served, since_ms=0, filter=gone)
    assert causes(found) == ["3"]
    (rest,) = await batches(served, cursor=found.cursor, filter=of_a)
    assert causes(rest) == []


async def test_a_named_partition_is_watched_as_long_as_a_watcher_names_it() -> None:
    served = Served()
    served.say("1", topic="a")
    where = {number: TopicPartition("orders", number) for number in (0, 1)}
    for number, topic_partition in where.items():
        served.hub.put(StateChange(who="b", wall_ms=0, topic_partition=topic_partition, cause=f"p{number}"))
    named = pb.EventFilter(partitions=[cluster_event_pb2.EventPartition(topic="orders", partition=1)])
    streams = [served.WatchEvents(pb.WatchEventsRequest(since_ms=0, filter=named), None) for _ in range(2)]
    for stream in streams:
        (found,) = await first(stream)
        assert causes(found.batch) == ["p1"]
    assert set(served.hub.watched) == {where[1]}
    await streams[0].aclose()
    assert set(served.hub.watched) == {where[1]}
    await streams[1].aclose()
    assert not served.hub.watched
    both = pb.EventFilter(topics=["a"], partitions=named.partitions)
    (found,) = await batches(served, since_ms=0, filter=both)
    assert causes(found) == ["1", "p1"]


async def test_a_watch_of_the_past_ends_with_the_last_event_and_names_no_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = Served()
    monkeypatch.setattr(watch_servicer, "MAX_EVENTS", 3)
    served.say(*(str(number) for number in range(7)))
    named = pb.EventFilter(topics=[""], partitions=[cluster_event_pb2.EventPartition(topic="a")])
    for wanted, expected in ((None, [str(number) for number in range(7)]), (named, [])):
        heard = []
        async for message in served.WatchEvents(pb.WatchEventsRequest(since_ms=0, filter=wanted, past_only=True), None):
            heard += causes(message.batch)
            assert not served.hub.watched
        assert heard == expected


async def test_a_watch_of_the_past_reads_past_many_events_that_the_filter_drops() -> None:
    served = Served(capacity=20_000)
    served.say(*["1"] * 11_000, topic="b")
    served.say("2", topic="a")
    request = pb.WatchEventsRequest(since_ms=0, filter=pb.EventFilter(topics=["a"]), past_only=True)
    heard = [cause async for message in served.WatchEvents(request, None) for cause in causes(message.batch)]
    assert heard == ["2"]


async def test_a_long_list_is_sent_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served()
    monkeypatch.setattr(watch_servicer, "MAX_EVENTS", 3)
    served.say(*(str(number) for number in range(7)))
    pieces = [causes(batch) for batch in await batches(served, 3, since_ms=0)]
    assert pieces == [["0", "1", "2"], ["3", "4", "5"], ["6"]]


@pytest.mark.parametrize(
    "request_",
    [
        {"cursor": "nonsense"},
        {"cursor": "e.run1.x"},
        {"cursor": "e.run1.-1"},
        {"cursor": "m.run1.1"},
        {"cursor": "e.run1.0.1"},
        {"cursor": "e.run1." + "9" * 200},
        {"filter": pb.EventFilter(kinds=[99])},  # type: ignore[list-item]
        {"filter": pb.EventFilter(partitions=[cluster_event_pb2.EventPartition()] * (MAX_NAMED_PARTITIONS + 1))},
    ],
    ids=lambda value: str(value)[:40],
)
async def test_an_invalid_watch_request_is_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        await batches(Served(), **request_)


async def test_a_watch_of_the_active_controller_ends_with_its_last_event_when_it_resigns() -> None:
    served = Served()
    stream = served.WatchEvents(pb.WatchEventsRequest(active_controller_only=True), None)
    await first(stream)
    served.active = False
    served.say("1")
    (last,) = await first(stream)
    assert causes(last.batch) == ["1"]
    with pytest.raises(NotControllerError):
        await first(stream)
    with pytest.raises(NotControllerError):
        await batches(served, active_controller_only=True)


async def test_watchers_are_counted_and_one_too_many_is_refused() -> None:
    served = Served(max_watchers=2)
    streams = [served.WatchEvents(pb.WatchEventsRequest(), None) for _ in range(3)]
    await first(streams[0])
    await first(streams[1])
    with pytest.raises(ThrottledError):
        await first(streams[2])
    await streams[0].aclose()
    await first(served.WatchEvents(pb.WatchEventsRequest(), None))


async def test_many_watchers_receive_the_same_events_in_the_same_order() -> None:
    served = Served(capacity=1_000, max_watchers=200)

    async def collect() -> list[str]:
        heard: list[str] = []
        async with contextlib.aclosing(served.WatchEvents(pb.WatchEventsRequest(since_ms=0), None)) as stream:
            async for message in stream:
                heard += causes(message.batch)
                if len(heard) == 300:
                    return heard
        return heard

    tasks = [asyncio.create_task(collect()) for _ in range(200)]
    for number in range(300):
        served.say(str(number))
        if number % 50 == 0:
            await asyncio.sleep(0)
    expected = [str(number) for number in range(300)]
    assert all(heard == expected for heard in await asyncio.wait_for(asyncio.gather(*tasks), SOON_S))


async def test_a_process_that_stops_ends_its_watches() -> None:
    served = Served()
    stream = served.WatchEvents(pb.WatchEventsRequest(), None)
    await first(stream)
    served.hub.close()
    with pytest.raises(ShuttingDownError):
        await first(stream)
    with pytest.raises(ShuttingDownError):
        await batches(served)


async def test_an_idle_stream_sends_keepalive_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_servicer, "ALIVE_S", 0.05)
    served = Served()
    assert all(not batch.events and batch.cursor for batch in await batches(served, 3))


def test_every_kind_of_state_change_has_a_number() -> None:
    words = {kind.name for kind in StateChangeKind}
    numbers = {
        name.removeprefix("CLUSTER_EVENT_KIND_")
        for name, number in cluster_event_pb2.ClusterEventKind.items()
        if number
    }
    assert words == numbers


_PARTITION = TopicPartition("t", 3)
_LEADERSHIP = {"leader": 2, "leader_epoch": 7, "isr": (1, 2), "zk_version": 0, "controller_epoch": 4}
_OFFSETS = (ReplicaOffsets(1, 10, 8), ReplicaOffsets(2, None))
_REPLICA: dict[str, Any] = {"topic_partition": _PARTITION, "topic_id": "x" * 22, "replica": 0, **_LEADERSHIP}
_FIELDS_OF_MESSAGE: dict[str, dict[str, Any]] = {
    "ReplicaEvent": {**_REPLICA, "replicas": _OFFSETS},
    "TruncationEvent": {**_REPLICA, "replicas": _OFFSETS, "end_offset": 5},
    "IsrEvent": {**_REPLICA, "replicas": _OFFSETS, "old_isr": (1, 2, 3)},
    "TransitionEvent": {**_REPLICA, "from_state": "NewReplica", "to_state": "OnlineReplica"},
    "BrokerEvent": {"replica": 1, "controller_epoch": 4, "broker_epoch": 1 << 40, "to_state": "EXPIRED"},
    "ControlRequestEvent": {
        **_REPLICA,
        "broker_epoch": 1 << 40,
        "answer": RequestAnswer(
            request="StopReplica",
            controller_id=1_000_000,
            error="STALE_CONTROLLER_EPOCH",
            known_controller_epoch=5,
            known_leader_epoch=8,
            known_broker_epoch=1 << 41,
        ),
    },
    "LogDirEvent": {"replica": 1, "log_dir": "/data/1"},
    "ControllerEvent": {"controller_epoch": 4},
    "TopicEvent": {"topic": "t", "topic_id": "x" * 22, "controller_epoch": 4},
    "ReassignmentEvent": {
        "topic_partition": _PARTITION,
        "topic_id": "x" * 22,
        "controller_epoch": 4,
        "origin_replicas": (1, 2),
        "target_replicas": (2, 3),
    },
}


def _sent(change: StateChange) -> StateChange:
    return event_from_proto(cluster_event_pb2.ClusterEvent.FromString(event_to_proto(change).SerializeToString()))


@pytest.mark.parametrize("kind", StateChangeKind)
def test_a_state_change_survives_the_wire(kind: StateChangeKind) -> None:
    message = cluster_event_pb2.ClusterEvent.DESCRIPTOR.fields_by_name[kind.name.lower()].message_type.name
    change = StateChange(
        who="broker-1", wall_ms=1_700_000_000_000, kind=kind, cause="why", **_FIELDS_OF_MESSAGE[message]
    )
    assert _sent(change) == change


def test_a_partition_without_a_leader_and_a_finished_reassignment_survive_the_wire() -> None:
    kinds = StateChangeKind
    offline = StateChange(who="c", wall_ms=0, kind=kinds.TRANSITION, **{**_REPLICA, "replica": None, "leader": -1})
    finished = StateChange(
        who="c", wall_ms=0, kind=kinds.REASSIGNMENT, topic_partition=_PARTITION, target_replicas=(2, 3)
    )
    assert [_sent(offline), _sent(finished)] == [offline, finished]


def test_an_applied_control_request_survives_the_wire_and_is_flat_in_json() -> None:
    answer = RequestAnswer(request="LeaderAndIsr", controller_id=7)
    change = StateChange(who="b", wall_ms=0, kind=StateChangeKind.CONTROL_REQUEST, **_REPLICA, answer=answer)
    assert _sent(change) == change
    fields = state_change_fields(change)
    assert (fields["request"], fields["controller_id"]) == ("LeaderAndIsr", 7)
    assert "error" not in fields and "answer" not in fields


def test_broker_epochs_of_a_refused_request_are_hidden() -> None:
    fields = _FIELDS_OF_MESSAGE["ControlRequestEvent"]
    hidden = without_broker_epoch(StateChange(who="b", wall_ms=0, kind=StateChangeKind.CONTROL_REQUEST, **fields))
    assert hidden.answer is not None
    assert (hidden.broker_epoch, hidden.answer.known_broker_epoch) == (None, None)
    assert (hidden.controller_epoch, hidden.answer.known_controller_epoch) == (4, 5)


@pytest.mark.parametrize("state", [*PartitionState, *ReplicaState])
def test_every_state_of_the_state_machines_has_a_number(state: PartitionState | ReplicaState) -> None:
    change = StateChange(who="c", wall_ms=0, topic_partition=_PARTITION, from_state=state.value, to_state=state.value)
    assert _sent(change) == change


def test_the_field_of_a_kind_has_its_name_and_its_number_plus_100() -> None:
    fields = {field.name: field.number - 100 for field in cluster_event_pb2.ClusterEvent.DESCRIPTOR.oneofs[0].fields}
    kinds = {
        name.removeprefix("CLUSTER_EVENT_KIND_").lower(): number
        for name, number in cluster_event_pb2.ClusterEventKind.items()
        if number
    }
    assert fields == kinds


def test_an_event_of_a_newer_release_is_shown_as_unknown() -> None:
    message = cluster_event_pb2.ClusterEvent(source="broker-1", cause="new")
    change = event_from_proto(message)
    assert (change.kind, change.cause) == (StateChangeKind.TRANSITION, "an event of a newer release: new")
