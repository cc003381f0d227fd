"""A client's stream of messages, in two implementations: on gRPC's core and on gRPC's public interface.

The public interface uses three threads: the first takes requests from an iterator, the second waits for the network and
passes each message to the third, which reads. On the kind of call that gRPC's blocking methods use, the sending thread
writes to the socket and the reading thread waits for the network, which saves two thread switches for each request
(measured: docs/decisions/0008). That call is not public; if a release of gRPC differs, the public interface is used.
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, ClassVar, Final

import grpc
import grpc.aio

from paceline.rpc.security.reopening_channel import ReopeningChannel

LOG = logging.getLogger("paceline.rpc")

_NO_FLAGS: Final = 0


class PublicStreamCall:
    """A stream through `grpc.Channel.stream_stream`. The owner holds its lock for `send`, `finish` and `cancel`."""

    def __init__(self, channel: Any, method: str) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = channel.stream_stream(method)(iter(self._requests.get, None))

    def send(self, request: bytes) -> None:
        """Send a message after all earlier messages, without blocking."""
        self._requests.put(request)

    def finish(self) -> None:
        """Close the sending side; all requests must have responses."""
        self._requests.put(None)

    def cancel(self) -> None:
        """End the stream without waiting for responses."""
        self._call.cancel()
        self._requests.put(None)  # ends gRPC's thread that waits for the next request

    def answers(self) -> Generator[bytes, None, None]:
        """Yield response messages as they arrive, and end the stream; only the reading thread calls this.

        Raises:
            grpc.RpcError: the stream has ended with a status other than OK.
        """
        try:
            yield from self._call
        finally:
            self.cancel()


class CoreStreamCall:
    """A stream on a call of gRPC's core, used like `PublicStreamCall`; the reading thread waits for the events."""

    is_usable: ClassVar = True
    """Whether the installed release of gRPC has the internals that this class uses."""

    def __init__(self, channel: Any, method: str, lock: threading.Lock, one_at_a_time: bool) -> None:
        """Open the stream.

        Args:
            channel: a blocking channel.
            method: full name of the method.
            lock: the lock that the caller of `send`, `finish` and `cancel` holds.
            one_at_a_time: whether each request is sent after the response to the previous one. Sending and receiving
                are then one operation, so the reading thread is not woken when a request was sent.

        Raises:
            AttributeError, TypeError, ImportError: this release of gRPC has other internals.
        """
        from grpc._cython import cygrpc  # type: ignore[attr-defined, unused-ignore]

        self._core = cygrpc
        self._lock = lock
        self._one_at_a_time = one_at_a_time
        self._unsent: deque[bytes] = deque()
        self._sending = False
        self._status: Any = None
        begin = cygrpc.SendInitialMetadataOperation(None, _NO_FLAGS), cygrpc.ReceiveStatusOnClientOperation(_NO_FLAGS)
        metadata = (cygrpc.ReceiveInitialMetadataOperation(_NO_FLAGS),)
        defaults, operations = (None, None, None, None), ((begin, None), (metadata, None))
        propagation, context = cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS, cygrpc.build_census_context()
        self._end: Callable[[], None] = lambda: None
        if isinstance(channel, ReopeningChannel):
            channel, self._end = channel.begin_call()
        try:
            open_call = channel._channel.segregated_call
            self._call = open_call(propagation, method.encode(), *defaults, operations, context, None)
        except BaseException:
            self._end()
            raise
        self._under_way = len(operations)
        """Number of operations that have not completed yet."""
        if not one_at_a_time:
            self._operate(cygrpc.ReceiveMessageOperation(_NO_FLAGS))

    def send(self, request: bytes) -> None:
        """Write to the socket, or queue the request if another is being written."""
        self._unsent.append(request)
        self._send_next()

    def finish(self) -> None:
        """Close the sending side."""
        self._operate(self._core.SendCloseFromClientOperation(_NO_FLAGS))

    def cancel(self) -> None:
        self._call.cancel(self._core.StatusCode.cancelled, "the caller has ended the stream")

    def answers(self) -> Generator[bytes, None, None]:
        """Yield response messages as they arrive, and end the stream."""
        try:
            while self._under_way:
                answer = self._next()
                if answer is not None:
                    yield answer
                    del answer  # free megabytes before the possibly long wait for the next response
                    if not self._one_at_a_time:
                        with self._lock:
                            self._operate(self._core.ReceiveMessageOperation(_NO_FLAGS))
        finally:
            with self._lock:
                self.cancel()
            while self._under_way:
                self._next()
            self._end()
        status = self._status
        code = next((one for one in grpc.StatusCode if one.value[0] == status.code()), grpc.StatusCode.UNKNOWN)
        if code is not grpc.StatusCode.OK:
            trailing = grpc.aio.Metadata.from_tuple(status.trailing_metadata() or ())
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, status.details())

    def _send_next(self) -> None:
        if self._sending or not self._unsent:
            return
        self._sending = True
        message = self._core.SendMessageOperation(self._unsent.popleft(), _NO_FLAGS)
        if self._one_at_a_time:
            self._operate(message, self._core.ReceiveMessageOperation(_NO_FLAGS))
        else:
            self._operate(message)

    def _operate(self, *operations: Any) -> None:
        """Start operations that complete together; gRPC refuses operations after the end of the stream."""
        if self._call.operate(operations, None):
            self._under_way += 1

    def _next(self) -> bytes | None:
        """Wait until operations complete; return the message if they received one."""
        event = self._call.next_event()
        kinds = self._core.OperationType
        answer: bytes | None = None
        with self._lock:
            self._under_way -= 1
            for operation in event.batch_operations:
                kind = operation.type()
                if kind == kinds.receive_message:
                    answer = operation.message()
                elif kind == kinds.send_message:
                    self._sending = False
                    self._send_next()
                elif kind == kinds.receive_status_on_client:
                    self._status = operation
        return answer


StreamCall = CoreStreamCall | PublicStreamCall


def open_stream_call(channel: Any, method: str, lock: threading.Lock, one_at_a_time: bool) -> StreamCall:
    """Open a stream on gRPC's core if possible, else on its public interface; `CoreStreamCall` has the arguments."""
    if CoreStreamCall.is_usable:
        try:
            return CoreStreamCall(channel, method, lock, one_at_a_time)
        except (AttributeError, TypeError, ImportError):
            CoreStreamCall.is_usable = False
            LOG.warning("using gRPC's public streams, because its internals have changed: grpcio=%s", grpc.__version__)
    return PublicStreamCall(channel, method)
