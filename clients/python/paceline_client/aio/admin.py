"""`AsyncAdmin`: every call of `Admin` as a coroutine."""

import functools
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self

from paceline_client.admin import Admin
from paceline_client.aio.calls import Calls, arguments_of


class AsyncAdmin:
    """Administration from asyncio: ``await admin.create_topics([...])`` and every other method of `Admin`.

    The blocking iterator `Admin.watch_events` is not supported.
    """

    @arguments_of(Admin.__init__)
    def __init__(self, bootstrap: str | Iterable[str], **settings: Any) -> None:
        self._admin = Admin(bootstrap, **settings)
        self._calls = Calls("paceline-async-admin")

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name.startswith(("_", "watch")):
            raise AttributeError(f"AsyncAdmin has no {name}")
        call = getattr(self._admin, name)
        if not callable(call):
            raise AttributeError(f"AsyncAdmin has no {name}")
        return functools.partial(self._calls.run, call)

    async def stop(self) -> None:
        """Close the connections."""
        await self._calls.run(self._admin.close)
        self._calls.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop()
