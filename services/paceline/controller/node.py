"""A controller as an actor: all its code runs on its scheduler, one callback at a time.

The service and the simulator run the same code with different implementations of the interfaces.

Source: docs/protocol/controller.md#end-of-a-session; docs/protocol/zookeeper.md#watches-end-with-the-connection.
"""

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.controller import events as ev
from paceline.controller.brokers.broker_suspicions import Evidence
from paceline.controller.components import ControllerComponents
from paceline.controller.context import PartitionState, ReplicaState
from paceline.controller.describe_node import MOST_LISTED, describe_active, undecided_count
from paceline.controller.election.controller_election import ActiveController, ControllerElection
from paceline.controller.event_handler import ControllerEventHandler
from paceline.controller.event_queue import EventQueue
from paceline.controller.interfaces import ControlTransport, StandbyTransport
from paceline.controller.reassignment.list_reassignments import stuck_moves
from paceline.controller.standby.standby import Standby
from paceline.controller.standby.state_publisher import StateSink
from paceline.controller.standby.takeover import Takeover
from paceline.controller.watches import event_for
from paceline.coordination.interface import SessionEvent, SessionState, WatchEvent, ZooKeeper
from paceline.model.admin import PartitionDescription
from paceline.model.assignment import ReplicaAssignment
from paceline.model.control import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    ControlRequest,
    ControlResponse,
    Endpoint,
    LeaderAndIsrRequest,
    LiveBroker,
    StopReplicaRequest,
)
from paceline.model.errors import (
    ErrorCode,
    InvalidTopicError,
    NotControllerError,
    PacelineError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition, validate_topic_name
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.node_description import NodeActiveController, NodePeer
from paceline.model.scheduler import Scheduler
from paceline.model.settings import ControllerConfig
from paceline.model.state_change import StateChange

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster as this process knows it."""

    cluster_id: str
    brokers: tuple[LiveBroker, ...]
    """Empty on a controller that is not active."""
    active_controller: ActiveController | None
    controller_epoch: int
    """0 on a controller that is not active."""
    zookeeper_connected: bool


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic, or the error if the topic cannot be described."""

    name: str
    topic_id: str = ""
    partitions: tuple[PartitionDescription, ...] = ()
    error: PacelineError | None = None


def _is_imbalanced(known: LeaderAndIsr, assignment: ReplicaAssignment) -> bool:
    """Whether the leader is not the preferred replica.

    A preferred replica that is still being added does not count before it is in the ISR.
    """
    preferred = assignment.replicas[0] if assignment.replicas else None
    if preferred in assignment.adding and preferred not in known.isr:
        return False
    return known.leader != preferred


def _why_unknown(name: str) -> PacelineError:
    try:
        validate_topic_name(name)
    except InvalidTopicError as error:
        return error
    return UnknownTopicOrPartitionError(f"topic {name!r} does not exist")


class ControllerNode:
    """A controller process: standby, or active controller while it is elected."""

    def __init__(
        self,
        config: ControllerConfig,
        endpoints: Sequence[Endpoint],
        scheduler: Scheduler,
        zookeeper: ZooKeeper,
        transport: ControlTransport,
        rng: random.Random,
        state_change_sink: Callable[[StateChange], None],
        on_event_handled: Callable[[ev.Event, int, int], None] | None = None,
        on_active_change: Callable[[bool], None] | None = None,
        on_takeover: Callable[[Takeover], None] | None = None,
        *,
        standby_transport: StandbyTransport,
    ) -> None:
        """``on_event_handled`` receives the event, its queue time in ms and its handling time in ms, for metrics."""
        self._config = config
        self._scheduler = scheduler
        self._zookeeper = zookeeper
        self._components = ControllerComponents(
            config,
            tuple(endpoints),
            scheduler,
            transport,
            rng,
            state_change_sink,
            self._enqueue,
            self._on_response,
        )
        election = ControllerElection(config.controller_id, tuple(endpoints), zookeeper, scheduler)
        self._standby = Standby(
            config.controller_id,
            scheduler,
            standby_transport,
            rng,
            lambda controller_id, epoch: self._enqueue(ev.ActiveControllerDead(controller_id, epoch)),
        )
        self._event_handler = ControllerEventHandler(
            config,
            scheduler,
            rng,
            self._enqueue,
            self._components,
            election,
            self._standby,
            on_active_change or (lambda _: None),
            on_takeover or (lambda _: None),
        )
        self._queue = EventQueue(
            scheduler, zookeeper, self._event_handler.process, on_event_handled or (lambda *_: None)
        )
        self._session_id = 0
        self._stopped = False

    # life

    def start(self) -> None:
        """Connect to ZooKeeper and take part in elections."""
        self._zookeeper.start(self._on_session, self._on_watch)

    def stop(self) -> None:
        """Resign and end the ZooKeeper session, which removes this controller's ``/controller`` node."""
        if self._stopped:
            return
        self._stopped = True
        self._standby.stop()
        self._queue.close()
        self._event_handler.resign("the process stops")
        self._zookeeper.close()

    @property
    def is_active(self) -> bool:
        """Whether this controller is active."""
        return self._event_handler.is_active

    @property
    def is_idle(self) -> bool:
        """Whether no event runs or waits."""
        return self._queue.idle

    @property
    def controller_epoch(self) -> int:
        """Return the epoch of this controller's term, 0 when not active."""
        return self._components.context.epoch

    @property
    def active_controller(self) -> ActiveController | None:
        """The active controller as last read by this process; None when it knows none."""
        return self._event_handler.active_controller

    # requests of clients and brokers

    def ask(self, request: ev.Request[Any]) -> None:
        """Queue a request as an event; its ``reply`` is called exactly once, possibly before this method returns.

        The reply is `NotControllerError` when this controller is not active, and `RequestTimedOutError` when the
        controller resigns during the request.
        """
        request = replace(request, reply=_once(request.reply))
        if self._stopped or not self.is_active:
            request.preempt()
        else:
            self._queue.put(request)

    def broker_heartbeat(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        """Renew a broker's lease immediately: a heartbeat never waits in the event queue.

        Raises:
            NotControllerError: only the active controller grants leases.
        """
        if self._stopped or not self.is_active:
            raise NotControllerError("this controller is not active")
        context = self._components.context
        broker = context.brokers.get(request.broker_id)
        if broker is None or request.broker_epoch > broker.broker_epoch:
            # A newer registration, whose event is still queued, refuses the requests to the known one.
            return BrokerHeartbeatResponse(ErrorCode.BROKER_NOT_AVAILABLE, context.epoch)
        if request.broker_epoch < broker.broker_epoch:
            return BrokerHeartbeatResponse(ErrorCode.STALE_BROKER_EPOCH, context.epoch)
        if request.shutting_down is False and request.broker_id in context.shutting_down:
            # A heartbeat that was sent before a real stop began arrives within a third of a lease, its time-out; later
            # if this process was paused, but then not a period after the one before it.
            period_ms = self._config.controller_broker_lease_ms // 3
            since_ms = self._scheduler.now_ms() - context.shutting_down[request.broker_id]
            silent_ms = self._components.liveness.leases.silent_ms(request.broker_id) or 0
            if since_ms >= period_ms and abs(silent_ms - period_ms) <= period_ms // 2:
                self._queue.put(ev.ShutdownDisproved(request.broker_id, request.broker_epoch))
        self._components.liveness.heartbeat_received(request)
        unanswered_ms = self._components.channels.unanswered_ms(request.broker_id)
        return BrokerHeartbeatResponse(ErrorCode.NONE, context.epoch, unanswered_ms)

    def evidence_of_death(self, broker_id: int, broker_epoch: int, evidence: Evidence) -> None:
        """Record evidence that the process of a registration is dead."""
        if not self._stopped and self.is_active:
            self._components.liveness.suspicions.found(broker_id, broker_epoch, evidence)

    def broker_connected(self, broker_id: int, broker_epoch: int) -> None:
        """Record that a connection to the broker is established."""
        broker = self._components.context.brokers.get(broker_id)
        if broker is not None and broker.broker_epoch == broker_epoch:
            self._components.liveness.suspicions.connected(broker_id)

    def broker_connection_closed(self, broker_id: int, broker_epoch: int) -> None:
        """Queue an UpdateMetadata to a broker whose connection closed; an unregistered new process refuses it."""
        if not self._stopped and self.is_active:
            self._queue.put(ev.BrokerConnectionClosed(broker_id, broker_epoch))

    def follow_state(self, standby_id: int, sink: StateSink) -> Callable[[], None]:
        """Stream the partition states to a standby; return a function that ends the stream.

        Raises:
            NotControllerError: this controller is not active.
        """
        if self._stopped or not self.is_active:
            raise NotControllerError("this controller is not active")
        return self._components.publisher.follow(standby_id, sink)

    @property
    def is_warm(self) -> bool:
        """Whether this controller is a standby with an up-to-date copy of the state."""
        return self._standby.in_sync

    def describe_cluster(self) -> ClusterDescription:
        """Return the cluster as this process knows it."""
        context, connected = self._components.context, self._zookeeper.connected
        brokers = tuple(context.brokers[broker_id] for broker_id in context.registered_broker_ids())
        return ClusterDescription(
            self._event_handler.cluster_id, brokers, self.active_controller, context.epoch, connected
        )

    def describe_topics(self, names: Sequence[str]) -> list[TopicDescription]:
        """Return topics by name; without names all topics, sorted.

        Raises:
            NotControllerError: this controller is not active.
        """
        if not self.is_active:
            raise NotControllerError("this controller is not active")
        topics = self._components.context.topics
        return [self._describe(name) for name in (names or sorted(topics))]

    def topic_names(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(self._components.context.topics)

    def _describe(self, name: str) -> TopicDescription:
        context = self._components.context
        if name not in context.topics or context.is_queued_for_deletion(name):
            return TopicDescription(name, error=_why_unknown(name))
        partitions = []
        for partition, assignment in sorted(context.topics[name].items()):
            topic_partition = TopicPartition(name, partition)
            known = context.leadership.get(topic_partition)
            partitions.append(
                PartitionDescription(
                    partition,
                    known.leader if known is not None and known.has_leader else None,
                    -1 if known is None else known.leader_epoch,
                    assignment.replicas,
                    () if known is None else known.isr,
                    context.offline_replicas(topic_partition),
                    assignment.adding,
                    assignment.removing,
                )
            )
        return TopicDescription(name, context.topic_ids.get(name) or "", tuple(partitions))

    @property
    def elections(self) -> Mapping[tuple[str, str], int]:
        """Return the number of leaders elected since the process started, by kind and cause."""
        return self._components.partitions.elections

    def gauges(self) -> dict[str, int]:
        """Return metrics by name, without the prefix ``paceline_``.

        On a controller that is not active only ``controller_queue_size`` and ``standby_in_sync`` can differ from 0.
        """
        context = self._components.context
        imbalanced = (
            not context.is_queued_for_deletion(topic_partition.topic)
            and _is_imbalanced(known, context.assignment(topic_partition))
            for topic_partition, known in context.leadership.items()
        )
        offline = (
            state is not PartitionState.ONLINE and topic_partition.topic not in context.deletion_started
            for topic_partition, state in context.partition_states.items()
        )
        doomed = [replica for topic in sorted(context.deletion_queued) for replica in context.replicas_of(topic)]
        states = [context.replica_state(replica) for replica in doomed]
        numbers = {
            "active_controller": 1,
            "replicas_to_delete": sum(state is not ReplicaState.DELETION_SUCCESSFUL for state in states),
            "topics_ineligible_to_delete": len(context.deletion_ineligible),
            "replicas_ineligible_to_delete": sum(state is ReplicaState.DELETION_INELIGIBLE for state in states),
            "controller_request_queue_size": self._components.channels.total_queue_size,
            "topics": len(context.topics),
            "partitions": len(context.leadership),
            "offline_partitions": sum(offline),
            "preferred_replica_imbalance": sum(imbalanced),
            "topics_to_delete": len(context.deletion_queued),
            "undecided_partitions": undecided_count(context),
            "stuck_reassignments": len(stuck_moves(context, MOST_LISTED)),
        }
        if not self.is_active:
            numbers = dict.fromkeys(numbers, 0)
        return numbers | {"controller_queue_size": self._queue.size, "standby_in_sync": int(self.is_warm)}

    def broker_queues(self) -> list[tuple[int, int, int, int]]:
        """Return (broker id, unanswered requests, sent requests, their total waiting time in ms), for metrics."""
        return self._components.channels.traffic()

    @property
    def highest_controller_epoch(self) -> int:
        """Highest controller epoch that this process knows: its own, or that of the controller it follows."""
        return max(self._components.context.epoch, self._standby.controller_epoch)

    def peers(self) -> tuple[NodePeer, ...]:
        """Return the brokers that the active controller calls; none on a standby."""
        return self._components.channels.peers()

    def describe_active(self) -> NodeActiveController | None:
        """Return what only the active controller knows, None when this controller is not active."""
        return describe_active(self._components, self._queue.size) if self.is_active else None

    # notifications

    def _enqueue(self, event: ev.Event) -> None:
        self._queue.put(event)

    def _on_watch(self, watch: WatchEvent) -> None:
        event = event_for(watch)
        if event is not None and (self.is_active or event.for_everyone):
            self._queue.put(event)

    def _on_session(self, session: SessionEvent) -> None:
        if self._stopped:
            return
        if session.state is SessionState.CONNECTED:
            same = session.session_id == self._session_id
            self._session_id = session.session_id
            self._queue.put(ev.Rewatch() if same and self.is_active else ev.Startup())
        elif session.state in (SessionState.EXPIRED, SessionState.IN_DOUBT):
            # Abort the running event and drop the queued events, because they belong to the old session. A session in
            # doubt counts as ended, by this process's clock (docs/protocol/zookeeper.md#session-in-doubt).
            self._queue.clear()
            self._event_handler.resign(f"the session is {session.state.name.lower()}")
            self._event_handler.active_controller = None

    def _on_response(self, broker_id: int, request: ControlRequest, response: ControlResponse) -> None:
        if isinstance(request, LeaderAndIsrRequest):
            self._queue.put(ev.LeaderAndIsrResponseReceived(broker_id, request, response))
        elif isinstance(request, StopReplicaRequest):
            started = self._components.context.deletion_started
            if any(p.delete_partition and p.topic_partition.topic in started for p in request.partitions):
                self._queue.put(ev.StopReplicaDeletionResponseReceived(broker_id, request, response))
        elif response.error is not ErrorCode.NONE:
            LOG.error("UpdateMetadata refused: broker=%d error=%s", broker_id, response.error.name)


def _once(reply: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a ``reply`` that ignores all calls after the first: an event may be preempted after its reply."""
    answered = False

    def answer(value: Any) -> None:
        nonlocal answered
        if not answered:
            answered = True
            reply(value)

    return answer
