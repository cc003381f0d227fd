"""Apply client quotas to the calls of a listener: charge a caller, and do not read its requests during its pause.

A request that was read is always handled and answered. The broker then reads the caller's next request, on a stream or
of a unary call, after the pause; HTTP/2 flow control keeps the bytes at the sender. So quotas also hold for a client
that ignores ``throttle_ms``.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final

from paceline.model.quotas import CONSUMER, MAX_NAME_CHARACTERS, PRODUCER, REQUEST, ClientQuotas

_BYTE_RATE_OF: Final = {"Produce": PRODUCER, "ProduceStream": PRODUCER, "Fetch": CONSUMER, "FetchStream": CONSUMER}
_LOG_SERVICE: Final = "/paceline.v1.LogService/"
_LONGEST_SLEEP_S: Final = 1.0
"""A caller whose quota was raised is read after this time at the latest."""


def client_id_of(context: Any) -> str:
    """Return the caller's client id: the part of its user agent before the gRPC library's; "" without one."""
    for key, value in context.invocation_metadata() or ():
        if key == "user-agent" and isinstance(value, str):
            return "" if value.startswith("grpc-") else value.partition(" grpc-")[0][:MAX_NAME_CHARACTERS]
    return ""


class CallerQuota:
    """The quotas of the caller of one call or stream; all methods run on the event loop's thread."""

    __slots__ = ("_context", "_found_id", "_quotas", "_user", "clock_s", "key")

    def __init__(
        self, quotas: ClientQuotas, principal: str, context: Any, method: str,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._quotas = quotas
        self._user = principal.removeprefix("User:")
        self._context = context
        self._found_id: str | None = None
        self.clock_s = clock_s
        """Returns the present time."""
        self.key = _BYTE_RATE_OF.get(method.removeprefix(_LOG_SERVICE), REQUEST)
        """The quota that delays this method, besides the quota of request time."""

    @property
    def _client_id(self) -> str:
        # Read on first use: gRPC copies the metadata, which costs a microsecond, and most clusters have no quotas.
        if self._found_id is None:
            self._found_id = client_id_of(self._context)
        return self._found_id

    def charge(self, key: str, amount: float) -> int:
        """Charge the caller, and return its pause for this key in ms; 0 for none."""
        if not self._quotas.limits(key):
            return 0
        return self._quotas.charge(self._user, self._client_id, key, amount, self.clock_s() * 1_000)

    def pause_ms(self, key: str = "") -> int:
        """Return the rest of the caller's pause for a key; without a key, before the next call of this method."""
        if not self._quotas.values:
            return 0
        now_ms = self.clock_s() * 1_000
        keys = (key,) if key else (self.key, REQUEST)
        return max(self._quotas.pause_ms(self._user, self._client_id, one, now_ms) for one in keys)

    def most_bytes(self, wanted: int) -> int:
        """Return the size of a response that the quota allows at once."""
        burst = self._quotas.burst(self._user, self._client_id, self.key) if self._quotas.values else None
        return wanted if burst is None else min(wanted, burst)

    async def hold(self) -> None:
        """Return when the caller's next request may be read."""
        while pause_ms := self.pause_ms():
            await asyncio.sleep(min(pause_ms / 1_000, _LONGEST_SLEEP_S))

    def timed(self, work: Awaitable[Any]) -> Awaitable[Any]:
        """Return ``work``, whose time on the event loop is charged to the caller."""
        return _Timed(self, work) if self._quotas.limits(REQUEST) else work


NO_QUOTA: Final = CallerQuota(ClientQuotas(), "", None, "")


class _Timed:
    """Awaits a handler, and measures the time of its steps, without the time in which it waits."""

    def __init__(self, quota: CallerQuota, work: Awaitable[Any]) -> None:
        self._quota = quota
        self._work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = self._work.__await__()
        failure: BaseException | None = None
        used_s = 0.0
        try:
            while True:
                begin_s = self._quota.clock_s()
                try:
                    awaited = steps.send(None) if failure is None else steps.throw(failure)
                except StopIteration as end:
                    return end.value
                finally:
                    used_s += self._quota.clock_s() - begin_s
                failure = None
                try:
                    yield awaited
                except BaseException as thrown:
                    failure = thrown
        finally:
            self._quota.charge(REQUEST, used_s * 1_000)
