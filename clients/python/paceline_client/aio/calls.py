"""A thread that makes the blocking calls of one client, in order, and the parts that the asyncio clients share."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from paceline.model.errors import InvalidRequestError

P = ParamSpec("P")
T = TypeVar("T")


class Closeable(Protocol):
    """A blocking client."""

    def close(self) -> None:
        """Close the client."""


C = TypeVar("C", bound=Closeable)


def arguments_of(
    init: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give an ``__init__`` the arguments of another one, for type checkers."""
    return lambda own: own


class Calls:
    """Runs blocking calls; when a coroutine is cancelled, its call still completes before the next call begins."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a call on the thread and return its result."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, functools.partial(call, *args, **kwargs))

    def close(self) -> None:
        """End the thread after its pending calls."""
        self._executor.shutdown(wait=False)


class AsyncClient(Generic[C]):
    """An asyncio client over a blocking client, which `start` creates on the thread of the calls."""

    def __init__(
        self, kind: Callable[..., C], bootstrap: str | Iterable[str], settings: Mapping[str, Any], name: str
    ) -> None:
        inspect.signature(kind).bind(bootstrap, **settings)  # a wrong name is an error here, not in `start`
        self._create = functools.partial(kind, bootstrap, **settings)
        self._calls = Calls(name)
        self._client: C | None = None

    async def start(self) -> None:
        """Create the blocking client; does not wait for the cluster."""
        if self._client is None:
            self._client = await self._calls.run(self._create)

    async def stop(self) -> None:
        """Close the client: `Producer.close`, `Consumer.close` or `Admin.close`."""
        if self._client is not None:
            await self._calls.run(self._client.close)
        self._calls.close()

    def _started(self) -> C:
        if self._client is None:
            raise InvalidRequestError("call start first, or use the client with async with")
        return self._client

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop()
