"""Play the conformance scenarios against the client of one language: `python -m tests.conformance --language go`."""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.conformance.answers import UnsupportedError
from tests.conformance.clusters import Cluster, RealCluster, ScriptedCluster
from tests.conformance.driver import Driver, DriverError, ToolchainMissingError, known_drivers
from tests.conformance.player import Player
from tests.conformance.results import FAILED, PASSED, UNSUPPORTED, Outcome, record
from tests.conformance.scenarios import Scenario, all_scenarios


def play(driver: Driver, scenario: Scenario, real: Callable[[], Cluster]) -> Outcome:
    """Play one scenario; create a scripted cluster for it, or use the shared real cluster."""
    scripted = ScriptedCluster() if scenario.cluster == "scripted" else None
    try:
        cluster: Cluster | None = real() if scenario.cluster == "real" else scripted
        Player(driver, cluster).play(scenario)
    except UnsupportedError as error:
        return Outcome(UNSUPPORTED, str(error))
    except (AssertionError, DriverError) as error:
        return Outcome(FAILED, str(error))
    finally:
        if scripted is not None:
            scripted.stop()
    return Outcome(PASSED)


def main() -> int:
    """Play scenarios and report; return 0 when none failed."""
    drivers = known_drivers()
    arguments = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    arguments.add_argument("--language", required=True, choices=sorted(drivers))
    arguments.add_argument("--only", default="", help="only scenarios whose name or group contains this text")
    arguments.add_argument("--without-real", action="store_true", help="leave out the scenarios on real processes")
    arguments.add_argument(
        "--record",
        action="store_true",
        help="keep results of groups played whole, rewrite the table of docs/clients.md",
    )
    arguments.add_argument("--verbose", action="store_true", help="also print what passed")
    given = arguments.parse_args()
    spec = drivers[given.language]
    try:
        driver = Driver(spec)
    except ToolchainMissingError as error:
        print(error, file=sys.stderr)
        return 1
    wanted = [one for one in all_scenarios() if given.only in one.name or given.only in one.group]
    wanted = [one for one in wanted if one.cluster != "real" or not given.without_real]
    outcomes: dict[str, Outcome] = {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="paceline-conformance-") as directory:
        clusters: list[RealCluster] = []

        def real() -> Cluster:
            if not clusters:
                clusters.append(RealCluster(Path(directory)))
            return clusters[0]

        try:
            for scenario in wanted:
                from_s = time.monotonic()
                outcome = outcomes[scenario.name] = play(driver, scenario, real)
                if given.verbose or outcome.verdict != PASSED:
                    took = f"{outcome.verdict:<12} {time.monotonic() - from_s:5.1f} s"
                    print(f"{took}  {scenario.group}: {scenario.name} {outcome.why}", flush=True)
                if outcome.why.startswith("no answer") or "driver ended" in outcome.why:
                    driver.kill()
                    driver = Driver(spec)
            driver.close()
        finally:
            driver.kill()
            for cluster in clusters:
                cluster.stop()
    counts = Counter(one.verdict for one in outcomes.values())
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in (PASSED, UNSUPPORTED, FAILED))
    print(f"{spec.language} ({driver.hello.get('client')}): {said} in {time.monotonic() - began:.0f} s")
    if given.record:
        record(spec.language, driver.hello.get("client", ""), outcomes)
    return 1 if counts[FAILED] else 0


if __name__ == "__main__":
    sys.exit(main())
