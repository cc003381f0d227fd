"""The cores' calls to other processes, over the simulated network.

In a share of the runs every message between nodes is encoded with the real converters, transferred as bytes and
decoded, so that a field missing in a proto is detected.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from paceline.controller.admin.admin_requests import CreateTopics
from paceline.controller.errors import ActiveControllerDeadError
from paceline.controller.events import ControlledShutdown
from paceline.internal.v1 import controller_service_pb2 as controller_pb
from paceline.internal.v1 import replica_manager_service_pb2 as control_pb
from paceline.internal.v1 import replication_service_pb2 as replica_pb
from paceline.model.admin import NewTopic
from paceline.model.control import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ControlRequest,
    ControlResponse,
    Endpoint,
    InternalTopic,
    LeaderAndIsrRequest,
    LiveBroker,
    StopReplicaRequest,
)
from paceline.model.errors import InvalidRequestError, NotControllerError
from paceline.model.replica_fetch import ReplicaFetchRequest, ReplicaFetchResponse
from paceline.model.standby import StateUpdate
from paceline.rpc import wire
from paceline.rpc.convert import control, replica, standby
from paceline.rpc.convert.common import message_of
from paceline.rpc.errors import ConnectionBrokenError
from tests.simulation.network import ConnectionClosed

if TYPE_CHECKING:
    from tests.simulation.machines import BrokerLife, ControllerLife


class SimulatedControlTransport:
    """Control requests of one controller process."""

    def __init__(self, life: "ControllerLife") -> None:
        self._life = life

    def send(
        self,
        broker: LiveBroker,
        request: ControlRequest,
        timeout_ms: int,
        on_done: Callable[[ControlResponse | Exception], None],
    ) -> None:
        """Send a request to the broker's CONTROL endpoint."""
        life = self._life
        cluster = life.cluster
        endpoint = broker.endpoint("CONTROL")
        if endpoint is None:
            error = InvalidRequestError(f"broker {broker.broker_id} has no CONTROL listener")
            life.scheduler.call_soon(lambda: on_done(error))
            return
        cluster.checks.control_sent(life, broker, request)
        encoded = _encode_control(request) if cluster.profile.protobuf else None

        def handle(reply: Callable[[ControlResponse | Exception], None]) -> None:
            target = cluster.broker_named(endpoint.host)
            if target is None:
                return
            try:
                received = request if encoded is None else _decode_control(request, encoded)
                answer = cluster.checks.deliver_control(life, target, received)
            except Exception as error:
                reply(cluster.checks.expected_error(target.name, error))
                return
            reply(answer if encoded is None else _recode_response(request, answer))

        cluster.network.call(life.peer, endpoint.host, handle, timeout_ms, on_done)

    def close(self, broker_id: int) -> None:
        """Do nothing: a response in flight reaches a closed channel, which ignores it."""


STREAM_TIMEOUT_MS = 1_000
"""A stream breaks when a message has not arrived after this time."""
MAX_WAITING_UPDATES = 100


class SimulatedStandbyTransport:
    """Streams of controller state to one controller process, in order; the first loss ends a stream."""

    def __init__(self, life: "ControllerLife") -> None:
        self._life = life
        self._streams: dict[str, _FollowedStream] = {}

    def refused_by(self, name: str) -> None:
        """End the stream that follows a controller whose process is dead."""
        stream = self._streams.pop(name, None)
        if stream is not None:
            stream.end(ActiveControllerDeadError(f"{name} refused two connects"))

    def follow(
        self,
        controller: Endpoint,
        standby_id: int,
        on_update: Callable[[StateUpdate], None],
        on_end: Callable[[Exception | None], None],
    ) -> Callable[[], None]:
        """Open a stream."""
        life = self._life
        stream = self._streams[controller.host] = _FollowedStream(life, on_update, on_end)

        def handle(reply: Callable[[Exception | None], None]) -> None:
            target = life.cluster.controller_named(controller.host)
            if target is None:
                return
            try:
                target.node.follow_state(standby_id, _StreamSink(target, stream))
            except NotControllerError as error:
                reply(error)
            else:
                reply(None)

        def opened(answer: Exception | None) -> None:
            if answer is not None:
                stream.end(answer)

        life.cluster.network.call(life.peer, controller.host, handle, STREAM_TIMEOUT_MS, opened)
        return stream.close


class _FollowedStream:
    """The receiving end of a stream."""

    def __init__(
        self,
        life: "ControllerLife",
        on_update: Callable[[StateUpdate], None],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        self.life = life
        self.closed = False
        self._on_update = on_update
        self._on_end = on_end

    def deliver(self, update: StateUpdate | None) -> None:
        """Deliver a message; None ends the stream."""
        if update is None:
            self.end(None)
        elif not self.closed:
            self._on_update(update)

    def end(self, error: Exception | None) -> None:
        if not self.closed:
            self.closed = True
            self._on_end(error)

    def close(self) -> None:
        self.closed = True


class _StreamSink:
    """The sending end of a stream; sends one message at a time."""

    def __init__(self, sender: "ControllerLife", stream: _FollowedStream) -> None:
        self._sender = sender
        self._stream = stream
        self._waiting: deque[StateUpdate | None] = deque()
        self._sending = False
        self._broken = False

    def put(self, update: StateUpdate) -> bool:
        if self._broken or len(self._waiting) >= MAX_WAITING_UPDATES:
            return False
        self._waiting.append(update)
        self._send_next()
        return True

    def end(self) -> None:
        self._waiting.append(None)
        self._send_next()

    def _send_next(self) -> None:
        if self._sending or self._broken or not self._waiting:
            return
        self._sending = True
        update = self._waiting.popleft()
        network, receiver = self._sender.cluster.network, self._stream.life
        if update is not None and self._sender.cluster.profile.protobuf:
            message = standby.state_update_to_proto(update).SerializeToString()
            update = standby.state_update_from_proto(controller_pb.FollowStateResponse.FromString(message))

        def handle(reply: Callable[[bool | Exception], None]) -> None:
            if network.peers.get(receiver.name) is not receiver.peer or self._stream.closed:
                reply(False)
                return
            self._stream.deliver(update)
            reply(True)

        def arrived(answer: bool | Exception) -> None:
            self._sending = False
            self._broken = answer is not True
            self._send_next()

        network.call(self._sender.peer, receiver.name, handle, STREAM_TIMEOUT_MS, arrived)


class SimulatedBrokerTransport:
    """Calls of one broker process."""

    def __init__(self, life: "BrokerLife") -> None:
        self._life = life

    def replica_fetch(
        self,
        leader: LiveBroker,
        fetcher_id: int,
        request: ReplicaFetchRequest,
        timeout_ms: int,
        on_done: Callable[[ReplicaFetchResponse | Exception], None],
    ) -> None:
        """Fetch from a leader."""
        life = self._life
        cluster = life.cluster
        endpoint = leader.endpoint("REPLICATION")
        assert endpoint is not None
        encoded = replica.replica_fetch_to_proto(request).SerializeToString() if cluster.profile.protobuf else None

        def handle(reply: Callable[[ReplicaFetchResponse | Exception], None]) -> None:
            target = cluster.broker_named(endpoint.host)
            if target is None:
                return
            wanted = request
            if encoded is not None:
                wanted = replica.replica_fetch_from_proto(replica_pb.FetchRequest.FromString(encoded))

            def answer(response: ReplicaFetchResponse) -> None:
                if encoded is not None:
                    response = wire.parse_replica_fetch_response(wire.replica_fetch_response(response))
                reply(response)

            target.node.handle_replica_fetch(wanted, answer)

        def done(answer: ReplicaFetchResponse | Exception) -> None:
            on_done(ConnectionBrokenError(str(answer)) if isinstance(answer, ConnectionClosed) else answer)

        target = cluster.network.replication_listener(endpoint.host)
        cluster.network.call(life.peer, target, handle, timeout_ms, done)

    def close_fetcher(self, leader_id: int, fetcher_id: int) -> None:
        """Do nothing: a response in flight reaches a closed fetcher, which ignores it."""

    def controlled_shutdown(
        self,
        controller: Endpoint,
        request: ControlledShutdownRequest,
        timeout_ms: int,
        on_done: Callable[[ControlledShutdownResponse | Exception], None],
    ) -> None:
        """Request a controlled shutdown from a controller."""
        life = self._life
        encoded = None
        if life.cluster.profile.protobuf:
            encoded = message_of(controller_pb.ControlledShutdownRequest, request).SerializeToString()

        def handle(reply: Callable[[ControlledShutdownResponse | Exception], None]) -> None:
            target = life.cluster.controller_named(controller.host)
            if target is None:
                return
            asked = request
            if encoded is not None:
                message = controller_pb.ControlledShutdownRequest.FromString(encoded)
                asked = control.controlled_shutdown_from_proto(message)
            target.node.ask(ControlledShutdown(asked, reply=reply))

        life.cluster.network.call(life.peer, controller.host, handle, timeout_ms, on_done)

    def create_internal_topic(
        self,
        controller: Endpoint,
        topic: InternalTopic,
        timeout_ms: int,
        on_done: Callable[[Exception | None], None],
    ) -> None:
        """Request the creation of an internal topic from a controller."""
        life = self._life
        asked = control.internal_topic_from_proto(message_of(controller_pb.CreateInternalTopicRequest, topic))
        new = NewTopic(asked.name, asked.partitions, asked.replication_factor, configs=asked.configs)

        def handle(reply: Callable[[Exception | None], None]) -> None:
            target = life.cluster.controller_named(controller.host)
            if target is not None:
                target.node.ask(
                    CreateTopics(
                        (new,),
                        1_000,
                        False,
                        internal=True,
                        reply=lambda answer: reply(answer if isinstance(answer, Exception) else answer[0].error),
                    )
                )

        life.cluster.network.call(life.peer, controller.host, handle, timeout_ms, on_done)

    def broker_heartbeat(
        self,
        controller: Endpoint,
        request: BrokerHeartbeatRequest,
        timeout_ms: int,
        on_done: Callable[[BrokerHeartbeatResponse | Exception], None],
    ) -> None:
        """Send a heartbeat to a controller."""
        life = self._life
        encoded = None
        if life.cluster.profile.protobuf:
            encoded = message_of(controller_pb.BrokerHeartbeatRequest, request).SerializeToString()

        def handle(reply: Callable[[BrokerHeartbeatResponse | Exception], None]) -> None:
            target = life.cluster.controller_named(controller.host)
            if target is None:
                return
            asked = request
            if encoded is not None:
                asked = control.broker_heartbeat_from_proto(controller_pb.BrokerHeartbeatRequest.FromString(encoded))
            try:
                answer = target.node.broker_heartbeat(asked)
            except NotControllerError as error:
                reply(error)
                return
            if encoded is not None:
                message = control.broker_heartbeat_response_to_proto(answer).SerializeToString()
                answer = control.broker_heartbeat_response_from_proto(
                    controller_pb.BrokerHeartbeatResponse.FromString(message)
                )
            reply(answer)

        life.cluster.network.call(life.peer, controller.host, handle, timeout_ms, on_done)


def _encode_control(request: ControlRequest) -> bytes:
    if isinstance(request, LeaderAndIsrRequest):
        return control.leader_and_isr_to_proto(request).SerializeToString()
    if isinstance(request, StopReplicaRequest):
        return control.stop_replica_to_proto(request).SerializeToString()
    return control.update_metadata_to_proto(request).SerializeToString()


def _decode_control(request: ControlRequest, encoded: bytes) -> ControlRequest:
    if isinstance(request, LeaderAndIsrRequest):
        return control.leader_and_isr_from_proto(control_pb.LeaderAndIsrRequest.FromString(encoded))
    if isinstance(request, StopReplicaRequest):
        return control.stop_replica_from_proto(control_pb.StopReplicaRequest.FromString(encoded))
    return control.update_metadata_from_proto(control_pb.UpdateMetadataRequest.FromString(encoded))


def _recode_response(request: ControlRequest, response: ControlResponse) -> ControlResponse:
    if isinstance(request, LeaderAndIsrRequest):
        encoded = control.leader_and_isr_response_to_proto(response).SerializeToString()
        return control.control_response_from_proto(control_pb.LeaderAndIsrResponse.FromString(encoded))
    if isinstance(request, StopReplicaRequest):
        encoded = control.stop_replica_response_to_proto(response).SerializeToString()
        return control.control_response_from_proto(control_pb.StopReplicaResponse.FromString(encoded))
    encoded = control.update_metadata_response_to_proto(response).SerializeToString()
    return control.control_response_from_proto(control_pb.UpdateMetadataResponse.FromString(encoded))
