"""Both ends of the gRPC stream by which a standby follows the active controller.

Each stream has a thread at either end, which builds and parses messages of ten thousand states and exchanges finished
values with the event loop.
"""

import functools
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc

from paceline.controller.errors import ActiveControllerDeadError
from paceline.controller.node import ControllerNode
from paceline.controller.service.death_watch import refuses_connects
from paceline.internal.v1 import controller_service_pb2 as pb
from paceline.internal.v1 import controller_service_pb2_grpc
from paceline.model.control import Endpoint
from paceline.model.errors import RequestTimedOutError
from paceline.model.standby import StateUpdate
from paceline.rpc.channels import CONTROL_MAX_MESSAGE_BYTES, open_channel
from paceline.rpc.convert import standby
from paceline.rpc.errors import from_rpc_error
from paceline.rpc.event_loop import Post, run_on_loop
from paceline.rpc.security.credentials import TlsCredentials
from paceline.rpc.security.transport_security import PLAINTEXT, TransportSecurity

LOG = logging.getLogger("paceline.controller.standby")

CONTROL: Final = "CONTROL"
MAX_WAITING_UPDATES: Final = 1_000
"""Maximum queued updates per standby; beyond that a new snapshot is cheaper than waiting."""
OPEN_TIMEOUT_S: Final = 3.0
IDLE_TIMEOUT_S: Final = 30.0
"""Longest wait for the next update; the core sends an update every second unless it is busy."""
_CLOSE_WAIT_S: Final = 2.0


class UpdateQueue:
    """A `StateSink` that another thread reads."""

    def __init__(self) -> None:
        self._updates: queue.SimpleQueue[StateUpdate | None] = queue.SimpleQueue()
        self._ended = False

    def put(self, update: StateUpdate) -> bool:
        """Queue an update, unless the stream has ended or the queue is full."""
        if self._ended or self._updates.qsize() >= MAX_WAITING_UPDATES:
            return False
        self._updates.put(update)
        return True

    def end(self) -> None:
        """Let the other thread process the queued updates and stop."""
        self._ended = True
        self._updates.put(None)

    def get(self) -> StateUpdate | None:
        """Return the next update, None at the end.

        Raises:
            RequestTimedOutError: no update arrived in time.
        """
        try:
            return self._updates.get(timeout=IDLE_TIMEOUT_S)
        except queue.Empty:
            raise RequestTimedOutError("the controller sent no update in time") from None


def stream_states(node: ControllerNode, post: Post, standby_id: int, context: Any) -> Iterator[pb.FollowStateResponse]:
    """Serve one stream on a thread of the CONTROL listener.

    Raises:
        NotControllerError: this controller is not active.
        RequestTimedOutError: the event loop did not answer in time.
    """
    updates = UpdateQueue()
    if not context.add_callback(updates.end):
        updates.end()
    try:
        cancel = run_on_loop(post, lambda: node.follow_state(standby_id, updates), OPEN_TIMEOUT_S)
    except RequestTimedOutError:
        updates.end()  # A stream that opens later finds the queue closed at its first update and ends.
        raise
    try:
        while (update := updates.get()) is not None:
            yield standby.state_update_to_proto(update)
    finally:
        updates.end()
        post(cancel)


class GrpcStandbyTransport:
    """Implements `controller.interfaces.StandbyTransport`; call its methods on the event loop."""

    def __init__(self, post: Post, security: TransportSecurity = PLAINTEXT, suspect_ms: int = 0) -> None:
        """``suspect_ms`` is the pause between two connects after a stream ended; 0 disables connects."""
        self._post = post
        self._tls = security.credentials(CONTROL)
        self._suspect_ms = suspect_ms
        self._readers: list[_Reader] = []

    def follow(
        self,
        controller: Endpoint,
        standby_id: int,
        on_update: Callable[[StateUpdate], None],
        on_end: Callable[[Exception | None], None],
    ) -> Callable[[], None]:
        """Open a stream on its own thread."""
        self._readers = [reader for reader in self._readers if reader.is_alive]
        reader = _Reader(controller, standby_id, self._post, self._tls, on_update, on_end, self._suspect_ms)
        self._readers.append(reader)
        return reader.close

    def close_all(self) -> None:
        """End every stream and wait for the threads; blocks for a moment."""
        for reader in self._readers:
            reader.close()
        for reader in self._readers:
            reader.join(_CLOSE_WAIT_S)


class _Reader:
    """The thread and the connection of one stream."""

    def __init__(
        self,
        controller: Endpoint,
        standby_id: int,
        post: Post,
        tls: TlsCredentials | None,
        on_update: Callable[[StateUpdate], None],
        on_end: Callable[[Exception | None], None],
        suspect_ms: int,
    ) -> None:
        self._suspect_ms = suspect_ms
        self._established = False
        self._controller = controller
        self._standby_id = standby_id
        self._post = post
        self._tls = tls
        self._on_update = on_update
        self._on_end = on_end
        self._lock = threading.Lock()
        self._channel: Any = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="follow-state", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _run(self) -> None:
        error = self._read()
        was_closed = self._closed
        self.close()
        if not was_closed and self._established and self._suspect_ms > 0:
            address = self._controller.address
            if refuses_connects(address, self._suspect_ms):
                error = ActiveControllerDeadError(f"{address} refused two connects after the stream ended: {error}")
        if not was_closed:
            self._post(functools.partial(self._on_end, error))

    def _read(self) -> Exception | None:
        """Read until the stream ends and return why."""
        try:
            with self._lock:
                if self._closed:
                    return None
                address = self._controller.address
                channel = self._channel = open_channel(
                    address, CONTROL_MAX_MESSAGE_BYTES, own_connection=True, tls=self._tls
                )
            stub = controller_service_pb2_grpc.ControllerServiceStub(channel)
            for message in stub.FollowState(pb.FollowStateRequest(controller_id=self._standby_id)):
                self._established = True
                self._post(functools.partial(self._on_update, standby.state_update_from_proto(message)))
        except grpc.RpcError as failure:
            return from_rpc_error(failure)
        except Exception as failure:
            # Also raised when the channel is closed. The standby opens another stream unless it closed this stream.
            if not self._closed:
                LOG.exception("following the active controller failed: address=%s", self._controller.address)
            return failure
        return None
