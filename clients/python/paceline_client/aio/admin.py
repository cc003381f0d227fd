"""`AsyncAdmin`: every call of `Admin` as a coroutine."""

import functools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from paceline_client.admin import Admin
from paceline_client.aio.client import AsyncClient, arguments_of


class AsyncAdmin(AsyncClient[Admin]):
    """Administration from asyncio: ``await admin.create_topics([...])`` and every other method of `Admin`.

    The blocking iterator `Admin.watch_events` is not supported.
    """

    @arguments_of(Admin.__init__)
    def __init__(self, bootstrap: str | Iterable[str], **settings: Any) -> None:
        super().__init__(Admin, bootstrap, settings, "paceline-async-admin")
        self._client = Admin(bootstrap, **settings)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name.startswith(("_", "watch")):
            raise AttributeError(f"AsyncAdmin has no {name}")
        call = getattr(self._started(), name)
        if not callable(call):
            raise AttributeError(f"AsyncAdmin has no {name}")
        return functools.partial(self._run, call)
