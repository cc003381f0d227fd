"""The last thing a request meets: errors become statuses, and every call is measured.

Servicers just raise `PacelineError`. Anything else is a bug of ours: the caller gets INTERNAL with an id, the log gets
the id with the traceback.
"""

import asyncio
import contextlib
import inspect
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final, NoReturn, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from paceline.model.errors import InvalidRequestError, PacelineError, ThrottledError, UnknownServerError
from paceline.rpc.admission.message_limits import MAX_CLIENT_FIELDS, refuse_too_many_fields
from paceline.rpc.admission.nested_limits import MAX_ELEMENTS, refuse_too_many_elements
from paceline.rpc.admission.receive_limiter import ReceiveLimiter
from paceline.rpc.errors import DETAILS_KEY, AbortableStatus, status_code_of, to_rpc_status
from paceline.rpc.security.guard import Guard
from paceline.rpc.streams.stream_server import MAX_STREAMS, Answer, OpenStreams, answer_behind

HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"

LOG = logging.getLogger("paceline.rpc")


class RequestObserver(Protocol):
    """Told about every finished call."""

    def __call__(self, method: str, seconds: float, reason: str | None) -> None:
        """``reason`` is the error's name, None for success, "CANCELLED" when the caller went away."""


Parse = Callable[[bytes], Any]


def typed_parser(parse: Parse | None, max_fields: int, max_elements: int | None = None) -> Parse:
    """Return a parser to be called inside the handler, where its errors become statuses; gRPC calls them internal ones.

    ``max_fields`` bounds the fields of the message itself, ``max_elements`` the lists in all that it holds. Handlers
    without a parser take the bytes and count for themselves.
    """
    if parse is None:
        return lambda data: data
    owner = getattr(parse, "__self__", None)
    message = owner if isinstance(owner, type) and issubclass(owner, Message) else None

    def parsed(data: bytes) -> Any:
        refuse_too_many_fields(data, max_fields)
        if message is not None and max_elements is not None:
            refuse_too_many_elements(data, message, max_elements)
        try:
            return parse(data)
        except DecodeError as failure:
            raise InvalidRequestError(f"the message cannot be parsed: {failure}") from None

    return parsed


def _ignore(method: str, seconds: float, reason: str | None) -> None:
    return None


class Calls:
    """Calls that are being handled, so many at a time; a context manager around each."""

    def __init__(self, limit: int | None) -> None:
        self.count = 0
        self._limit = limit

    def __enter__(self) -> None:
        if self._limit is not None and self.count >= self._limit:
            raise ThrottledError(f"{self.count} calls are being handled already; try again")
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1


class AioErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """For `grpc.aio` servers."""

    def __init__(
        self,
        observe: RequestObserver = _ignore,
        max_fields: int = MAX_CLIENT_FIELDS,
        max_streams: int = MAX_STREAMS,
        max_calls: int | None = None,
        guard: Guard | None = None,
        limiter: ReceiveLimiter | None = None,
    ) -> None:
        """Make it.

        Args:
            observe: told about every finished call.
            max_fields: bounds a request's fields, list elements counted.
            max_streams: streams of exchanges that may be open at once.
            max_calls: calls at once; further ones are throttled, all but questions after health.
            guard: admits callers; by default the one of a PLAINTEXT listener.
            limiter: bounds the requests that are being received.
        """
        self._guard = guard or Guard("")
        self._calls = Calls(max_calls)
        self._health_checks = Calls(None)
        self._observe = observe
        self._max_fields = max_fields
        self._limiter = limiter or ReceiveLimiter()
        self._wrapped: dict[str, Any] = {}
        self.streams = OpenStreams(max_streams)
        """Streams of exchanges that are open."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Return the handler, wrapped; one wrapper per method is kept, so the cost per call is a dictionary look-up."""
        method: str = handler_call_details.method
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            wrapped = self._wrapped[method] = self._wrap(method, handler)
        return wrapped

    def _wrap(self, method: str, handler: Any) -> Any:
        if handler.request_streaming:
            answer = answer_behind(handler)
            if answer is not None:
                return self._exchanges(method, answer)
            # The library's reflection; no other stream of requests is served.
            return self._reflection(method, handler) if inspect.isasyncgenfunction(handler.stream_stream) else None
        parse = typed_parser(handler.request_deserializer, self._max_fields, MAX_ELEMENTS)
        # Handlers of streams, although one request comes: gRPC leaves the reading of those to us.
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._streaming(method, handler.unary_stream, parse), response_serializer=handler.response_serializer
            )
        return grpc.stream_unary_rpc_method_handler(
            self._unary(method, handler.unary_unary, parse), response_serializer=handler.response_serializer
        )

    def _reflection(self, method: str, handler: Any) -> Any:
        """The library's one stream of requests; it answers and measures nothing by itself."""

        async def handle(requests: Any, context: Any) -> AsyncIterator[Any]:
            begin = time.perf_counter()
            try:
                caller = self._guard.admit(method, context)
                self._guard.check(method, caller, None, context)
                with self._calls:
                    async for response in handler.stream_stream(requests, context):
                        yield response
            except BaseException as failure:
                await self._abort(method, begin, failure, context)
            self._observe(method, time.perf_counter() - begin, None)

        return grpc.stream_stream_rpc_method_handler(handle, handler.request_deserializer, handler.response_serializer)

    def _exchanges(self, method: str, answer: Answer) -> Any:
        """Every exchange is measured like a call; an error ends the stream with its status."""

        def measured(seconds: float, reason: str | None) -> None:
            self._observe(method, seconds, reason)

        async def handle(_requests: Any, context: Any) -> None:
            begin = time.perf_counter()
            try:
                caller = self._guard.admit(method, context)

                async def checked(request: bytes, of: Any) -> Any:
                    self._guard.check(method, caller, request, of)
                    return await answer(request, of)

                await self.streams.serve(checked, context, measured)
            except BaseException as failure:
                await self._abort(method, begin, failure, context)

        return grpc.stream_stream_rpc_method_handler(handle)

    def _unary(self, method: str, inner: Callable[[Any, Any], Awaitable[Any]], parse: Parse) -> Any:
        calls = self._health_checks if method == HEALTH_CHECK else self._calls

        async def handle(_requests: Any, context: Any) -> Any:
            begin = time.perf_counter()
            try:
                caller = self._guard.admit(method, context)
                with calls:
                    data = await self._received(context)
                    begin = time.perf_counter()
                    request = parse(data)
                    del data
                    self._guard.check(method, caller, request, context)
                    response = await inner(request, context)
            except BaseException as failure:
                await self._abort(method, begin, failure, context)
            self._observe(method, time.perf_counter() - begin, None)
            return response

        return handle

    def _streaming(self, method: str, inner: Callable[[Any, Any], Any], parse: Parse) -> Any:
        if not inspect.isasyncgenfunction(inner):
            # It writes to the context and returns, as the health service's Watch does.
            return self._unary(method, inner, parse)

        async def handle(_requests: Any, context: Any) -> AsyncIterator[Any]:
            begin = time.perf_counter()
            try:
                caller = self._guard.admit(method, context)
                with self._calls:
                    request = parse(await self._received(context))
                    begin = time.perf_counter()
                    self._guard.check(method, caller, request, context)
                    async for response in inner(request, context):
                        yield response
            except BaseException as failure:
                await self._abort(method, begin, failure, context)
            self._observe(method, time.perf_counter() - begin, None)

        return handle

    async def _received(self, context: Any) -> Any:
        request = await self._limiter.receive(context.read)
        if request is grpc.aio.EOF:
            # The client has left, most probably, and gRPC finds that out by itself; or it sent no request.
            with contextlib.suppress(grpc.aio.InternalError):
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
            raise asyncio.CancelledError
        return request

    async def _abort(self, method: str, begin: float, failure: BaseException, context: Any) -> NoReturn:
        seconds = time.perf_counter() - begin
        if isinstance(failure, (asyncio.CancelledError, GeneratorExit)):
            self._observe(method, seconds, "CANCELLED")
            raise failure
        if not isinstance(failure, Exception) or isinstance(failure, grpc.aio.AbortError):
            raise failure
        error = public_error(method, failure)
        self._observe(method, seconds, error.code.name)
        rich = to_rpc_status(error)
        await context.abort(status_code_of(error), rich.message, ((DETAILS_KEY, rich.SerializeToString()),))
        raise AssertionError("abort does not return")


class ErrorInterceptor(grpc.ServerInterceptor):
    """For thread-pool servers."""

    def __init__(
        self, observe: RequestObserver = _ignore, max_fields: int = MAX_CLIENT_FIELDS, guard: Guard | None = None
    ) -> None:
        """``max_fields`` bounds a request's fields, list elements counted; ``guard`` admits callers."""
        self._guard = guard or Guard("")
        self._observe = observe
        self._max_fields = max_fields

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Return the handler, wrapped."""
        handler = continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return None  # no stream of requests is served here
        method: str = handler_call_details.method
        if _is_non_blocking(handler):
            return self._non_blocking(method, handler)
        parse = typed_parser(handler.request_deserializer, self._max_fields)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._streaming(method, handler.unary_stream, parse), response_serializer=handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            self._unary(method, handler.unary_unary, parse), response_serializer=handler.response_serializer
        )

    def _unary(self, method: str, inner: Callable[[Any, Any], Any], parse: Parse) -> Any:
        def handle(request: Any, context: Any) -> Any:
            begin = time.perf_counter()
            try:
                response = inner(self._admitted(method, parse, request, context), context)
            except Exception as failure:
                self._abort(method, begin, failure, context)
            self._observe(method, time.perf_counter() - begin, None)
            return response

        return handle

    def _streaming(self, method: str, inner: Callable[[Any, Any], Iterator[Any]], parse: Parse) -> Any:
        def handle(request: Any, context: Any) -> Iterator[Any]:
            begin = time.perf_counter()
            try:
                yield from inner(self._admitted(method, parse, request, context), context)
            except Exception as failure:
                self._abort(method, begin, failure, context)
            self._observe(method, time.perf_counter() - begin, None)

        return handle

    def _admitted(self, method: str, parse: Parse, data: Any, context: Any) -> Any:
        """Return the request, of a caller that may make it."""
        caller = self._guard.admit(method, context)
        request = parse(data)
        self._guard.check(method, caller, request, context)
        return request

    def _non_blocking(self, method: str, handler: Any) -> Any:
        """Guard the health service's Watch; the library answers and measures nothing by itself."""

        def handle(request: Any, context: Any, send_response: Any) -> None:
            begin = time.perf_counter()
            try:
                caller = self._guard.admit(method, context)
                self._guard.check(method, caller, request, context)
            except Exception as failure:
                self._abort(method, begin, failure, context)
            handler.unary_stream(request, context, send_response)

        handle.experimental_non_blocking = True  # type: ignore[attr-defined]
        handle.experimental_thread_pool = getattr(handler.unary_stream, "experimental_thread_pool", None)  # type: ignore[attr-defined]
        return grpc.unary_stream_rpc_method_handler(handle, handler.request_deserializer, handler.response_serializer)

    def _abort(self, method: str, begin: float, failure: Exception, context: Any) -> NoReturn:
        if context.code() is not None:  # the handler has aborted by itself; gRPC's own exception only unwinds
            raise failure
        error = public_error(method, failure)
        self._observe(method, time.perf_counter() - begin, error.code.name)
        context.abort_with_status(AbortableStatus(error))
        raise AssertionError("abort does not return")


def _is_non_blocking(handler: Any) -> bool:
    """Whether gRPC calls the handler in its own way, with a callback: the health service's Watch on few threads."""
    return getattr(handler.unary_stream, "experimental_non_blocking", None) is not None


def public_error(method: str, failure: Exception) -> PacelineError:
    """Return the error for the caller: the error itself when typed, else an `UnknownServerError` with a logged id."""
    if isinstance(failure, PacelineError):
        return failure
    failure_id = secrets.token_hex(4)
    LOG.error("unexpected failure %s in %s", failure_id, method, exc_info=failure)
    return UnknownServerError(f"internal failure {failure_id}; the server's log has the details").with_metadata(
        failure_id=failure_id
    )
