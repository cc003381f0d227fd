"""Replicas assigned to a partition, and those that a reassignment adds and removes (KIP-455)."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """Assigned replicas of one partition; the first is the preferred leader.

    During a reassignment ``replicas`` is the union: the target first, in its order, then the replicas to be removed.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def origin(self) -> tuple[int, ...]:
        """Replicas before the running reassignment, in the order of ``replicas``."""
        return tuple(replica for replica in self.replicas if replica not in self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        """Replicas after the running reassignment."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    @property
    def is_being_reassigned(self) -> bool:
        """Whether replicas are still being added or removed."""
        return bool(self.adding or self.removing)

    def reassign_to(self, target: Sequence[int]) -> "ReplicaAssignment":
        """Return the assignment that starts, or replaces, a reassignment to ``target``.

        Source: docs/protocol/controller.md#reassignment-algebra.
        """
        full = tuple(dict.fromkeys((*target, *self.origin)))
        return ReplicaAssignment(
            replicas=full,
            adding=tuple(replica for replica in full if replica not in self.origin),
            removing=tuple(replica for replica in full if replica not in target),
        )
