"""Quotas at a listener: client ids, request time, and requests that are not read during the caller's pause."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from paceline.model.quotas import CONSUMER, PRODUCER, REQUEST, ClientQuotas, QuotaEntity
from paceline.rpc.admission.caller_quota import NO_QUOTA, CallerQuota, client_id_of
from paceline.rpc.security.authorizer import current_call
from paceline.rpc.security.guard import Guard
from paceline.rpc.server import AioRpcServer, Service
from paceline.rpc.streams.stream_server import StreamRequest, stream_handler

LOG = "paceline.v1.LogService"
ETL: Any = SimpleNamespace(invocation_metadata=lambda: (("user-agent", "etl grpc-python/1.80"),))


@pytest.mark.parametrize(
    ("user_agent", "client_id"),
    [
        ("etl grpc-python/1.80.0 grpc-c/48 (linux; chttp2)", "etl"),
        ("my job/7 grpc-go/1.70", "my job/7"),
        ("grpc-java-netty/1.70", ""),
        ("tonic/0.12", "tonic/0.12"),
        ("", ""),
        ("x" * 1_000, "x" * 249),
    ],
)
def test_the_client_id_is_the_callers_part_of_the_user_agent(user_agent: str, client_id: str) -> None:
    context: Any = SimpleNamespace(invocation_metadata=lambda: (("a", "b"), ("user-agent", user_agent)))
    assert client_id_of(context) == client_id


def test_a_caller_without_metadata_has_no_client_id() -> None:
    assert client_id_of(SimpleNamespace(invocation_metadata=lambda: None)) == ""


class Clock:
    """Seconds that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def caller(quotas: ClientQuotas, method: str, clock: Clock) -> CallerQuota:
    return CallerQuota(quotas, "User:alice", ETL, f"/{LOG}/{method}", clock)


def test_a_producers_pause_delays_its_writes_and_not_its_reads() -> None:
    quotas, clock = ClientQuotas(), Clock()
    quotas.use({QuotaEntity("alice"): {PRODUCER: 1_000.0}})
    writes, reads = caller(quotas, "ProduceStream", clock), caller(quotas, "Fetch", clock)
    assert writes.charge(PRODUCER, 15_000) == pytest.approx(5_000, abs=1)
    assert reads.pause_ms() == 0 and writes.pause_ms() == pytest.approx(5_000, abs=1)
    assert reads.most_bytes(1 << 20) == 1 << 20
    clock.now_s = 5.1
    assert writes.pause_ms() == 0


def test_request_time_delays_every_method() -> None:
    quotas, clock = ClientQuotas(), Clock()
    quotas.use({QuotaEntity(None, "etl"): {REQUEST: 1.0}, QuotaEntity("alice"): {CONSUMER: 100.0}})
    reads, lists = caller(quotas, "Fetch", clock), caller(quotas, "ListOffsets", clock)
    reads.charge(REQUEST, 200)
    assert reads.pause_ms() == lists.pause_ms() > 0
    assert reads.most_bytes(1 << 20) == 1_000


async def test_the_time_of_a_handler_is_charged_without_its_waits() -> None:
    quotas, clock = ClientQuotas(burst_s=1.0), Clock()
    quotas.use({QuotaEntity("alice"): {REQUEST: 100.0}})
    quota = caller(quotas, "Fetch", clock)
    awaited: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def handler() -> str:
        clock.now_s += 0.02
        await awaited
        clock.now_s += 0.03
        return "done"

    def answer() -> None:
        clock.now_s += 0.2
        awaited.set_result(None)

    asyncio.get_running_loop().call_soon(answer)
    assert await quota.timed(handler()) == "done"
    account = quotas._accounts[REQUEST, "alice", None]
    assert 1_000 - account.tokens == pytest.approx(50)


async def test_a_failure_and_a_cancellation_pass_through_the_measurement() -> None:
    quotas = ClientQuotas()
    quotas.use({QuotaEntity("alice"): {REQUEST: 100.0}})
    quota = caller(quotas, "Fetch", Clock())

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        await quota.timed(fails())
    cleaned: list[bool] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    async def measured() -> None:
        await quota.timed(waits())

    task = asyncio.get_running_loop().create_task(measured())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == [True]


def test_without_quotas_nothing_is_measured() -> None:
    work: Any = object()
    assert NO_QUOTA.timed(work) is work and NO_QUOTA.pause_ms() == 0 and NO_QUOTA.most_bytes(7) == 7


class Server:
    """A listener whose ``Produce`` and ``ProduceStream`` charge the size of the request and answer at once."""

    def __init__(self) -> None:
        self.quotas = ClientQuotas(burst_s=1.0)
        self.handled: list[str] = []
        handlers = {
            "Produce": grpc.unary_unary_rpc_method_handler(self._answer),
            "ProduceStream": stream_handler(self._answer),
        }
        generic = grpc.method_handlers_generic_handler(LOG, handlers)
        service = Service(LOG, lambda server: server.add_generic_rpc_handlers((generic,)))
        guard = Guard("CLIENT", quotas=self.quotas)
        self.server = AioRpcServer("CLIENT", [service], guard=guard, with_reflection=False)

    async def _answer(self, request: bytes, _context: Any | StreamRequest) -> bytes:
        current_call().quota.charge(PRODUCER, len(request))
        self.handled.append(request[:1].decode())
        return b"ok"


@pytest.fixture
async def served() -> AsyncIterator[tuple[Server, str]]:
    server = Server()
    port = server.server.bind("127.0.0.1", 0)
    await server.server.start()
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        await server.server.stop(0.1)


def channel_of(address: str, client_id: str) -> Any:
    return grpc.aio.insecure_channel(address, [("grpc.primary_user_agent", client_id)])


async def test_unary_calls_of_a_caller_are_not_read_during_its_pause(served: tuple[Server, str]) -> None:
    server, address = served
    server.quotas.use({QuotaEntity(None, "old"): {PRODUCER: 100.0}})
    async with channel_of(address, "old") as old, channel_of(address, "other") as other:
        write, write_other = old.unary_unary(f"/{LOG}/Produce"), other.unary_unary(f"/{LOG}/Produce")
        assert await write(b"1" * 16_000) == b"ok", "the answer comes before the pause of 159 s"
        held = asyncio.ensure_future(write(b"2"))
        for _ in range(20):
            assert await write_other(b"3") == b"ok"
        assert server.handled.count("3") == 20 and "2" not in server.handled
        server.quotas.use({})
        assert await asyncio.wait_for(held, 30) == b"ok"


async def test_a_stream_is_not_read_during_the_pause_and_a_new_quota_frees_it(served: tuple[Server, str]) -> None:
    server, address = served
    server.quotas.use({QuotaEntity(None, "old"): {PRODUCER: 10.0}})
    async with channel_of(address, "old") as channel, channel_of(address, "other") as other:
        stream = channel.stream_stream(f"/{LOG}/ProduceStream")()
        for number in "1234":
            await stream.write(number.encode() * 1_000)
        assert await stream.read() == b"ok"
        for _ in range(20):
            assert await other.unary_unary(f"/{LOG}/Produce")(b"5") == b"ok"
        assert server.handled == ["1", *"5" * 20], "the other requests of the stream are not read"
        server.quotas.use({})
        for _ in range(3):
            assert await asyncio.wait_for(stream.read(), 30) == b"ok"
        assert server.handled[-3:] == ["2", "3", "4"]
        stream.cancel()
