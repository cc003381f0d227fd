"""`ControlRequests`: apply LeaderAndIsr, StopReplica and UpdateMetadata of a controller confirmed by ZooKeeper.

Source: docs/protocol/replication.md#leaderandisr-answers and the rules after it.
"""

from collections.abc import Callable, Collection, Sequence

from paceline.broker.control.admission import LeaderAndIsrAdmission
from paceline.broker.control.deleted_replicas import DeletedReplicas
from paceline.broker.control.leader_and_isr import LeaderAndIsrHandler, LeadershipListener
from paceline.broker.control.leader_epoch_fence import EpochsRead, LeaderEpochFence
from paceline.broker.control.request_fence import RequestFence
from paceline.broker.control.stop_replica import StopReplicaHandler
from paceline.broker.partition.replica_manager import ReplicaManager
from paceline.broker.recipes import read_controller_epoch, read_leader_epochs
from paceline.broker.storage.stray_logs import set_strays_aside
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


class ControlRequests:
    """Applies a controller's decisions to the hosted partitions, or refuses them."""

    def __init__(
        self,
        manager: ReplicaManager,
        zookeeper: ZooKeeper,
        on_accepted: Callable[[ControllerStamp], None],
        on_refused: Callable[[str], None],
        on_leadership_change: LeadershipListener,
        on_partitions_deleted: Callable[[Sequence[TopicPartition]], None],
    ) -> None:
        """Create the handler.

        Args:
            manager: the hosted partitions.
            zookeeper: confirms controller epochs and leader epochs.
            on_accepted: called with the stamp of each request that passed the fence, before the request is applied.
            on_refused: gets a sentence about each refused request, controller epoch or leader epoch.
            on_leadership_change: called at the end of each LeaderAndIsr and StopReplica.
            on_partitions_deleted: gets the partitions that an UpdateMetadata shows to be deleted.
        """
        self._manager = manager
        self._zookeeper = zookeeper
        self._scheduler = manager.scheduler
        self._on_accepted = on_accepted
        self._on_refused = on_refused
        self._on_partitions_deleted = on_partitions_deleted
        self.request_fence = RequestFence(
            self._read_controller_epoch, lambda epoch: on_refused(f"controller epoch {epoch} is not in ZooKeeper")
        )
        self._leader_epochs = LeaderEpochFence(self._read_leader_epochs)
        deleted = DeletedReplicas()
        admission = LeaderAndIsrAdmission(manager, self._leader_epochs, deleted, on_refused)
        self._leader_and_isr = LeaderAndIsrHandler(manager, admission, on_leadership_change)
        self._stop_replica = StopReplicaHandler(manager, deleted, on_leadership_change)

    def handle(self, request: ControlRequest) -> ControlResponse:
        """Apply a controller's decision, or refuse it because of its epochs.

        Raises:
            ControlRequestDeferredError: ZooKeeper must confirm an epoch first; the controller retries.
        """
        refusal = self.request_fence.check(request.stamp, self._manager.broker_epoch)
        if refusal is not ErrorCode.NONE:
            self._on_refused(f"{type(request).__name__} of {request.stamp}: {refusal.name}")
            return _refused(request, refusal)
        self._on_accepted(request.stamp)
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
        if self._manager.metadata.is_overtaken(request):
            return ControlResponse()
        self._on_partitions_deleted(self._manager.metadata.update(request))
        set_strays_aside(self._manager, request)
        self._manager.damaged_logs.metadata_changed()
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
