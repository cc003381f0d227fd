"""`StickyAssignor` and `CooperativeStickyAssignor`: balance the partitions with as few moves as possible.

1. Every member keeps the partitions that it owns and still subscribes to. If several members claim a partition,
   the claim of the latest generation counts; if several have that generation, no member keeps it (KAFKA-12984).
2. A partition without an owner goes to the subscribed member with the fewest partitions.
3. While a subscribed member has at least two partitions fewer than a partition's owner, that partition moves to it.

With weights, the numbers of partitions in steps 2 and 3 are divided by the weights of the members.

Step 3 terminates: with a move the greater load of the two members becomes smaller.

Source: Kafka's StickyAssignor (KIP-54) and CooperativeStickyAssignor (KIP-429).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from paceline.model.consumer_protocol import Reader, Writer, by_topic
from paceline.model.errors import InvalidRequestError
from paceline.model.identifiers import TopicPartition
from paceline_client.assignors.base import Assignments, Assignor, GroupMember

OwnedBy = Callable[[GroupMember], tuple[Sequence[TopicPartition], int]]


class StickyAssignor(Assignor):
    """Balances the partitions with as few changes of owner as possible; members first revoke all their partitions."""

    name = "sticky"

    def assign(self, members: Iterable[GroupMember], partition_counts: Mapping[str, int]) -> Assignments:
        """Return the partitions of every member."""
        ordered = sorted(members, key=lambda one: one.order)
        weights = {one.member_id: self.weight_of(one) for one in ordered}
        return _balanced(ordered, partition_counts, self.owned_by, weights)

    def weight_of(self, member: GroupMember) -> int:
        """Return the weight of a member: its share of the partitions in proportion to the other members'."""
        return 1

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes:
        """Return the partitions and the generation of the member, in Kafka's StickyAssignorUserData version 1."""
        out = Writer()
        out.partitions(by_topic(owned))
        out.int32(generation)
        return out.done()

    def owned_by(self, member: GroupMember) -> tuple[Sequence[TopicPartition], int]:
        """Return a member's partitions before the rebalance and the generation in which it got them."""
        if not member.user_data:
            return member.owned, member.generation
        try:
            source = Reader(member.user_data)
            owned = [TopicPartition(topic, index) for topic, all_ in source.partitions().items() for index in all_]
            return owned, source.int32() if source.left else -1
        except InvalidRequestError:
            return (), -1


class CooperativeStickyAssignor(StickyAssignor):
    """Like `StickyAssignor`, in two rebalances: the first revokes the partitions that move, the second assigns them.

    Members keep the partitions that do not move, and continue reading them during the rebalance.
    """

    name = "cooperative-sticky"
    cooperative = True

    def assign(self, members: Iterable[GroupMember], partition_counts: Mapping[str, int]) -> Assignments:
        """Return the partitions of every member, without partitions that another member must revoke first."""
        members = tuple(members)
        assignments = super().assign(members, partition_counts)
        owners = _owners(members, self.owned_by)
        return {
            member_id: [one for one in partitions if owners.get(one, member_id) == member_id]
            for member_id, partitions in assignments.items()
        }

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes:
        """Return the generation, as Kafka before 3.5 does; the owned partitions are in the subscription."""
        out = Writer()
        out.int32(generation)
        return out.done()

    def owned_by(self, member: GroupMember) -> tuple[Sequence[TopicPartition], int]:
        """Return a member's partitions before the rebalance and the generation in which it got them."""
        if member.generation < 0 and len(member.user_data) >= 4:
            return member.owned, Reader(member.user_data).int32()
        return member.owned, member.generation


def _balanced(
    members: Sequence[GroupMember], counts: Mapping[str, int], owned_by: OwnedBy, weights: Mapping[str, int]
) -> Assignments:
    kept = _kept(members, counts, owned_by)
    takers = {
        topic: [one.member_id for one in members if topic in one.topics]
        for topic in sorted({topic for one in members for topic in one.topics} & counts.keys())
    }
    assigned = {one for partitions in kept.values() for one in partitions}
    for topic, takes in takers.items():
        for index in range(counts[topic]):
            partition = TopicPartition(topic, index)
            if partition not in assigned:
                kept[min(takes, key=lambda one: (len(kept[one]) + 1) / weights[one])].append(partition)
    _even_out(kept, takers, weights)
    return {member_id: sorted(partitions) for member_id, partitions in kept.items()}


def _owners(members: Sequence[GroupMember], owned_by: OwnedBy) -> dict[TopicPartition, str | None]:
    """Return the member with the claim of the latest generation for each partition, None if several members have it."""
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        owned, generation = owned_by(member)
        for partition in owned:
            best = claims.get(partition)
            if best is None or generation > best[0]:
                claims[partition] = (generation, member.member_id)
            elif generation == best[0]:
                claims[partition] = (generation, None)
    return {partition: owner for partition, (_, owner) in claims.items()}


def _kept(members: Sequence[GroupMember], counts: Mapping[str, int], owned_by: OwnedBy) -> Assignments:
    topics = {member.member_id: member.topics for member in members}
    kept: Assignments = {member.member_id: [] for member in members}
    for partition, owner in sorted(_owners(members, owned_by).items()):
        if (
            owner is not None
            and partition.topic in topics[owner]
            and partition.partition < counts.get(partition.topic, 0)
        ):
            kept[owner].append(partition)
    return kept


def _even_out(kept: Assignments, takers: Mapping[str, Sequence[str]], weights: Mapping[str, int]) -> None:
    """Move partitions to members with fewer partitions until no move improves the balance."""
    while _move_one(kept, takers, weights):
        pass


def _move_one(kept: Assignments, takers: Mapping[str, Sequence[str]], weights: Mapping[str, int]) -> bool:
    """Move a partition away from the fullest member that has a movable partition; return whether a partition moved."""
    for giver in sorted(kept, key=lambda one: -len(kept[one]) / weights[one]):
        for topic in sorted({one.topic for one in kept[giver]}):
            taker = min(takers[topic], key=lambda one: (len(kept[one]) + 1) / weights[one])
            if (len(kept[taker]) + 1) / weights[taker] < len(kept[giver]) / weights[giver]:
                partition = max(one for one in kept[giver] if one.topic == topic)
                kept[giver].remove(partition)
                kept[taker].append(partition)
                return True
    return False
