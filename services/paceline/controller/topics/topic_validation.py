"""Validate requests for new topics before anything is changed.

Source: docs/protocol/zookeeper.md#topic-names; Kafka 2.8 AdminManager.createTopics and
AdminZkClient.validateTopicCreate.
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from paceline.controller.context import ControllerContext
from paceline.controller.topics.placement import place_replicas
from paceline.log.log_config import LogConfig
from paceline.model.admin import NewTopic
from paceline.model.assignment import ReplicaAssignment
from paceline.model.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    PacelineError,
    TopicAlreadyExistsError,
)
from paceline.model.identifiers import INTERNAL_TOPICS, collision_key, validate_topic_name
from paceline.model.settings import ControllerConfig


class TopicValidator:
    """Checks CreateTopics requests against the controller's cluster state."""

    def __init__(self, config: ControllerConfig, context: ControllerContext, rng: random.Random) -> None:
        self._config = config
        self._context = context
        self._rng = rng

    def place_all(
        self, topics: Sequence[NewTopic], internal: bool, unlisted: Iterable[str] = ()
    ) -> dict[str, dict[int, ReplicaAssignment] | PacelineError]:
        """Return the replicas of each topic, or the error; only with ``internal`` may it be an internal topic.

        ``unlisted`` are topics whose nodes were written but that the controller has not read from ZooKeeper yet.
        """
        times = Counter(topic.name for topic in topics)
        taken = {collision_key(name): name for name in (*unlisted, *self._context.topics)}
        placed: dict[str, dict[int, ReplicaAssignment] | PacelineError] = {}
        budget = self._config.max_partitions_per_request
        for topic in topics:
            if times[topic.name] > 1:
                placed[topic.name] = InvalidRequestError(f"topic {topic.name!r} is listed more than once")
                continue
            try:
                placement = self._place(topic, internal, taken, budget)
            except PacelineError as error:
                placed[topic.name] = error
                continue
            taken[collision_key(topic.name)] = topic.name
            budget -= len(placement)
            placed[topic.name] = placement
        return placed

    def _place(
        self, topic: NewTopic, internal: bool, taken: Mapping[str, str], budget: int
    ) -> dict[int, ReplicaAssignment]:
        validate_topic_name(topic.name)
        if topic.name in INTERNAL_TOPICS and not internal:
            raise InvalidTopicError(f"topic {topic.name!r} is an internal topic")
        holder = taken.get(collision_key(topic.name))
        if holder == topic.name:
            state = "is being deleted" if self._context.is_queued_for_deletion(topic.name) else "exists"
            raise TopicAlreadyExistsError(f"topic {topic.name!r} {state}")
        if holder is not None:
            raise TopicAlreadyExistsError(f"topic {topic.name!r} differs from {holder!r} only in '.' and '_'")
        LogConfig.from_properties(topic.configs).refuse_unreceivable_batches()
        if topic.assignments:
            if topic.partitions is not None or topic.replication_factor is not None:
                raise InvalidRequestError("counts and a manual placement cannot be combined")
            check_manual_placement(topic.assignments, self._context.brokers)
            placement: Mapping[int, Sequence[int]] = dict(enumerate(topic.assignments))
        else:
            placement = self._automatic(topic, budget)
        if len(placement) > budget:
            raise InvalidPartitionsError(f"more than {self._config.max_partitions_per_request} partitions at once")
        return {partition: ReplicaAssignment(tuple(replicas)) for partition, replicas in placement.items()}

    def _automatic(self, topic: NewTopic, budget: int) -> dict[int, tuple[int, ...]]:
        partitions = self._config.num_partitions if topic.partitions is None else topic.partitions
        factor = self._config.default_replication_factor
        if topic.replication_factor is not None:
            factor = topic.replication_factor
        if partitions > budget:
            raise InvalidPartitionsError(f"more than {self._config.max_partitions_per_request} partitions at once")
        live = self._context.placeable_broker_ids()
        if factor > len(live):
            raise InvalidReplicationFactorError(
                f"replication factor {factor} is larger than the number of available brokers, {len(live)}"
            )
        racks = {broker_id: self._context.brokers[broker_id].rack for broker_id in live}
        return place_replicas(racks, partitions, factor, self._rng)


def check_manual_placement(assignments: Sequence[Sequence[int]], registered: Iterable[int]) -> None:
    """Check that every partition has the same number of distinct, registered brokers.

    Raises:
        InvalidReplicaAssignmentError: the placement is not valid; the message names the partition.
    """
    known = set(registered)
    for partition, replicas in enumerate(assignments):
        if not replicas:
            raise InvalidReplicaAssignmentError(f"partition {partition} has no replicas")
        if len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignmentError(f"partition {partition} lists a broker twice: {list(replicas)}")
        if len(replicas) != len(assignments[0]):
            raise InvalidReplicaAssignmentError(
                f"partition {partition} has {len(replicas)} replicas, partition 0 has {len(assignments[0])}"
            )
        unknown = [broker_id for broker_id in replicas if broker_id not in known]
        if unknown:
            raise InvalidReplicaAssignmentError(f"partition {partition} lists unregistered brokers: {unknown}")
