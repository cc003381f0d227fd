"""Services for followers and the controller: ReplicationService on the event loop, ReplicaManagerService on threads."""

import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import grpc

from paceline.broker.control.request_fence import ControlRequestDeferredError
from paceline.broker.service.log_servicer import answer_of
from paceline.broker.service.node_handle import NodeHandle
from paceline.internal.v1 import replica_manager_service_pb2 as control_pb
from paceline.internal.v1 import replica_manager_service_pb2_grpc
from paceline.internal.v1 import replication_service_pb2 as pb
from paceline.model.control import ControlRequest, ControlResponse
from paceline.model.identifiers import TopicPartition
from paceline.model.replica_fetch import ReplicaFetchResponse
from paceline.rpc import wire
from paceline.rpc.admission.message_limits import MAX_INTERNAL_FIELDS, parsed
from paceline.rpc.convert import control, log_dirs, offsets, replica
from paceline.rpc.event_loop import Post, run_on_loop
from paceline.rpc.server import unary
from paceline.rpc.streams.stream_server import stream_handler

T = TypeVar("T")

_CONFIRMATION_TIMEOUT_S: Final = 0.25
"""Longest wait of a control thread for ZooKeeper; after this time the request fails, and the controller retries it."""

REPLICATION_SERVICE: Final = "paceline.internal.v1.ReplicationService"
CONTROL_TIMEOUT_S: Final = 30.0
"""Longest wait for the event loop, equal to the controller's default deadline."""


class ReplicationServicer:
    """Serves followers; batches bypass the protobuf library (`rpc.wire`)."""

    def __init__(self, core: NodeHandle) -> None:
        self._core = core

    def add_to(self, server: Any) -> None:
        """Register every method of ReplicationService with a server."""
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(REPLICATION_SERVICE, self.handlers()),))

    def handlers(self) -> dict[str, Any]:
        """Return the method handlers by name."""
        return {
            "Fetch": grpc.unary_unary_rpc_method_handler(self.fetch),
            "FetchStream": stream_handler(self.fetch),
            "OffsetsForLeaderEpoch": unary(
                self.offsets_for_leader_epoch, pb.OffsetsForLeaderEpochRequest, MAX_INTERNAL_FIELDS
            ),
        }

    async def fetch(self, request: bytes, context: Any) -> bytes:
        """Read batches for a follower."""
        core = self._core.get()
        wanted = replica.replica_fetch_from_proto(parsed(pb.FetchRequest, request, MAX_INTERNAL_FIELDS))
        response: ReplicaFetchResponse = await answer_of(
            lambda reply: core.handle_replica_fetch(wanted, reply), wanted.max_wait_ms
        )
        return wire.replica_fetch_response(response)

    async def offsets_for_leader_epoch(
        self, request: pb.OffsetsForLeaderEpochRequest, context: Any
    ) -> pb.OffsetsForLeaderEpochResponse:
        """Return the end offsets of leader epochs to a follower."""
        _, queries = replica.replica_epochs_from_proto(request)
        answers = self._core.get().offsets_for_leader_epoch(queries)
        return pb.OffsetsForLeaderEpochResponse(
            partitions=[offsets.epoch_answer_to_proto(answer) for answer in answers]
        )


class ReplicaManagerServicer(replica_manager_service_pb2_grpc.ReplicaManagerServiceServicer):
    """Receives control requests on its own threads, so that a busy data path does not delay them.

    The request is parsed on the thread and applied on the event loop, in the order of arrival.
    """

    def __init__(self, core: NodeHandle, post: Post) -> None:
        self._core = core
        self._post = post

    def LeaderAndIsr(self, request: control_pb.LeaderAndIsrRequest, context: Any) -> control_pb.LeaderAndIsrResponse:  # noqa: N802
        """Make the broker leader or follower of partitions."""
        return control.leader_and_isr_response_to_proto(
            self._carry_out(control.leader_and_isr_from_proto(request), context)
        )

    def StopReplica(self, request: control_pb.StopReplicaRequest, context: Any) -> control_pb.StopReplicaResponse:  # noqa: N802
        """Stop replicas."""
        return control.stop_replica_response_to_proto(
            self._carry_out(control.stop_replica_from_proto(request), context)
        )

    def UpdateMetadata(  # noqa: N802
        self, request: control_pb.UpdateMetadataRequest, context: Any
    ) -> control_pb.UpdateMetadataResponse:
        """Refresh the metadata cache."""
        return control.update_metadata_response_to_proto(
            self._carry_out(control.update_metadata_from_proto(request), context)
        )

    def DescribeLogDirs(  # noqa: N802
        self, request: control_pb.DescribeLogDirsRequest, context: Any
    ) -> control_pb.DescribeLogDirsResponse:
        """Describe the log directories."""
        wanted = [TopicPartition(one.topic, one.partition) for one in request.partitions] or None
        views = self._on_loop(lambda: self._core.get().describe_log_dirs(wanted), context)
        return control_pb.DescribeLogDirsResponse(log_dirs=log_dirs.log_dirs_to_proto(views))

    def AlterReplicaLogDirs(  # noqa: N802
        self, request: control_pb.AlterReplicaLogDirsRequest, context: Any
    ) -> control_pb.AlterReplicaLogDirsResponse:
        """Assign replicas to log directories."""
        requested = log_dirs.replica_log_dirs_from_proto(request.replicas)
        errors = self._on_loop(lambda: self._core.get().alter_replica_log_dirs(requested), context)
        return control_pb.AlterReplicaLogDirsResponse(
            results=log_dirs.log_dir_results_to_proto(request.replicas, errors)
        )

    def RetryLogDir(self, request: control_pb.RetryLogDirRequest, context: Any) -> control_pb.RetryLogDirResponse:  # noqa: N802
        """Begin to take a failed log directory back, or continue; a thread of CONTROL must not wait for a disk."""
        loading = self._on_loop(lambda: self._core.get().retry_log_dir(request.path, request.is_repeated), context)
        return control_pb.RetryLogDirResponse(loading=loading)

    def _carry_out(self, request: ControlRequest, context: Any) -> ControlResponse:
        """Apply a control request; if ZooKeeper must confirm an epoch first, wait briefly and apply it once more.

        Without this wait, a failover would take until the controller's retry.
        """
        try:
            return self._on_loop(lambda: self._core.get().handle_control(request), context)
        except ControlRequestDeferredError:
            read = threading.Event()
            self._on_loop(lambda: self._core.get().when_epochs_read(read.set), context)
            if not read.wait(min(_CONFIRMATION_TIMEOUT_S, _seconds_left(context))):
                raise
        return self._on_loop(lambda: self._core.get().handle_control(request), context)

    def _on_loop(self, work: Callable[[], T], context: Any) -> T:
        return run_on_loop(self._post, work, _seconds_left(context))


def _seconds_left(context: Any) -> float:
    remaining: float | None = context.time_remaining()
    return CONTROL_TIMEOUT_S if remaining is None else min(remaining, CONTROL_TIMEOUT_S)
