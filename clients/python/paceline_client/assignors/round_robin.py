"""`RoundRobinAssignor`: assign the partitions of all topics to the members in turn."""

from collections.abc import Iterable, Mapping
from itertools import cycle

from paceline.model.identifiers import TopicPartition
from paceline_client.assignors.base import Assignments, Assignor, GroupMember


class RoundRobinAssignor(Assignor):
    """Deal the sorted partitions of all topics to the members in turn, skipping members that do not subscribe.

    Source: Kafka's RoundRobinAssignor.

    | topics | members | assignment |
    |---|---|---|
    | t0 and t1 with 3 partitions each | c0, c1 | c0: t0-0 t0-2 t1-1; c1: t0-1 t1-0 t1-2 |
    """

    name = "roundrobin"

    def assign(self, members: Iterable[GroupMember], partition_counts: Mapping[str, int]) -> Assignments:
        """Return the partitions of every member."""
        ordered = sorted(members, key=lambda one: one.order)
        assignments: Assignments = {one.member_id: [] for one in ordered}
        turn = cycle(ordered)
        for topic in sorted({topic for one in ordered for topic in one.topics} & partition_counts.keys()):
            for index in range(partition_counts[topic]):
                taker = next(one for one in turn if topic in one.topics)
                assignments[taker.member_id].append(TopicPartition(topic, index))
        return assignments
