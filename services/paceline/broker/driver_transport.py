"""Calls from a broker to leaders and to the controller: one real thread and one connection per replica fetcher.

A fetcher's thread sends the request, waits, and parses the answer, so that only finished values cross to the event
loop, once per answer.
"""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from paceline.internal.v1 import controller_service_pb2_grpc, replication_service_pb2_grpc
from paceline.internal.v1 import replication_service_pb2 as replica_pb
from paceline.model.client_io import EpochAnswer, EpochQuery
from paceline.model.control import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    Endpoint,
    LiveBroker,
)
from paceline.model.errors import BrokerNotAvailableError, InvalidRequestError, PacelineError
from paceline.model.replica_fetch import ReplicaFetchRequest, ReplicaFetchResponse
from paceline.rpc import convert, wire
from paceline.rpc.channels import CONTROL_MAX_MESSAGE_BYTES, REPLICATION_MAX_MESSAGE_BYTES, open_channel
from paceline.rpc.errors import from_rpc_error

_log = logging.getLogger("paceline.broker.transport")

Post = Callable[[Callable[[], None]], None]
T = TypeVar("T")

REPLICATION = "REPLICATION"
_FETCH = "/paceline.internal.v1.ReplicationService/Fetch"
_CLOSE_WAIT_S = 2.0


class GrpcBrokerTransport:
    """Implements `broker.ports.BrokerTransport`; its methods are called on the event loop."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._fetchers: dict[tuple[int, int], _Caller] = {}
        self._controllers: dict[str, _Caller] = {}
        self._heart: _Caller | None = None

    def replica_fetch(
        self,
        leader: LiveBroker,
        fetcher_id: int,
        request: ReplicaFetchRequest,
        timeout_ms: int,
        on_done: Callable[[ReplicaFetchResponse | Exception], None],
    ) -> None:
        """Fetch from a leader over the fetcher's own connection."""

        def call(channel: Any) -> ReplicaFetchResponse:
            # The answer comes as bytes: the batches in it are cut out rather than parsed.
            fetch = channel.unary_unary(_FETCH, request_serializer=replica_pb.FetchRequest.SerializeToString)
            answer: bytes = fetch(convert.replica_fetch_to_proto(request), timeout=timeout_ms / 1000)
            return wire.parse_replica_fetch_response(answer)

        self._call_leader(leader, fetcher_id, call, on_done)

    def offsets_for_leader_epoch(
        self,
        leader: LiveBroker,
        fetcher_id: int,
        replica_id: int,
        queries: list[EpochQuery],
        timeout_ms: int,
        on_done: Callable[[list[EpochAnswer] | Exception], None],
    ) -> None:
        """Ask a leader where epochs ended."""

        def call(channel: Any) -> list[EpochAnswer]:
            stub = replication_service_pb2_grpc.ReplicationServiceStub(channel)
            message = convert.replica_epochs_to_proto(replica_id, queries)
            response = stub.OffsetsForLeaderEpoch(message, timeout=timeout_ms / 1000)
            return [convert.epoch_answer_from_proto(one) for one in response.partitions]

        self._call_leader(leader, fetcher_id, call, on_done)

    def close_fetcher(self, leader_id: int, fetcher_id: int) -> None:
        """End the fetcher's thread and connection; a call in flight is cancelled."""
        fetcher = self._fetchers.pop((leader_id, fetcher_id), None)
        if fetcher is not None:
            fetcher.close()

    def controlled_shutdown(
        self,
        controller: Endpoint,
        request: ControlledShutdownRequest,
        timeout_ms: int,
        on_done: Callable[[ControlledShutdownResponse | Exception], None],
    ) -> None:
        """Ask a controller to take leadership away."""

        def call(channel: Any) -> ControlledShutdownResponse:
            stub = controller_service_pb2_grpc.ControllerServiceStub(channel)
            message = convert.controlled_shutdown_to_proto(request)
            return convert.controlled_shutdown_response_from_proto(
                stub.ControlledShutdown(message, timeout=timeout_ms / 1000)
            )

        caller = self._controllers.get(controller.address)
        if caller is None:
            caller = self._controllers[controller.address] = _Caller(
                "controlled-shutdown", controller.address, CONTROL_MAX_MESSAGE_BYTES, self._post
            )
        caller.submit(call, on_done)

    def broker_heartbeat(
        self,
        controller: Endpoint,
        request: BrokerHeartbeatRequest,
        timeout_ms: int,
        on_done: Callable[[BrokerHeartbeatResponse | Exception], None],
    ) -> None:
        """Renew the lease at a controller, over a connection of its own."""

        def call(channel: Any) -> BrokerHeartbeatResponse:
            stub = controller_service_pb2_grpc.ControllerServiceStub(channel)
            message = convert.broker_heartbeat_to_proto(request)
            return convert.broker_heartbeat_response_from_proto(
                stub.BrokerHeartbeat(message, timeout=timeout_ms / 1000)
            )

        if self._heart is not None and self._heart.address != controller.address:
            self._heart.close()
            self._heart = None
        if self._heart is None:
            self._heart = _Caller("heartbeat", controller.address, CONTROL_MAX_MESSAGE_BYTES, self._post)
        self._heart.submit(call, on_done)

    def close(self) -> None:
        """End every thread; waits a moment for those that are in a call."""
        callers = [*self._fetchers.values(), *self._controllers.values()]
        if self._heart is not None:
            callers.append(self._heart)
            self._heart = None
        self._fetchers.clear()
        self._controllers.clear()
        for caller in callers:
            caller.close()
        for caller in callers:
            caller.join(_CLOSE_WAIT_S)

    def _call_leader(
        self, leader: LiveBroker, fetcher_id: int, call: Callable[[Any], T], on_done: Callable[[T | Exception], None]
    ) -> None:
        endpoint = leader.endpoint(REPLICATION)
        if endpoint is None:
            error = InvalidRequestError(f"broker {leader.broker_id} has no {REPLICATION} listener")
            self._post(lambda: on_done(error))
            return
        key = (leader.broker_id, fetcher_id)
        fetcher = self._fetchers.get(key)
        if fetcher is not None and fetcher.address != endpoint.address:
            fetcher.close()
            fetcher = None
        if fetcher is None:
            name = f"fetcher-{leader.broker_id}-{fetcher_id}"
            fetcher = _Caller(name, endpoint.address, REPLICATION_MAX_MESSAGE_BYTES, self._post)
            self._fetchers[key] = fetcher
        fetcher.submit(call, on_done)


class _Caller:
    """A thread with a channel of its own that makes calls one after the other."""

    def __init__(self, name: str, address: str, max_message_bytes: int, post: Post) -> None:
        self.address = address
        self._post = post
        self._channel = open_channel(address, max_message_bytes, own_connection=True)
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[Any], T], on_done: Callable[[T | Exception], None]) -> None:
        """Make the call; its outcome is posted to the event loop exactly once."""
        self._calls.put(lambda: self._make(call, on_done))

    def close(self) -> None:
        """End the thread and the connection; calls in flight or queued end with an error."""
        self._closed = True
        self._calls.put(None)
        self._channel.close()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (step := self._calls.get()) is not None:
            step()

    def _make(self, call: Callable[[Any], T], on_done: Callable[[T | Exception], None]) -> None:
        outcome: T | Exception
        try:
            outcome = call(self._channel)
        except Exception as failure:
            outcome = self._error_of(failure)
        self._post(lambda: on_done(outcome))

    def _error_of(self, failure: Exception) -> PacelineError:
        if isinstance(failure, grpc.RpcError):
            return from_rpc_error(failure)
        if isinstance(failure, PacelineError):
            return failure
        if self._closed:  # grpc raises ValueError for a call on a closed channel
            return BrokerNotAvailableError(f"the connection to {self.address} was closed")
        _log.error("unexpected failure of a call to %s", self.address, exc_info=failure)
        return BrokerNotAvailableError(f"the call to {self.address} failed: {failure}")
