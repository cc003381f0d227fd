"""`Clients` keeps the parts of each principal while they are used, and closes them in time."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from paceline.gateway.service.clients import Clients
from paceline_client import Connections


@contextmanager
def silent_broker(calls: threading.Semaphore) -> Iterator[str]:
    """A broker that receives calls and does not answer them."""
    over = threading.Event()

    def receive(_details: object) -> grpc.RpcMethodHandler:
        def wait(_request: bytes, _context: object) -> bytes:
            calls.release()
            over.wait(20)
            return b""

        return grpc.unary_unary_rpc_method_handler(wait)

    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((type("Any", (grpc.GenericRpcHandler,), {"service": lambda _, it: receive(it)})(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    over.set()
    server.stop(0).wait()


def test_calls_without_an_answer_delay_the_stop_no_longer_than_one() -> None:
    calls = threading.Semaphore(0)
    with silent_broker(calls) as address:

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
