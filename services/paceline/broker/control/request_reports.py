"""Report a broker's answers to control requests, for the watchers that name a partition of the request."""

from collections.abc import Collection, Iterator

from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.model.control import ControlRequest, ControlResponse, StopReplicaPartition
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import RequestAnswer, StateChange, StateChangeKind


def request_reports(
    request: ControlRequest,
    response: ControlResponse,
    watched: Collection[TopicPartition],
    hosted: HostedPartitions,
    confirmed_epoch: int,
) -> Iterator[StateChange]:
    """Yield the answer for each watched partition of a request that was just applied, deferred or refused."""
    stamp = request.stamp
    for state in request.partitions:
        topic_partition = state.topic_partition
        if topic_partition not in watched:
            continue
        answer = RequestAnswer(
            request=type(request).__name__.removesuffix("Request"), controller_id=stamp.controller_id
        )
        error = response.error or response.partition_errors.get(topic_partition, ErrorCode.NONE)
        if error is not ErrorCode.NONE:
            partition = hosted.online.get(topic_partition)
            answer.error = error.name
            answer.known_controller_epoch = confirmed_epoch
            answer.known_leader_epoch = None if partition is None else partition.leader_epoch
            answer.known_broker_epoch = hosted.contact.broker_epoch
        change = StateChange(
            who=f"broker-{hosted.broker_id}",
            wall_ms=hosted.scheduler.wall_ms(),
            kind=StateChangeKind.CONTROL_REQUEST,
            topic_partition=topic_partition,
            topic_id=state.topic_id,
            replica=hosted.broker_id,
            controller_epoch=stamp.controller_epoch,
            broker_epoch=stamp.broker_epoch,
            leader_epoch=state.leader_epoch,
            answer=answer,
        )
        if isinstance(state, StopReplicaPartition):
            change.cause = "deletes the replica" if state.delete_partition else None
        else:
            change.leader, change.isr, change.zk_version = state.leader, state.isr, state.zk_version
        yield change
