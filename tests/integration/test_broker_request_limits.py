"""Limits of a broker's servers on bytes and requests, requests on streams, and requests that clients cancel."""

import asyncio

import grpc
import grpc.aio
import pytest

from paceline.broker.service.node_handle import NodeHandle
from paceline.broker.service.servers import BrokerServers
from paceline.log.record_batch import decode_batch
from paceline.model.client_io import FetchResponse, FetchResult, ProduceResult
from paceline.model.errors import ErrorCode, MessageTooLargeError, ThrottledError
from paceline.rpc.admission.receive_limiter import RECEIVED_AT_ONCE
from paceline.rpc.channels import channel_options
from paceline.runtime.asyncio_scheduler import AsyncioScheduler
from paceline.runtime.metrics import Metrics
from paceline.runtime.settings import load_broker
from paceline.v1 import log_service_pb2 as log_pb
from paceline.v1 import record_pb2
from tests.integration.served_core import (
    LISTENERS,
    TP,
    Door,
    batches,
    door,
    errors_of,
    failure_of,
    fetch_of,
    produce_of,
    until,
)
from tests.support.flood import _DATA, _END_STREAM, _Call, _frame, _message

__all__ = ["door"]


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
    await until(lambda: len(door.core.produced) == 1)
    assert isinstance(await failure_of(log.Produce(produce_of(b"x" * 200_000))), ThrottledError)
    first.cancel()
    await until(lambda: door.servers._budget.used_bytes == 0)
    door.core.produce_answer = [ProduceResult(TP, None, 0, -1, 0)]
    await log.Produce(produce_of(b"x" * 2_000_000))


async def test_a_connection_may_have_a_limited_number_of_waiting_fetches_and_the_log_says_so_once(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    log, limit = door.log(), 20
    door.servers.fetch_waits._limit = limit
    waits = [log.Fetch(fetch_of(max_wait_ms=60_000), timeout=60) for _ in range(limit)]
    await until(lambda: len(door.core.fetched) == limit)
    assert door.servers.fetch_waits.largest == limit
    stream = log.FetchStream()
    await stream.write(fetch_of(max_wait_ms=60_000))
    for refused in (log.Fetch(fetch_of()), log.Fetch(fetch_of()), stream.read()):
        error = await failure_of(refused)
        assert isinstance(error, ThrottledError)
        assert error.metadata["limit"] == "max.waiting.fetches.per.connection" and str(limit) in str(error)
    (line,) = [one.getMessage() for one in caplog.records if "limit=" in one.getMessage()]
    assert "listener=CLIENT limit=max.waiting.fetches.per.connection caller=User:ANONYMOUS" in line
    other = door.log("EXTERNAL").Fetch(fetch_of(max_wait_ms=60_000), timeout=60)
    await until(lambda: len(door.core.fetched) == limit + 1)
    for call in (*waits, other):
        call.cancel()
    await until(lambda: door.servers.fetch_waits.largest == 0)
    door.core.fetch_answer = FetchResponse([])
    await log.Fetch(fetch_of())


async def test_requests_beyond_those_being_received_are_throttled_unread(door: Door) -> None:
    receive_limiter = door.servers._limiter
    receive_limiter._wait_s = 0.05
    receive_limiter._slow_after_s = 60.0
    over = asyncio.Event()

    async def sends_for_ever(caller: str) -> None:
        await receive_limiter.receive(over.wait, caller)

    # One caller never has all slots.
    callers = [f"User:{number}" for number in range(RECEIVED_AT_ONCE)]
    senders = [asyncio.get_running_loop().create_task(sends_for_ever(one)) for one in callers]
    await until(lambda: receive_limiter.under_way == RECEIVED_AT_ONCE)
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
    await until(lambda: answers.used_bytes == 0)


async def test_a_produce_refused_as_a_whole_on_a_stream_is_answered_by_partition_and_the_stream_continues(
    door: Door,
) -> None:
    door.servers._budget._limit_bytes = 1_000_000
    held = door.log().Produce(produce_of(b"x" * 900_000))
    await until(lambda: len(door.core.produced) == 1)
    stream = door.log().ProduceStream()
    await stream.write(produce_of(b"x" * 200_000))
    answer = await stream.read()
    assert [(one.topic, one.partition, one.error.code) for one in answer.partitions] == [
        (TP.topic, TP.partition, ErrorCode.THROTTLED)
    ]
    assert errors_of(door, "THROTTLED") == 1
    held.cancel()
    await until(lambda: door.servers._budget.used_bytes == 0)
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
        await until(lambda: answers.used_bytes == 0)
    answers.used_bytes = answers._limit_bytes
    await stream.write(fetch_of(format=log_pb.FETCH_FORMAT_BATCHES))
    assert isinstance(await failure_of(stream.read()), ThrottledError)
    answers.used_bytes = 0


async def test_a_long_poll_on_a_stream_ends_when_the_client_disconnects(door: Door) -> None:
    stream = door.log().FetchStream()
    await stream.write(fetch_of(max_wait_ms=60_000))
    await until(lambda: len(door.core.fetch_replies) == 1)
    stream.cancel()
    await until(lambda: door.core.cancelled == door.core.fetched)


async def test_a_long_poll_ends_when_the_client_disconnects(door: Door) -> None:
    call = door.log().Fetch(fetch_of(max_wait_ms=60_000))
    await until(lambda: len(door.core.fetch_replies) == 1)
    call.cancel()
    await until(lambda: errors_of(door, "CANCELLED") == 1)
    assert door.core.cancelled == door.core.fetched, "no operation waits in the core"
    door.core.fetch_replies[0](FetchResponse([]))  # a late reply is dropped


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
