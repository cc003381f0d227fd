"""Partition assignors of consumer groups. Pure; each has the name and the rules of Kafka's assignor.

Read `base.py` first. `range` and `roundrobin` assign partitions in order, `sticky` and `cooperative-sticky` keep the
current owners as far as the balance allows; with `cooperative-sticky` members continue reading during a rebalance.
"""

from collections.abc import Iterable

from paceline.model.errors import InvalidRequestError
from paceline_client.assignors.base import Assignor, GroupMember
from paceline_client.assignors.range import RangeAssignor
from paceline_client.assignors.round_robin import RoundRobinAssignor
from paceline_client.assignors.sticky import CooperativeStickyAssignor, StickyAssignor

__all__ = [
    "Assignor",
    "CooperativeStickyAssignor",
    "GroupMember",
    "RangeAssignor",
    "RoundRobinAssignor",
    "StickyAssignor",
    "assignors_of",
]

_BY_NAME = {one.name: one for one in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)}


def assignors_of(wanted: Iterable[str | Assignor]) -> tuple[Assignor, ...]:
    """Return assignors for names or assignors, in order.

    Raises:
        InvalidRequestError: a name is unknown or occurs twice, the list is empty, or eager and cooperative assignors
            are mixed.
    """
    found: list[Assignor] = []
    for one in wanted:
        if isinstance(one, str):
            if one not in _BY_NAME:
                raise InvalidRequestError(f"assignor {one!r} is unknown; known are {', '.join(_BY_NAME)}")
            found.append(_BY_NAME[one]())
        else:
            found.append(one)
    if not found:
        raise InvalidRequestError("a group needs at least one assignor")
    if len({one.name for one in found}) != len(found):
        raise InvalidRequestError("an assignor is listed twice")
    if len({one.cooperative for one in found}) > 1:
        raise InvalidRequestError("cooperative-sticky cannot be combined with eager assignors")
    return tuple(found)
