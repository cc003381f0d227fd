"""Common part of the asyncio clients: a thread that makes the blocking calls of a client, in order."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from paceline.model.errors import InvalidRequestError

if TYPE_CHECKING:
    from paceline_client.admin import Admin
    from paceline_client.consumer import Consumer
    from paceline_client.producer import Producer

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound="Admin | Consumer | Producer")


def arguments_of(
    init: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give an ``__init__`` the arguments of another one, for type checkers."""
    return lambda own: own


class AsyncClient(Generic[C]):
    """An asyncio client over a blocking client, which `start` creates on a thread that makes all its calls."""

    def __init__(self, kind: Callable[..., C], bootstrap: Any, settings: Mapping[str, Any], name: str) -> None:
        inspect.signature(kind).bind(bootstrap, **settings)  # a wrong name is an error here, not in `start`
        self._create = functools.partial(kind, bootstrap, **settings)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._client: C | None = None

    async def start(self) -> None:
        """Create the blocking client; does not wait for the cluster."""
        if self._client is None:
            self._client = await self._run(self._create)

    async def stop(self) -> None:
        """Close the client: `Producer.close`, `Consumer.close` or `Admin.close`."""
        if self._client is not None:
            await self._run(self._client.close)
        self._executor.shutdown(wait=False)

    async def _run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a blocking call; if the coroutine is cancelled, the call still completes before the next call begins."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, functools.partial(call, *args, **kwargs))

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
