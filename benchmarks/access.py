"""Measure decisions of access lists in this process: one decision, a check on an open stream, reading the rules.

    python -m benchmarks.access --output build/bench/access.json

Rules: half literal, half prefixed, of 100 principals; asked are topics that a rule allows, that a rule denies, and that
none is about, of a caller that no cache knows. The limit of a decision with 10,000 rules is 10 us, of a check on a
stream 2 us.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from paceline.model.acls import AccessRules, AclEntry, Operation, PatternType, Permission, ResourcePattern, ResourceType
from paceline.rpc.security.authorizer import Authorizer, Call, Caller, Mode

ROUNDS = 7
CALLS = 20_000


def rules_of(count: int, rng: random.Random) -> dict[ResourcePattern, tuple[AclEntry, ...]]:
    """Return ``count`` rules on as many topics."""
    found: dict[ResourcePattern, tuple[AclEntry, ...]] = {}
    for index in range(count):
        pattern = PatternType.PREFIXED if index % 2 else PatternType.LITERAL
        name = f"team-{rng.randrange(100)}.{index:06d}" + "." * (index % 2)
        permission = Permission.DENY if index % 10 == 0 else Permission.ALLOW
        entry = AclEntry(f"User:{rng.randrange(100)}", permission, Operation.READ)
        found[ResourcePattern(ResourceType.TOPIC, name, pattern)] = (entry,)
    return found


def nanoseconds(call: Callable[[], object], calls: int = CALLS) -> float:
    """Return the median over rounds of the mean time of a call."""
    rounds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        for _ in range(calls):
            call()
        rounds.append((time.perf_counter_ns() - begin) / calls)
    return statistics.median(rounds)


def measured(count: int) -> dict[str, float]:
    """Return the figures with ``count`` rules."""
    rng = random.Random(count)
    resources = rules_of(count, rng)
    begin = time.perf_counter()
    rules = AccessRules(resources)
    index_s = time.perf_counter() - begin
    asked = [f"{pattern.name}x" if pattern.pattern is PatternType.PREFIXED else pattern.name for pattern in resources]
    asked = rng.choices(asked, k=500) + [f"absent-{index}" for index in range(500)]
    names, principals = iter(asked * (CALLS // 100)), [f"User:{index}" for index in range(100)]

    def decide() -> None:
        rules.decide(principals[7], "10.0.0.1", Operation.READ, ResourceType.TOPIC, next(names))

    changed = {next(iter(resources)): ()}
    authorizer = Authorizer(Mode.ENFORCE)
    everything = (AclEntry("User:*", Permission.ALLOW, Operation.ALL),)
    authorizer.use(rules.changed({ResourcePattern(ResourceType.TOPIC, "*"): everything}))
    stream = Call(Caller("User:7"), authorizer, "", "CLIENT", "ipv4:10.0.0.1:1", None, None)
    return {
        "rules": count,
        "decision_us": nanoseconds(decide) / 1_000,
        "stream_check_us": nanoseconds(lambda: stream.may(Operation.READ, ResourceType.TOPIC, "rides")) / 1_000,
        "index_s": index_s,
        "one_change_ms": nanoseconds(lambda: rules.changed(changed), 5) / 1_000_000,
    }


def main() -> None:
    """Measure with several numbers of rules, print the figures and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    output = parser.parse_args().output
    results = [measured(count) for count in (100, 10_000, 100_000)]
    for result in results:
        print("  ".join(f"{name}={figure:.3f}" for name, figure in result.items()))
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
