"""Measure the decoding of stored batches into Arrow, and a read with Spark to the noop sink.

Run: ``python benchmarks/spark_decode.py [--megabytes 64] [--rounds 3] [--no-spark]``. Prints machine, date and commit.

Decode: numpy and Arrow, compared with aiokafka's compiled codec, which fills lists that become Arrow arrays, on the
same bytes in the same run, so the ratio is meaningful on a busy machine, too. Spark: the whole data source, from a gRPC
server in a separate process to the noop sink, over Unix sockets.
"""

import argparse
import gc
import multiprocessing
import os
import platform
import random
import statistics
import struct
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from paceline.pipeline.decode.batch_index import FetchedSlice, index_batches
from paceline.pipeline.decode.columns import arrow_schema
from paceline.pipeline.decode.records import COLUMNS, decode_index

MIB = 1 << 20
FETCH_BYTES = 4 * MIB
PARTITIONS = 4
SHAPES = {
    "100 B values, 16 KB batches": (50, 150, 16 * 1024),
    "100 B values, 1 MB batches": (50, 150, MIB),
    "1 KB values, 16 KB batches": (500, 1_500, 16 * 1024),
}


def make_log(total_bytes: int, low: int, high: int, batch_bytes: int, seed: int = 1) -> tuple[bytes, int]:
    """Return uncompressed stored batches, with keys of 12 bytes, and their number of records."""
    rng = random.Random(seed)
    noise = rng.randbytes(MIB)
    log, offset = bytearray(), 0
    while len(log) < total_bytes:
        builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, batch_bytes)
        count = 0
        while True:
            size = rng.randint(low, high)
            begin = rng.randrange(MIB - size)
            key = b"key-%08d" % ((offset + count) % 10**8)
            value = noise[begin : begin + size]
            if builder.append(count, 1_700_000_000_000 + offset + count, key, value, []) is None:
                break
            count += 1
        batch = bytearray(builder.build())
        struct.pack_into(">q", batch, 0, offset)
        log += batch
        offset += count
    return bytes(log), offset


def fetches_of(log: bytes) -> list[bytes]:
    """Split the log at batch borders into responses of at most the fetch size."""
    answers, begin, position = [], 0, 0
    while position < len(log):
        (length,) = struct.unpack_from(">i", log, position + 8)
        if position + 12 + length - begin > FETCH_BYTES:
            answers.append(log[begin:position])
            begin = position
        position += 12 + length
    return [*answers, log[begin:]]


def decode_with_numpy(answers: list[bytes]) -> int:
    """Method D."""
    rows = 0
    for answer in answers:
        index = index_batches(answer, [FetchedSlice("t", 0, 0, len(answer), 0, 1 << 60)])
        rows += sum(batch.num_rows for batch in decode_index(index))
    return rows


def decode_with_lists(answers: list[bytes]) -> int:
    """Method C: aiokafka's records into lists, lists into Arrow. The checksum is checked, too."""
    rows = 0
    for answer in answers:
        keys, values, offsets, times = [], [], [], []
        position = 0
        while position < len(answer):
            (length,) = struct.unpack_from(">i", answer, position + 8)
            batch = DefaultRecordBatch(answer[position : position + 12 + length])
            if not batch.validate_crc():
                raise ValueError("a checksum differs")
            for record in batch:
                keys.append(record.key)
                values.append(record.value)
                offsets.append(record.offset)
                times.append(record.timestamp * 1000)
            position += 12 + length
        count = len(offsets)
        columns = [
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.repeat(pa.scalar("t"), count),
            pa.repeat(pa.scalar(0, pa.int32()), count),
            pa.array(offsets, pa.int64()),
            pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC")),
            pa.repeat(pa.scalar(0, pa.int32()), count),
        ]
        rows += pa.RecordBatch.from_arrays(columns, schema=arrow_schema(COLUMNS)).num_rows
    return rows


def seconds(work: Callable[[], int], expected: int) -> float:
    """Return the CPU time of a run, which other work on the machine changes least, and check its row count."""
    gc.collect()
    started = time.process_time()
    rows = work()
    elapsed = time.process_time() - started
    if rows != expected:
        raise AssertionError(f"{rows} rows instead of {expected}")
    return elapsed


def compare_decoders(megabytes: int, rounds: int) -> None:
    """Print rows per second of both methods and the ratio, rounds interleaved."""
    print(f"\ndecode, {FETCH_BYTES // MIB} MB answers, median of {rounds} rounds: M rows (MB of log) per CPU second")
    print(f"{'':30}{'numpy D':>18}{'lists C':>18}{'D / C':>8}")
    for name, shape in SHAPES.items():
        log, count = make_log(megabytes * MIB, *shape)
        answers = fetches_of(log)
        decode_with_numpy(answers[:1]), decode_with_lists(answers[:1])
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(seconds(lambda answers=answers: decode_with_numpy(answers), count))
            theirs.append(seconds(lambda answers=answers: decode_with_lists(answers), count))
        d, c = statistics.median(ours), statistics.median(theirs)
        print(f"{name:30}{rate(count, len(log), d):>18}{rate(count, len(log), c):>18}{c / d:>7.2f}x")


def rate(rows: int, size: int, elapsed: float) -> str:
    """Rows and bytes per second as text."""
    return f"{rows / elapsed / 1e6:.2f} ({size / elapsed / 1e6:.0f})"


def _serve(logs: list[bytes], port: Any) -> None:
    """Serve the logs as topic ``bench`` until the parent ends; offsets are looked up, batches sent as they are."""
    from tests.unit.pipeline.served_log import ServedCluster, ServedPartition

    cluster = ServedCluster({("bench", number): ServedPartition(log) for number, log in enumerate(logs)})
    with cluster:
        port.send(cluster.ports[1])
        port.recv()


def through_spark(megabytes: int, rounds: int) -> None:
    """Print rows per second from a gRPC server in its own process to the noop sink."""
    from pyspark.sql import SparkSession

    from paceline.pipeline.session import configure

    builder = (
        configure(SparkSession.builder.master("local[2]").appName("paceline-benchmark"))
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
    )
    spark = builder.getOrCreate()
    print(
        f"\nthrough Spark {spark.version}, local[2], server on the same cores, noop sink, "
        f"median of {rounds} rounds: M rows (MB of log) per second"
    )
    try:
        for name in ("100 B values, 16 KB batches", "1 KB values, 16 KB batches"):
            made = [make_log(megabytes * MIB // PARTITIONS, *SHAPES[name], seed=seed) for seed in range(PARTITIONS)]
            size, count = sum(len(log) for log, _ in made), sum(records for _, records in made)
            mine, theirs = multiprocessing.get_context("spawn").Pipe()
            server = multiprocessing.get_context("spawn").Process(
                target=_serve, args=([log for log, _ in made], theirs), daemon=True
            )
            server.start()
            try:
                _measure_spark(spark, f"127.0.0.1:{mine.recv()}", name, count, size, rounds)
            finally:
                mine.send("stop")
                server.join(10)
    finally:
        spark.stop()


def _measure_spark(spark: Any, address: str, name: str, count: int, size: int, rounds: int) -> None:
    def frame() -> Any:
        reader = spark.read.format("paceline").option("paceline.bootstrap.servers", address)
        return reader.option("subscribe", "bench").option("maxTasks", "2").load()

    if frame().count() != count:
        raise AssertionError("rows were lost or repeated")
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        frame().write.format("noop").mode("overwrite").save()
        times.append(time.perf_counter() - started)
    print(f"{name:30}{rate(count, size, statistics.median(times)):>18}")


def machine() -> str:
    """Return a line with machine, date and commit of this run."""
    root = Path(__file__).resolve().parents[1]
    commit = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    return (
        f"{cpu}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, pyarrow {pa.__version__}; "
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC; commit {commit or 'unknown'}"
    )


def main() -> None:
    """Run the benchmarks that the command line selects."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64, help="log size per case (default 64)")
    parser.add_argument(
        "--spark-megabytes", type=int, default=256, help="log size per case through Spark (default 256)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-spark", action="store_true", help="decode only")
    arguments = parser.parse_args()
    print(machine())
    compare_decoders(arguments.megabytes, arguments.rounds)
    if not arguments.no_spark:
        through_spark(arguments.spark_megabytes, arguments.rounds)


if __name__ == "__main__":
    main()
