"""Handle brokers that start, die, restart or change their address.

Source: docs/protocol/controller.md#broker-changes; Kafka 2.8 KafkaController.processBrokerChange.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.controller.brokers.broker_liveness import BrokerLiveness
from paceline.controller.brokers.replica_availability import ReplicaAvailability
from paceline.controller.channel.channel_manager import ChannelManager
from paceline.controller.channel.request_batch import RequestBatch
from paceline.controller.context import ControllerContext
from paceline.controller.election.unclean_restart import UncleanRestarts
from paceline.controller.events import BrokerChange, BrokerConnectionClosed
from paceline.controller.state_change_log import Cause, StateChangeLog
from paceline.controller.zk_store import ZkStore
from paceline.coordination.flow import Flow
from paceline.model.control import LiveBroker
from paceline.model.state_change import StateChangeKind

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BrokerChanges:
    """Handles registrations that appear, change or end."""

    context: ControllerContext
    store: ZkStore
    channels: ChannelManager
    log: StateChangeLog
    batch: RequestBatch
    liveness: BrokerLiveness
    unclean_restarts: UncleanRestarts
    availability: ReplicaAvailability

    def on_broker_change(self) -> Flow[None]:
        """Compare registrations with the known brokers, and handle new, bounced (newer broker epoch) and dead brokers.

        Bounced brokers are handled before dead brokers, as in Kafka. While a bounced broker is handled, a broker found
        dead by the same event still counts as alive and stays or becomes leader. A partition without other in-sync
        replicas therefore waits until the dead broker returns.
        """
        context = self.context
        current = yield from self.store.brokers()
        known = dict(context.brokers)
        new = [broker_id for broker_id in sorted(current) if broker_id not in known]
        dead = [broker_id for broker_id in sorted(known) if broker_id not in current]
        both = [broker_id for broker_id in sorted(current) if broker_id in known]
        bounced = [b for b in both if current[b].broker_epoch > known[b].broker_epoch]
        LOG.info("brokers changed: new=%s bounced=%s dead=%s", new, bounced, dead)
        for broker_id in new:
            self.channels.add_broker(current[broker_id])
        # To a broker after an unclean restart, a control request means that no ISR relies on its lost records: open its
        # channel only after the ISRs were written.
        held_back = [broker_id for broker_id in bounced if new and current[broker_id].unclean_restart]
        for broker_id in bounced:
            self.channels.remove_broker(broker_id)
            if broker_id not in held_back:
                self.channels.add_broker(current[broker_id])
        for broker_id in dead:
            self.channels.remove_broker(broker_id)
        for broker_id in [*new, *bounced]:
            broker_epoch = current[broker_id].broker_epoch
            self.log.note(
                StateChangeKind.BROKER_UP, broker_id, f"broker epoch {broker_epoch}", broker_epoch=broker_epoch
            )
        for broker_id in dead:
            self.log.note(StateChangeKind.BROKER_DOWN, broker_id, silent_ms=self.liveness.leases.silent_ms(broker_id))
        if new:
            context.brokers.update({broker_id: current[broker_id] for broker_id in new})
            yield from self.on_broker_startup(new)
        if bounced:
            self.log.because(Cause.SESSION, "the broker has registered again")
            self._remove(bounced)
            yield from self.on_broker_failure(bounced)
            context.brokers.update({broker_id: current[broker_id] for broker_id in bounced})
            for broker_id in held_back:
                self.channels.add_broker(current[broker_id])
            self.log.because(BrokerChange.__name__)
            yield from self.on_broker_startup(bounced)
        if dead:
            self.log.because(Cause.SESSION, "the broker's registration has ended")
            self._remove(dead)
            yield from self.on_broker_failure(dead)
        moved = [b for b in both if b not in bounced and _has_moved(known[b], current[b])]
        if moved:
            self._update([current[broker_id] for broker_id in moved])

    def on_broker_modifications(self, broker_id: int) -> Flow[None]:
        """Send a broker's new endpoints and rack to all brokers, after the data of its registration changed."""
        current = yield from self.store.brokers()
        known = self.context.brokers.get(broker_id)
        found = current.get(broker_id)
        if known is None and found is not None:
            # The registration was malformed when the brokers were compared, and was repaired since.
            yield from self.on_broker_change()
        elif known is not None and found is not None and _has_moved(known, found):
            self._update([found])

    def on_connection_closed(self, event: BrokerConnectionClosed) -> None:
        """Send UpdateMetadata to a broker whose control connection closed.

        A new process at its address answers that it is not registered, which proves that the old process is dead.
        """
        known = self.context.brokers.get(event.broker_id)
        if known is not None and known.broker_epoch == event.broker_epoch:
            self.batch.send_update_metadata((event.broker_id,), ())

    def _update(self, brokers: Sequence[LiveBroker]) -> None:
        for broker in brokers:
            self.context.brokers[broker.broker_id] = broker
            self.channels.update_broker(broker)
        self.batch.send_update_metadata(self.context.brokers, ())

    def _remove(self, broker_ids: Sequence[int]) -> None:
        for broker_id in broker_ids:
            self.context.brokers.pop(broker_id, None)

    def on_broker_startup(self, broker_ids: Sequence[int]) -> Flow[None]:
        """Send started brokers the full state, then resume elections, reassignments and deletions that waited for them.

        A broker follows only a leader that is in its metadata, so UpdateMetadata is sent first
        (docs/protocol/controller.md#metadata-before-leadership).
        """
        context = self.context
        for broker_id in broker_ids:
            context.on_offline_dirs.pop(broker_id, None)
        self.liveness.leases.grant(broker_ids)
        distrusted = yield from self.unclean_restarts.distrust_unclean_brokers(broker_ids)
        others = [broker_id for broker_id in context.registered_broker_ids() if broker_id not in broker_ids]
        self.batch.send_update_metadata(others, ())
        if distrusted:
            self.unclean_restarts.tell_other_replicas(distrusted, broker_ids)
        with_leader = [tp for tp in context.leadership if not context.is_queued_for_deletion(tp.topic)]
        self.batch.send_update_metadata(broker_ids, with_leader, initial=True)
        yield from self.availability.on_brokers_started(broker_ids)

    def on_broker_failure(self, broker_ids: Sequence[int]) -> Flow[None]:
        """Move leadership and ISR membership away from brokers that were already removed from the context."""
        for broker_id in broker_ids:
            self.context.on_offline_dirs.pop(broker_id, None)
            self.context.shutting_down.pop(broker_id, None)
            self.context.without_lease.discard(broker_id)
        self.liveness.forget(broker_ids)
        yield from self.availability.on_replicas_become_offline(self.context.replicas_on(broker_ids))


def _has_moved(known: LiveBroker, found: LiveBroker) -> bool:
    same_registration = known.broker_epoch == found.broker_epoch
    return same_registration and (known.endpoints, known.rack) != (found.endpoints, found.rack)
