"""Send control requests to brokers, with one thread and one connection per broker.

A broker that hangs, or a request of ten thousand partitions, then does not delay other brokers; the event loop gets the
response as a finished value.
"""

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc

from paceline.controller.brokers.broker_suspicions import Evidence
from paceline.controller.node import ControllerNode
from paceline.controller.service.death_watch import DeathWatch, Reachability
from paceline.internal.v1 import replica_manager_service_pb2 as pb
from paceline.internal.v1 import replica_manager_service_pb2_grpc
from paceline.model.control import (
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    LiveBroker,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from paceline.model.errors import BrokerNotAvailableError, PacelineError
from paceline.rpc.channels import CONTROL_MAX_MESSAGE_BYTES, open_channel
from paceline.rpc.convert import control
from paceline.rpc.convert.common import message_of
from paceline.rpc.errors import from_rpc_error
from paceline.rpc.event_loop import Post
from paceline.rpc.security.credentials import TlsCredentials
from paceline.rpc.security.transport_security import PLAINTEXT, TransportSecurity

LOG = logging.getLogger("paceline.controller.transport")

CONTROL: Final = "CONTROL"
_CLOSE_WAIT_S: Final = 2.0

OnDone = Callable[[ControlResponse | Exception], None]


class GrpcControlTransport:
    """Implements `controller.interfaces.ControlTransport`; call its methods on the event loop."""

    def __init__(
        self,
        post: Post,
        security: TransportSecurity = PLAINTEXT,
        listener: Callable[[], ControllerNode | None] = lambda: None,
        suspect_ms: int = 0,
    ) -> None:
        """Create the transport.

        Args:
            post: runs a callable on the event loop.
            security: certificates of the CONTROL listener, if it uses TLS.
            listener: returns the node, which receives connection events, or None before it exists.
            suspect_ms: pause between the two connects that test an address; 0 disables the test.
        """
        self._post = post
        self._tls = security.credentials(CONTROL)
        self._listener = listener
        self._suspect_ms = suspect_ms
        self._senders: dict[int, _Sender] = {}
        self._closing: list[_Sender] = []
        self._metadata = _MetadataCache()

    def send(self, broker: LiveBroker, request: ControlRequest, timeout_ms: int, on_done: OnDone) -> None:
        """Send a request to the broker's CONTROL endpoint from the thread of this broker."""
        sender = self._senders.get(broker.broker_id)
        if sender is None:
            sender = self._senders[broker.broker_id] = _Sender(
                broker.broker_id, self._post, self._metadata, self._tls, self._watch_for_death
            )
        sender.put(_Call(broker, request, timeout_ms, on_done))

    def _watch_for_death(self, broker: LiveBroker, address: str, channel: Any) -> None:
        if self._suspect_ms <= 0:
            return

        def tell(call: Callable[[ControllerNode], None]) -> None:
            listener = self._listener()
            if listener is not None:
                self._post(lambda: call(listener))

        def tested(was_connected: bool, outcome: Reachability) -> None:
            if outcome is Reachability.ACCEPTED:
                tell(lambda listener: listener.broker_connection_closed(broker.broker_id, broker.broker_epoch))
            elif outcome in (Reachability.REFUSED, Reachability.UNREACHABLE):
                evidence = Evidence.UNREACHABLE
                if outcome is Reachability.REFUSED:
                    evidence = Evidence.REFUSED if was_connected else Evidence.REFUSED_UNCONNECTED
                tell(lambda listener: listener.evidence_of_death(broker.broker_id, broker.broker_epoch, evidence))

        def connected() -> None:
            tell(lambda listener: listener.broker_connected(broker.broker_id, broker.broker_epoch))

        channel.subscribe(DeathWatch(address, self._suspect_ms, connected, tested).connectivity_changed)

    def close(self, broker_id: int) -> None:
        """End the broker's thread and connection, and cancel a call in flight."""
        sender = self._senders.pop(broker_id, None)
        self._closing = [other for other in self._closing if other.is_alive]
        if sender is not None:
            sender.close()
            self._closing.append(sender)

    def close_all(self) -> None:
        """End every thread, and wait up to two seconds for each of them."""
        for broker_id in list(self._senders):
            self.close(broker_id)
        for sender in self._closing:
            sender.join(_CLOSE_WAIT_S)


@dataclass(frozen=True, slots=True)
class _Call:
    broker: LiveBroker
    request: ControlRequest
    timeout_ms: int
    on_done: OnDone


class _Sender:
    """The thread and the connection of one broker."""

    def __init__(
        self,
        broker_id: int,
        post: Post,
        metadata: "_MetadataCache",
        tls: TlsCredentials | None,
        on_channel: Callable[[LiveBroker, str, Any], None],
    ) -> None:
        self._post = post
        self._tls = tls
        self._on_channel = on_channel
        self._broker_epoch = -1
        self._metadata = metadata
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._address = ""
        self._channel: Any = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"control-to-{broker_id}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def put(self, call: _Call) -> None:
        self._calls.put(call)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            channel, self._channel = self._channel, None
        self._calls.put(None)
        if channel is not None:
            channel.close()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            self._finish(call, self._answer(call))

    def _finish(self, call: _Call, answer: ControlResponse | Exception) -> None:
        self._post(lambda: call.on_done(answer))

    def _answer(self, call: _Call) -> ControlResponse | Exception:
        try:
            channel = self._channel_to(call.broker)
            return _send(channel, call.request, call.timeout_ms / 1000, self._metadata)
        except grpc.RpcError as failure:
            return from_rpc_error(failure)
        except PacelineError as failure:
            return failure
        except Exception as failure:
            # Also raised when the channel is closed. The channel manager retries unless the broker was removed.
            if not self._closed:
                LOG.exception("control request failed: broker=%d", call.broker.broker_id)
            return failure

    def _channel_to(self, broker: LiveBroker) -> Any:
        endpoint = broker.endpoint(CONTROL)
        if endpoint is None:
            raise BrokerNotAvailableError(f"broker {broker.broker_id} has no {CONTROL} listener")
        with self._lock:
            if self._closed:
                raise BrokerNotAvailableError(f"the channel of broker {broker.broker_id} is closed")
            if self._channel is None or (self._address, self._broker_epoch) != (endpoint.address, broker.broker_epoch):
                if self._channel is not None:
                    self._channel.close()
                self._channel = open_channel(
                    endpoint.address, CONTROL_MAX_MESSAGE_BYTES, own_connection=True, tls=self._tls
                )
                self._address, self._broker_epoch = endpoint.address, broker.broker_epoch
                self._on_channel(broker, endpoint.address, self._channel)
            return self._channel


def _send(channel: Any, request: ControlRequest, timeout_s: float, metadata: "_MetadataCache") -> ControlResponse:
    stub = replica_manager_service_pb2_grpc.ReplicaManagerServiceStub(channel)
    response: Any
    if isinstance(request, LeaderAndIsrRequest):
        response = stub.LeaderAndIsr(control.leader_and_isr_to_proto(request), timeout=timeout_s)
    elif isinstance(request, StopReplicaRequest):
        response = stub.StopReplica(control.stop_replica_to_proto(request), timeout=timeout_s)
    else:
        response = stub.UpdateMetadata(metadata.to_proto(request), timeout=timeout_s)
    return control.control_response_from_proto(response)


class _MetadataCache:
    """Caches the latest protobuf message, because all brokers receive the same metadata with different stamps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: UpdateMetadataRequest | None = None
        self._message: pb.UpdateMetadataRequest | None = None

    def to_proto(self, request: UpdateMetadataRequest) -> pb.UpdateMetadataRequest:
        """Return the protobuf message of a request, with the stamp of the request."""
        with self._lock:
            of = self._of
            same = of is not None and (
                of.partitions is request.partitions
                and of.live_brokers is request.live_brokers
                and of.controller_endpoints is request.controller_endpoints
                and of.sequence == request.sequence
            )
            if not same or self._message is None:
                self._of, self._message = request, control.update_metadata_to_proto(request)
            message = pb.UpdateMetadataRequest()
            message.CopyFrom(self._message)
        message.stamp.CopyFrom(message_of(pb.ControllerStamp, request.stamp))
        return message
