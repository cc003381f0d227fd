"""Server interceptors that authorize, limit and measure every call, and convert errors to statuses.

Servicers raise `PacelineError`. Any other exception is a bug in Paceline: the caller receives INTERNAL with an id, and
the log has the traceback with the same id.
"""

import asyncio
import contextlib
import inspect
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from grpc_status.rpc_status import to_status

from paceline.model.errors import PacelineError, ThrottledError, UnknownServerError
from paceline.model.identity import Role
from paceline.rpc.admission.listener_limits import ListenerLimits
from paceline.rpc.admission.message_limits import MAX_CLIENT_FIELDS, MAX_ELEMENTS, MAX_INTERNAL_FIELDS, parsed
from paceline.rpc.admission.receive_limiter import ReceiveLimiter
from paceline.rpc.admission.silent_calls import SilentCalls
from paceline.rpc.errors import to_rpc_status
from paceline.rpc.security.authorized_requests import authorized, check_call
from paceline.rpc.security.authorizer import Caller, current_call
from paceline.rpc.security.guard import Guard, current_caller, names_principal
from paceline.rpc.streams.stream_server import MAX_GATEWAY_STREAMS, Answer, OpenStreams

HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
HEALTH_WATCH: Final = "/grpc.health.v1.Health/Watch"

LOG = logging.getLogger("paceline.rpc")
_PAUSED: Final = object()


RequestObserver = Callable[[str, float, str | None], None]
"""Called for every finished call with its method, its duration in seconds and the reason of its failure.

The reason is the error's name, None for success, "CANCELLED" when the caller cancelled or disconnected.
"""
Parse = Callable[[bytes], Any]
Admit = Callable[[Any], Caller]
"""Determines the caller of a call from its context, see `Guard.admit`."""


def typed_parser(parse: Any, max_fields: int, max_elements: int | None = None) -> Parse:
    """Return a parser to call in the handler, where errors become statuses; ``parse`` is a message's ``FromString``.

    ``max_fields`` limits the fields of the message itself, ``max_elements`` the elements of all lists in it and its
    sub-messages. A handler without a parser receives the bytes and applies the limits itself.
    """
    if parse is None:
        return lambda data: data
    return partial(parsed, parse.__self__, max_fields=max_fields, max_elements=max_elements)


class Calls:
    """Counts the calls in progress and throttles calls above the limit; a context manager for each call."""

    def __init__(self, limit: int | None) -> None:
        self.count = 0
        self._limit = limit

    def __enter__(self) -> None:
        if self._limit is not None and self.count >= self._limit:
            raise ThrottledError.at("MAX_CALLS", f"{self.count} calls are being handled already; try again")
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1


class AioErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """The interceptor of `grpc.aio` servers."""

    def __init__(
        self,
        observe: RequestObserver,
        max_streams: int,
        max_calls: int,
        guard: Guard | None = None,
        limiter: ReceiveLimiter | None = None,
        limits: ListenerLimits | None = None,
    ) -> None:
        """Create an interceptor for one server.

        Args:
            observe: called for every finished call.
            max_streams: most request streams that may be open at once.
            max_calls: most concurrent calls; further calls are throttled, except health checks.
            guard: authorizes callers; by default the guard of a PLAINTEXT listener.
            limiter: limits the requests that are being received.
            limits: counts and logs the requests that a limit refuses.
        """
        self._guard = guard or Guard("")
        self._limits = limits or ListenerLimits()
        self._calls = Calls(max_calls)
        self._health_checks = Calls(None)
        self._observe = observe
        self._limiter = limiter or ReceiveLimiter()
        self._wrapped: dict[tuple[str, bool], Any] = {}
        self.streams = OpenStreams(max_streams)
        """The open request streams."""
        self.gateway_streams = OpenStreams(MAX_GATEWAY_STREAMS)
        """Those of gateways, which so take no stream from other clients."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Return the wrapped handler; wrappers are cached by method, so a call costs one dictionary lookup."""
        method: str = handler_call_details.method
        # Look here for a named principal: in the handler, gRPC would copy the metadata again.
        is_named = names_principal(handler_call_details.invocation_metadata)
        wrapped = self._wrapped.get((method, is_named))
        if wrapped is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            wrapped = self._wrapped[method, is_named] = self._wrap(method, handler, is_named)
        return wrapped

    def _wrap(self, method: str, handler: Any, is_named: bool) -> Any:
        admit = partial(self._guard.admit, method, is_named=is_named)
        if handler.request_streaming:
            if inspect.iscoroutinefunction(handler.stream_stream):
                return self._request_stream(method, handler.stream_stream, admit)
            # GatewayService, and the reflection service of the gRPC library; other streaming methods are not served.
            return (
                self._bidirectional(method, handler, admit)
                if inspect.isasyncgenfunction(handler.stream_stream)
                else None
            )
        parse = typed_parser(handler.request_deserializer, MAX_CLIENT_FIELDS, MAX_ELEMENTS)
        # Use streaming handlers although the client sends one request: then gRPC lets this class read the request.
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._streaming(method, handler.unary_stream, parse, admit),
                response_serializer=handler.response_serializer,
            )
        return grpc.stream_unary_rpc_method_handler(
            self._unary(method, handler.unary_unary, parse, admit),
            response_serializer=handler.response_serializer,
        )

    def _bidirectional(self, method: str, handler: Any, admit: Admit) -> Any:
        """Wrap a stream of requests whose handler reads the requests itself."""

        async def handle(requests: Any, context: Any) -> AsyncIterator[Any]:
            begin = time.perf_counter()
            try:
                caller = admit(context)
                self._guard.check(method, caller, None, context)
                with self._calls:
                    async for response in handler.stream_stream(requests, context):
                        yield response
            except BaseException as failure:
                await self._abort(method, begin, failure, context)
            self._observe(method, time.perf_counter() - begin, None)

        return grpc.stream_stream_rpc_method_handler(handle, handler.request_deserializer, handler.response_serializer)

    def _request_stream(self, method: str, answer: Answer, admit: Admit) -> Any:
        """Return a handler for a stream of requests: each request is measured like a call, an error ends the stream."""

        measured = partial(self._observe, method)

        async def handle(_requests: Any, context: Any) -> None:
            begin = time.perf_counter()
            try:
                caller = admit(context)
                quota = current_call().quota

                async def checked(request: bytes, of: Any) -> Any:
                    self._guard.check(method, caller, request, of)
                    return await quota.timed(answer(request, of))

                is_gateway = caller.identity is not None and caller.identity.role is Role.GATEWAY
                streams = self.gateway_streams if is_gateway else self.streams
                await streams.serve(checked, context, measured)
            except BaseException as failure:
                await self._abort(method, begin, failure, context)

        return grpc.stream_stream_rpc_method_handler(handle)

    def _unary(self, method: str, inner: Callable[[Any, Any], Awaitable[Any]], parse: Parse, admit: Admit) -> Any:
        calls = self._health_checks if method == HEALTH_CHECK else self._calls
        is_parsed = isinstance(parse, partial)

        async def handle(_requests: Any, context: Any) -> Any:
            begin, request = time.perf_counter(), None
            try:
                caller = admit(context)
                quota = current_call().quota
                with calls:
                    # Payloads, which are not parsed here, take little time.
                    request = await self._received(context, takes_turns=is_parsed)
                    begin = time.perf_counter()
                    request = parse(request)
                    self._guard.check(method, caller, request, context)
                    work = authorized(inner, request, context) if is_parsed else inner(request, context)
                    response = await quota.timed(work)
            except BaseException as failure:
                request = None  # gRPC keeps this frame, with the exception, until the garbage collector runs
                await self._abort(method, begin, failure, context)
            self._observe(method, time.perf_counter() - begin, None)
            return response

        return handle

    def _streaming(self, method: str, inner: Callable[[Any, Any], Any], parse: Parse, admit: Admit) -> Any:
        if not inspect.isasyncgenfunction(inner):
            # The handler writes to the context and returns, like the Watch method of the health service.
            return self._unary(method, inner, parse, admit)

        async def handle(_requests: Any, context: Any) -> AsyncIterator[Any]:
            begin, request = time.perf_counter(), None
            try:
                caller = admit(context)
                with self._calls:
                    request = parse(await self._received(context, takes_turns=True))
                    begin = time.perf_counter()
                    self._guard.check(method, caller, request, context)
                    check_call(current_call(), request)
                    async for response in inner(request, context):
                        yield response
            except BaseException as failure:
                request = None
                await self._abort(method, begin, failure, context)
            self._observe(method, time.perf_counter() - begin, None)

        return handle

    async def _received(self, context: Any, takes_turns: bool) -> Any:
        caller, quota = current_caller(), current_call().quota
        key = context.peer() if caller.identity is None else caller.principal

        async def read() -> Any:
            # Another call of this caller may have exceeded the quota while this call waited for its place.
            return _PAUSED if quota.pause_ms() else await context.read()

        request: Any = _PAUSED
        while request is _PAUSED:
            await quota.hold()
            request = await self._limiter.receive(read, key, takes_turns=takes_turns, connection_of=context.peer)
        if request is grpc.aio.EOF:
            # The client has disconnected, or it has closed the call without sending a request.
            with contextlib.suppress(grpc.aio.InternalError):
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
            raise asyncio.CancelledError
        return request

    async def _abort(self, method: str, begin: float, failure: BaseException, context: Any) -> NoReturn:
        seconds = time.perf_counter() - begin
        if isinstance(failure, (asyncio.CancelledError, GeneratorExit)):
            self._observe(method, seconds, "CANCELLED")
            raise failure.with_traceback(None)
        if not isinstance(failure, Exception) or isinstance(failure, grpc.aio.AbortError):
            raise failure
        error = public_error(method, failure)
        self._observe(method, seconds, error.code.name)
        count_refusal(self._limits, self._guard.listener, error)
        status = to_status(to_rpc_status(error))
        failure.__traceback__ = None  # its frames keep the request
        await context.abort(status.code, status.details, status.trailing_metadata)
        raise AssertionError("abort does not return")


class ErrorInterceptor(grpc.ServerInterceptor):
    """The interceptor of thread-pool servers."""

    def __init__(
        self, observe: RequestObserver, guard: Guard | None, silent_calls: SilentCalls, limits: ListenerLimits
    ) -> None:
        """``guard`` authorizes callers; ``silent_calls`` limits the calls whose message has not arrived."""
        self._guard = guard or Guard("")
        self._limits = limits
        self._observe = observe
        self._silent_calls = silent_calls

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Return the handler with authorization, limits, measurement and errors as statuses."""
        handler = continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None or method == HEALTH_WATCH:
            return None  # a watch of the health service would occupy a thread until its client ends it
        parse = typed_parser(handler.request_deserializer, MAX_INTERNAL_FIELDS)
        # Use streaming handlers although the client sends one request: then gRPC calls this class on the headers, and
        # the caller is authorized before gRPC receives the request.
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._streaming(method, handler.unary_stream, parse), response_serializer=handler.response_serializer
            )
        return grpc.stream_unary_rpc_method_handler(
            self._unary(method, handler.unary_unary, parse), response_serializer=handler.response_serializer
        )

    def _unary(self, method: str, inner: Callable[[Any, Any], Any], parse: Parse) -> Any:
        def handle(requests: Any, context: Any) -> Any:
            begin = time.perf_counter()
            try:
                response = inner(self._admitted(method, parse, requests, context), context)
            except Exception as failure:
                self._abort(method, begin, failure, context)
            self._observe(method, time.perf_counter() - begin, None)
            return response

        return handle

    def _streaming(self, method: str, inner: Callable[[Any, Any], Iterator[Any]], parse: Parse) -> Any:
        def handle(requests: Any, context: Any) -> Iterator[Any]:
            begin = time.perf_counter()
            try:
                yield from inner(self._admitted(method, parse, requests, context), context)
            except Exception as failure:
                self._abort(method, begin, failure, context)
            self._observe(method, time.perf_counter() - begin, None)

        return handle

    def _admitted(self, method: str, parse: Parse, requests: Any, context: Any) -> Any:
        """Return the parsed request if its caller is authorized; wait for it within the limit of silent calls."""
        caller = self._guard.admit(method, context)
        with self._silent_calls.waiting(caller.principal, context):
            data: bytes | None = next(requests, None)
        if data is None:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
        request = parse(data or b"")
        self._guard.check(method, caller, request, context)
        return request

    def _abort(self, method: str, begin: float, failure: Exception, context: Any) -> NoReturn:
        if context.code() is not None:  # the handler called abort, and gRPC raised this exception to unwind the stack
            raise failure
        if isinstance(failure, grpc.RpcError):  # the call was cancelled, by its caller or by `SilentCalls`
            self._observe(method, time.perf_counter() - begin, "CANCELLED")
            raise failure
        error = public_error(method, failure)
        self._observe(method, time.perf_counter() - begin, error.code.name)
        count_refusal(self._limits, self._guard.listener, error)
        context.abort_with_status(to_status(to_rpc_status(error)))
        raise AssertionError("abort does not return")


def count_refusal(limits: ListenerLimits, listener: str, error: PacelineError) -> None:
    """Count and log an error of the current caller that names a limit in its metadata; ignore other errors."""
    limit = error.metadata.get("limit")
    if limit is not None:
        limits.refuse(listener, limit, current_caller().principal, "requests beyond a limit are refused")


def public_error(method: str, failure: Exception) -> PacelineError:
    """Return the error for the caller: a `PacelineError` itself, else an `UnknownServerError` with an id in the log."""
    if isinstance(failure, PacelineError):
        return failure
    failure_id = secrets.token_hex(4)
    LOG.error("unexpected failure: failure_id=%s method=%s", failure_id, method, exc_info=failure)
    return UnknownServerError(f"internal failure, see the server's log: failure_id={failure_id}").with_metadata(
        failure_id=failure_id
    )
