"""Map a fired watch to an event. The event reads the node again and ignores the data of the watch.

Source: docs/protocol/zookeeper.md#watches.
"""

import re

from paceline.controller import events as ev
from paceline.coordination import znodes
from paceline.coordination.interface import WatchEvent, WatchType
from paceline.model.identifiers import TopicPartition

_CHILD_EVENTS: dict[str, type[ev.Event]] = {
    znodes.BROKER_IDS: ev.BrokerChange,
    znodes.TOPICS: ev.TopicChange,
    znodes.DELETE_TOPICS: ev.TopicDeletion,
    znodes.ISR_CHANGE_NOTIFICATION: ev.IsrChangeNotification,
    znodes.CONFIG_CHANGES: ev.ConfigChange,
    znodes.LOG_DIR_EVENT_NOTIFICATION: ev.LogDirEventNotification,
}

_STATE_PATH = re.compile(re.escape(znodes.TOPICS) + r"/([^/]+)/partitions/(\d+)/state")


def event_for(watch: WatchEvent) -> ev.Event | None:
    """Return the event for a fired watch, None when the change needs no event."""
    if watch.type is WatchType.CHILDREN_CHANGED:
        kind = _CHILD_EVENTS.get(watch.path)
        return None if kind is None else kind()
    if watch.type is WatchType.DELETED and watch.path in _CHILD_EVENTS:
        # Deleting the node also ended the watch on its children; the event reads the children, which creates the node.
        return _CHILD_EVENTS[watch.path]()
    if watch.path == znodes.CONTROLLER:
        return ev.Reelect() if watch.type is WatchType.DELETED else ev.ControllerChange()
    if watch.path == znodes.CONTROLLER_EPOCH:
        return ev.Reelect()
    if watch.path == znodes.REASSIGN_PARTITIONS:
        # Creation, change and deletion each end the watch; without a new watch the next reassignment would be missed.
        is_change = watch.type is WatchType.DATA_CHANGED
        return ev.ReassignmentNodeChanged() if is_change else ev.PartitionReassignmentFromNode()
    parent, _, name = watch.path.rpartition("/")
    if parent == znodes.CONTROLLER_IDS:
        return ev.AddressChange()
    if watch.path == znodes.PREFERRED_REPLICA_ELECTION:
        return ev.PreferredReplicaElectionFromNode() if watch.type is WatchType.CREATED else None
    if watch.type is WatchType.DATA_CHANGED:
        if parent == znodes.BROKER_IDS and (broker_id := znodes.parse_id(name)) is not None:
            return ev.BrokerModifications(broker_id)
        if parent == znodes.TOPICS:
            return ev.PartitionModifications(name)
        if (state := _STATE_PATH.fullmatch(watch.path)) is not None:
            return ev.PartitionReassignmentIsrChange(TopicPartition(state[1], int(state[2])))
    if watch.type is WatchType.DELETED and parent == znodes.TOPICS:
        # Read the node again: the topic may have been deleted and re-created between two reads.
        return ev.PartitionModifications(name)
    return None
