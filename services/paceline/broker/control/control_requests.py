"""`ControlRequests`: apply LeaderAndIsr, StopReplica and UpdateMetadata of a controller confirmed by ZooKeeper.

Source: docs/protocol/replication.md#leaderandisr-answers and the rules after it.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from paceline.broker.control.admission import LeaderAndIsrAdmission
from paceline.broker.control.deleted_replicas import DeletedReplicas
from paceline.broker.control.leader_and_isr import LeaderAndIsrHandler
from paceline.broker.control.leader_epoch_fence import EpochsRead, LeaderEpochFence
from paceline.broker.control.request_fence import ControlRequestDeferredError, RequestFence
from paceline.broker.control.request_reports import request_reports
from paceline.broker.control.stop_replica import StopReplicaHandler
from paceline.broker.control.stray_logs import set_strays_aside
from paceline.broker.partition.partition import Partition
from paceline.broker.recipes import read_controller_epoch, read_leader_epochs
from paceline.broker.replica_manager import ReplicaManager
from paceline.coordination.flow import FlowRun
from paceline.coordination.interface import ZooKeeper
from paceline.model.control import (
    ControllerStamp,
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChange


class ControlListener(Protocol):
    """Receives what a controller decides."""

    def request_accepted(self, stamp: ControllerStamp) -> None:
        """A request has passed the fence, and is about to be applied."""

    def request_refused(self, cause: str) -> None:
        """A request, controller epoch or leader epoch was refused; ``cause`` is a sentence."""

    def request_answered(self, change: StateChange) -> None:
        """Report the answer to a request about a partition that a watcher names."""

    def leadership_changed(self, leaders: Sequence[Partition], others: Sequence[TopicPartition]) -> None:
        """See `LeadershipListener`; called at the end of each LeaderAndIsr and StopReplica."""

    def partitions_deleted(self, topic_partitions: Sequence[TopicPartition]) -> None:
        """An UpdateMetadata shows that these partitions are deleted."""


class ControlRequests:
    """Applies a controller's decisions to the hosted partitions, or refuses them."""

    def __init__(
        self,
        manager: ReplicaManager,
        zookeeper: ZooKeeper,
        listener: ControlListener,
        watched: Collection[TopicPartition],
    ) -> None:
        """Create the handler.

        Args:
            manager: the hosted partitions.
            zookeeper: confirms controller epochs and leader epochs.
            listener: receives what the controller decides.
            watched: partitions whose requests are reported; may change at any time.
        """
        self._watched = watched
        self._manager = manager
        self._zookeeper = zookeeper
        self._scheduler = manager.hosted.scheduler
        self._listener = listener
        self.request_fence = RequestFence(
            self._read_controller_epoch,
            lambda epoch: listener.request_refused(f"controller epoch {epoch} is not in ZooKeeper"),
        )
        self._leader_epochs = LeaderEpochFence(self._read_leader_epochs)
        deleted = DeletedReplicas()
        admission = LeaderAndIsrAdmission(manager, self._leader_epochs, deleted, listener.request_refused)
        self._leader_and_isr = LeaderAndIsrHandler(manager, admission, listener.leadership_changed)
        self._stop_replica = StopReplicaHandler(manager, deleted, listener.leadership_changed)

    def handle(self, request: ControlRequest) -> ControlResponse:
        """Apply a controller's decision, or refuse it because of its epochs.

        Raises:
            ControlRequestDeferredError: ZooKeeper must confirm an epoch first; the controller retries.
        """
        if not self._watched:
            return self._handle(request)
        try:
            response = self._handle(request)
        except ControlRequestDeferredError as error:
            self._report(request, ControlResponse(error.code))
            raise
        self._report(request, response)
        return response

    def _report(self, request: ControlRequest, response: ControlResponse) -> None:
        confirmed_epoch = self.request_fence.confirmed_epoch
        for change in request_reports(request, response, self._watched, self._manager.hosted, confirmed_epoch):
            self._listener.request_answered(change)

    def _handle(self, request: ControlRequest) -> ControlResponse:
        refusal = self.request_fence.check(request.stamp, self._manager.hosted.contact.broker_epoch)
        if refusal is not ErrorCode.NONE:
            self._listener.request_refused(f"{type(request).__name__} of {request.stamp}: {refusal.name}")
            return _refused(request, refusal)
        self._listener.request_accepted(request.stamp)
        if isinstance(request, LeaderAndIsrRequest):
            return self._leader_and_isr.apply(request)
        if isinstance(request, StopReplicaRequest):
            return self._stop_replica.apply(request)
        return self._update_metadata(request)

    def when_epochs_read(self, on_read: Callable[[], None]) -> None:
        """Call ``on_read`` when ZooKeeper has answered the pending look-up, at once without a look-up."""
        self.request_fence.when_read(lambda: self._leader_epochs.when_read(on_read))

    def _update_metadata(self, request: UpdateMetadataRequest) -> ControlResponse:
        """Replace the metadata cache, unless newer metadata of this controller was already applied."""
        if self._manager.hosted.metadata.is_overtaken(request):
            return ControlResponse()
        self._listener.partitions_deleted(self._manager.hosted.metadata.update(request))
        set_strays_aside(self._manager, request)
        self._manager.storage.damaged_logs.metadata_changed()
        return ControlResponse()

    def _read_controller_epoch(self, on_read: Callable[[int | None], None]) -> None:
        FlowRun(
            read_controller_epoch(), self._zookeeper, self._scheduler, on_read, lambda _error: on_read(None)
        ).start()

    def _read_leader_epochs(self, wanted: Collection[TopicPartition], on_read: EpochsRead) -> None:
        flow = read_leader_epochs(tuple(wanted))
        FlowRun(flow, self._zookeeper, self._scheduler, on_read, lambda _error: on_read(None)).start()


def _refused(request: ControlRequest, error: ErrorCode) -> ControlResponse:
    """Refuse a request; a stale LeaderAndIsr also has an error per partition, as in Kafka."""
    if isinstance(request, LeaderAndIsrRequest) and error is ErrorCode.STALE_CONTROLLER_EPOCH:
        return ControlResponse(error, {state.topic_partition: error for state in request.partitions})
    return ControlResponse(error)
