"""Measure the processor time of brokers and console without and with an open lens, and with twenty browsers.

A console samples a partition for ten minutes after a page has shown it, so each span has a console of its own.
"""

import argparse
import json
import statistics
import threading
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from benchmarks.cpu import CpuMeter
from benchmarks.stamp import stamp
from paceline.dev.local_cluster import LocalCluster
from paceline.testing import run_cluster


def browse(address: str, topic: str) -> None:
    """Follow the lens of a partition like a tab of a browser, on two connections, until the console ends."""
    to = urlsplit(address)
    events, parts = (HTTPConnection(to.netloc, timeout=30) for _ in range(2))
    parts.request("GET", f"{to.path}?{to.query}")
    with parts.getresponse() as entered:
        headers = {"cookie": entered.headers["set-cookie"].partition(";")[0], "accept-encoding": "gzip"}
    events.request("GET", "/stream", headers=headers)
    stream = events.getresponse()
    with suppress(OSError, HTTPException):
        while line := stream.readline():
            if line.startswith(b"data:"):
                parts.request("GET", f"/partition/{topic}/0/parts", headers=headers)
                assert parts.getresponse().read()


def measure(cluster: LocalCluster, topic: str, browsers: int, seconds: float) -> dict[str, float]:
    """Return the shares of a core that processes use, in percent."""
    cluster.start_console()
    for _ in range(browsers):
        address = cluster.console_address
        threading.Thread(target=browse, args=(address, topic), daemon=True).start()
        while cluster.console_address == address:  # each is good for one browser
            time.sleep(0.02)
    time.sleep(5.0)
    meters = {name: CpuMeter([node.process.pid]) for name, node in cluster.nodes.items() if node.process is not None}
    time.sleep(seconds)
    used = {name: 100 * meter.seconds() / seconds for name, meter in meters.items()}
    cluster.terminate(cluster.nodes["console"])
    brokers, console = [share for name, share in used.items() if name.startswith("broker")], used["console"]
    return {"busiest broker": max(brokers), "console": console, "console and brokers": console + sum(brokers)}


def main() -> None:
    """Run all spans, print the medians and write them as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.console", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("build/bench/console.json"))
    arguments = parser.parse_args()
    results: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder, run_cluster(Path(folder), brokers=3, controllers=2) as cluster:
        topic = cluster.topic(partitions=3)
        for browsers in [browsers for pair in range(arguments.pairs) for browsers in (pair % 2, 1 - pair % 2)] + [20]:
            results.append({"browsers": browsers, **measure(cluster.local, topic, browsers, arguments.seconds)})
            print(results[-1], flush=True)
    for name in ("busiest broker", "console", "console and brokers"):
        closed, opened, twenty = ([one[name] for one in results if one["browsers"] == count] for count in (0, 1, 20))
        lens = statistics.median(one - none for one, none in zip(opened, closed, strict=True))
        ratio = twenty[0] / statistics.median(opened)
        print(f"{name}: an open lens costs {lens:.2f} % of a core, twenty browsers {ratio:.2f} times one")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({**stamp(), "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
