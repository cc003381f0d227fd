"""`eager_server`: a `grpc.aio` server that asks for several calls at a time.

gRPC's server asks for the next call when it has taken the last one, and the answer comes behind all operations that are
complete by then. On a busy event loop that is one new call in 50 to 100 ms: of 200 streams that began at once, the last
had to wait 10 s (docs/decisions/0008-where-the-time-goes.md). The class that is extended here is not public; with a
release of gRPC that has other internals, the server is gRPC's own.
"""

import asyncio
import inspect
from typing import Any, Final

import grpc.aio

AHEAD: Final = 32
"""Calls that a server asks for at a time."""

try:
    from grpc._cython import cygrpc  # type: ignore[attr-defined, unused-ignore]

    _Plain: Any = cygrpc.AioServer
except (ImportError, AttributeError):
    _Plain = object
_CAN_ASK: Final = inspect.iscoroutinefunction(getattr(_Plain, "_request_call", None))


def eager_server(**arguments: Any) -> Any:
    """Return a server; the arguments are those of `grpc.aio.server`."""
    if not _CAN_ASK:
        return grpc.aio.server(**arguments)
    cygrpc.AioServer = _EagerServer
    try:
        return grpc.aio.server(**arguments)
    finally:
        cygrpc.AioServer = _Plain


class _EagerServer(_Plain):  # type: ignore[misc]
    """Asks for `AHEAD` calls, and hands them out in the order in which they arrive."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def _request_call(self) -> Any:
        if not self._tasks:
            self._tasks = [asyncio.ensure_future(self._ask()) for _ in range(AHEAD)]
        arrived = await self._arrived.get()
        if isinstance(arrived, Exception):
            raise arrived
        return arrived

    async def _ask(self) -> None:
        """Ask for one call after the other until the server stops, which gRPC reports as an error."""
        while True:
            try:
                self._arrived.put_nowait(await super()._request_call())
            except Exception as error:
                # As in gRPC's server, a call that has arrived and has no handler yet is cancelled, by being dropped.
                while not self.is_running() and not self._arrived.empty():
                    self._arrived.get_nowait()
                self._arrived.put_nowait(error)
                return
