"""`LeaderHints`: find the leader of a partition that a response names to the client.

Source: docs/protocol/clients.md#leader-hints.
"""

from paceline.broker.metadata_cache import MetadataCache
from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.requests.errors import failure_of, leader_hint
from paceline.model.client_io import LeaderHint, PartitionFailure
from paceline.model.errors import LeaderNotAvailableError, NotLeaderOrFollowerError, PacelineError
from paceline.model.identifiers import TopicPartition


class LeaderHints:
    """Finds leaders in the hosted partitions and the metadata cache; the higher leader epoch wins."""

    def __init__(self, broker_id: int, hosted: HostedPartitions, metadata: MetadataCache) -> None:
        self._broker_id = broker_id
        self._hosted = hosted
        self._metadata = metadata

    def hint(self, topic_partition: TopicPartition, topic_id: str | None = None) -> LeaderHint | None:
        """Return the leader of a partition, None when there is no leader or this broker does not know the leader.

        With a topic id, leaders of another topic id are ignored: a deleted topic with the same name may have had higher
        leader epochs, and a client trusts the highest leader epoch.
        """
        newest = self._newest_leader(topic_partition, topic_id)
        if newest is None or newest.leader_id < 0:
            return None
        if newest.leader_id == self._broker_id and not self._leads_provably(topic_partition):
            return None  # The hint would send the client back to this broker.
        return newest

    def refusal(
        self, error: PacelineError, topic_partition: TopicPartition, topic_id: str | None = None
    ) -> PartitionFailure:
        """Return the failure of a request that was not applied, with a leader hint.

        If the partition has no leader, NOT_LEADER_OR_FOLLOWER becomes LEADER_NOT_AVAILABLE: no other broker leads it.
        """
        newest = self._newest_leader(topic_partition, topic_id)
        if isinstance(error, NotLeaderOrFollowerError) and newest is not None and newest.leader_id < 0:
            error = LeaderNotAvailableError(f"{topic_partition} has no leader")
        return failure_of(error, self.hint(topic_partition, topic_id))

    def _newest_leader(self, topic_partition: TopicPartition, topic_id: str | None) -> LeaderHint | None:
        """Return the leader with the highest leader epoch; its id is `NO_LEADER` while the partition has no leader."""
        known = [leader_hint(self._hosted.online.get(topic_partition))]
        state = self._metadata.snapshot.partition(topic_partition)
        if state is not None:
            known.append(LeaderHint(state.leader, state.leader_epoch, state.topic_id))
        hints = [
            one for one in known if one is not None and (None in (one.topic_id, topic_id) or one.topic_id == topic_id)
        ]
        return max(hints, key=lambda one: (one.leader_epoch, one.leader_id), default=None)

    def _leads_provably(self, topic_partition: TopicPartition) -> bool:
        partition = self._hosted.online.get(topic_partition)
        return partition is not None and partition.is_leader and partition.is_leadership_proved
