"""Run a soak and print a summary line; exit with 1 when it found problems."""

import argparse
import random
import sys
from pathlib import Path

from tests.soak.outage import outage
from tests.soak.rounds import soak


def main() -> int:
    """Run the soak that the command line selects."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--directory", type=Path, default=Path("build/soak"))
    parser.add_argument("--outage", type=float, metavar="SECONDS", help="ZooKeeper and controllers down for so long")
    asked = parser.parse_args()

    def say(text: str) -> None:
        print(f"  {text}", flush=True)

    print(f"seed {asked.seed}", flush=True)
    if asked.outage is not None:
        outcome = outage(asked.directory, asked.outage, say)
    else:
        outcome = soak(asked.directory, asked.rounds, asked.seed, say)
    for problem in outcome.problems:
        print(f"  {problem}")
    print(
        f"{outcome.rounds} rounds ({', '.join(f'{name} {count}' for name, count in sorted(outcome.kinds.items()))}), "
        f"{outcome.sent:,} sent, {outcome.acked:,} acked, {outcome.read:,} read, "
        f"longest gap {outcome.longest_gap_s:.1f} s, "
        f"{outcome.batches_compared:,} batches compared, {len(outcome.problems)} problems"
    )
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
