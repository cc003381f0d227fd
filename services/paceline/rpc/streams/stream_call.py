"""A client's stream of messages, on the kind of call of gRPC's core that gRPC's blocking methods use.

The sending thread writes to the socket and the reading thread waits for the network, which saves two thread switches
for each request compared with gRPC's public interface (measured: docs/decisions/0008). That call is not public; if a
release of gRPC has other internals, no stream can be opened and unary calls are used.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final

import grpc
import grpc.aio

from paceline.rpc.security.named_channel import NamedChannel
from paceline.rpc.security.reopening_channel import ReopeningChannel

_NO_FLAGS: Final = 0


class StreamCall:
    """A stream. The owner holds its lock for `send` and `cancel`; the reading thread waits for the events."""

    def __init__(self, channel: Any, method: str, lock: threading.Lock, one_at_a_time: bool) -> None:
        """Open the stream.

        Args:
            channel: a blocking channel.
            method: full name of the method.
            lock: the lock that the caller of `send` and `cancel` holds.
            one_at_a_time: whether each request is sent after the response to the previous one. Sending and receiving
                are then one operation, so the reading thread is not woken when a request was sent.

        Raises:
            grpc.RpcError: this release of gRPC has other internals; the status is UNIMPLEMENTED.
        """
        try:
            self._begin(channel, method, lock, one_at_a_time)
        except (AttributeError, TypeError, ImportError) as error:
            said = f"streams need other internals than those of grpcio {grpc.__version__}: {error}"
            none = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNIMPLEMENTED, none, none, said) from error

    def _begin(self, channel: Any, method: str, lock: threading.Lock, one_at_a_time: bool) -> None:
        from grpc._cython import cygrpc  # type: ignore[attr-defined, unused-ignore]

        self._core = cygrpc
        self._lock = lock
        self._one_at_a_time = one_at_a_time
        self._unsent: deque[bytes] = deque()
        self._sending = False
        self._status: Any = None
        named = None
        if isinstance(channel, NamedChannel):
            channel, named = channel.shared, channel.metadata
        begin = cygrpc.SendInitialMetadataOperation(named, _NO_FLAGS), cygrpc.ReceiveStatusOnClientOperation(_NO_FLAGS)
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
        """Send a message after all earlier messages: write to the socket, or queue it if another is being written."""
        self._unsent.append(request)
        self._send_next()

    def cancel(self) -> None:
        """End the stream without waiting for responses."""
        self._call.cancel(self._core.StatusCode.cancelled, "the caller has ended the stream")

    def answers(self) -> Generator[bytes, None, None]:
        """Yield response messages as they arrive, and end the stream; only the reading thread calls this.

        Raises:
            grpc.RpcError: the stream has ended with a status other than OK.
        """
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
