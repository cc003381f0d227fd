"""Check requests of controllers, their handling by brokers, and the fetch protocol between brokers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from paceline.broker.fetcher.fetch_state import FetchState
from paceline.broker.fetcher.replica_fetcher import Activity, ReplicaFetcher
from paceline.broker.metadata_cache import MetadataSnapshot
from paceline.broker.partition.isr_updates import IsrUpdates
from paceline.broker.partition.partition import Partition
from paceline.controller import failover
from paceline.controller.context import ControllerContext
from paceline.controller.standby import takeover
from paceline.controller.standby.takeover import StatesLoaded
from paceline.controller.zk_store import ZkStore
from paceline.coordination.flow import Flow
from paceline.model.control import (
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    LiveBroker,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import LEADER_DURING_DELETE, TopicPartition
from paceline.model.replica_fetch import ReplicaFetchResult
from tests.simulation.partition_record import PartitionRecords
from tests.simulation.verdicts import Verdicts

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster
    from tests.simulation.machines import BrokerLife, ControllerLife

_Hosted = dict[TopicPartition, tuple[str | None, int]]
"""Topic id and leader epoch of hosted partitions."""

_NOT_HOSTED: Final = (None, -1)


class ControlChecks:
    """K3 to K7, K13, R2 on the receiving side, R10 and R15."""

    def __init__(self, cluster: "SimulatedCluster", verdicts: Verdicts, records: PartitionRecords) -> None:
        self._cluster = cluster
        self._verdicts = verdicts
        self._records = records
        self._accepted_epochs: dict[BrokerLife, int] = {}
        self.fetched_in: dict[tuple[Partition, int], int] = {}
        """Leader epoch of the last recorded fetch, by partition object and replica."""

    # Sending

    def sent(self, life: "ControllerLife", broker: LiveBroker, request: ControlRequest) -> None:
        """Check a request that a controller sends."""
        node, stamp = life.node, request.stamp
        self._verdicts.exercise("K7")
        if not node.is_active or node.controller_epoch != stamp.controller_epoch:
            self._verdicts.fail(
                "K7",
                f"{life.name} sends {type(request).__name__} of epoch {stamp.controller_epoch} without being active",
            )
        if isinstance(request, LeaderAndIsrRequest | UpdateMetadataRequest):
            self._was_written(life, request)
        if isinstance(request, LeaderAndIsrRequest):
            led = next((state for state in request.partitions if state.leader == broker.broker_id), None)
            if led is not None:
                member = next((one for one in led.isr if one != led.leader), None)
                self._cluster.checks.places.reach("a leadership is announced", led.leader, member)

    def _was_written(self, life: "ControllerLife", request: LeaderAndIsrRequest | UpdateMetadataRequest) -> None:
        self._verdicts.exercise("K3", len(request.partitions))
        for state in request.partitions:
            if state.leader == LEADER_DURING_DELETE or state.topic_id is None:
                continue
            record = self._records.get(state.topic_id, state.topic_partition)
            if record.harmed:
                continue
            content = (state.leader, state.leader_epoch, state.isr)
            if record.history.get(state.zk_version) != content:
                self._verdicts.fail(
                    "K3",
                    f"{life.name} announces {record} {content} v{state.zk_version}, "
                    f"written was {record.history.get(state.zk_version)}",
                )

    # Receiving

    def deliver(self, sender: "ControllerLife", target: "BrokerLife", request: ControlRequest) -> ControlResponse:
        """Let a broker handle a request, and check its response and state."""
        node = target.node
        manager = node.replica_manager
        own_epoch = node.broker_epoch
        metadata = manager.hosted.metadata.snapshot
        hosted_before = {tp: (hosted.topic_id, hosted.leader_epoch) for tp, hosted in manager.hosted.online.items()}
        response = node.handle_control(request)
        accepted = response.error is ErrorCode.NONE
        if self._cluster.is_told:
            self._tell(sender, target, request, response)
        self._epochs(target, request, response, own_epoch)
        if accepted:
            self._no_step_back(target, request, hosted_before)
            if isinstance(request, StopReplicaRequest):
                self._stops_in_order(target, request, response, hosted_before)
        if manager.hosted.metadata.snapshot is not metadata:
            self._metadata(target, metadata, manager.hosted.metadata.snapshot)
        self.fetchers(target)
        return response

    def _tell(
        self, sender: "ControllerLife", target: "BrokerLife", request: ControlRequest, response: ControlResponse
    ) -> None:
        what = type(request).__name__.removesuffix("Request")
        errors = {str(tp): code.name for tp, code in response.partition_errors.items() if code}
        detail = ""
        if not isinstance(request, UpdateMetadataRequest):
            detail = ", ".join(
                f"{state.topic_partition} e{state.leader_epoch}"
                + (f" leader {state.leader}" if isinstance(request, LeaderAndIsrRequest) else "")  # type: ignore[union-attr]
                for state in request.partitions
            )
        self._cluster.note(
            target.name,
            f"gets {what} of {sender.name} epoch {request.stamp.controller_epoch} for {request.stamp.broker_epoch} "
            f"[{detail}]: {response.error.name} {errors or ''}",
        )

    def _epochs(self, target: "BrokerLife", request: ControlRequest, response: ControlResponse, own_epoch: int) -> None:
        verdicts, stamp = self._verdicts, request.stamp
        verdicts.exercise("K4")
        verdicts.exercise("K5")
        if response.error is ErrorCode.STALE_BROKER_EPOCH:
            if stamp.broker_epoch is not None and stamp.broker_epoch >= own_epoch:
                verdicts.fail("K5", f"{target.name} of {own_epoch} refuses a request for {stamp.broker_epoch}")
            return
        if response.error is not ErrorCode.NONE:
            return
        if own_epoch < 0:
            verdicts.fail("K5", f"{target.name} accepts a request for {stamp.broker_epoch} before it is registered")
        if stamp.broker_epoch is not None and -1 != stamp.broker_epoch < own_epoch:
            verdicts.fail("K5", f"{target.name} of {own_epoch} accepts a request for {stamp.broker_epoch}")
        highest = self._accepted_epochs.get(target, 0)
        if stamp.controller_epoch < highest:
            verdicts.fail("K4", f"{target.name} accepts controller epoch {stamp.controller_epoch} after {highest}")
        self._accepted_epochs[target] = max(highest, stamp.controller_epoch)

    def _stops_in_order(
        self, target: "BrokerLife", request: StopReplicaRequest, response: ControlResponse, before: _Hosted
    ) -> None:
        """Check that no StopReplica with an older leader epoch stops a replica (KAFKA-9539)."""
        for state in request.partitions:
            done = response.partition_errors.get(state.topic_partition, ErrorCode.NONE) is ErrorCode.NONE
            _, epoch = before.get(state.topic_partition, _NOT_HOSTED)
            if done and 0 <= state.leader_epoch < epoch:
                self._verdicts.fail(
                    "R2",
                    f"{target.name} stops {state.topic_partition} of epoch {epoch} for one of {state.leader_epoch}",
                )

    def _no_step_back(self, target: "BrokerLife", request: ControlRequest, before: _Hosted) -> None:
        partitions = target.node.replica_manager.hosted.online
        for state in request.partitions:
            hosted = partitions.get(state.topic_partition)
            topic_id, epoch = before.get(state.topic_partition, _NOT_HOSTED)
            if hosted is None or epoch < 0:
                continue
            if None not in (topic_id, hosted.topic_id) and topic_id != hosted.topic_id:
                continue  # A re-created topic has its own leader epochs.
            self._verdicts.exercise("R2")
            if hosted.leader_epoch < epoch:
                self._verdicts.fail(
                    "R2", f"{target.name} {state.topic_partition}: epoch {epoch} becomes {hosted.leader_epoch}"
                )

    def _metadata(self, target: "BrokerLife", before: MetadataSnapshot, after: MetadataSnapshot) -> None:
        self._verdicts.exercise("K6")
        registered = self._cluster.checks.zookeeper.registered
        if after.controller_epoch == before.controller_epoch:
            for broker_id, broker in before.brokers.items():
                if broker_id not in after.brokers and registered.get(broker_id) == broker.broker_epoch:
                    self._verdicts.fail("K6", f"{target.name} forgets broker {broker_id}, which is still registered")
        for topic, partitions in before.topics.items():
            now = after.topics.get(topic)
            if now is None or now is partitions:
                continue
            for index, old in partitions.items():
                new = now.get(index)
                if new is None or new is old or new.topic_id != old.topic_id:
                    continue
                if (new.leader_epoch, new.zk_version) < (old.leader_epoch, old.zk_version):
                    self._verdicts.fail(
                        "K6",
                        f"{target.name} {old.topic_partition}: ({old.leader_epoch}, {old.zk_version}) becomes "
                        f"({new.leader_epoch}, {new.zk_version})",
                    )

    def fetchers(self, life: "BrokerLife") -> None:
        """Check that no broker fetches a partition that it leads, and that no partition is fetched twice."""
        manager = life.node.replica_manager
        self._verdicts.exercise("R15")
        seen: dict[Any, int] = {}
        for fetcher in manager.fetchers.fetchers:
            for topic_partition, state in fetcher.states.items():
                if topic_partition in seen:
                    self._verdicts.fail("R15", f"{life.name} fetches {topic_partition} twice")
                seen[topic_partition] = fetcher.leader.broker_id
                hosted = state.partition
                if hosted.is_leader:
                    self._verdicts.fail("R15", f"{life.name} leads and fetches {topic_partition}")

    # Active controllers

    def event_handled(self, life: "ControllerLife", _name: str) -> None:
        """Check after each event that a controller that is not active has no cluster state in memory."""
        if life.node.is_active:
            return
        context = life.node._components.context
        self._verdicts.exercise("K7")
        if context.brokers or context.topics or context.leadership:
            self._verdicts.fail("K7", f"{life.name} is not active and still has the cluster state")

    def states_loaded(self, context: ControllerContext) -> None:
        """Check that the partition states of a new controller, read or copied as a standby, equal those of a full read.

        ZooKeeper may have newer states only from ISR writes of leaders that still have to notify the controller; a
        leader that has registered again since has lost its notifications.
        """
        if context.epoch != self._cluster.checks.zookeeper.controller_epoch:
            return  # Another controller was already elected, so this controller is fenced.
        for topic_partition in context.partitions():
            record = self._records.current(topic_partition)
            if record is None or record.harmed or record.topic_id != context.topic_ids.get(topic_partition.topic):
                continue
            known = context.leadership.get(topic_partition)
            if known is None or record.zk is None:
                self._verdicts.check("K13", known is record.zk, f"{record}: {known} is known of {record.zk}")
                continue
            decided = (known.leader, known.leader_epoch) == (record.zk.leader, record.zk.leader_epoch)
            written = record.history.get(known.zk_version) == (known.leader, known.leader_epoch, known.isr)
            self._verdicts.check("K13", decided and written, f"{record}: {known} is known of {record.zk}")
            leader = context.brokers.get(known.leader)
            for version in range(known.zk_version + 1, record.zk.zk_version + 1):
                if leader is not None and record.isr_written_in.get(version, -1) < leader.broker_epoch:
                    self._verdicts.fail(
                        "K13", f"{record}: {known} is known, no leader will notify of version {version}"
                    )

    def looked(self, before: dict[int, int], changes: int, found: dict[int, LiveBroker]) -> None:
        """Check a controller's list of brokers: each as it was registered at some time since the read began
        (KAFKA-5879).
        """
        possible: dict[int, set[int | None]] = {broker_id: {epoch} for broker_id, epoch in before.items()}
        for broker_id, epoch in self._cluster.checks.zookeeper.registrations[changes:]:
            possible.setdefault(broker_id, {None}).add(epoch)
        self._verdicts.exercise("K11")
        for broker_id in sorted({*possible, *found}):
            seen = found[broker_id].broker_epoch if broker_id in found else None
            if seen not in possible.get(broker_id, {None}):
                self._verdicts.fail(
                    "K11", f"a controller sees broker {broker_id} with {seen}, registered were {before}"
                )

    # The fetch protocol, observed inside the brokers

    @contextmanager
    def probes(self) -> Iterator[None]:
        """Check, while open, recorded progress of followers, applied fetch results, and the states of each failover."""
        verdicts = self._verdicts
        record_fetch, apply_to = Partition.record_follower_fetch, ReplicaFetcher._apply_to
        answered = ReplicaFetcher._answered
        stale: list[ReplicaFetcher] = []

        def probed_record(partition: Partition, replica_id: int, epoch: int, position: Any, *rest: Any) -> bool:
            verdicts.exercise("R10")
            known = partition.followers.get(replica_id)
            self.fetched_in[partition, replica_id] = position.current_leader_epoch
            if position.current_leader_epoch != partition.leader_epoch or not partition.is_leader:
                verdicts.fail(
                    "R10",
                    f"{partition.topic_partition} in epoch {partition.leader_epoch} counts a fetch of {replica_id} "
                    f"in {position.current_leader_epoch}",
                )
            if known is not None and known.broker_epoch is not None and known.fetched_in_epoch:
                before = known.broker_epoch
                result = record_fetch(partition, replica_id, epoch, position, *rest)
                if epoch < before and known.broker_epoch == epoch:
                    verdicts.fail("R10", f"{partition.topic_partition} counts a fetch of an earlier {replica_id}")
                return result
            return record_fetch(partition, replica_id, epoch, position, *rest)

        def probed_answered(fetcher: ReplicaFetcher, request: Any, *rest: Any) -> None:
            late = fetcher._activity is not Activity.FETCHING or fetcher._latest is not request
            if late:
                stale.append(fetcher)
            try:
                answered(fetcher, request, *rest)
            finally:
                if late:
                    stale.pop()

        def probed_apply(fetcher: ReplicaFetcher, state: FetchState, result: ReplicaFetchResult) -> bool:
            verdicts.exercise("R10")
            hosted = state.partition
            name = f"broker {fetcher._config.broker_id} {result.topic_partition}"
            if stale and stale[-1] is fetcher:
                verdicts.fail("R10", f"{name} applies an answer it does not wait for")
            if result.error is ErrorCode.NONE and result.leader_epoch != hosted.leader_epoch:
                verdicts.fail("R10", f"{name} in epoch {hosted.leader_epoch} applies one of {result.leader_epoch}")
            return apply_to(fetcher, state, result)

        propose, isr_written = IsrUpdates._propose, IsrUpdates.written

        def probed_propose(
            updates: IsrUpdates, partition: Partition, isr: tuple[int, ...], joiners: Any, *cause: Any
        ) -> None:
            for broker_id, _ in joiners:
                snapshot = updates._host.metadata.snapshot
                leaving = snapshot.is_offline_replica(partition.topic_partition, broker_id)
                verdicts.check("R13", not leaving, f"{partition.topic_partition} lets in {broker_id}, which is leaving")
                start, log = partition.followers[broker_id].log_start_offset, partition.log
                if log is not None and start is not None and start < log.log_start_offset:
                    where = f"{start}, below {log.log_start_offset}"
                    verdicts.fail("R13", f"{partition.topic_partition} lets in {broker_id}, which starts at {where}")
            propose(updates, partition, isr, joiners, *cause)

        def probed_written(updates: IsrUpdates, partition: Partition, *args: Any) -> None:
            isr_written(updates, partition, *args)
            log = partition.log
            if log is None or not partition.is_leader or partition.proposal is not None:
                return
            before = log.high_watermark
            if partition.advance_high_watermark():
                verdicts.fail("R6", f"{partition.topic_partition} stays at {before} with ISR {partition.isr}")

        list_brokers = ZkStore.brokers

        def probed_brokers(store: ZkStore) -> Flow[dict[int, LiveBroker]]:
            audit = self._cluster.checks.zookeeper
            before, changes = dict(audit.registered), len(audit.registrations)
            found = yield from list_brokers(store)
            self.looked(before, changes, found)
            return found

        ZkStore.brokers = probed_brokers  # type: ignore[assignment, method-assign]
        IsrUpdates._propose = probed_propose  # type: ignore[assignment, method-assign]
        IsrUpdates.written = probed_written  # type: ignore[assignment, method-assign]
        load_states = takeover.load_states

        def probed_load(context: ControllerContext, *rest: Any) -> Flow[StatesLoaded]:
            loaded = yield from load_states(context, *rest)
            self.states_loaded(context)
            return loaded

        failover.load_states = probed_load  # type: ignore[assignment, attr-defined]
        Partition.record_follower_fetch = probed_record  # type: ignore[assignment, method-assign]
        ReplicaFetcher._answered = probed_answered  # type: ignore[assignment, method-assign]
        ReplicaFetcher._apply_to = probed_apply  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            ZkStore.brokers = list_brokers  # type: ignore[method-assign]
            IsrUpdates._propose = propose  # type: ignore[method-assign]
            IsrUpdates.written = isr_written  # type: ignore[method-assign]
            Partition.record_follower_fetch = record_fetch  # type: ignore[method-assign]
            ReplicaFetcher._answered = answered  # type: ignore[method-assign]
            ReplicaFetcher._apply_to = apply_to  # type: ignore[method-assign]
