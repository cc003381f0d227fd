"""Run one scenario and print its figures; exit with 1 when it found problems.

faults: kills, pauses, one-way cuts, full and slow disks.    outage: ZooKeeper and all controllers are down for a while.
kills: leaders and the active controller die.    suspicions: live brokers refuse connects.
groups: members of a consumer group and coordinators die.    steps: processes die between two steps of the Spark jobs.
"""

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.soak.failover import failover
from tests.soak.groups.soak import group_soak
from tests.soak.kill_matrix import STEPS, VICTIMS, kill_matrix
from tests.soak.outage import outage
from tests.soak.rounds import Outcome, soak

Result = tuple[str, Sequence[str]]
"""Figures, and problems."""


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"  {text}", flush=True)


def _summary(outcome: Outcome) -> Result:
    kinds = ", ".join(f"{name} {count}" for name, count in sorted(outcome.kinds.items()))
    figures = (
        f"{outcome.rounds} rounds ({kinds}), {outcome.sent:,} sent, {outcome.acked:,} acked, {outcome.read:,} read, "
        f"longest gap {outcome.longest_gap_s:.1f} s, {outcome.batches_compared:,} batches compared"
    )
    return figures, outcome.problems


def _faults(asked: argparse.Namespace) -> Result:
    return _summary(soak(asked.directory / "faults", asked.rounds or 100, asked.seed, say))


def _outage(asked: argparse.Namespace) -> Result:
    return _summary(outage(asked.directory / "outage", asked.seconds, say))


def _failover(asked: argparse.Namespace) -> Result:
    rounds = asked.rounds or (100 if asked.scenario == "kills" else 60)
    accounts = failover(asked.scenario, asked.directory / asked.scenario, rounds, asked.seed, say)
    return accounts.summary(), accounts.problems


def _groups(asked: argparse.Namespace) -> Result:
    figures, problems = group_soak(asked.minutes, say)
    return ", ".join(f"{name} {value}" for name, value in figures.items()), problems


def _steps(asked: argparse.Namespace) -> Result:
    return f"{asked.records:,} rows", kill_matrix(asked.directory / "steps", asked.records, asked.only, asked.victims)


SCENARIOS: dict[str, Callable[[argparse.Namespace], Result]] = {
    "faults": _faults,
    "outage": _outage,
    "kills": _failover,
    "suspicions": _failover,
    "groups": _groups,
    "steps": _steps,
}


def main() -> int:
    """Run the scenario that the command line selects."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", nargs="?", default="faults", choices=SCENARIOS)
    parser.add_argument("--rounds", type=int, help="of faults (100), kills (100), suspicions (60)")
    parser.add_argument("--seconds", type=float, default=300.0, help="of the outage (300)")
    parser.add_argument("--minutes", type=int, default=10, help="of groups (10)")
    parser.add_argument("--records", type=int, default=1_000_000, help="rows of steps (1,000,000)")
    parser.add_argument("--only", choices=sorted(STEPS), help="one part of steps")
    parser.add_argument("--victims", nargs="+", choices=VICTIMS, default=VICTIMS, help="processes that steps kills")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--directory", type=Path, default=Path("build/soak"))
    asked = parser.parse_args()
    print(f"{asked.scenario}, seed {asked.seed}", flush=True)
    figures, problems = SCENARIOS[asked.scenario](asked)
    for problem in problems[:20]:
        print(f"  {problem}")
    print(f"{figures}, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
