"""One stream of messages at the asking end, in two forms: over gRPC's core, and over its public interface.

The public interface has a thread take requests from an iterator, a second one wait for the network, and hands each
message to a third, which reads. On a call like the one behind gRPC's own blocking methods, the sending thread writes to
the socket itself, and the reading thread waits for the network itself: two hand-overs fewer for each request
(measured: docs/decisions/0008). That call is no public interface; where it is not as expected the public one serves.
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import grpc

LOG = logging.getLogger("paceline.rpc")

_NO_FLAGS: Final = 0
_FAREWELL: Final = "the caller has ended the stream"


class StreamCall(Protocol):
    """A stream that is open. All but `answers` and `drain` are called with the caller's lock held."""

    def send(self, request: bytes) -> None:
        """Send a message after those before it; never blocks."""

    def finish(self) -> None:
        """Say that nothing more will be sent. Everything sent has been answered."""

    def cancel(self) -> None:
        """End the stream now."""

    def answers(self) -> Iterator[bytes]:
        """Yield messages as they come, on the one thread that reads.

        Raises:
            grpc.RpcError: the stream has ended with a status other than OK.
        """

    def drain(self) -> None:
        """Release the resources of the stream; on the thread that reads, after `cancel`."""


class StreamEndedError(grpc.RpcError):
    """A stream has ended with an error; has code, details and metadata like a `grpc.Call`."""

    def __init__(
        self, code: grpc.StatusCode, details: str, trailing_metadata: Sequence[tuple[str, str | bytes]]
    ) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code = code
        self._details = details
        self._trailing_metadata = trailing_metadata

    def code(self) -> grpc.StatusCode:
        """Return the status."""
        return self._code

    def details(self) -> str:
        """Return the status's message."""
        return self._details

    def trailing_metadata(self) -> Any:
        """Return the trailers."""
        return self._trailing_metadata


class PublicStreamCall:
    """A stream through `grpc.Channel.stream_stream`."""

    def __init__(self, channel: Any, method: str) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = channel.stream_stream(method)(iter(self._requests.get, None))

    def send(self, request: bytes) -> None:
        """See `StreamCall`."""
        self._requests.put(request)

    def finish(self) -> None:
        """See `StreamCall`."""
        self._requests.put(None)

    def cancel(self) -> None:
        """See `StreamCall`."""
        self._call.cancel()

    def answers(self) -> Iterator[bytes]:
        """See `StreamCall`."""
        return iter(self._call)

    def drain(self) -> None:
        """See `StreamCall`: gRPC's thread that waits for the next request ends."""
        self._requests.put(None)


class CoreStreamCall:
    """A stream on a call of gRPC's core whose events the reading thread waits for itself."""

    def __init__(self, channel: Any, method: str, lock: threading.Lock, one_at_a_time: bool) -> None:
        """Open the stream.

        Args:
            channel: a blocking channel.
            method: the full name.
            lock: held whenever `send`, `finish` or `cancel` is called.
            one_at_a_time: a request follows the answer to the one before it. Then both are one operation: the thread
                that reads is not woken when a request has left.

        Raises:
            AttributeError, TypeError, ImportError: this release of gRPC has other insides.
        """
        from grpc._cython import cygrpc  # type: ignore[attr-defined, unused-ignore]

        self._core = cygrpc
        self._lock = lock
        self._together = one_at_a_time
        self._unsent: deque[bytes] = deque()
        self._sending = False
        self._status: Any = None
        self._call = channel._channel.segregated_call(
            cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS,
            method.encode(),
            None,
            None,
            None,
            None,
            (
                (
                    (
                        cygrpc.SendInitialMetadataOperation(None, _NO_FLAGS),
                        cygrpc.ReceiveStatusOnClientOperation(_NO_FLAGS),
                    ),
                    None,
                ),
                ((cygrpc.ReceiveInitialMetadataOperation(_NO_FLAGS),), None),
            ),
            cygrpc.build_census_context(),
            None,
        )
        self._under_way = 2
        """Operations whose end is not heard of yet."""
        if not one_at_a_time:
            self._operate(cygrpc.ReceiveMessageOperation(_NO_FLAGS))

    def send(self, request: bytes) -> None:
        """See `StreamCall`: writes to the socket, or after the request that is being written."""
        if self._sending:
            self._unsent.append(request)
        else:
            self._send(request)

    def finish(self) -> None:
        """See `StreamCall`."""
        self._operate(self._core.SendCloseFromClientOperation(_NO_FLAGS))

    def cancel(self) -> None:
        """See `StreamCall`."""
        self._call.cancel(self._core.StatusCode.cancelled, _FAREWELL)

    def answers(self) -> Iterator[bytes]:
        """See `StreamCall`."""
        while self._under_way:
            answer = self._next()
            if answer is not None:
                yield answer
                del answer  # megabytes, and the next may be long in coming
                if not self._together:
                    with self._lock:
                        self._operate(self._core.ReceiveMessageOperation(_NO_FLAGS))
        self._raise_unless_ok()

    def drain(self) -> None:
        """See `StreamCall`."""
        while self._under_way:
            self._next()

    def _send(self, request: bytes) -> None:
        self._sending = True
        message = self._core.SendMessageOperation(request, _NO_FLAGS)
        if self._together:
            self._operate(message, self._core.ReceiveMessageOperation(_NO_FLAGS))
        else:
            self._operate(message)

    def _operate(self, *operations: Any) -> None:
        """Begin an operation; one that ends with the stream does nothing."""
        if self._call.operate(operations, None):
            self._under_way += 1

    def _next(self) -> bytes | None:
        """Wait for the end of an operation; return the message when it has brought one."""
        event = self._call.next_event()
        answer: bytes | None = None
        sent = False
        for operation in event.batch_operations:
            kind = operation.type()
            if kind == self._core.OperationType.receive_message:
                answer = operation.message()
            elif kind == self._core.OperationType.send_message:
                sent = True
            elif kind == self._core.OperationType.receive_status_on_client:
                self._status = operation
        with self._lock:
            self._under_way -= 1
            if sent:
                self._sending = False
                if self._unsent:
                    self._send(self._unsent.popleft())
        return answer

    def _raise_unless_ok(self) -> None:
        status = self._status
        code = next((one for one in grpc.StatusCode if one.value[0] == status.code()), grpc.StatusCode.UNKNOWN)
        if code is not grpc.StatusCode.OK:
            raise StreamEndedError(code, status.details(), status.trailing_metadata() or ())


def open_stream_call(channel: Any, method: str, lock: threading.Lock, one_at_a_time: bool) -> StreamCall:
    """Open a stream; see `CoreStreamCall` for the arguments."""
    if CORE.usable:
        try:
            return CoreStreamCall(channel, method, lock, one_at_a_time)
        except (AttributeError, TypeError, ImportError):
            CORE.usable = False
            LOG.warning("grpcio %s has other insides than expected; streams take its public way", grpc.__version__)
    return PublicStreamCall(channel, method)


class _Core:
    """Whether this process's release of gRPC has the calls that `CoreStreamCall` is made of."""

    usable = True


CORE: Final = _Core()
