"""Produce and Fetch under access lists: each partition has its own verdict, also within a fetch session."""

from types import SimpleNamespace
from typing import Any

from paceline.broker.service.calls_in_progress import ByteBudget, FetchWaits
from paceline.broker.service.log_servicer import LogServicer
from paceline.broker.service.node_handle import NodeHandle
from paceline.broker.service.record_codec import RecordCodec
from paceline.broker.service.response_memory import AnswerBudget
from paceline.model.acls import AccessRules, AclEntry, Operation, Permission, ResourcePattern, ResourceType
from paceline.rpc.admission.listener_limits import ListenerLimits
from paceline.rpc.security.audit_log import AuditLog
from paceline.rpc.security.authorizer import Authorizer, Call, Caller, Mode, acting_as
from paceline.v1 import log_service_pb2 as pb
from tests.support.broker_cluster import TP, BrokerCluster, batch

FORBIDDEN = 29
RULES = {
    "write": AclEntry("User:alice", Permission.ALLOW, Operation.WRITE),
    "read": AclEntry("User:alice", Permission.ALLOW, Operation.READ),
}


class Served:
    """A broker with one partition, served to ``User:alice`` under rules."""

    def __init__(self, mode: Mode = Mode.ENFORCE) -> None:
        self.cluster = BrokerCluster((1,))
        self.cluster.decide(1, 0, (1,), is_new=True)
        self.cluster[1].produce(b"first")
        handle = NodeHandle()
        handle.set(self.cluster[1].node)
        self.servicer = LogServicer(
            handle, "CLIENT", self.cluster.time, ByteBudget(1 << 20), AnswerBudget(1 << 20), 1 << 20, RecordCodec(),
            FetchWaits(9), ListenerLimits(),
        )  # fmt: skip
        self.texts: list[str] = []
        self.authorizer = Authorizer(mode, audit=AuditLog("", self.texts.append))
        self.give()
        self.context: Any = SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:1", time_remaining=lambda: None)
        self.call = Call(Caller("User:alice"), self.authorizer, "/x/Call", "CLIENT", "ipv4:127.0.0.1:1", None, None)

    def give(self, *names: str) -> None:
        """Let alice do these things with the topic, and nothing else."""
        resource = ResourcePattern(ResourceType.TOPIC, TP.topic)
        self.authorizer.use(AccessRules({resource: tuple(RULES[name] for name in names)} if names else {}))

    async def produce(self, *topics: str, acks: Any = pb.ACKS_ALL) -> list[int]:
        request = pb.ProduceRequest(acks=acks, timeout_ms=1_000)
        for topic in topics:
            request.partitions.add(topic=topic, partition=TP.partition, batch=batch(b"more"))
        with acting_as(self.call):
            data = await self.servicer.produce(request.SerializeToString(), self.context)
        answer = pb.ProduceResponse.FromString(data)
        return [one.error.code if one.HasField("error") else 0 for one in answer.partitions]

    async def fetch(self, *topics: str, **more: Any) -> pb.FetchResponse:
        request = pb.FetchRequest(format=pb.FETCH_FORMAT_BATCHES, max_bytes=1 << 20, **more)
        for topic in topics:
            request.partitions.add(topic=topic, partition=TP.partition, max_bytes=1 << 20)
        return await self.send(request)

    async def send(self, request: pb.FetchRequest) -> pb.FetchResponse:
        with acting_as(self.call):
            return pb.FetchResponse.FromString(await self.servicer.fetch(request.SerializeToString(), self.context))


def codes(answer: pb.FetchResponse) -> dict[str, int]:
    return {one.topic: one.error.code if one.HasField("error") else 0 for one in answer.partitions}


async def test_a_write_needs_write_on_its_topic_and_other_topics_are_written_all_the_same() -> None:
    served = Served()
    assert await served.produce(TP.topic) == [FORBIDDEN]
    served.give("read")
    assert await served.produce(TP.topic) == [FORBIDDEN]
    assert served.cluster[1].values() == [b"first"]
    served.give("write")
    assert await served.produce("absent", TP.topic, "absent-2") == [FORBIDDEN, 0, FORBIDDEN]
    assert served.cluster[1].values() == [b"first", b"more"]
    served.give()
    await served.produce(TP.topic, acks=pb.ACKS_NONE)
    assert served.cluster[1].values() == [b"first", b"more"]


async def test_a_read_needs_read_on_its_topic() -> None:
    served = Served()
    served.give("write")
    answer = await served.fetch(TP.topic, "absent", max_wait_ms=60_000)
    assert codes(answer) == {TP.topic: FORBIDDEN, "absent": FORBIDDEN}
    assert not any(one.batches for one in answer.partitions)
    served.give("read")
    answer = await served.fetch(TP.topic, "absent")
    assert codes(answer) == {TP.topic: 0, "absent": FORBIDDEN} and answer.partitions[0].batches


async def test_the_answers_for_an_existing_and_an_absent_topic_are_the_same() -> None:
    served = Served()
    present, absent = await served.fetch(TP.topic), await served.fetch("absent")
    assert TP.topic not in "absent" and str(present).replace(TP.topic, "absent") == str(absent)


async def test_a_fetch_session_shows_nothing_of_a_topic_whose_rule_was_withdrawn() -> None:
    served = Served()
    served.give("read")
    request = pb.FetchRequest(format=pb.FETCH_FORMAT_BATCHES, max_bytes=1 << 20, open_session=True)
    request.partitions.add(topic=TP.topic, partition=TP.partition, max_bytes=1 << 20)
    first = await served.send(request)
    assert first.session_id and first.partitions[0].batches
    served.give()
    served.cluster[1].produce(b"secret")
    again = pb.FetchRequest(
        format=pb.FETCH_FORMAT_BATCHES, max_bytes=1 << 20, session_id=first.session_id, session_epoch=1
    )
    second = await served.send(again)
    assert codes(second) == {TP.topic: FORBIDDEN} and b"secret" not in second.SerializeToString()


async def test_the_mode_log_writes_and_reads() -> None:
    served = Served(Mode.LOG)
    assert await served.produce(TP.topic) == [0]
    assert codes(await served.fetch(TP.topic)) == {TP.topic: 0}
    assert len(served.texts) == 2 and all('"would_deny"' in text for text in served.texts)
