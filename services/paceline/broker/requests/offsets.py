"""Answer ListOffsets, OffsetsForLeaderEpoch and DescribeReplicas.

Source: docs/protocol/replication.md#offset-lookups; docs/protocol/log-format.md#leader-epoch-cache.
"""

from collections.abc import Sequence

from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.requests.errors import failure_of
from paceline.broker.requests.leader_hints import refusal
from paceline.broker.storage.replica_storage import ReplicaStorage
from paceline.log.damage import DamagedLogError
from paceline.log.partition_log import PartitionLog
from paceline.model.admin import ReplicaDescription
from paceline.model.client_io import (
    EpochAnswer,
    EpochQuery,
    OffsetAnswer,
    OffsetKind,
    OffsetQuery,
    PartitionFailure,
    PartitionReplicasView,
)
from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.model.replica_fetch import EpochEnd
from paceline.replication.follower_progress import FollowerProgress

_MAX_EPOCHS, _MAX_EPOCHS_IN_ALL = 100, 1_000
"""Latest leader epochs in the view of one partition, and of all partitions of a response together."""


def list_offsets(
    hosted: HostedPartitions, storage: ReplicaStorage, queries: Sequence[OffsetQuery]
) -> list[OffsetAnswer]:
    """Look up readable offsets.

    Without transactions the last stable offset is the high watermark, so that both isolation levels are equal.
    """
    return [_list_offset(hosted, storage, query) for query in queries]


def _list_offset(hosted: HostedPartitions, storage: ReplicaStorage, query: OffsetQuery) -> OffsetAnswer:
    answer = OffsetAnswer(query.topic_partition)
    try:
        partition = hosted.lookup(query.topic_partition)
        log = partition.serving_log(query.current_leader_epoch)
        if query.kind is OffsetKind.EARLIEST:
            _found(answer, log, log.log_start_offset)
            return answer
        partition.check_high_watermark_is_current()
        if query.kind is OffsetKind.LATEST:
            _found(answer, log, log.high_watermark)
            return answer
        found = log.offset_for_timestamp(query.timestamp_ms, log.high_watermark)
        if found is not None:
            _found(answer, log, found[0])
            answer.timestamp_ms = found[1]
    except DamagedLogError as error:
        answer.failure = failure_of(storage.log_damaged(query.topic_partition, error))
    except PacelineError as error:
        answer.failure = refusal(hosted, error, query.topic_partition)
    return answer


def _found(answer: OffsetAnswer, log: PartitionLog, offset: int) -> None:
    """Return an offset with the leader epoch of its record, by which a reader can later detect a truncated log."""
    answer.offset = offset
    epoch = log.epochs.epoch_of(offset)
    answer.leader_epoch = -1 if epoch is None else epoch


def offsets_for_leader_epoch(
    hosted: HostedPartitions, queries: Sequence[EpochQuery], from_client: bool
) -> list[EpochAnswer]:
    """Return the end offset of each leader epoch, from the leader-epoch cache of the partition's leader.

    A client gets an answer only from a leader that can prove its leadership; a follower's request needs no proof.
    """
    answers = []
    for query in queries:
        answer = EpochAnswer(query.topic_partition)
        answers.append(answer)
        try:
            partition = hosted.lookup(query.topic_partition)
            epoch = query.current_leader_epoch
            log = partition.serving_log(epoch) if from_client else partition.leader_log(epoch)
            end = log.end_offset_for_epoch(query.leader_epoch)
            answer.end = None if end is None else EpochEnd(*end)
        except PacelineError as error:
            answer.failure = refusal(hosted, error, query.topic_partition)
    return answers


def describe_replicas(
    hosted: HostedPartitions, topic: str, indexes: Sequence[int], now_ms: int
) -> list[PartitionReplicasView]:
    """Return this leader's view of partitions: the progress of each replica, its own first.

    A partition that this broker does not lead has a failure, and its own replica alone.
    """
    views = []
    most_epochs = min(max(_MAX_EPOCHS_IN_ALL // max(len(indexes), 1), 1), _MAX_EPOCHS)
    for index in indexes:
        topic_partition = TopicPartition(topic, index)
        try:
            views.append(_view(hosted, topic_partition, now_ms, most_epochs))
        except PacelineError as error:
            views.append(_own_view(hosted, topic_partition, refusal(hosted, error, topic_partition), most_epochs))
    return views


def _own_view(
    hosted: HostedPartitions, topic_partition: TopicPartition, failure: PartitionFailure, most_epochs: int
) -> PartitionReplicasView:
    partition = hosted.online.get(topic_partition)
    if partition is None or partition.log is None:
        return PartitionReplicasView(topic_partition, failure)
    return PartitionReplicasView(
        topic_partition,
        failure,
        leader=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        high_watermark=partition.log.high_watermark,
        log_start_offset=partition.log.log_start_offset,
        replicas=(_own_progress(hosted, partition.log, most_epochs),),
        topic_id=partition.topic_id,
    )


def _own_progress(
    hosted: HostedPartitions, log: PartitionLog, most_epochs: int, is_leader: bool = False
) -> ReplicaDescription:
    at_leader = 0 if is_leader else None
    return ReplicaDescription(
        hosted.broker_id,
        log.log_end_offset,
        log.log_start_offset,
        at_leader,
        at_leader,
        in_sync=is_leader,
        high_watermark=log.high_watermark,
        lag_records=at_leader,
        broker_epoch=hosted.contact.broker_epoch,
        leader_epochs=tuple(log.epochs.entries[-most_epochs:]),
    )


def _view(
    hosted: HostedPartitions, topic_partition: TopicPartition, now_ms: int, most_epochs: int
) -> PartitionReplicasView:
    partition = hosted.lookup(topic_partition)
    log = partition.serving_log()
    own = _own_progress(hosted, log, most_epochs, is_leader=True)
    told = {
        session.owner: session.partitions[topic_partition].sent_high_watermark
        for session in partition.sessions
        if session.owner is not None and topic_partition in session.partitions
    }
    others = (
        _progress(
            follower,
            log.log_end_offset,
            now_ms,
            follower.broker_id in partition.isr,
            told.get(follower.broker_id),
            not hosted.metadata.snapshot.is_offline_replica(topic_partition, follower.broker_id),
        )
        for follower in partition.followers.values()
    )
    start = partition.leader_epoch_start_offset
    return PartitionReplicasView(
        partition.topic_partition,
        leader=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        leader_epoch_start_offset=-1 if start is None else start,
        high_watermark=log.high_watermark,
        log_start_offset=log.log_start_offset,
        isr=partition.isr,
        maximal_isr=partition.maximal_isr,
        replicas=(own, *others),
        topic_id=partition.topic_id,
        zk_version=partition.zk_version,
        adding_replicas=partition.adding_replicas,
        removing_replicas=partition.removing_replicas,
        min_insync_replicas=log.config.min_insync_replicas,
        under_replicated=partition.is_under_replicated,
        bytes_in=partition.bytes_in,
        bytes_out=partition.bytes_out,
    )


def _progress(
    follower: FollowerProgress,
    end_offset: int,
    now_ms: int,
    in_sync: bool,
    high_watermark: int | None,
    online: bool,
) -> ReplicaDescription:
    caught_up_ms = follower.caught_up_ms(end_offset)
    known = follower.log_end_offset
    return ReplicaDescription(
        follower.broker_id,
        known,
        follower.log_start_offset,
        None if caught_up_ms is None else now_ms - caught_up_ms,
        now_ms - follower.last_seen_ms() if follower.fetched_in_epoch else None,
        in_sync,
        high_watermark if follower.fetched_in_epoch else None,
        None if known is None else max(end_offset - known, 0),
        follower.broker_epoch,
        online,
    )
