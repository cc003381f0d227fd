"""Compare the Python clients of Kafka, confluent-kafka and aiokafka on Kafka 3.9.1, with ours, in one run.

    python -m benchmarks.python_clients [--scale 1.0] [--output build/bench/python_clients.json]

Both clusters have three brokers, RF 3, min ISR 2 and six partitions; each is started alone, measured, and stopped
before the other. Each client runs in a process of its own (python_client_runs.py), the Kafka clients in the environment
that requirements-benchmarks.lock pins, in build/bench. A row has our rate and its ratio to the clients that do the same
work. Judge by the ratios: rates depend on the machine. At scale 1 a run takes about two minutes on a quiet machine.
Kafka's jars come through Maven once, into build/kafka-jars.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.kafka import ROOT, KafkaCluster, KafkaNotAvailableError
from benchmarks.stamp import headline, stamp
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, remove
from paceline_client import Admin, NewTopic

RECORDS = {100: 600_000, 1024: 200_000}
PARTITIONS = 6
LOCK = ROOT / "requirements-benchmarks.lock"
PACKAGES = ("confluent-kafka", "aiokafka")
RUNS = ROOT / "benchmarks" / "python_client_runs.py"
COUNTERPARTS = {
    "paceline.send": ("confluent.send",),
    "paceline.send_many": ("confluent.send",),
    "paceline.poll": ("confluent.consume", "confluent.poll"),
    "paceline_async.send": ("aiokafka.send", "confluent.send"),
    "paceline_async.getmany": ("aiokafka.getmany",),
    "paceline_async.async_for": ("aiokafka.async_for", "aiokafka.getmany"),
}
"""Our measurements, and those of other clients that do the same work."""
AIMS = {
    "paceline_async.send_100": 200_000,
    "paceline_async.send_1024": 100_000,
    "paceline_async.async_for_100": 800_000,
}
"""Records a second on the two cores of the development machine when it does nothing else."""
_CLIENT_TIMEOUT_S = 300.0


def main() -> None:
    """Measure every client and write the rates and ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.python_clients", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual number of records")
    parser.add_argument("--output", type=Path, default=Path("build/bench/python_clients.json"))
    arguments = parser.parse_args()
    about = stamp()
    print(headline(about), flush=True)
    records = {size: int(count * arguments.scale) for size, count in RECORDS.items()}
    began = time.monotonic()
    python = _environment()
    try:
        rates = _kafka(python, records)
    except KafkaNotAvailableError as error:
        raise SystemExit(f"Kafka cannot be measured here: {error}") from None
    rates |= _paceline(records)
    rows = [_row(f"{name}_{size}", rates, size) for size in records for name in COUNTERPARTS]
    report = {
        **about,
        "versions": {"kafka": "3.9.1", **_versions(python)},
        "records": records,
        "seconds": round(time.monotonic() - began),
        "rates": {name: round(rate) for name, rate in rates.items()},
        "results": rows,
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    for row in rows:
        others = "  ".join(f"{ratio:.2f} of {name}" for name, ratio in row["ratios"].items())
        print(f"  {row['name']:<30}{row['records_per_s']:>12,}  {others}")
    print(f"written to {arguments.output} after {report['seconds']} s")


def _row(name: str, rates: dict[str, float], size: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": name,
        "records_per_s": round(rates[name]),
        "ratios": {
            other: round(rates[name] / rates[f"{other}_{size}"], 3) for other in COUNTERPARTS[name.rpartition("_")[0]]
        },
    }
    if name in AIMS:
        row["aim_records_per_s"] = AIMS[name]
    return row


def _environment() -> Path:
    """Return the Python of the environment with the Kafka clients, which the first run creates."""
    directory = ROOT / "build" / "bench" / f"python-clients-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]}"
    python = directory / "bin" / "python"
    complete = directory / "complete"
    if not complete.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
        subprocess.run([*install, "--requirement", str(LOCK)], check=True)
        complete.touch()
    return python


def _versions(python: Path) -> dict[str, str]:
    code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    done = subprocess.run([str(python), "-c", code, *PACKAGES], capture_output=True, text=True, check=True)
    versions: dict[str, str] = json.loads(done.stdout)
    return versions


def _kafka(python: Path, records: dict[int, int]) -> dict[str, float]:
    rates: dict[str, float] = {}
    with KafkaCluster(Path("build/bench/kafka").resolve()) as cluster:
        for size, count in records.items():
            for client, share in (("confluent", 1), ("aiokafka", 2)):
                topic = f"{client}-{size}"
                cluster.create_topic(topic, PARTITIONS)
                rates |= _measured(str(python), client, cluster.bootstrap, topic, size, count // share)
    return rates


def _paceline(records: dict[int, int]) -> dict[str, float]:
    rates: dict[str, float] = {}
    directory = Path("build/bench/cluster")
    remove(directory)
    cluster = LocalCluster(directory, CONFIG_FILE, settings={"log.segment.bytes": "1073741824"})
    try:
        cluster.start()
        for size, count in records.items():
            for client in ("paceline", "paceline_async"):
                topic = f"{client}-{size}"
                with Admin(cluster.bootstrap) as admin:
                    admin.create_topics([NewTopic(topic, PARTITIONS, 3, configs={"min.insync.replicas": "2"})])
                rates |= _measured(sys.executable, client, cluster.bootstrap, topic, size, count)
    finally:
        cluster.stop()
    remove(directory)
    return rates


def _measured(python: str, client: str, bootstrap: str, topic: str, size: int, records: int) -> dict[str, float]:
    """Run the measurements of one client in a process of its own, and print them at once."""
    done = subprocess.run(
        [python, "-P", str(RUNS), client, bootstrap, topic, str(size), str(records)],
        capture_output=True,
        text=True,
        timeout=_CLIENT_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{client} failed:\n{done.stderr}")
    found = {f"{client}.{name}_{size}": rate for name, rate in json.loads(done.stdout).items()}
    for name, rate in found.items():
        print(f"  {name:<30}{rate:>12,.0f} records/s", flush=True)
    return found


if __name__ == "__main__":
    main()
