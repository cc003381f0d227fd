"""The coroutine of a request on a stream: it runs in callbacks, and can be cancelled at any of its waits."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from paceline.model.acls import AccessRules, AclEntry, Operation, Permission, ResourcePattern, ResourceType
from paceline.model.errors import RequestTimedOutError
from paceline.rpc.security.audit_log import AuditLog
from paceline.rpc.security.authorizer import Authorizer, Call, Caller, Mode, acting_as
from paceline.rpc.streams.stream_server import OpenStreams, StreamRequest, Wait

LONG_S = 60.0


class Run:
    """A request whose coroutine awaits the given awaitable, and records the outcome."""

    def __init__(self, awaitable: Any) -> None:
        self.outcomes: list[Any] = []
        self.over = asyncio.Event()
        self.request = StreamRequest(None)
        self.request.add_done_callback(lambda _: self.over.set())
        self.request.run(self._run(awaitable))

    async def _run(self, awaitable: Any) -> None:
        try:
            self.outcomes.append(await awaitable)
        except BaseException as failure:
            self.outcomes.append(type(failure))

    async def result(self) -> Any:
        async with asyncio.timeout(LONG_S):
            await self.over.wait()
        (outcome,) = self.outcomes
        return outcome


async def test_coroutine_continues_before_reply_returns_and_ignores_later_replies() -> None:
    wait = Wait(LONG_S)
    run = Run(wait)
    assert run.outcomes == []
    wait.reply("first")
    assert run.outcomes == ["first"]
    wait.reply("second")
    wait.fail(RuntimeError("too late"))
    assert await run.result() == "first"


async def test_value_that_is_delivered_before_the_wait_is_received() -> None:
    wait = Wait(LONG_S)
    wait.reply("early")
    assert await Run(wait).result() == "early"


async def test_overdue_wait_ends_with_an_error_and_another_wait_continues() -> None:
    overdue, patient = Run(Wait(0.0)), Run(Wait(LONG_S))
    for run in (overdue, patient):
        run.request.expire(asyncio.get_running_loop().time() + 1.0)
    assert await overdue.result() is RequestTimedOutError
    assert patient.outcomes == []


@pytest.mark.parametrize("awaited", ["a wait", "a future", "a future that is done", "one iteration of the event loop"])
async def test_cancelled_coroutine_receives_the_cancellation_at_each_kind_of_wait(awaited: str) -> None:
    future: asyncio.Future[str] = Wait(LONG_S) if awaited == "a wait" else asyncio.get_running_loop().create_future()
    run = Run(asyncio.sleep(0) if awaited == "one iteration of the event loop" else future)
    if awaited == "a future that is done":
        future.set_result("lost")
    run.request.cancel()
    assert await run.result() is asyncio.CancelledError


async def test_task_is_resumed_by_the_reply_and_by_the_deadline() -> None:
    """A unary call is a task: its wait needs no stream that checks deadlines."""

    async def awaiting(wait: Wait) -> Any:
        return await wait

    answered = Wait(LONG_S)
    task = asyncio.create_task(awaiting(answered))
    await asyncio.sleep(0)
    answered.reply("first")
    answered.reply("second")
    assert await task == "first"
    with pytest.raises(RequestTimedOutError):
        await awaiting(Wait(0.01))
    cancelled = asyncio.create_task(awaiting(Wait(LONG_S)))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled


class Stream:
    """The context of a stream with one request, whose handler waits until it is cancelled."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.messages.put_nowait(b"request")
        self.aborted: list[tuple[Any, str]] = []

    async def read(self) -> Any:
        return await self.messages.get()

    async def abort(self, code: Any, details: str) -> None:
        self.aborted.append((code, details))
        raise grpc.aio.AbortError

    def peer(self) -> str:
        return "ipv4:10.0.0.1:1"


async def test_a_stream_ends_when_its_caller_loses_a_permission_that_it_has_used() -> None:
    read = (Operation.READ, ResourceType.TOPIC, "rides")
    rules = {ResourcePattern(ResourceType.TOPIC, name): (AclEntry("User:*", Permission.ALLOW, Operation.READ),)
             for name in ("rides", "other")}  # fmt: skip
    authorizer = Authorizer(Mode.ENFORCE, audit=AuditLog(write=lambda _line: None))
    authorizer.use(AccessRules(rules))
    call, context, streams = Call(Caller("User:a"), authorizer, exempt=None), Stream(), OpenStreams()
    cancelled = asyncio.Event()

    async def wait(_message: bytes, _request: StreamRequest) -> bytes:
        assert call.may(*read)
        try:
            return await Wait(LONG_S)  # type: ignore[no-any-return]
        finally:
            cancelled.set()

    with acting_as(call):
        serving = asyncio.ensure_future(streams.serve(wait, context, lambda _seconds, _reason: None))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    authorizer.use(AccessRules(rules).changed({ResourcePattern(ResourceType.TOPIC, "other"): ()}))
    streams._check()
    await asyncio.sleep(0)
    assert not serving.done(), "another rule was withdrawn"
    authorizer.use(AccessRules({}))
    streams._check()
    with pytest.raises(grpc.aio.AbortError):
        await asyncio.wait_for(serving, LONG_S)
    ((code, details),) = context.aborted
    assert code is grpc.StatusCode.UNAVAILABLE and "access rules" in details and cancelled.is_set()
