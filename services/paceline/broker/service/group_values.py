"""Convert between messages of GroupService and values of the coordinator."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from paceline.broker.groups.records import OffsetValue
from paceline.broker.groups.requests import GroupDescription, GroupListing, JoinResult, SyncResult
from paceline.model.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from paceline.model.errors import InvalidRequestError
from paceline.model.identifiers import TopicPartition
from paceline.rpc.convert.common import at_least, error_to_proto, message_of
from paceline.v1 import group_service_pb2 as pb

CONSUMER: Final = "consumer"


def state_names(states: Iterable[int]) -> frozenset[str]:
    """Return the names of states without the enum's prefix.

    Raises:
        InvalidRequestError: a number is not known.
    """
    names = set()
    for state in states:
        if state not in pb.GroupState.values():
            raise InvalidRequestError(f"group state {state} is not known")
        if state != pb.GROUP_STATE_UNSPECIFIED:
            names.add(pb.GroupState.Name(state).removeprefix("GROUP_STATE_"))  # type: ignore[arg-type]
    return frozenset(names)


def state_to_proto(name: str) -> pb.GroupState.ValueType:
    """Return the enum value of a state's name."""
    return pb.GroupState.Value(f"GROUP_STATE_{name}")


def subscription_to_bytes(message: pb.ConsumerSubscription) -> bytes:
    """Return a subscription in Kafka's consumer protocol, as stored in the log."""
    return encode_subscription(
        Subscription(
            tuple(message.topics),
            message.user_data,
            {one.topic: tuple(one.partitions) for one in message.owned_partitions},
            message.generation_id if message.HasField("generation_id") else None,
            message.rack_id,
        )
    )


def subscription_to_proto(data: bytes) -> pb.ConsumerSubscription:
    """Return the message; bytes that are not a subscription become user data."""
    try:
        found = decode_subscription(data) if data else Subscription()
    except InvalidRequestError:
        return pb.ConsumerSubscription(user_data=data)
    return pb.ConsumerSubscription(
        topics=found.topics,
        user_data=found.user_data,
        owned_partitions=_by_topic(found.owned_partitions),
        generation_id=found.generation_id,
        rack_id=found.rack_id,
    )


def assignment_to_bytes(message: pb.ConsumerAssignment) -> bytes:
    """Return an assignment in Kafka's consumer protocol, as stored in the log."""
    partitions = {one.topic: tuple(one.partitions) for one in message.partitions}
    return encode_assignment(Assignment(partitions, message.user_data))


def assignment_to_proto(data: bytes) -> pb.ConsumerAssignment:
    """Return the message; bytes that are not an assignment become user data."""
    try:
        found = decode_assignment(data)
    except InvalidRequestError:
        return pb.ConsumerAssignment(user_data=data)
    return pb.ConsumerAssignment(
        partitions=_by_topic(found.partitions),
        user_data=found.user_data,
    )


def _by_topic(partitions: Mapping[str, Sequence[int]]) -> list[pb.TopicPartitions]:
    return [pb.TopicPartitions(topic=topic, partitions=indexes) for topic, indexes in partitions.items()]


def join_to_proto(result: JoinResult) -> pb.JoinGroupResponse:
    """Return the response to a JoinGroup."""
    return pb.JoinGroupResponse(
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        leader=result.leader,
        member_id=result.member_id,
        members=[
            message_of(pb.JoinGroupMember, one, subscription=subscription_to_proto(one.metadata))
            for one in result.members
        ],
        skip_assignment=result.skip_assignment,
    )


def sync_to_proto(result: SyncResult) -> pb.SyncGroupResponse:
    """Return the response to a SyncGroup."""
    return pb.SyncGroupResponse(
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=assignment_to_proto(result.assignment),
    )


def offset_from_proto(message: pb.OffsetToCommit, now_ms: int) -> OffsetValue:
    """Return an offset to commit.

    Raises:
        InvalidRequestError: the offset is negative.
    """
    epoch = at_least(message.leader_epoch, 0, "leader epoch") if message.HasField("leader_epoch") else -1
    return OffsetValue(at_least(message.offset, 0, "offset"), epoch, message.metadata, now_ms)


def committed_to_proto(topic_partition: TopicPartition, value: OffsetValue | None) -> pb.CommittedOffset:
    """Return a committed offset; without a value, only topic and partition are set."""
    message = pb.CommittedOffset(topic=topic_partition.topic, partition=topic_partition.partition)
    if value is not None:
        message.offset = value.offset
        message.metadata = value.metadata
        message.commit_time_ms = value.commit_timestamp
        if value.leader_epoch >= 0:
            message.leader_epoch = value.leader_epoch
    return message


def listing_to_proto(listing: GroupListing) -> pb.ListedGroup:
    """Return an entry of the list of groups."""
    return message_of(pb.ListedGroup, listing, state=state_to_proto(listing.state))


def description_to_proto(description: GroupDescription) -> pb.DescribedGroup:
    """Return a described group."""
    return pb.DescribedGroup(
        group_id=description.group_id,
        error=error_to_proto(pb.GroupError, description.error),
        state=state_to_proto(description.state),
        protocol_type=description.protocol_type,
        protocol_name=description.protocol,
        generation_id=description.generation,
        members=[
            message_of(
                pb.DescribedMember,
                one,
                subscription=subscription_to_proto(one.metadata),
                assignment=assignment_to_proto(one.assignment),
            )
            for one in description.members
        ],
        leader=description.leader,
    )
