"""Find the leader of a partition that a response names to the client.

Leaders come from the hosted partitions and the metadata cache; the higher leader epoch wins.

Source: docs/protocol/clients.md#leader-hints.
"""

from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.requests.errors import failure_of
from paceline.model.client_io import LeaderHint, PartitionFailure
from paceline.model.errors import LeaderNotAvailableError, NotLeaderOrFollowerError, PacelineError
from paceline.model.identifiers import NO_LEADER, TopicPartition


def hint(hosted: HostedPartitions, topic_partition: TopicPartition, topic_id: str | None = None) -> LeaderHint | None:
    """Return the leader of a partition, None when there is no leader or this broker does not know the leader.

    With a topic id, leaders of another topic id are ignored: a deleted topic with the same name may have had higher
    leader epochs, and a client trusts the highest leader epoch.
    """
    newest = _newest_leader(hosted, topic_partition, topic_id)
    if newest is None or newest.leader_id < 0:
        return None
    if newest.leader_id == hosted.broker_id:
        partition = hosted.online.get(topic_partition)
        if partition is None or not partition.is_leader or not partition.is_leadership_proved:
            return None  # The hint would send the client back to this broker.
    return newest


def refusal(
    hosted: HostedPartitions, error: PacelineError, topic_partition: TopicPartition, topic_id: str | None = None
) -> PartitionFailure:
    """Return the failure of a request that was not applied, with a leader hint.

    If the partition has no leader, NOT_LEADER_OR_FOLLOWER becomes LEADER_NOT_AVAILABLE: no other broker leads it.
    """
    newest = _newest_leader(hosted, topic_partition, topic_id)
    if isinstance(error, NotLeaderOrFollowerError) and newest is not None and newest.leader_id < 0:
        error = LeaderNotAvailableError(f"{topic_partition} has no leader")
    return failure_of(error, hint(hosted, topic_partition, topic_id))


def _newest_leader(
    hosted: HostedPartitions, topic_partition: TopicPartition, topic_id: str | None
) -> LeaderHint | None:
    """Return the leader with the highest leader epoch; its id is `NO_LEADER` while the partition has no leader."""
    known = []
    partition, state = hosted.online.get(topic_partition), hosted.metadata.snapshot.partition(topic_partition)
    if partition is not None and partition.leader_id != NO_LEADER:
        known.append(LeaderHint(partition.leader_id, partition.leader_epoch, partition.topic_id))
    if state is not None:
        known.append(LeaderHint(state.leader, state.leader_epoch, state.topic_id))
    hints = [one for one in known if None in (one.topic_id, topic_id) or one.topic_id == topic_id]
    return max(hints, key=lambda one: (one.leader_epoch, one.leader_id), default=None)
