"""Progress of moves: bytes left, speed, estimated time and throttle. The clock is passed in.

The bytes left are the leader's bytes minus those of the new replicas, from their log directories. The speed is the
growth of the new replicas between two measurements.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from paceline.model.broker_dynamic_config import REPLICATION_RATES

if TYPE_CHECKING:
    from paceline_client import Admin, BrokerLogDirs, Reassignment

_FEW: Final = 1_000
"""Moves from which on the sizes of all replicas are read instead of those of the moving ones."""

Partition = tuple[str, int]
Sizes = Mapping[tuple[str, int, int], int]
"""Bytes per topic, partition and broker."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Progress of a move."""

    bytes_left: int | None
    """None while a broker whose sizes are needed does not answer."""
    bytes_per_second: int | None
    """None at the first measurement."""
    eta_s: int | None
    """None when it cannot be estimated, for example when no bytes are being copied."""


NO_SPEED: Final = Speed(None, None, None)


def sizes_of(brokers: Iterable["BrokerLogDirs"]) -> dict[tuple[str, int, int], int]:
    """Return the size of every replica in the result of `Admin.describe_log_dirs`."""
    return {
        (replica.topic_partition.topic, replica.topic_partition.partition, broker.broker_id): replica.size_bytes
        for broker in brokers
        for log_dir in broker.log_dirs
        for replica in log_dir.replicas
        if not replica.is_future
    }


class Progress:
    """Compares successive measurements of the same moves."""

    def __init__(self) -> None:
        self._before: dict[Partition, int] = {}
        self._at_s: float | None = None

    def look(self, moves: Iterable["Reassignment"], sizes: Sizes, now_s: float) -> dict[Partition, Speed]:
        """Return the progress of each move; ``now_s`` must come from a monotonic clock."""
        found: dict[Partition, Speed] = {}
        copied_now: dict[Partition, int] = {}
        passed_s = None if self._at_s is None else now_s - self._at_s
        for move in moves:
            where = move.topic_partition
            topic, index = where
            receivers = [each.broker_id for each in move.waiting_for]
            copied = copied_now[where] = sum(sizes.get((topic, index, broker), 0) for broker in move.target)
            full = None if move.leader is None else sizes.get((topic, index, move.leader))
            left = None
            if not receivers:
                left = 0
            elif full is not None:
                left = sum(max(0, full - sizes.get((topic, index, broker), 0)) for broker in receivers)
            speed = None
            if passed_s and where in self._before:
                speed = max(0, int((copied - self._before[where]) / passed_s))
            eta_s = None
            if left == 0:
                eta_s = 0
            elif left is not None and speed:
                eta_s = math.ceil(left / speed)
            found[where] = Speed(left, speed, eta_s)
        self._before, self._at_s = copied_now, now_s
        return found


def measure(
    admin: "Admin", moves: "Sequence[Reassignment]", progress: Progress, now_s: float
) -> dict[Partition, Speed]:
    """Read the sizes of the moving replicas and return the progress of each move."""
    copying = [move for move in moves if move.waiting_for]
    if not copying:
        return progress.look(moves, {}, now_s)
    involved = {
        broker for move in copying for broker in (*move.target, *(() if move.leader is None else (move.leader,)))
    }
    only = [move.topic_partition for move in copying] if len(copying) <= _FEW else None
    return progress.look(moves, sizes_of(admin.describe_log_dirs(sorted(involved), only)), now_s)


def throttled_brokers(admin: "Admin", also: Iterable[int] = ()) -> dict[int, int]:
    """Return the lowest rate limit of each throttled broker, among live brokers and the brokers in ``also``."""
    wanted = sorted({*(broker.broker_id for broker in admin.describe_cluster().brokers), *also})
    found = {}
    for broker, entries in admin.describe_broker_configs(wanted).items():
        own = [int(entry.value) for entry in entries if entry.source == "broker" and entry.key in REPLICATION_RATES]
        if own and broker is not None:
            found[broker] = min(own)
    return found


def move_row(move: "Reassignment", speed: Speed, throttled: Mapping[int, int]) -> dict[str, Any]:
    """Return the row of a running move, with the reason when it waits."""
    rates = [throttled[broker] for broker in move.replicas if broker in throttled]
    reasons = [replica.message for replica in move.waiting_for]
    if speed.bytes_per_second == 0 and speed.bytes_left:
        reasons.append("no bytes were copied since the last measurement")
    state = "stuck" if move.is_stuck else "copying" if move.waiting_for else "finishing"
    return {
        "partition": str(move.topic_partition),
        "target": list(move.target),
        "adding": list(move.adding),
        "removing": list(move.removing),
        "isr": list(move.isr),
        "leader": move.leader,
        "state": state,
        "bytes_left": speed.bytes_left,
        "bytes_per_s": speed.bytes_per_second,
        "eta_s": speed.eta_s,
        "throttle": min(rates, default=None),
        "reason": "; ".join(reasons) or None,
    }
