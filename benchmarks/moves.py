"""Measure moves of a replica between two log directories of a disk: their speed, and the latency of produce meanwhile.

Speed: without a throttle, MB/s of a move beside `cp` and `sync` of the same files in the same round, both after `sync`;
at least half of it is the aim. Latency: with the default throttle, the p99 of single records with acks=all, without a
move and with one in turns, at most 1.5 times; the broker that moves a replica leads the partition, two brokers follow.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.control_marks import eventually
from benchmarks.stamp import headline, stamp
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, remove
from paceline_client import Admin, NewTopic, Producer


class Moves:
    """A cluster whose broker 1 has two log directories, and a replica to move."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._directories = [cluster.directory / "broker-1" / name for name in ("data", "data2")]

    def measure(self, size: int, rounds: int, pairs: int) -> Iterator[tuple[str, list[dict[str, float]]]]:
        """Yield the names of the figures with the figures of each round."""
        self._cluster.start()
        node = self._cluster.broker(1)
        self._cluster.terminate(node)
        self._directories[1].mkdir(mode=0o700)
        node.argv = [f"{one},{one[11:]}2" if one.startswith("--log-dirs=") else one for one in node.argv]
        self._cluster.restart(node)
        with Admin(self._cluster.bootstrap) as self._admin:
            self._admin.alter_broker_configs({1: {"replica.alter.log.dirs.io.max.bytes.per.second": str(2**62)}})
            alone = NewTopic("moved", assignments=((1,),), configs={"min.insync.replicas": "1"})
            self._admin.create_topics([alone, NewTopic("written", assignments=((1, 2, 3),))])
            with Producer(self._cluster.bootstrap, batch_size=65_536) as producer:
                for _ in range(size >> 23):
                    producer.send_many("moved", [(None, os.urandom(1_000))] * 8_192, partition=0).result(120.0)
            yield "speed", [self._speed() for _ in range(rounds)]
            self._admin.alter_broker_configs({1: {"replica.alter.log.dirs.io.max.bytes.per.second": None}})
            self._p99_ms()
            yield "latency", [self._latency(bool(number % 2)) for number in range(pairs)]

    def _present(self) -> int:
        return next(index for index, path in enumerate(self._directories) if (path / "moved-0").exists())

    def _move_to(self, index: int, until_done: bool = False) -> None:
        self._admin.alter_replica_log_dirs({("moved", 0, 1): str(self._directories[index])})
        eventually(lambda: not until_done or self._present() == index, 300, "the replica is moved", poll_s=0.01)

    def _speed(self) -> dict[str, float]:
        before = self._present()
        eventually(lambda: not list(self._directories[1 - before].glob("moved-0*")), 60, "the old log is removed")
        source, target = self._directories[before] / "moved-0", self._directories[1 - before] / "copied"
        size = sum(path.stat().st_size for path in source.iterdir())
        cp = _mb_per_s(size, lambda: subprocess.run(["cp", "-r", str(source), str(target)], check=True))
        shutil.rmtree(target)
        move = _mb_per_s(size, lambda: self._move_to(1 - before, until_done=True))
        return {"cp_mb_per_s": cp, "move_mb_per_s": move, "ratio": move / cp}

    def _p99_ms(self) -> float:
        taken = []
        with Producer(self._cluster.bootstrap, linger_ms=0) as producer:
            end = time.perf_counter() + 6.0
            while (begin := time.perf_counter()) < end:
                producer.send("written", bytes(1_000), partition=0).result(60.0)
                taken.append(1_000 * (time.perf_counter() - begin))
        return statistics.quantiles(taken, n=100)[98]

    def _latency(self, is_odd: bool) -> dict[str, float]:
        found, before = {}, self._present()
        for name in sorted(("without_move_ms", "with_move_ms"), reverse=is_odd):
            self._move_to(1 - before if name == "with_move_ms" else before)
            found[name] = self._p99_ms()
            assert self._present() == before, "the move ended before the measurement"
        return found | {"ratio": found["with_move_ms"] / found["without_move_ms"]}


def _mb_per_s(size: int, work: Callable[[], object]) -> float:
    os.sync()
    begin = time.perf_counter()
    work()
    os.sync()
    return size / 1e6 / (time.perf_counter() - begin)


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.moves", description=__doc__)
    for option, default in (("--mebibytes", 1_024), ("--rounds", 3), ("--pairs", 7)):
        parser.add_argument(option, type=int, default=default)
    parser.add_argument("--output", type=Path, default=Path("build/bench/moves.json"))
    arguments = parser.parse_args()
    about, directory = stamp(), Path("build/bench/moves-cluster").resolve()
    print(headline(about), flush=True)
    remove(directory)
    cluster = LocalCluster(directory, CONFIG_FILE, controllers=1, settings={"log.segment.delete.delay.ms": "1000"})
    results = []
    try:
        for name, rounds in Moves(cluster).measure(arguments.mebibytes << 20, arguments.rounds, arguments.pairs):
            medians = {key: round(statistics.median(one[key] for one in rounds), 2) for key in rounds[0]}
            results.append({"name": name, **medians, "ratios": [round(one["ratio"], 2) for one in rounds]})
            print("  " + json.dumps(results[-1]), flush=True)
    finally:
        cluster.stop(force=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({**about, "results": results}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
