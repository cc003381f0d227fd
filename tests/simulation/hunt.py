"""Break one guard of the real code at a time, and count the seeds until an invariant detects it.

``python -m tests.simulation.hunt`` runs all mutants, ``... hunt NAME`` some. A mutant that no invariant detects
within its budget of seeds makes the run fail, because the invariants would miss such a fault
(docs/protocol/simulator.md#mutants).
"""

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.console.recording import Header, RecordingWriter
from tests.simulation.mutants import MUTANTS, Mutant, Patches
from tests.simulation.run import Run


@dataclass(frozen=True, slots=True)
class Outcome:
    """Number of seeds until detection, None when the budget was too small."""

    name: str
    seeds: int | None
    noticed_by: tuple[str, ...] = ()
    evidence: str = ""
    budget: int = 0


@contextmanager
def installed(mutant: Mutant) -> Iterator[None]:
    """Run the body of the context with the broken code."""
    patches = Patches()
    try:
        mutant.breaks(patches)
        yield
    finally:
        patches.undo()


def hunt(mutant: Mutant, first_seed: int = 1) -> Outcome:
    """Run seeds until an invariant detects the mutant."""
    with installed(mutant):
        for seed in range(first_seed, first_seed + mutant.budget):
            result = Run(seed, profile=mutant.profile(seed)).run()
            noticed = tuple(name for name in result.failures if name in mutant.noticed_by)
            if noticed:
                evidence = result.failures[noticed[0]][0]
                return Outcome(mutant.name, seed - first_seed + 1, noticed, evidence, mutant.budget)
    return Outcome(mutant.name, None, budget=mutant.budget)


def record(mutant: Mutant, seed: int, path: Path) -> None:
    """Record a seed with the broken code; only the verdict, which the console hides, tells what is broken."""
    with installed(mutant), path.open("w", encoding="utf-8") as file:
        header = Header(title=f"simulated cluster {path.stem}", origin="simulation", began_ms=0)
        Run(seed, profile=mutant.profile(seed), recording=RecordingWriter(file.write, header)).run()


def main(arguments: Sequence[str] | None = None, mutants: Sequence[Mutant] = MUTANTS) -> int:
    """Run mutants; return 0 when every mutant was detected."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.hunt", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; all mutants without any")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--first", type=int, default=1, help="first seed")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="record the failing seeds for the console")
    asked = parser.parse_args(arguments)
    chosen = [one for one in mutants if not asked.names or any(part in one.name for part in asked.names)]
    survivors = 0
    for outcome in _hunted(chosen, asked.jobs, asked.first):
        if outcome.seeds is None:
            survivors += 1
            print(f"SURVIVED  {outcome.name}: {outcome.budget} seeds", flush=True)
        else:
            print(f"{outcome.seeds:>5} seeds  {outcome.name}: {', '.join(outcome.noticed_by)}", flush=True)
            print(f"             {outcome.evidence}")
            if asked.record is not None:
                asked.record.mkdir(parents=True, exist_ok=True)
                path = asked.record / f"{len(list(asked.record.iterdir())) + 1:02}.ndjson"
                mutant = next(one for one in mutants if one.name == outcome.name)
                record(mutant, asked.first + outcome.seeds - 1, path)
                print(f"             {path}")
    print(f"{len(chosen)} mutants, {survivors} survived")
    return 1 if survivors or not chosen else 0


def _hunted(mutants: Sequence[Mutant], jobs: int, first_seed: int) -> Iterator[Outcome]:
    if jobs <= 1 or any(one not in MUTANTS for one in mutants):
        for one in mutants:
            yield hunt(one, first_seed)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_hunt_by_name, [(one.name, first_seed) for one in mutants])


def _hunt_by_name(what: tuple[str, int]) -> Outcome:
    name, first_seed = what
    return hunt(next(one for one in MUTANTS if one.name == name), first_seed)


if __name__ == "__main__":
    sys.exit(main())
