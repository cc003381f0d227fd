"""`RangeAssignor`: assign a range of consecutive partitions of each topic to each member."""

from collections.abc import Iterable, Mapping

from paceline.model.identifiers import TopicPartition
from paceline_client.assignors.base import Assignments, Assignor, GroupMember


class RangeAssignor(Assignor):
    """Divide the partitions of each topic separately; with a remainder the first members get one partition more.

    Members that subscribe to the same topics get the same partition indexes of each topic, so that records with equal
    keys in several topics are read by the same member. Source: Kafka's RangeAssignor.

    | topics | members | assignment |
    |---|---|---|
    | t0 and t1 with 3 partitions each | c0, c1 | c0: t0-0 t0-1 t1-0 t1-1; c1: t0-2 t1-2 |
    """

    name = "range"

    def assign(self, members: Iterable[GroupMember], partition_counts: Mapping[str, int]) -> Assignments:
        """Return the partitions of every member."""
        ordered = sorted(members, key=lambda one: one.order)
        assignments: Assignments = {one.member_id: [] for one in ordered}
        for topic in sorted({topic for one in ordered for topic in one.topics} & partition_counts.keys()):
            takers = [one for one in ordered if topic in one.topics]
            each, more = divmod(partition_counts[topic], len(takers))
            begin = 0
            for place, taker in enumerate(takers):
                end = begin + each + (place < more)
                assignments[taker.member_id].extend(TopicPartition(topic, index) for index in range(begin, end))
                begin = end
        return assignments
