"""Shrink a failing schedule, first by halves, then fault by fault, as long as it fails with the same class."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.simulation.fault_schedule import Fault
from tests.simulation.run import Run, RunResult

T = TypeVar("T")


def shrink(items: Sequence[T], still_fails: Callable[[list[T]], bool], limit: int = 120) -> list[T]:
    """Return a small part of ``items`` for which ``still_fails`` holds, trying at most ``limit`` parts."""
    kept = list(items)
    tries = 0
    size = max(1, len(kept) // 2)
    while kept and tries < limit:
        removed_any = False
        start = 0
        while start < len(kept) and tries < limit:
            candidate = kept[:start] + kept[start + size :]
            tries += 1
            if still_fails(candidate):
                kept = candidate
                removed_any = True
            else:
                start += size
        if size > 1:
            size = max(1, size // 2)
        elif not removed_any:
            break
    return kept


def shrink_run(failed: RunResult, limit: int = 120) -> RunResult:
    """Return a run of the same seed with few faults, and maybe fewer clients, that still shows the first violation.

    Random choices come from labelled streams, so the remaining faults behave as before. The returned run was executed.
    """
    wanted = set(failed.failure_class[:1])
    best = failed

    def still_fails(faults: list[Fault]) -> bool:
        nonlocal best
        result = Run(failed.seed, faults, best.profile).run()
        if wanted & set(result.failures):
            best = result
            return True
        return False

    shrink(failed.faults, still_fails, limit)
    for smaller in (
        {"readers": 1},
        {"producers": 1},
        {"partitions": 1},
        {"fault_ms": max((fault.at_ms for fault in best.faults), default=0) + 1_000},
    ):
        profile = replace(best.profile, **smaller)  # type: ignore[arg-type]
        result = Run(failed.seed, best.faults, profile).run()
        if wanted & set(result.failures):
            best = result
    return best
