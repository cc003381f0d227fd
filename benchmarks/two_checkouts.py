"""Compare two checkouts of Paceline: their clusters run side by side, and one of them at a time has work.

    python -m benchmarks.two_checkouts OTHER [--rounds 12] [--seconds 1] [--output build/bench/two_checkouts.json]

OTHER is a folder with another commit and an environment in ``.venv``. Each round measures both checkouts within a few
seconds, so that a machine whose speed changes with its neighbours changes both; a figure is the median of the rounds'
ratios, this checkout divided by the other. Each checkout brings its own client. ``cpu_us`` is processor time per
record of all processes of the cluster, ``client_us`` that of the producer. If the code of the client is the same, the
ratio of ``client_us`` says how exact the others are.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.cpu import CpuMeter, meter_of
from benchmarks.data import PARTITIONS, produce
from benchmarks.stamp import headline, stamp
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, remove
from paceline_client import Admin, NewTopic, Producer

SIZES: Final = (100, 1024)
_PREPARED_RECORDS: Final = 50_000
"""Records that `benchmarks.data.produce` sends before it measures."""


def main() -> None:
    """Compare, print a line per figure, and write the rounds as JSON; with ``--serve`` be one of the two sides."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.two_checkouts", description=__doc__)
    parser.add_argument("other", type=Path, help="folder of the other checkout")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each measurement")
    parser.add_argument("--output", type=Path, default=Path("build/bench/two_checkouts.json"))
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        _serve(arguments.other, arguments.seconds)
        return
    about = stamp()
    print(headline(about), flush=True)
    sides: list[_Side] = []
    results = []
    try:
        for number, checkout in enumerate((arguments.other.resolve(), Path.cwd())):
            sides.append(_Side(checkout, Path(f"build/bench/side{number}").resolve(), arguments.seconds))
        for size in SIZES:
            for kind in ("produce", "latency"):
                results += _compare(sides, kind, size, arguments.rounds)
    finally:
        for side in sides:
            side.stop()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({**about, "results": results}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {arguments.output}")


def _compare(sides: list["_Side"], kind: str, size: int, rounds: int) -> list[dict[str, Any]]:
    """Alternate which side begins; leave out the first round, in which each side warms up."""
    answers = []
    for number in range(rounds + 1):
        order = sides if number % 2 else sides[::-1]
        by_side = {side: side.measure(kind, size) for side in order}
        answers.append([by_side[side] for side in sides])
    rows = []
    for figure in answers[0][0]:
        other, own = zip(*((pair[0][figure], pair[1][figure]) for pair in answers[1:]), strict=True)
        ratios = [b / a for a, b in zip(other, own, strict=True)]
        row = {
            "name": f"{kind}_{size}_{figure}",
            "other": round(statistics.median(other), 3),
            "own": round(statistics.median(own), 3),
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(ratio, 2) for ratio in ratios],
        }
        rows.append(row)
        print("  " + "  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    return rows


class _Side:
    """One checkout with its cluster: a process that answers measurements on its standard input."""

    def __init__(self, checkout: Path, directory: Path, seconds: float) -> None:
        # Run this file also where the checkout does not have it.
        command = [str(checkout / ".venv/bin/python"), __file__, str(directory), "--serve", "--seconds", str(seconds)]
        self._process = subprocess.Popen(
            command,
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def measure(self, kind: str, size: int) -> dict[str, float]:
        """Return the figures of one measurement."""
        assert self._process.stdin is not None
        print(kind, size, file=self._process.stdin, flush=True)
        return self._answer()

    def stop(self) -> None:
        """Stop the cluster and remove its files."""
        self._process.communicate(timeout=60)

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"{self._process.args} ended with {self._process.wait()}")


def _serve(directory: Path, seconds: float) -> None:
    remove(directory)
    cluster = LocalCluster(directory, CONFIG_FILE, settings={"log.segment.bytes": "1073741824"})
    try:
        cluster.start()
        print("{}", flush=True)
        for number, line in enumerate(sys.stdin):
            kind, size = line.split()
            topic = f"{kind}-{number}"
            with Admin(cluster.bootstrap) as admin:
                admin.create_topics([NewTopic(topic, PARTITIONS, 3, configs={"min.insync.replicas": "2"})])
            measure = _throughput if kind == "produce" else _latency
            print(json.dumps(measure(cluster, topic, int(size), seconds)), flush=True)
    finally:
        cluster.stop()
        remove(directory)


def _throughput(cluster: LocalCluster, topic: str, size: int, seconds: float) -> dict[str, float]:
    own, every = CpuMeter([psutil.Process().pid]), meter_of(cluster)
    rate = produce(cluster.bootstrap, topic, size, "all", seconds)
    records = rate * seconds + _PREPARED_RECORDS
    client_us = own.seconds() / records * 1e6
    return {"records_per_s": rate, "cpu_us": every.seconds() / records * 1e6 - client_us, "client_us": client_us}


def _latency(cluster: LocalCluster, topic: str, size: int, seconds: float) -> dict[str, float]:
    own, every, value, taken = CpuMeter([psutil.Process().pid]), meter_of(cluster), b"x" * size, []
    with Producer(cluster.bootstrap, acks="all", linger_ms=0) as producer:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter()
            producer.send(topic, value, partition=0).result(10)
            taken.append((time.perf_counter() - began) * 1e3)
    client_us = own.seconds() / len(taken) * 1e6
    return {
        "p50_ms": statistics.median(taken),
        "p99_ms": statistics.quantiles(taken, n=100)[98],
        "cpu_us": every.seconds() / len(taken) * 1e6 - client_us,
        "client_us": client_us,
    }


if __name__ == "__main__":
    main()
