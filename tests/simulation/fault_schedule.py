"""The faults of a run: a list drawn from the seed, each entry with its own random stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tests.simulation.profile import Profile
from tests.simulation.world import World

FALSE_SUSPICIONS = ("suspect-broker", "flap-broker", "suspect-controller", "cut-controllers")
STRIKES = (
    "crash-broker",
    "bounce-broker",
    "stop-broker",
    "power-loss",
    "pause-broker",
    "zk-expire",
    "zk-cut",
    "zk-lost-reply",
    "cut-control",
    "lose-control-requests",
    "cut-replication",
    "isolate-broker",
    "kill-active-controller",
)
"""Faults of ambushes; all but the last strike a broker of the place."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the schedule."""

    at_ms: int
    """Time after the warm-up."""
    kind: str
    pick: int
    """Chooses the target among the possible targets."""
    duration_ms: int
    other: int = 0
    """Chooses a second target or a variant."""

    def __str__(self) -> str:
        return f"{self.at_ms:>6} ms  {self.kind} pick {self.pick} for {self.duration_ms} ms, other {self.other}"


def draw_faults(world: World, profile: Profile) -> list[Fault]:
    """Return the schedule for the world's seed, in order of time."""
    faults = _draw(world, profile, "fault", profile.fault_kinds, profile.fault_count)
    faults += _draw(world, profile, "operation", profile.operation_kinds, profile.operation_count)
    faults += _draw(world, profile, "eviction", ("evict-controller",), profile.evictions)
    faults += _draw(world, profile, "slow disk", ("slow-disk",), profile.slow_disks)
    faults += _draw(world, profile, "full disk", ("full-disk",), profile.full_disks)
    faults += _draw(world, profile, "lost segment", ("lose-segment",), profile.lost_segments)
    faults += _draw(world, profile, "death in compaction", ("die-in-compaction",), profile.deaths_in_compaction)
    faults += _draw(world, profile, "ambush", ("ambush",), profile.ambushes)
    faults += _draw(world, profile, "false suspicion", FALSE_SUSPICIONS, profile.false_suspicions)
    faults += _draw(world, profile, "hidden listener", ("hide-replication",), profile.hidden_listeners)
    faults += _draw(world, profile, "move", ("move-replica",), profile.moves)
    faults += _draw(world, profile, "death in move", ("die-in-move",), profile.deaths_in_move)
    return sorted(faults, key=lambda fault: fault.at_ms)


def _draw(world: World, profile: Profile, label: str, kinds: Sequence[str], count: int) -> list[Fault]:
    return [
        draw_one(world.chance(f"{label}/{index}"), profile, kinds, profile.fault_ms)
        for index in range(count if kinds else 0)
    ]


def draw_one(chance: Random, profile: Profile, kinds: Sequence[str], within_ms: int) -> Fault:
    """Return a fault of one of these kinds."""
    session_ms = profile.session_timeout_ms
    durations = (50, 300, 1_000, session_ms // 2, session_ms + 1_500, 2 * session_ms, 3 * session_ms)
    return Fault(
        at_ms=chance.randint(0, within_ms),
        kind=chance.choice(kinds),
        pick=chance.randrange(1 << 16),
        duration_ms=chance.choice(durations) + chance.randint(0, 200),
        other=chance.randrange(1 << 16),
    )
