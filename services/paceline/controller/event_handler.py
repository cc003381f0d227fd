"""Run one flow per controller event; become the active controller after an election, and resign.

Source: docs/protocol/controller.md#resigning; docs/protocol/controller.md#events; Kafka 2.8
KafkaController.process.
"""

import logging
import random
from collections.abc import Callable
from typing import Any

from paceline.controller import events as ev
from paceline.controller.admin import admin_requests as requests
from paceline.controller.brokers.isr_notifications import on_log_dir_event
from paceline.controller.components import ControllerComponents
from paceline.controller.election.controller_election import ActiveController, ControllerElection, Owner, Term
from paceline.controller.election.elect_leaders import elect_leaders
from paceline.controller.election.preferred_election import FIRST_REBALANCE_MS
from paceline.controller.errors import (
    ControllerMovedError,
    IllegalStateError,
    UnexpectedResponseError,
    UnreadableEpochError,
)
from paceline.controller.failover import on_failover
from paceline.controller.reassignment.list_reassignments import list_reassignments
from paceline.controller.standby.standby import Standby
from paceline.controller.standby.takeover import Takeover
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError, SessionLostError, ZooKeeperRequestError
from paceline.coordination.flow import Flow, Sleep
from paceline.coordination.recipes import ensure_paths, get_or_create_cluster_id
from paceline.model.backoff import Backoff
from paceline.model.scheduler import Cancellable, Scheduler
from paceline.model.settings import ControllerConfig
from paceline.model.state_change import StateChangeKind

LOG = logging.getLogger(__name__)

FAILED_FAILOVER_PAUSE_MS = 1_000
"""Pause after a failed failover, to let another controller try first."""

REFUSED_ADDRESS_PAUSE_MS = 10_000
"""Pause before another attempt to publish an address that ZooKeeper refused."""

ELECTION_BACKOFF = Backoff(initial_backoff_ms=1_000, max_backoff_ms=60_000)
"""Pauses between attempts when no controller can be elected; each attempt logs the reason."""


class ControllerEventHandler:
    """Handles events one at a time; the queue calls `process`."""

    def __init__(
        self,
        config: ControllerConfig,
        scheduler: Scheduler,
        rng: random.Random,
        enqueue: Callable[[ev.Event], None],
        components: ControllerComponents,
        election: ControllerElection,
        standby: Standby,
        on_active_change: Callable[[bool], None],
        on_takeover: Callable[[Takeover], None],
    ) -> None:
        """``on_active_change`` is called with True after failover and with False on resignation."""
        self._config = config
        self._scheduler = scheduler
        self._rng = rng
        self._enqueue = enqueue
        self._components = components
        self._election = election
        self._standby = standby
        self._on_active_change = on_active_change
        self._on_takeover = on_takeover
        self._rebalance: Cancellable | None = None
        self._next_election: Cancellable | None = None
        self._failed_elections = 0
        self._next_address: Cancellable | None = None
        self.is_active = False
        self.cluster_id = ""
        self.active_controller: ActiveController | None = None
        """The active controller as last read by this process; None when it knows none."""

    def process(self, event: ev.Event) -> Flow[None]:
        """Handle one event. A failed fence makes the controller resign; any other failure ends only the event."""
        if not self.is_active and not event.for_everyone:
            event.preempt()
            return
        context = self._components.context
        context.seen_in_event.clear()
        context.wrote_in_event = False
        self._components.log.because(event.name)
        self._components.publisher.event_begins()
        try:
            yield from self._dispatch(event)
        except (ControllerMovedError, IllegalStateError, SessionLostError) as error:
            LOG.warning("event made the controller resign: event=%s error=%s", event.name, error)
            if isinstance(error, ControllerMovedError) and not error.may_be_applied:
                event.preempt()
            else:
                event.abort()
            yield from self._resign_and_reelect(str(error))
        except Exception:
            LOG.exception("handling an event failed: event=%s", event.name)
            event.abort()
        self._components.publisher.event_ends()
        self._standby.follow(None if self.is_active else self.active_controller)

    # election and resignation

    def resign(self, cause: str) -> None:
        """Resign immediately, in memory: nothing is sent afterwards. ``/controller`` is not deleted here."""
        if self._rebalance is not None:
            self._rebalance.cancel()
            self._rebalance = None
        self._cancel_next_election()
        was_active, self.is_active = self.is_active, False
        if was_active:
            self._components.log.note(StateChangeKind.CONTROLLER_RESIGNED, cause=cause)
        self._components.reset()
        if was_active:
            LOG.info("resigned as controller: cause=%s", cause)
            self._on_active_change(False)

    def _resign_and_reelect(self, cause: str) -> Flow[None]:
        """Resign, delete ``/controller`` if this ZooKeeper session owns it, and take part in the next election."""
        self.resign(cause)
        try:
            yield from self._election.withdraw()
        except ControllerMovedError:
            return  # The session has ended; the next session begins with an election.
        except UnexpectedResponseError as error:
            LOG.error("/controller was not deleted: error=%s", error)
        self._enqueue(ev.Reelect())

    def _maybe_resign(self) -> Flow[None]:
        owner = yield from self._election.read_owner()
        if self.is_active and (owner is None or not owner.is_this_session):
            self.resign("/controller was deleted" if owner is None else f"{owner.controller_id} is the controller now")
        if self.is_active:
            return
        if owner is None:
            self.active_controller = None
        else:
            yield from self._follow(owner)

    def _read_controller_node(self) -> Flow[None]:
        """Read the owner of ``/controller``, and take part in an election when there is none.

        ControllerChange does not say whether the node was created or deleted, and the watch for the deletion may have
        been lost with the connection. Without this election a missing node would stay missing: its watch fires only
        when another process creates the node.
        """
        yield from self._maybe_resign()
        if self.active_controller is None:
            yield from self._elect()

    def _follow(self, owner: Owner) -> Flow[None]:
        self.active_controller = yield from self._election.read_address(owner.controller_id)

    def _elect(self) -> Flow[None]:
        if self.is_active:
            return
        self._cancel_next_election()
        try:
            outcome = yield from self._election.elect()
            if isinstance(outcome, Owner) and outcome.is_this_session:
                # This session created the node in an earlier term: delete the node; an election follows.
                yield from self._election.withdraw()
        except (UnreadableEpochError, UnexpectedResponseError) as error:
            self._elect_later(str(error))
            return
        self._failed_elections = 0
        if isinstance(outcome, Term):
            yield from self._become_active(outcome)
        elif isinstance(outcome, Owner) and not outcome.is_this_session:
            yield from self._follow(outcome)

    def _replace_dead(self, event: ev.ActiveControllerDead) -> Flow[None]:
        if self.is_active:
            return
        try:
            term = yield from self._election.replace_dead(event.controller_id, event.controller_epoch)
        except (UnreadableEpochError, UnexpectedResponseError) as error:
            LOG.error("dead controller not replaced, its session must end first: error=%s", error)
            return
        if term is None:
            yield from self._read_controller_node()
            return
        self._cancel_next_election()
        LOG.warning(
            "replaced a dead controller before its session ended: controller=%d epoch=%d evidence=%r",
            event.controller_id, event.controller_epoch, "its stream closed and two connects were refused",
        )  # fmt: skip
        yield from self._become_active(term)

    def _elect_later(self, reason: str, attempt: ev.Event | None = None) -> None:
        """Log that this process cannot be elected, and try again later; a watch may fire earlier."""
        self._failed_elections += 1
        pause_ms = ELECTION_BACKOFF.backoff_ms(self._failed_elections)
        LOG.error("no controller can be elected: reason=%s retry_s=%g", reason, pause_ms / 1_000)
        self.active_controller = None
        self._next_election = self._scheduler.call_later(pause_ms, lambda: self._enqueue(attempt or ev.Reelect()))

    def _cancel_next_election(self) -> None:
        if self._next_election is not None:
            self._next_election.cancel()
            self._next_election = None

    def _become_active(self, term: Term) -> Flow[None]:
        components = self._components
        begun_ms = self._scheduler.now_ms()
        LOG.info("elected as controller: epoch=%d", term.controller_epoch)
        components.context.epoch = term.controller_epoch
        components.context.epoch_zk_version = term.epoch_zk_version
        self.is_active = True
        components.log.note(StateChangeKind.CONTROLLER_ELECTED)
        self.active_controller = self._election.this_controller
        try:
            states = yield from on_failover(components, self._standby.mirror)
        except ControllerMovedError:
            raise
        except Exception:
            LOG.exception("failover failed, resigning")
            self.resign("the failover failed")
            try:
                yield from self._election.withdraw()
            except UnexpectedResponseError as error:
                self._elect_later(str(error))
                return
            yield Sleep(FAILED_FAILOVER_PAUSE_MS)
            return
        takeover = Takeover(states, self._scheduler.now_ms() - begun_ms)
        LOG.info(
            "failover completed: kind=%s epoch=%d elapsed_ms=%d states_read=%d states=%d%s",
            states.kind.value, term.controller_epoch, takeover.elapsed_ms, states.states_read, states.partitions,
            f" reason={states.reason!r}" if states.reason else "",
        )  # fmt: skip
        self._standby.discard_copy(term.controller_epoch)
        suspicions = components.liveness.suspicions
        # Evidence may have arrived while the cluster state was loaded; its events follow this event.
        components.liveness.leases.grant(
            b for b in components.context.registered_broker_ids() if not suspicions.is_suspected(b)
        )
        self._schedule_rebalance(FIRST_REBALANCE_MS)
        self._on_takeover(takeover)
        self._on_active_change(True)

    def _schedule_rebalance(self, delay_ms: int) -> None:
        if self._rebalance is not None:
            self._rebalance.cancel()  # A check of an earlier term may still be scheduled.
        if self._config.auto_leader_rebalance_enable:
            self._rebalance = self._scheduler.call_later(
                delay_ms, lambda: self._enqueue(ev.AutoPreferredReplicaLeaderElection())
            )

    # events

    def _dispatch(self, event: ev.Event) -> Flow[None]:
        components = self._components
        match event:
            case ev.Startup():
                yield from self._startup()
            case ev.ControllerChange():
                yield from self._read_controller_node()
            case ev.Reelect():
                yield from self._maybe_resign()
                yield from self._elect()
            case ev.AddressChange():
                yield from self._publish_address()
                yield from self._read_controller_node()
            case ev.ActiveControllerDead():
                yield from self._replace_dead(event)
            case ev.Rewatch():
                yield from self._rewatch()
            case ev.BrokerChange():
                yield from components.broker_changes.on_broker_change()
            case ev.BrokerModifications():
                yield from components.broker_changes.on_broker_modifications(event.broker_id)
            case ev.BrokerLeaseChange():
                yield from components.lease_changes.on_lease_change(event.broker_id)
            case ev.ShutdownDisproved():
                yield from components.lease_changes.on_shutdown_disproved(event)
            case ev.BrokerConnectionClosed():
                components.broker_changes.on_connection_closed(event)
            case ev.TopicChange():
                yield from components.topic_changes.on_topic_change()
            case ev.PartitionModifications():
                yield from components.topic_changes.on_partition_modifications([event.topic])
            case ev.TopicDeletion():
                yield from components.deletion.on_markers(components.topic_changes.on_topic_change)
            case ev.IsrChangeNotification():
                yield from components.isr_notifications.on_isr_change_notification()
            case ev.LogDirEventNotification():
                yield from on_log_dir_event(components.context, components.store, components.replicas)
            case ev.ConfigChange():
                yield from components.config_changes.on_config_change()
            case ev.LeaderAndIsrResponseReceived():
                yield from components.leader_and_isr_responses.on_leader_and_isr_response(event)
            case ev.StopReplicaDeletionResponseReceived():
                yield from components.deletion.on_stop_replica_response(event)
            case ev.ControlledShutdown():
                event.reply((yield from components.controlled_shutdowns.on_controlled_shutdown(event.request)))
            case requests.CreateTopics():
                yield from components.topic_requests.create(event)
            case requests.DeleteTopics():
                yield from components.topic_requests.delete(event)
            case requests.AlterPartitionReassignments():
                event.reply(
                    (yield from components.reassignments.alter_reassignments(event.requested, event.validate_only))
                )
            case ev.ReassignmentNodeChanged():
                yield from components.reassignments.on_reassignment_node_changed()
            case ev.PartitionReassignmentFromNode():
                yield from components.reassignments.on_reassignment_node(only_new=True)
            case ev.PartitionReassignmentIsrChange():
                yield from components.reassignments.complete_finished_reassignments([event.topic_partition])
            case ev.AutoPreferredReplicaLeaderElection():
                yield from self._auto_rebalance()
            case ev.PreferredReplicaElectionFromNode():
                yield from components.preferred_elections.on_preferred_election_node()
            case requests.CreatePartitions():
                yield from components.partition_creation.create_partitions(event)
            case requests.ListPartitionReassignments():
                event.reply(
                    (yield from list_reassignments(components.context, components.store, event.topic_partitions))
                )
            case requests.ElectLeaders():
                yield from elect_leaders(components.context, components.partitions, components.ack_waiters, event)
            case requests.DescribeConfigs():
                yield from components.topic_configs.describe(event)
            case requests.IncrementalAlterConfigs():
                yield from components.topic_configs.alter(event)
            case _:
                raise AssertionError(f"no handler for {event.name}")

    def _startup(self) -> Flow[None]:
        self._cancel_next_election()
        try:
            yield from ensure_paths(znodes.PERSISTENT_NODES)
            try:
                self.cluster_id = yield from get_or_create_cluster_id(self._rng)
            except MalformedZnodeError as error:
                LOG.error("cluster id unreadable, continuing as controller: error=%s", error)
            yield from self._election.publish_address()
        except (UnexpectedResponseError, ZooKeeperRequestError) as error:
            self._elect_later(str(error), ev.Startup())
            return
        yield from self._maybe_resign()
        yield from self._elect()

    def _publish_address(self) -> Flow[None]:
        """Publish the address; try again later when ZooKeeper refuses."""
        if self._next_address is not None:
            self._next_address.cancel()
            self._next_address = None
        try:
            yield from self._election.publish_address()
        except UnexpectedResponseError as error:
            LOG.error("address not published: error=%s retry_s=%g", error, REFUSED_ADDRESS_PAUSE_MS / 1_000)
            self._next_address = self._scheduler.call_later(
                REFUSED_ADDRESS_PAUSE_MS, lambda: self._enqueue(ev.AddressChange())
            )

    def _rewatch(self) -> Flow[None]:
        """Read every watched node again after a reconnect, which has removed all watches; each read sets a watch."""
        components = self._components
        yield from self._publish_address()
        active_epoch = components.context.epoch
        yield from self._read_controller_node()
        if not self.is_active or components.context.epoch != active_epoch:
            return  # A new election has just read all nodes.
        context = components.context
        steps: list[Callable[[], Flow[Any]]] = [
            lambda: components.broker_changes.on_broker_change(),
            components.topic_changes.on_topic_change,
            lambda: components.topic_changes.on_partition_modifications(list(context.topics)),
            lambda: components.deletion.on_markers(components.topic_changes.on_topic_change),
            lambda: components.isr_notifications.on_isr_change_notification(),
            lambda: on_log_dir_event(components.context, components.store, components.replicas),
            lambda: components.config_changes.on_config_change(),
            lambda: components.preferred_elections.on_preferred_election_node(),
            lambda: components.reassignments.on_reassignment_node(only_new=True),
            lambda: components.reassignments.complete_finished_reassignments(list(context.being_reassigned)),
        ]
        for step in steps:
            try:
                yield from step()
            except (ControllerMovedError, IllegalStateError, SessionLostError):
                raise
            except Exception:
                # Continue: the later steps must set their watches, because no other event does.
                LOG.exception("reading ZooKeeper again after a lost watch failed")

    def _auto_rebalance(self) -> Flow[None]:
        try:
            yield from self._components.preferred_elections.rebalance_leaders()
        finally:
            if self.is_active:
                self._schedule_rebalance(self._config.leader_imbalance_check_interval_ms)
