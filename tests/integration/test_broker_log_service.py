"""LogService and ReplicationService of a broker: conversion of requests and answers, and refused requests."""

import asyncio

import pytest

from paceline.broker.service.calls_in_progress import ByteBudget, FetchWaits
from paceline.broker.service.internal_servicer import ReplicationServicer
from paceline.broker.service.log_servicer import LogServicer
from paceline.broker.service.node_handle import NodeHandle
from paceline.broker.service.record_codec import RecordCodec
from paceline.broker.service.response_memory import AnswerBudget
from paceline.internal.v1 import replication_service_pb2 as replica_pb
from paceline.log.record_batch import NewRecord, decode_batch, encode_batch, parse_header
from paceline.model.client_io import (
    DeleteRecordsQuery,
    FetchResponse,
    FetchResult,
    PartitionFailure,
    ProduceData,
    ProduceResult,
    RequiredAcks,
)
from paceline.model.errors import (
    ErrorCode,
    FetchSessionIdNotFoundError,
    InvalidRequestError,
    InvalidRequiredAcksError,
    MessageTooLargeError,
    PacelineError,
    RequestTimedOutError,
)
from paceline.model.identifiers import TopicPartition
from paceline.rpc.admission.listener_limits import ListenerLimits
from paceline.runtime.asyncio_scheduler import AsyncioScheduler
from paceline.v1 import log_service_pb2 as log_pb
from paceline.v1 import metadata_service_pb2 as metadata_pb
from tests.integration.served_core import TP, Door, batches, door, failure_of, fetch_of, learn, produce_of

__all__ = ["door"]


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
            FetchWaits(1),
            ListenerLimits(),
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
