"""`Clients` keeps the parts of each principal while they are used, and closes them in time."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from paceline.gateway.service.clients import IDLE_S, Client, Clients
from paceline.model.errors import ThrottledError
from paceline_client import Connections
from paceline_client.connections import NAMED_CONNECTIONS


@contextmanager
def silent_broker(calls: threading.Semaphore, peers: set[str]) -> Iterator[str]:
    """A broker that receives calls, adds their connections to ``peers``, and does not answer them."""
    over = threading.Event()

    def receive(_details: object) -> grpc.RpcMethodHandler:
        def wait(_request: bytes, context: grpc.ServicerContext) -> bytes:
            peers.add(context.peer())
            calls.release()
            over.wait(20)
            return b""

        return grpc.unary_unary_rpc_method_handler(wait)

    server = grpc.server(ThreadPoolExecutor(12))
    server.add_generic_rpc_handlers((type("Any", (grpc.GenericRpcHandler,), {"service": lambda _, it: receive(it)})(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    over.set()
    server.stop(0).wait()


def test_calls_without_an_answer_delay_the_stop_no_longer_than_one() -> None:
    calls = threading.Semaphore(0)
    with silent_broker(calls, set()) as address:

        async def with_callers() -> Clients:
            clients = Clients(Connections(address), names_callers=True, limit=10)
            for name in ("a", "b", "c"):
                clients.of(f"User:{name}").connections.metadata.request()
            return clients

        clients = asyncio.run(with_callers())
        for _ in range(3):
            assert calls.acquire(timeout=20)
        began_s = time.monotonic()
        clients.close_connections()
        assert time.monotonic() - began_s < 2.5


def test_principals_share_a_few_connections_because_a_broker_limits_the_calls_of_one() -> None:
    calls, peers = threading.Semaphore(0), set[str]()
    with silent_broker(calls, peers) as address:
        shared = Connections(address)
        named = [shared.named(f"User:{index}") for index in range(NAMED_CONNECTIONS + 2)]
        for one in named:
            one.metadata.request()
        for _ in named:
            assert calls.acquire(timeout=20)
        assert len(peers) == NAMED_CONNECTIONS
        for one in named:
            one.metadata.stop()
        shared.close()
        for one in named:
            one.close()


class Clock:
    """Virtual time."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


async def used(clients: Clients, name: str) -> Client:
    with clients.use(f"User:{name}") as client:
        await asyncio.sleep(0)
    return client


def known(clients: Clients) -> list[str]:
    return sorted(key.removeprefix("User:") for key in clients._clients)


def clients_at(clock: Clock, limit: int = 10) -> Clients:
    # No broker listens there: nothing is sent before a first call.
    return Clients(Connections("127.0.0.1:1"), names_callers=True, limit=limit, clock_s=clock)


async def close(clients: Clients) -> None:
    await clients.finish_publishing()
    await asyncio.to_thread(clients.close_connections)


def test_a_principal_is_forgotten_ten_minutes_after_its_last_use() -> None:
    async def run() -> None:
        clock = Clock()
        clients = clients_at(clock)
        client = await used(clients, "idle")
        client.publisher.published = 7
        with clients.use("User:streaming"):
            clock.now_s += IDLE_S - 1
            await used(clients, "recent")
            clients.forget_idle()
            assert known(clients) == ["idle", "recent", "streaming"]
            clock.now_s += 1
            clients.forget_idle()
            assert known(clients) == ["recent", "streaming"]
        assert clients.snapshot()["gateway_published_records_total"] == 7
        clock.now_s += IDLE_S
        clients.of("User:waiting").publisher._bytes["lane"] = 1  # type: ignore[index]
        clock.now_s += IDLE_S
        clients.forget_idle()
        assert known(clients) == ["waiting"]
        await asyncio.gather(*clients._closing)
        assert not client.connections.metadata._thread.is_alive()
        assert await used(clients, "idle") is not client
        await close(clients)

    asyncio.run(run())


def test_the_longest_idle_principal_goes_when_there_are_as_many_as_allowed() -> None:
    async def run() -> None:
        clock = Clock()
        clients = clients_at(clock, limit=2)
        for name in ("a", "b", "a", "c"):
            clock.now_s += 1
            await used(clients, name)
        assert known(clients) == ["a", "c"]
        refused = pytest.raises(ThrottledError, match=r"gateway\.principals\.max")
        with clients.use("User:a"), clients.use("User:c"), refused:
            clients.of("User:d")
        clients.of("User:d")
        assert "d" in known(clients) and len(known(clients)) == 2
        await close(clients)

    asyncio.run(run())


def test_without_certificates_all_callers_share_parts_that_stay() -> None:
    async def run() -> None:
        clock = Clock()
        clients = Clients(Connections("127.0.0.1:1"), names_callers=False, limit=1, clock_s=clock)
        client = await used(clients, "a")
        clock.now_s += 2 * IDLE_S
        clients.forget_idle()
        assert await used(clients, "b") is client
        await close(clients)

    asyncio.run(run())
