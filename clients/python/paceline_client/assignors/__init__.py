"""Partition assignors of consumer groups. Pure; each has Kafka's name and rules.

Read `base.py` first. `range` and `roundrobin` give partitions by order, `sticky` and `cooperative-sticky` leave them
where they are as far as the balance allows; with `cooperative-sticky` members keep reading while a rebalance runs.
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
        InvalidRequestError: a name is not known, one comes twice, there is none, or eager and cooperative ones are
            mixed.
    """
    found: list[Assignor] = []
    for one in wanted:
        if isinstance(one, str):
            if one not in _BY_NAME:
                raise InvalidRequestError(f"assignor {one!r} is not known; there are {', '.join(_BY_NAME)}")
            found.append(_BY_NAME[one]())
        else:
            found.append(one)
    if not found:
        raise InvalidRequestError("a group needs at least one assignor")
    if len({one.name for one in found}) != len(found):
        raise InvalidRequestError("an assignor is named twice")
    if len({one.cooperative for one in found}) > 1:
        raise InvalidRequestError("cooperative-sticky cannot be mixed with assignors that revoke everything first")
    return tuple(found)
