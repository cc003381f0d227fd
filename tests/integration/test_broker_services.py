"""The broker's servicers over real gRPC with a fake core: conversion, addresses, limits, cancellation."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from paceline.broker.metadata_cache import MetadataCache
from paceline.broker.service.internal_servicer import ReplicationServicer
from paceline.broker.service.log_servicer import ByteBudget, LogServicer
from paceline.broker.service.node_handle import NodeHandle
from paceline.broker.service.record_codec import RecordCodec
from paceline.broker.service.response_memory import AnswerBudget
from paceline.broker.service.servers import CONTROL_THREADS, BrokerServers
from paceline.internal.v1 import replica_manager_service_pb2 as control_pb
from paceline.internal.v1 import replica_manager_service_pb2_grpc, replication_service_pb2_grpc
from paceline.internal.v1 import replication_service_pb2 as replica_pb
from paceline.log.record_batch import NewRecord, decode_batch, encode_batch, parse_header
from paceline.model.client_io import (
    DeleteRecordsQuery,
    DeleteRecordsResult,
    EpochAnswer,
    EpochQuery,
    FetchRequest,
    FetchResponse,
    FetchResult,
    Isolation,
    LeaderHint,
    OffsetAnswer,
    OffsetQuery,
    PartitionFailure,
    PartitionReplicasView,
    ProduceData,
    ProduceResult,
    RequiredAcks,
)
from paceline.model.control import (
    ControllerStamp,
    ControlRequest,
    ControlResponse,
    Endpoint,
    LiveBroker,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from paceline.model.errors import (
    BrokerNotAvailableError,
    ErrorCode,
    FetchSessionIdNotFoundError,
    InvalidRequestError,
    InvalidRequiredAcksError,
    MessageTooLargeError,
    PacelineError,
    RequestTimedOutError,
    ThrottledError,
    UnknownServerError,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.replica_fetch import EpochEnd, ReplicaFetchRequest, ReplicaFetchResponse, ReplicaFetchResult
from paceline.rpc.admission.receive_limiter import RECEIVED_AT_ONCE
from paceline.rpc.channels import channel_options, open_aio_channel
from paceline.rpc.errors import from_rpc_error
from paceline.runtime.asyncio_scheduler import AsyncioScheduler
from paceline.runtime.lifecycle import ExitCode, StartupError
from paceline.runtime.metrics import Metrics
from paceline.runtime.settings import load_broker
from paceline.v1 import log_service_pb2 as log_pb
from paceline.v1 import log_service_pb2_grpc, metadata_service_pb2_grpc, record_pb2
from paceline.v1 import metadata_service_pb2 as metadata_pb
from paceline_client import Admin
from tests.support.flood import _DATA, _END_STREAM, _Call, _frame, _message
from tests.support.reverse_conversions import leader_address_from_proto

TP = TopicPartition("t", 0)


class SmallCore:
    """A broker core that records requests and returns prepared answers."""

    def __init__(self) -> None:
        self.metadata = MetadataCache()
        self.cluster_id: str | None = "abcdefghijklmnopqrstuv"
        self.produced: list[tuple[RequiredAcks, int, list[ProduceData]]] = []
        self.fetched: list[FetchRequest] = []
        self.replica_fetched: list[ReplicaFetchRequest] = []
        self.controls: list[ControlRequest] = []
        self.produce_answer: list[ProduceResult] | None = None
        self.fetch_answer: FetchResponse | None = None
        self.fetch_replies: list[Callable[[FetchResponse], None]] = []
        self.cancelled: list[FetchRequest] = []
        self.deleted: list[tuple[list[DeleteRecordsQuery], int]] = []
        self.control_outcome: ControlResponse | Exception = ControlResponse()
        self.producers: list[Hashable] = []
        self.producer_id: tuple[int, int] | PacelineError = (4_000, 0)

    def produce(
        self,
        acks: RequiredAcks,
        timeout_ms: int,
        data: Sequence[ProduceData],
        reply: Callable[[list[ProduceResult]], None],
        producer: Hashable = None,
    ) -> None:
        self.produced.append((acks, timeout_ms, list(data)))
        self.producers.append(producer)
        if self.produce_answer is not None:
            reply(self.produce_answer)

    def fetch(self, request: FetchRequest, reply: Callable[[FetchResponse], None]) -> Callable[[], None] | None:
        self.fetched.append(request)
        self.fetch_replies.append(reply)
        if self.fetch_answer is not None:
            reply(self.fetch_answer)
            return None
        return lambda: self.cancelled.append(request)

    def delete_records(
        self,
        queries: Sequence[DeleteRecordsQuery],
        timeout_ms: int,
        reply: Callable[[list[DeleteRecordsResult]], None],
    ) -> None:
        self.deleted.append((list(queries), timeout_ms))
        failure = PartitionFailure(ErrorCode.NOT_LEADER_OR_FOLLOWER, "elsewhere", leader=LeaderHint(2, 5))
        reply(
            [
                DeleteRecordsResult(query.topic_partition, failure if query.before_offset is None else None, 4)
                for query in queries
            ]
        )

    def handle_replica_fetch(self, request: ReplicaFetchRequest, reply: Callable[[ReplicaFetchResponse], None]) -> None:
        self.replica_fetched.append(request)
        results = [
            ReplicaFetchResult(one.topic_partition, high_watermark=3, batches=b"B") for one in request.partitions
        ]
        reply(ReplicaFetchResponse(9, results))

    def offsets_for_leader_epoch(self, queries: Sequence[EpochQuery], from_client: bool) -> list[EpochAnswer]:
        return [EpochAnswer(query.topic_partition, None, EpochEnd(query.leader_epoch, 12)) for query in queries]

    def list_offsets(self, queries: Sequence[OffsetQuery], isolation: Isolation) -> list[OffsetAnswer]:
        return [OffsetAnswer(query.topic_partition, offset=5, leader_epoch=2) for query in queries]

    def describe_replicas(self, topic: str, partitions: Sequence[int]) -> list[PartitionReplicasView]:
        return [PartitionReplicasView(TopicPartition(topic, index), leader=1) for index in partitions]

    def init_producer_id(self, reply: Callable[[tuple[int, int] | PacelineError], None]) -> None:
        reply(self.producer_id)

    def when_epochs_read(self, on_read: Callable[[], None]) -> None:
        on_read()

    def handle_control(self, request: ControlRequest) -> ControlResponse:
        assert threading.current_thread() is threading.main_thread()
        self.controls.append(request)
        if isinstance(self.control_outcome, Exception):
            raise self.control_outcome
        return self.control_outcome


class Door:
    """The servers of a broker on free ports, and channels to them."""

    def __init__(self, servers: BrokerServers, core: SmallCore, metrics: Metrics) -> None:
        self.servers, self.core, self.metrics = servers, core, metrics
        self.channels: list[Any] = []
        self.address = {endpoint.listener: endpoint.address for endpoint in servers.advertised}

    def log(self, listener: str = "CLIENT") -> Any:
        return log_service_pb2_grpc.LogServiceStub(self._channel(listener))

    def metadata(self, listener: str = "CLIENT") -> Any:
        return metadata_service_pb2_grpc.MetadataServiceStub(self._channel(listener))

    def replication(self) -> Any:
        return replication_service_pb2_grpc.ReplicationServiceStub(self._channel("REPLICATION"))

    def control(self) -> Any:
        return replica_manager_service_pb2_grpc.ReplicaManagerServiceStub(self._channel("CONTROL"))

    def health(self, listener: str) -> Any:
        return health_pb2_grpc.HealthStub(self._channel(listener))

    def _channel(self, listener: str) -> Any:
        channel = open_aio_channel(self.address[listener])
        self.channels.append(channel)
        return channel


LISTENERS = "--listeners=CLIENT://127.0.0.1:0,EXTERNAL://127.0.0.1:0,REPLICATION://127.0.0.1:0,CONTROL://127.0.0.1:0"


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    settings = load_broker(["--zookeeper-connect=none", "--log-dirs=/none", LISTENERS], {})
    core, metrics, handle = SmallCore(), Metrics(), NodeHandle()
    servers = BrokerServers(settings, handle, AsyncioScheduler(asyncio.get_running_loop()), metrics, node_id=lambda: 1)
    await servers.start()
    handle.set(core)
    await servers.set_serving(True)
    made = Door(servers, core, metrics)
    yield made
    for channel in made.channels:
        await channel.close()
    await servers.stop(0.1)


def errors_of(door: Door, reason: str) -> float | None:
    return door.metrics.registry.get_sample_value("paceline_request_errors_total", {"reason": reason})


async def failure_of(call: Any) -> PacelineError:
    with pytest.raises(grpc.RpcError) as failure:
        await call
    return from_rpc_error(failure.value)


def produce_of(data: bytes = b"batch", **fields: Any) -> log_pb.ProduceRequest:
    return log_pb.ProduceRequest(partitions=[log_pb.ProducePartition(topic="t", batch=data)], **fields)


async def test_a_batch_reaches_the_core_unchanged_and_its_answer_is_returned(door: Door) -> None:
    door.core.produce_answer = [ProduceResult(TP, None, 7, -1, 2)]
    response = await door.log().Produce(produce_of(b"\x00\xff" * 9, timeout_ms=1_234))
    assert door.core.produced == [(RequiredAcks.ALL, 1_234, [ProduceData(TP, None, b"\x00\xff" * 9)])]
    (result,) = response.partitions
    assert (result.topic, result.partition, result.base_offset, result.log_append_time_ms) == ("t", 0, 7, -1)
    assert not result.HasField("error")


async def test_requests_of_one_connection_have_the_same_producer(door: Door) -> None:
    door.core.produce_answer = [ProduceResult(TP, None, 0, -1, 0)]
    for _ in range(2):
        await door.log().Produce(produce_of())
    stream = door.log().ProduceStream()
    await stream.write(produce_of())
    await stream.read()
    stream.cancel()
    assert len(set(door.core.producers)) == 1 and door.core.producers[0]


async def test_structured_records_become_one_batch_and_missing_timestamps_the_brokers_clock(door: Door) -> None:
    door.core.produce_answer = [ProduceResult(TP, None, 0, -1, 0)]
    before = AsyncioScheduler(asyncio.get_running_loop()).wall_ms()
    request = log_pb.ProduceRequest()
    records = request.partitions.add(topic="t").records
    records.records.add(key=b"k", value=b"v", timestamp_ms=55, offset=999).headers.add(key="h", value=b"1")
    records.records.add().headers.add(key="n")
    await door.log().Produce(request)
    ((_, _, [data]),) = door.core.produced
    header = parse_header(data.batch)
    assert (header.base_offset, header.record_count, header.producer_id) == (0, 2, -1)
    first, second = decode_batch(data.batch)
    assert (first.key, first.value, first.timestamp, first.headers) == (b"k", b"v", 55, [("h", b"1")])
    assert (second.key, second.value, second.headers) == (None, None, [("n", None)])
    assert before <= second.timestamp <= AsyncioScheduler(asyncio.get_running_loop()).wall_ms()


async def test_acks_none_answers_at_once_with_an_empty_response(door: Door) -> None:
    response = await door.log().Produce(produce_of(acks=log_pb.ACKS_NONE), timeout=60)
    assert response == log_pb.ProduceResponse()
    assert door.core.produced[0][0] is RequiredAcks.NONE


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (produce_of(acks=9), InvalidRequiredAcksError),
        (log_pb.ProduceRequest(partitions=[log_pb.ProducePartition(topic="t")]), InvalidRequestError),
        (
            log_pb.ProduceRequest(partitions=[log_pb.ProducePartition(topic="t", batch=b"x")] * 2),
            InvalidRequestError,
        ),
        (produce_of(timeout_ms=-1), InvalidRequestError),
        (produce_of(b"x" * (17 << 20)), MessageTooLargeError),
    ],
)
async def test_a_hostile_produce_is_refused_and_does_not_reach_the_core(
    door: Door, request_: log_pb.ProduceRequest, expected: type[PacelineError]
) -> None:
    assert type(await failure_of(door.log().Produce(request_))) is expected
    assert door.core.produced == []


async def test_a_request_that_inflates_beyond_the_limit_is_refused_before_our_code_runs(door: Door) -> None:
    channel = grpc.aio.insecure_channel(door.address["CLIENT"], channel_options(-1), compression=grpc.Compression.Gzip)
    door.channels.append(channel)
    error = await failure_of(channel.unary_unary("/paceline.v1.LogService/Produce")(bytes(64 << 20)))
    assert isinstance(error, MessageTooLargeError)
    assert door.core.produced == []


async def test_requests_in_flight_have_a_byte_budget(door: Door) -> None:
    door.servers._budget._limit_bytes = 1_000_000
    log = door.log()
    first = log.Produce(produce_of(b"x" * 900_000))
    await _until(lambda: len(door.core.produced) == 1)
    assert isinstance(await failure_of(log.Produce(produce_of(b"x" * 200_000))), ThrottledError)
    first.cancel()
    await _until(lambda: door.servers._budget.used_bytes == 0)
    door.core.produce_answer = [ProduceResult(TP, None, 0, -1, 0)]
    await log.Produce(produce_of(b"x" * 2_000_000))


async def test_requests_beyond_those_being_received_are_throttled_unread(door: Door) -> None:
    receive_limiter = door.servers._limiter
    receive_limiter._wait_s = 0.05
    receive_limiter._slow_after_s = 60.0
    over = asyncio.Event()

    async def sends_for_ever() -> None:
        await receive_limiter.receive(over.wait)

    senders = [asyncio.get_running_loop().create_task(sends_for_ever()) for _ in range(RECEIVED_AT_ONCE)]
    await _until(lambda: receive_limiter.under_way == RECEIVED_AT_ONCE)
    error = await failure_of(door.log().Produce(produce_of()))
    assert isinstance(error, ThrottledError) and "try again" in str(error)
    assert door.core.produced == []
    over.set()
    await asyncio.gather(*senders)
    door.core.produce_answer = [ProduceResult(TP, None, 0, -1, 0)]
    await door.log().Produce(produce_of())
    assert receive_limiter.under_way == 0


async def test_responses_in_flight_have_a_byte_budget(door: Door) -> None:
    answers = door.servers._answers
    door.core.fetch_answer = FetchResponse([FetchResult(TP, None, 5, 5, 0, None, batches() + bytes(100_000))])
    request = fetch_of(format=log_pb.FETCH_FORMAT_BATCHES)
    answers.used_bytes = answers._limit_bytes
    error = await failure_of(door.log().Fetch(request))
    assert isinstance(error, ThrottledError) and "have not been received" in str(error)
    assert door.core.fetched == []
    answers.used_bytes = 0
    await door.log().Fetch(request)
    await _until(lambda: answers.used_bytes == 0)


async def test_a_produce_refused_as_a_whole_on_a_stream_is_answered_by_partition_and_the_stream_continues(
    door: Door,
) -> None:
    door.servers._budget._limit_bytes = 1_000_000
    held = door.log().Produce(produce_of(b"x" * 900_000))
    await _until(lambda: len(door.core.produced) == 1)
    stream = door.log().ProduceStream()
    await stream.write(produce_of(b"x" * 200_000))
    answer = await stream.read()
    assert [(one.topic, one.partition, one.error.code) for one in answer.partitions] == [
        (TP.topic, TP.partition, ErrorCode.THROTTLED)
    ]
    assert errors_of(door, "THROTTLED") == 1
    held.cancel()
    await _until(lambda: door.servers._budget.used_bytes == 0)
    door.core.produce_answer = [ProduceResult(TP, None, 7, -1, 0)]
    await stream.write(produce_of(b"x" * 200_000))
    answer = await stream.read()
    assert [(one.base_offset, one.HasField("error")) for one in answer.partitions] == [(7, False)]
    stream.cancel()


async def test_structured_records_that_take_long_to_encode_are_not_overtaken_on_their_stream(door: Door) -> None:
    def request(key: bytes, *sizes: int) -> log_pb.ProduceRequest:
        records = [record_pb2.Record(key=key, value=bytes(size)) for size in sizes]
        part = log_pb.ProducePartition(topic="t", records=record_pb2.RecordList(records=records))
        return log_pb.ProduceRequest(acks=log_pb.ACKS_LEADER, partitions=[part])

    door.core.produce_answer = [ProduceResult(TP, None, 7, -1, 0)]
    wrong = log_pb.ProduceRequest(partitions=[log_pb.ProducePartition(topic="t", records=record_pb2.RecordList())])
    sent = {b"1": request(b"1", *[1_000] * 3_000), b"2": request(b"2", 1), b"3": request(b"3", *[1_000] * 3_000)}
    stream = door.log().ProduceStream()
    for message in (*sent.values(), wrong, request(b"4", 1), request(b"5", 1)):
        await stream.write(message)
    answers = [(await stream.read()).partitions[0].HasField("error") for _ in range(6)]
    assert answers == [False, False, False, True, False, False]
    assert [decode_batch(data[0].batch)[0].key for _, _, data in door.core.produced] == [b"1", b"2", b"3", b"4", b"5"]
    stream.cancel()


async def test_responses_on_a_stream_have_the_same_byte_budget(door: Door) -> None:
    answers = door.servers._answers
    door.core.fetch_answer = FetchResponse([FetchResult(TP, None, 5, 5, 0, None, batches() + bytes(100_000))])
    stream = door.log().FetchStream()
    for _ in range(3):
        await stream.write(fetch_of(format=log_pb.FETCH_FORMAT_BATCHES))
        answer = await stream.read()
        assert len(answer.partitions[0].batches) > 100_000
        await _until(lambda: answers.used_bytes == 0)
    answers.used_bytes = answers._limit_bytes
    await stream.write(fetch_of(format=log_pb.FETCH_FORMAT_BATCHES))
    assert isinstance(await failure_of(stream.read()), ThrottledError)
    answers.used_bytes = 0


async def test_a_long_poll_on_a_stream_ends_when_the_client_disconnects(door: Door) -> None:
    stream = door.log().FetchStream()
    await stream.write(fetch_of(max_wait_ms=60_000))
    await _until(lambda: len(door.core.fetch_replies) == 1)
    stream.cancel()
    await _until(lambda: door.core.cancelled == door.core.fetched)


async def test_a_long_poll_ends_when_the_client_disconnects(door: Door) -> None:
    call = door.log().Fetch(fetch_of(max_wait_ms=60_000))
    await _until(lambda: len(door.core.fetch_replies) == 1)
    call.cancel()
    await _until(lambda: errors_of(door, "CANCELLED") == 1)
    assert door.core.cancelled == door.core.fetched, "no operation waits in the core"
    door.core.fetch_replies[0](FetchResponse([]))  # a late reply is dropped


async def test_records_are_deleted_partition_by_partition(door: Door) -> None:
    learn(door.core)
    request = log_pb.DeleteRecordsRequest(
        partitions=[
            log_pb.DeleteRecordsPartition(topic="t", partition=0, before_offset=4, current_leader_epoch=3),
            log_pb.DeleteRecordsPartition(topic="t", partition=1),
        ]
    )
    answer = await door.log().DeleteRecords(request)
    ((queries, timeout_ms),) = door.core.deleted
    assert queries == [
        DeleteRecordsQuery(TopicPartition("t", 0), None, 4, 3),
        DeleteRecordsQuery(TopicPartition("t", 1), None, None, None),
    ]
    assert timeout_ms == 30_000
    done, refused = answer.partitions
    assert (done.partition, done.low_watermark, done.HasField("error")) == (0, 4, False)
    assert refused.error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER and refused.error.current_leader.port == 9092
    request.partitions[1].partition = 0
    assert isinstance(await failure_of(door.log().DeleteRecords(request)), InvalidRequestError)


def fetch_of(**fields: Any) -> log_pb.FetchRequest:
    return log_pb.FetchRequest(partitions=[log_pb.FetchPartition(topic="t", fetch_offset=1)], **fields)


def batches() -> bytes:
    data = bytearray(
        encode_batch(
            [NewRecord(10, b"k0", b"v0"), NewRecord(11, None, b"v1", [("h", None)]), NewRecord(12, b"k2", None)]
        )
    )
    control = bytearray(encode_batch([NewRecord(13, b"\0\0\0\1", b"\0\0\0\0\0\0")], base_offset=3))
    control[22] |= 0x20  # the control bit; readers of a fetched batch do not check the CRC again
    more = encode_batch([NewRecord(14, b"k4", b"v4")], base_offset=4)
    return data + bytes(control) + more


async def test_structured_records_begin_at_the_fetch_offset_and_skip_control_records(door: Door) -> None:
    door.core.fetch_answer = FetchResponse([FetchResult(TP, None, 5, 5, 0, None, batches() + b"\0" * 20)], session_id=0)
    response = await door.log().Fetch(fetch_of())
    (result,) = response.partitions
    assert [record.offset for record in result.records.records] == [1, 2, 4]
    first, second, _ = result.records.records
    assert not first.HasField("key") and first.value == b"v1" and first.timestamp_ms == 11
    assert first.headers[0].key == "h" and not first.headers[0].HasField("value")
    assert second.key == b"k2" and not second.HasField("value")
    assert (result.high_watermark, result.log_start_offset) == (5, 0)
    assert door.core.fetched[0].session_epoch == -1


async def test_batches_are_returned_as_stored(door: Door) -> None:
    door.core.fetch_answer = FetchResponse([FetchResult(TP, None, 5, 5, 0, None, batches())], session_id=3)
    response = await door.log().Fetch(fetch_of(format=log_pb.FETCH_FORMAT_BATCHES))
    assert response.partitions[0].batches == batches()
    assert response.session_id == 3


async def test_a_response_in_records_stays_within_its_budget_but_has_at_least_one_record(door: Door) -> None:
    big = encode_batch([NewRecord(1, None, b"x" * 60_000) for _ in range(40)])
    door.core.fetch_answer = FetchResponse([FetchResult(TP, None, 40, 40, 0, None, big)])
    default = await door.log().Fetch(fetch_of())
    assert default.ByteSize() < 1 << 20
    assert len(default.partitions[0].records.records) == 17
    small = await door.log().Fetch(fetch_of(max_bytes=10))
    assert [record.offset for record in small.partitions[0].records.records] == [1]
    assert door.core.fetched[1].max_bytes == 10


async def test_a_client_gets_no_more_than_the_brokers_limit(door: Door) -> None:
    door.core.fetch_answer = FetchResponse([])
    await door.log().Fetch(fetch_of(max_bytes=2**31 - 1))
    assert door.core.fetched[0].max_bytes == 4 << 20, "a part of queued.max.response.bytes"
    door.servers._answers._largest_bytes = 1 << 30
    await door.log().Fetch(fetch_of(max_bytes=2**31 - 1))
    assert door.core.fetched[1].max_bytes == 57_671_680


async def test_a_failed_session_fails_the_whole_call(door: Door) -> None:
    door.core.fetch_answer = FetchResponse([], failure=PartitionFailure(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "gone"))
    request = fetch_of(format=log_pb.FETCH_FORMAT_BATCHES, session_id=5, session_epoch=2)
    assert isinstance(await failure_of(door.log().Fetch(request)), FetchSessionIdNotFoundError)


async def test_sessions_and_structured_records_do_not_mix(door: Door) -> None:
    for mixed in (fetch_of(session_id=5, session_epoch=2), fetch_of(open_session=True)):
        assert isinstance(await failure_of(door.log().Fetch(mixed)), InvalidRequestError)


def live(broker_id: int, external: bool = True) -> LiveBroker:
    endpoints = [Endpoint("CLIENT", f"broker-{broker_id}", 9092)]
    if external:
        endpoints.append(Endpoint("EXTERNAL", "localhost", 19_000 + broker_id))
    return LiveBroker(broker_id, tuple(endpoints), "r1" if broker_id == 1 else None, 7)


def learn(core: SmallCore) -> None:
    core.metadata.update(
        UpdateMetadataRequest(
            ControllerStamp(1_000_001, 4, None),
            (live(2), live(1, external=False)),
            (
                UpdateMetadataPartition(TopicPartition("t", 1), "i" * 22, 4, -1, 3, (2,), 5, (1, 2), (1,)),
                UpdateMetadataPartition(TP, "i" * 22, 4, 2, 3, (2, 1), 5, (1, 2)),
            ),
            (Endpoint("CLIENT", "controller", 9082), Endpoint("EXTERNAL", "localhost", 19_082)),
        )
    )


async def test_a_broker_without_metadata_refuses_questions_about_topics(door: Door) -> None:
    metadata = door.metadata()
    for topics in ([], ["t"]):
        refused = await failure_of(metadata.DescribeTopics(metadata_pb.DescribeTopicsRequest(topics=topics)))
        assert isinstance(refused, BrokerNotAvailableError), refused
    polled = await failure_of(metadata.PollMetadata(metadata_pb.PollMetadataRequest()))
    watched = await failure_of(metadata.WatchMetadata(metadata_pb.WatchMetadataRequest()).read())
    assert isinstance(polled, BrokerNotAvailableError) and isinstance(watched, BrokerNotAvailableError)
    assert not (await metadata.DescribeCluster(metadata_pb.DescribeClusterRequest())).brokers
    learn(door.core)
    assert [
        topic.name for topic in (await metadata.PollMetadata(metadata_pb.PollMetadataRequest())).changes.topics
    ] == ["t"]


async def test_every_listener_answers_with_its_own_addresses(door: Door) -> None:
    learn(door.core)
    inside = await door.metadata("CLIENT").DescribeCluster(metadata_pb.DescribeClusterRequest())
    outside = await door.metadata("EXTERNAL").DescribeCluster(metadata_pb.DescribeClusterRequest())
    assert [(one.id, one.host, one.port, one.rack) for one in inside.brokers] == [
        (1, "broker-1", 9092, "r1"),
        (2, "broker-2", 9092, ""),
    ]
    assert [(one.host, one.port) for one in outside.brokers] == [("broker-1", 9092), ("localhost", 19_002)]
    assert (inside.controller_id, inside.controller_host, outside.controller_port) == (1_000_001, "controller", 19_082)
    assert (inside.cluster_id, inside.node_id, inside.controller_epoch) == ("abcdefghijklmnopqrstuv", 1, 4)

    door.core.produce_answer = [
        ProduceResult(TP, PartitionFailure(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved", LeaderHint(2, 3)))
    ]
    for listener, address in (("CLIENT", ("broker-2", 9092)), ("EXTERNAL", ("localhost", 19_002))):
        response = await door.log(listener).Produce(produce_of())
        assert leader_address_from_proto(response.partitions[0]) == address


async def test_topics_are_described_from_the_cache(door: Door) -> None:
    learn(door.core)
    everything = await door.metadata().DescribeTopics(metadata_pb.DescribeTopicsRequest())
    (topic,) = everything.topics
    assert (topic.name, topic.topic_id) == ("t", "i" * 22)
    first, second = topic.partitions
    assert (first.partition, first.leader, list(first.isr), list(first.replicas)) == (0, 2, [2, 1], [1, 2])
    assert (second.partition, second.HasField("leader"), list(second.offline_replicas)) == (1, False, [1])
    named = await door.metadata().DescribeTopics(metadata_pb.DescribeTopicsRequest(topics=["nope", "t"]))
    assert [one.name for one in named.topics] == ["nope", "t"]
    assert named.topics[0].error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_offsets_epochs_replicas_and_producer_ids_are_answered(door: Door) -> None:
    log, metadata = door.log(), door.metadata()
    offsets = await log.ListOffsets(log_pb.ListOffsetsRequest(partitions=[log_pb.ListOffsetsPartition(topic="t")]))
    assert (offsets.partitions[0].offset, offsets.partitions[0].HasField("timestamp_ms")) == (5, False)
    epochs = await log.OffsetForLeaderEpoch(
        log_pb.OffsetForLeaderEpochRequest(partitions=[log_pb.EpochPartition(topic="t", leader_epoch=4)])
    )
    assert (epochs.partitions[0].end.epoch, epochs.partitions[0].end.end_offset) == (4, 12)
    replicas = await metadata.DescribeReplicas(metadata_pb.DescribeReplicasRequest(topic="t", partitions=[3]))
    assert (replicas.partitions[0].partition, replicas.partitions[0].leader) == (3, 1)
    assert (await log.InitProducerId(log_pb.InitProducerIdRequest())).producer_id == 4_000
    door.core.producer_id = RequestTimedOutError("no ZooKeeper")
    assert isinstance(await failure_of(log.InitProducerId(log_pb.InitProducerIdRequest())), RequestTimedOutError)


async def test_every_method_of_a_service_written_by_hand_is_served(door: Door) -> None:
    handlers = {
        log_pb.DESCRIPTOR.services_by_name["LogService"]: LogServicer(
            NodeHandle(),
            "CLIENT",
            AsyncioScheduler(asyncio.get_running_loop()),
            ByteBudget(1),
            AnswerBudget(1),
            1,
            RecordCodec(),
        ).handlers(),
        replica_pb.DESCRIPTOR.services_by_name["ReplicationService"]: ReplicationServicer(NodeHandle()).handlers(),
    }
    for service, methods in handlers.items():
        assert {method.name for method in service.methods} == set(methods), service.full_name


@pytest.mark.parametrize(
    "method",
    [
        "/paceline.v1.LogService/Produce",
        "/paceline.v1.LogService/Fetch",
        "/paceline.v1.LogService/ListOffsets",
    ],
)
async def test_malformed_bytes_are_an_invalid_request(door: Door, method: str) -> None:
    channel = door._channel("CLIENT")
    error = await failure_of(channel.unary_unary(method)(b"\x1a\xff\xff\xff"))
    assert isinstance(error, InvalidRequestError) and "cannot be parsed" in str(error)
    nested = b"".join(b"\x1a" + b"\x00" for _ in range(10_001))
    assert isinstance(await failure_of(channel.unary_unary("/paceline.v1.LogService/Produce")(nested)), PacelineError)


async def test_a_follower_fetches_on_its_own_listener(door: Door) -> None:
    request = replica_pb.FetchRequest(
        replica_id=2, broker_epoch=7, partitions=[replica_pb.FetchPartition(topic="t", fetch_offset=3)]
    )
    response = await door.replication().Fetch(request)
    assert (response.session_id, response.partitions[0].batches, response.partitions[0].high_watermark) == (9, b"B", 3)
    assert door.core.replica_fetched[0].replica_id == 2
    epochs = await door.replication().OffsetsForLeaderEpoch(
        replica_pb.OffsetsForLeaderEpochRequest(replica_id=2, partitions=[log_pb.EpochPartition(topic="t")])
    )
    assert epochs.partitions[0].end.end_offset == 12
    assert isinstance(await failure_of(door.log("REPLICATION").Fetch(fetch_of())), InvalidRequestError)


STAMP = control_pb.ControllerStamp(controller_id=1_000_001, controller_epoch=4)


async def test_control_requests_run_on_the_event_loop(door: Door) -> None:
    door.core.control_outcome = ControlResponse(partition_errors={TP: ErrorCode.STALE_BROKER_EPOCH})
    response = await door.control().LeaderAndIsr(
        control_pb.LeaderAndIsrRequest(stamp=STAMP, partitions=[control_pb.LeaderAndIsrPartition(topic="t")])
    )
    assert (response.HasField("error"), response.partitions[0].error) == (False, ErrorCode.STALE_BROKER_EPOCH)
    door.core.control_outcome = ControlResponse(ErrorCode.STALE_CONTROLLER_EPOCH)
    stopped = await door.control().StopReplica(control_pb.StopReplicaRequest(stamp=STAMP))
    updated = await door.control().UpdateMetadata(control_pb.UpdateMetadataRequest(stamp=STAMP))
    assert stopped.error == updated.error == ErrorCode.STALE_CONTROLLER_EPOCH
    assert len(door.core.controls) == 3


async def test_a_control_request_without_a_stamp_never_reaches_the_core(door: Door) -> None:
    assert isinstance(
        await failure_of(door.control().StopReplica(control_pb.StopReplicaRequest())), InvalidRequestError
    )
    assert door.core.controls == []


async def test_a_control_request_whose_call_has_ended_is_not_executed(door: Door) -> None:
    control = door.control()
    await control.StopReplica(control_pb.StopReplicaRequest(stamp=STAMP))
    request = control_pb.StopReplicaRequest(stamp=STAMP)
    address = door.address["CONTROL"]
    outcome: list[PacelineError] = []

    def call_and_give_up() -> None:
        with grpc.insecure_channel(address, channel_options()) as channel:
            stub = replica_manager_service_pb2_grpc.ReplicaManagerServiceStub(channel)
            try:
                stub.StopReplica(request, timeout=0.3)
            except grpc.RpcError as failure:
                outcome.append(from_rpc_error(failure))
        deadline = time.monotonic() + 60
        while errors_of(door, "REQUEST_TIMED_OUT") != 1 and time.monotonic() < deadline:
            time.sleep(0.01)  # the server's thread sees the deadline after the caller

    thread = threading.Thread(target=call_and_give_up)
    thread.start()
    thread.join(90)  # blocks the event loop, as a flood of data would
    assert isinstance(outcome[0], RequestTimedOutError)
    await control.UpdateMetadata(control_pb.UpdateMetadataRequest(stamp=STAMP))
    assert [type(request).__name__ for request in door.core.controls] == ["StopReplicaRequest", "UpdateMetadataRequest"]


async def test_a_bug_is_an_internal_error_with_an_id_and_no_traceback(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    door.core.control_outcome = RuntimeError("secret detail")
    control = await failure_of(door.control().StopReplica(control_pb.StopReplicaRequest(stamp=STAMP)))
    door.core.fetch_answer = FetchResponse([FetchResult(TopicPartition("other", 0), batches=batches())])
    data = await failure_of(door.log().Fetch(fetch_of()))
    for error in (control, data):
        assert isinstance(error, UnknownServerError)
        assert "secret" not in str(error) and "Traceback" not in str(error)
        assert error.metadata["failure_id"] in caplog.text


async def test_health_distinguishes_liveness_from_readiness_on_every_listener(door: Door) -> None:
    async def status(listener: str, service: str) -> int:
        request = health_pb2.HealthCheckRequest(service=service)
        return int((await door.health(listener).Check(request)).status)

    serving, not_serving = 1, 2
    names = {
        "CLIENT": "paceline.v1.LogService",
        "EXTERNAL": "paceline.v1.MetadataService",
        "REPLICATION": "paceline.internal.v1.ReplicationService",
        "CONTROL": "paceline.internal.v1.ReplicaManagerService",
    }
    for listener, service in names.items():
        for name in ("", "readiness", "liveness", service):
            assert await status(listener, name) == serving, (listener, name)
    await door.servers.set_serving(False)
    for listener, service in names.items():
        assert await status(listener, "liveness") == serving
        for name in ("", "readiness", service):
            assert await status(listener, name) == not_serving, (listener, name)


@pytest.mark.parametrize("listener", ["CLIENT", "CONTROL"])
async def test_a_change_of_health_is_sent_to_watchers(door: Door, listener: str) -> None:
    watch = door.health(listener).Watch(health_pb2.HealthCheckRequest(service="readiness"), timeout=60)
    assert (await watch.read()).status == 1
    await door.servers.set_serving(False)
    assert (await watch.read()).status == 2
    watch.cancel()


async def test_health_watchers_do_not_occupy_the_control_threads(door: Door) -> None:
    health = door.health("CONTROL")
    watches = [
        health.Watch(health_pb2.HealthCheckRequest(service="readiness"), timeout=60) for _ in range(2 * CONTROL_THREADS)
    ]
    for watch in watches[:CONTROL_THREADS]:
        assert (await watch.read()).status == 1
    await door.control().StopReplica(control_pb.StopReplicaRequest(stamp=STAMP), timeout=60)
    assert len(door.core.controls) == 1
    for watch in watches:
        watch.cancel()


async def test_reflection_lists_every_service_of_a_clients_listener(door: Door) -> None:
    def services(listener: str) -> list[str]:
        with grpc.insecure_channel(door.address[listener]) as channel:
            return sorted(ProtoReflectionDescriptorDatabase(channel).get_services())

    base = ["grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"]
    expected = {
        "CLIENT": ["paceline.v1.GroupService", "paceline.v1.LogService", "paceline.v1.MetadataService"],
        "EXTERNAL": ["paceline.v1.GroupService", "paceline.v1.LogService", "paceline.v1.MetadataService"],
    }
    for listener, names in expected.items():
        assert await asyncio.to_thread(services, listener) == base + names


async def test_reflection_streams_on_the_control_listener_delay_no_control_request(door: Door) -> None:
    streams = []
    for listener in ("CONTROL", "REPLICATION"):
        for _ in range(CONTROL_THREADS):
            stream = reflection_pb2_grpc.ServerReflectionStub(door._channel(listener)).ServerReflectionInfo()
            with contextlib.suppress(grpc.RpcError):  # the server may have refused the stream already
                await stream.wait_for_connection()
            streams.append(stream)
    await door.control().StopReplica(control_pb.StopReplicaRequest(stamp=STAMP), timeout=60)
    assert len(door.core.controls) == 1
    for stream in streams:
        assert await stream.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_port_in_use_is_reported_with_a_message(door: Door) -> None:
    port = door.address["CLIENT"].rpartition(":")[2]
    settings = load_broker(
        [
            "--zookeeper-connect=none",
            "--log-dirs=/none",
            f"--listeners=CLIENT://127.0.0.1:{port},REPLICATION://127.0.0.1:0,CONTROL://127.0.0.1:0",
        ],
        {},
    )
    servers = BrokerServers(
        settings, NodeHandle(), AsyncioScheduler(asyncio.get_running_loop()), Metrics(), node_id=lambda: 1
    )
    with pytest.raises(
        StartupError, match=rf"^port {port} is in use \(CLIENT listener on 127\.0\.0\.1:{port}\)$"
    ) as error:
        await servers.start()
    assert error.value.exit_code is ExitCode.PORT_IN_USE
    await servers.stop(0)


@pytest.mark.usefixtures("ipv6")
async def test_clients_reach_a_broker_with_ipv6_listeners_at_the_address_it_returns() -> None:
    listeners = "--listeners=CLIENT://[::1]:0,REPLICATION://[::1]:0,CONTROL://[::1]:0"
    settings = load_broker(["--zookeeper-connect=none", "--log-dirs=/none", listeners], {})
    core, handle = SmallCore(), NodeHandle()
    servers = BrokerServers(
        settings, handle, AsyncioScheduler(asyncio.get_running_loop()), Metrics(), node_id=lambda: 1
    )
    await servers.start()
    handle.set(core)
    await servers.set_serving(True)
    endpoints = tuple(servers.advertised)
    core.metadata.update(UpdateMetadataRequest(ControllerStamp(1_000_001, 4, None), (LiveBroker(1, endpoints),), ()))
    made = Door(servers, core, Metrics())
    try:
        port = endpoints[0].port
        assert (endpoints[0].host, made.address["CLIENT"]) == ("::1", f"[::1]:{port}")
        await made.control().UpdateMetadata(control_pb.UpdateMetadataRequest(stamp=STAMP), timeout=60)
        with Admin(made.address["CLIENT"]) as admin:
            (broker,) = (await asyncio.to_thread(admin.describe_cluster)).brokers
        with Admin(broker.address) as admin:
            found = await asyncio.to_thread(admin.describe_cluster)
        assert (broker.address, found.brokers) == (f"[::1]:{port}", (broker,))
    finally:
        for channel in made.channels:
            await channel.close()
        await servers.stop(0.1)


@pytest.mark.parametrize("buffer_bytes", [65_536, 262_144])
async def test_the_receive_buffer_limits_the_bytes_that_a_client_sends_before_its_request_is_read(
    buffer_bytes: int,
) -> None:
    flags = ["--zookeeper-connect=none", "--log-dirs=/none", LISTENERS]
    if buffer_bytes != 65_536:  # the default
        flags.append(f"--socket-receive-buffer-bytes={buffer_bytes}")
    servers = BrokerServers(
        load_broker(flags, {}), NodeHandle(), AsyncioScheduler(asyncio.get_running_loop()), Metrics(), lambda: 1
    )
    await servers.start()
    try:
        port = next(endpoint.port for endpoint in servers.advertised if endpoint.listener == "CLIENT")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        call = _Call(reader, writer)
        await call.begin("/paceline.v1.LogService/Produce")
        writer.write(_frame(_DATA, _END_STREAM, 1, _message(b"")))
        async with asyncio.timeout(60):
            await call.outcome()  # the SETTINGS frame comes before the response
        assert call.initial_window == buffer_bytes
        writer.transport.abort()
    finally:
        await servers.stop(0.1)


async def test_before_the_core_exists_requests_are_refused_because_the_broker_is_starting() -> None:
    settings = load_broker(["--zookeeper-connect=none", "--log-dirs=/none", LISTENERS], {})
    servers = BrokerServers(
        settings, NodeHandle(), AsyncioScheduler(asyncio.get_running_loop()), Metrics(), node_id=lambda: 1
    )
    await servers.start()
    made = Door(servers, SmallCore(), Metrics())
    try:
        for call in (
            made.log().Fetch(fetch_of()),
            made.metadata().DescribeCluster(metadata_pb.DescribeClusterRequest()),
            made.control().UpdateMetadata(control_pb.UpdateMetadataRequest(stamp=STAMP)),
        ):
            error = await failure_of(call)
            assert isinstance(error, BrokerNotAvailableError) and "starting" in str(error)
        for listener in made.address:
            for name, expected in (("liveness", 1), ("readiness", 2), ("", 2)):
                answer = await made.health(listener).Check(health_pb2.HealthCheckRequest(service=name))
                assert answer.status == expected, (listener, name)
    finally:
        for channel in made.channels:
            await channel.close()
        await servers.stop(0.1)


async def _until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition did not become true"
        await asyncio.sleep(0.005)
