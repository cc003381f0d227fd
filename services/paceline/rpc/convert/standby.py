"""The stream of partition states to standby controllers: `model.standby` <-> ``paceline.internal.v1``.

States are sent as columns, because creating one message object per partition would be the largest cost.
"""

import json

from paceline.internal.v1 import controller_service_pb2 as pb
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.standby import StateUpdate, TopicStates


def state_update_to_proto(update: StateUpdate) -> pb.FollowStateResponse:
    """Encode a state update."""
    message = pb.FollowStateResponse(
        number=update.number,
        controller_epoch=update.controller_epoch,
        in_snapshot=update.in_snapshot,
        sequence=update.sequence,
        topics=[_topic_to_proto(topic, states) for topic, states in update.topics.items()],
        dropped_topics=update.dropped_topics,
    )
    if update.broker_epochs is not None:
        message.broker_epochs.epochs.update(update.broker_epochs)
        message.broker_epochs.SetInParent()
    return message


def _topic_to_proto(topic: str, update: TopicStates) -> pb.TopicStates:
    known = [(partition, state) for partition, state in update.states.items() if state is not None]
    return pb.TopicStates(
        topic=topic,
        topic_id=update.topic_id or "",
        partitions=[partition for partition, _ in known],
        leaders=[state.leader for _, state in known],
        leader_epochs=[state.leader_epoch for _, state in known],
        zk_versions=[state.zk_version for _, state in known],
        controller_epochs=[state.controller_epoch for _, state in known],
        isr_sizes=[len(state.isr) for _, state in known],
        isr_members=[member for _, state in known for member in state.isr],
        extras={partition: json.dumps(extra) for partition, extra in update.extras.items()},
        absent_partitions=[partition for partition, state in update.states.items() if state is None],
    )


def state_update_from_proto(message: pb.FollowStateResponse) -> StateUpdate:
    """Decode a state update.

    Raises:
        ValueError: the columns have different lengths, or the ISR sizes do not add up to the number of ISR members.
    """
    return StateUpdate(
        number=message.number,
        controller_epoch=message.controller_epoch,
        in_snapshot=message.in_snapshot,
        sequence=message.sequence if message.HasField("sequence") else None,
        topics={one.topic: _topic_from_proto(one) for one in message.topics},
        dropped_topics=tuple(message.dropped_topics),
        broker_epochs=dict(message.broker_epochs.epochs) if message.HasField("broker_epochs") else None,
    )


def _topic_from_proto(message: pb.TopicStates) -> TopicStates:
    states: dict[int, LeaderAndIsr | None] = dict.fromkeys(message.absent_partitions)
    members = tuple(message.isr_members)
    sets: dict[tuple[int, ...], tuple[int, ...]] = {}
    end = 0
    columns = zip(
        message.partitions,
        message.leaders,
        message.leader_epochs,
        message.zk_versions,
        message.controller_epochs,
        message.isr_sizes,
        strict=True,
    )
    for partition, leader, leader_epoch, zk_version, controller_epoch, size in columns:
        isr = members[end : end + size]
        end += size
        # Most partitions have one of a few ISRs: share one tuple for equal ISRs.
        states[partition] = LeaderAndIsr(leader, leader_epoch, sets.setdefault(isr, isr), zk_version, controller_epoch)
    if end != len(members):
        raise ValueError(f"{message.topic}: {len(members)} ISR members, but the sizes of the ISRs add up to {end}")
    extras = {partition: json.loads(text) for partition, text in message.extras.items()}
    return TopicStates(message.topic_id or None, states, extras)
