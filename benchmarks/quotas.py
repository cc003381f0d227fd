"""Measure the 99th percentile of a victim's writes alone, beside a rogue with a quota, and beside one without.

The rogue uses stubs alone, ignores throttle_ms, and tries to write 20 times its quota to the victim's broker.
"""

import argparse
import json
import multiprocessing
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import grpc

from benchmarks.stamp import headline, stamp
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.testing import run_cluster
from paceline.v1 import log_service_pb2 as pb
from paceline_client import Admin, Producer

QUOTA: Final = 500_000
TIMES: Final = 20
REQUEST_BYTES: Final = 50_000
WINDOWS: Final = {"quota.window.num": "2"}
"""A caller may use one second of its quota at once."""
STATES: Final = ("alone", "quota", "no quota")


def rogue(address: str, topic: str, sent: Any) -> None:
    """Write as fast as 20 times the quota until the process is killed; count the requests that were answered."""
    request = pb.ProduceRequest()
    request.partitions.add(topic=topic, partition=0, batch=encode_batch([NewRecord(0, None, b"x" * REQUEST_BYTES)]))
    data, pause_s = request.SerializeToString(), REQUEST_BYTES / (TIMES * QUOTA)

    def requests() -> Any:
        due_s = time.monotonic()
        while True:
            yield data
            due_s = max(due_s + pause_s, time.monotonic() - 1.0)
            time.sleep(max(0.0, due_s - time.monotonic()))

    with grpc.insecure_channel(address, [("grpc.primary_user_agent", "rogue")]) as channel:
        for _ in channel.stream_stream("/paceline.v1.LogService/ProduceStream")(requests()):
            sent.value += 1


def percentile_ms(producer: Producer, topic: str, seconds: float, share: float = 0.99) -> float:
    """Return the latency of single writes, one every 5 ms."""
    found, until_s = [], time.monotonic() + seconds
    while time.monotonic() < until_s:
        begin_s = time.perf_counter()
        producer.send(topic, b"v" * 100).result(60)
        found.append(1_000 * (time.perf_counter() - begin_s))
        time.sleep(0.005)
    return sorted(found)[int(len(found) * share)]


def main() -> None:
    """Run all spans, print the medians and write them as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quotas", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--output", type=Path, default=Path("build/bench/quotas.json"))
    arguments = parser.parse_args()
    found = stamp()
    print(headline(found), flush=True)
    results: list[dict[str, Any]] = []
    spawn = multiprocessing.get_context("spawn")
    with TemporaryDirectory() as folder, run_cluster(Path(folder), settings=WINDOWS) as cluster:
        victims, rogues = cluster.topic(), cluster.topic()
        address = cluster.local.broker(1).client_address
        with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap, client_id="victim") as producer:
            percentile_ms(producer, victims, 3.0)
            for pair in range(arguments.pairs):
                for state in STATES if pair % 2 else reversed(STATES):
                    quota = QUOTA if state == "quota" else None
                    admin.alter_client_quotas({"producer_byte_rate": quota}, client_id="rogue")
                    time.sleep(1.0)
                    sent = spawn.Value("q", 0)
                    process = spawn.Process(target=rogue, args=(address, rogues, sent), daemon=True)
                    if state != "alone":
                        process.start()
                        while sent.value * REQUEST_BYTES < 2 * QUOTA:  # the burst of a full account is over
                            time.sleep(0.1)
                    before = sent.value
                    p99_ms = percentile_ms(producer, victims, arguments.seconds)
                    rate = (sent.value - before) * REQUEST_BYTES / arguments.seconds
                    if state != "alone":
                        process.kill()
                        process.join()
                    results.append({"state": state, "p99_ms": p99_ms, "rogue_bytes_per_s": rate})
                    print(results[-1], flush=True)
    alone, *beside = ([one["p99_ms"] for one in results if one["state"] == state] for state in STATES)
    for state, p99s in zip(STATES[1:], beside, strict=True):
        ratio = statistics.median(with_ / without for with_, without in zip(p99s, alone, strict=True))
        rate = statistics.median(one["rogue_bytes_per_s"] for one in results if one["state"] == state)
        print(f"rogue with {state}: p99 {statistics.median(p99s):.2f} ms, {ratio:.2f} times that alone "
              f"({statistics.median(alone):.2f} ms); the rogue wrote {rate / 1e6:.2f} MB/s")  # fmt: skip
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({**found, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
