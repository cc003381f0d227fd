"""``python -m tests.simulation --seeds 500 --first 1`` runs many seeds, ``--seed 42`` replays one with its timeline."""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from paceline.console.recording import Header, RecordingWriter
from tests.simulation.places import PLACES, below_floor
from tests.simulation.run import Run, RunResult, profile_of, run_seed
from tests.simulation.shrink import shrink_run
from tests.simulation.verdicts import INVARIANTS

_PROGRESS_S = 10.0
_SHRUNK_AT_MOST = 5


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit code: 0 when no invariant was violated and no place is below its floor."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="replay one seed and tell what happens")
    parser.add_argument("--wild", action="store_true", help="many more faults and operations in each run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes to run in")
    parser.add_argument("--keep-going", action="store_true", help="continue after many violated seeds")
    parser.add_argument("--no-shrink", action="store_true", help="do not look for smaller schedules")
    parser.add_argument("--record", type=Path, metavar="FILE", help="with --seed: write a recording for the console")
    asked = parser.parse_args(arguments)
    if asked.seed is not None:
        return replay(asked.seed, not asked.no_shrink, asked.wild, asked.record)
    if asked.record is not None:
        parser.error("--record needs --seed")
    seeds = range(asked.first, asked.first + asked.seeds)
    return run_many(seeds, asked.jobs, asked.keep_going, not asked.no_shrink, asked.wild)


def replay(seed: int, with_shrinking: bool = True, wild: bool = False, record: Path | None = None) -> int:
    """Run one seed with its timeline, which a recording replaces; when it fails, also its shrunk schedule."""
    profile = profile_of(seed, wild)
    if record is None:
        result = Run(seed, profile=profile, tell=print).run()
    else:
        with record.open("w", encoding="utf-8") as file:
            header = Header(
                title=f"simulated cluster, seed {seed}",
                origin="simulation",
                began_ms=0,
                made_by=f"{_command(seed, wild)} RECORD={record.name}",
            )
            result = Run(seed, profile=profile, recording=RecordingWriter(file.write, header)).run()
    print(f"\nseed {seed}: {result.events} events, {result.virtual_ms / 1000:.1f} s of virtual time, {result.digest}")
    for name, value in asdict(result.profile).items():
        print(f"  {name}: {value}")
    print("faults:")
    for fault in result.faults:
        print(f"  {fault}")
    print("verdicts:")
    for name, verdict in result.verdicts.items():
        print(f"  {name:<4} {verdict.word:<14} {verdict.exercised:>8}  {INVARIANTS[name]}")
    _print_failures(result)
    if record is not None:
        print(f"recorded: paceline console --replay {record}")
    if result.failures and with_shrinking:
        _print_shrunk(result)
    return 1 if result.failures else 0


def run_many(seeds: Iterable[int], jobs: int, keep_going: bool, with_shrinking: bool, wild: bool = False) -> int:
    """Run seeds, report progress, and close with the places that were reached and a summary line.

    Return 0 when no invariant was violated and every place was reached in enough seeds.
    """
    begin = last = time.monotonic()
    failed: list[RunResult] = []
    exercised = dict.fromkeys(INVARIANTS, 0)
    reached, reached_in = dict.fromkeys(PLACES, 0), dict.fromkeys(PLACES, 0)
    count = events = 0
    for result in results_of(seeds, jobs, wild):
        count += 1
        events += result.events
        for name, verdict in result.verdicts.items():
            exercised[name] += verdict.exercised
        for place, times in result.places.items():
            reached[place] += times
            reached_in[place] += times > 0
        if result.failures:
            failed.append(result)
            _print_failures(result)
            print(f"    watch it: {_command(result.seed, wild)} RECORD=seed.ndjson")
            if not keep_going and len(failed) >= 20:
                print("enough seeds have failed")
                break
        now = time.monotonic()
        if now - last >= _PROGRESS_S:
            last = now
            print(f"{count} seeds, {len(failed)} violated, {events} events, {now - begin:.0f} s", flush=True)
    if with_shrinking:
        for result in failed[:_SHRUNK_AT_MOST]:
            _print_shrunk(result)
    minutes = max(time.monotonic() - begin, 0.001) / 60
    idle = [name for name, times in exercised.items() if not times and name != "X1"]
    print("places: times reached, seeds that reached it")
    for place, times in reached.items():
        print(f"{times:>8} {reached_in[place]:>5}  {place}")
    low = below_floor(reached_in, count, wild)
    print(
        f"{count} seeds, {len(failed)} violations, {events} events, {count / minutes:.0f} seeds/min, "
        f"not exercised: {', '.join(idle) or 'none'}, "
        f"places below their floor: {', '.join(low) or 'none'}"
    )
    return 1 if failed or low else 0


def results_of(seeds: Iterable[int], jobs: int, wild: bool = False) -> Iterator[RunResult]:
    """Yield results in the order of completion, from ``jobs`` processes."""
    run = partial(run_seed, wild=wild)
    if jobs <= 1:
        yield from map(run, seeds)
        return
    # Spawned processes, not forks: a fork would copy the locks of the parent's other threads.
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=2)


def _command(seed: int, wild: bool) -> str:
    return f"make simulate SEED={seed}{' WILD=1' if wild else ''}"


def _print_failures(result: RunResult) -> None:
    for name, evidence in result.failures.items():
        print(f"seed {result.seed}: {name} ({INVARIANTS[name]}) violated {result.verdicts[name].violations} times")
        for line in evidence[:3]:
            print(f"    {line}")


def _print_shrunk(result: RunResult) -> None:
    small = shrink_run(result)
    still = ", ".join(small.failures)
    print(f"seed {result.seed}: {still} with {len(small.faults)} of {len(result.faults)} faults:")
    for fault in small.faults:
        print(f"    {fault}")
    _print_failures(small)


if __name__ == "__main__":
    sys.exit(main())
