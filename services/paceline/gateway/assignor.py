"""`GatewayAssignor`: divide the partitions of a group among gateways in proportion to their streams."""

from collections.abc import Callable, Iterable

from paceline.model.identifiers import TopicPartition
from paceline_client.assignors import CooperativeStickyAssignor, GroupMember

_MAX_WEIGHT = 100_000


class GatewayAssignor(CooperativeStickyAssignor):
    """Cooperative and sticky; a gateway with twice as many streams gets twice as many partitions.

    Its name differs from those of the client libraries, so that a group has members of one kind. The number of streams
    is the user data of a member, as decimal digits, when it joins; later changes count at the next rebalance.
    """

    name = "gateway"

    def __init__(self, streams: Callable[[], int]) -> None:
        """``streams`` returns the present number of streams of this member."""
        self._streams = streams

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes:
        """Return the number of streams."""
        return str(max(1, self._streams())).encode()

    def weight_of(self, member: GroupMember) -> int:
        """Return the number of streams of a member, 1 when it is not known."""
        text = member.user_data[:6]
        return max(1, min(_MAX_WEIGHT, int(text))) if text.isdigit() else 1

    def owned_by(self, member: GroupMember) -> "tuple[tuple[TopicPartition, ...], int]":
        """Return the partitions of a member before the rebalance and the generation in which it got them."""
        return member.owned, member.generation
