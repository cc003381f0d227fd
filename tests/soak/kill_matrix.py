"""Kill driver, executor, leader and controller between every two steps of both ingests and of the exactly-once sink.

``make soak SCENARIO=steps`` copies a million rows with each; the same faults on few rows are in
tests/integration/test_pipeline_ingest.py, test_pipeline_ingest_cluster.py and test_spark_write.py. Rows are numbered by
partition, so that the end shows a row that is missing, twice, or out of order. A killed driver is started again; a
killed broker or controller is started again before the next one is killed.

Steps of the ingest into Delta: planned, task (its files are written), written, dead-letters-committed, committed. Steps
of the ingest into Parquet, a query of Spark: latest and partitions (planning), read, rows (the task's rows are read),
committed. Steps of the sink: staged (a task's rows), list, decide, read, scan (only in a repeated micro-batch), append,
done.
"""

import json
import os
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import deltalake
import pyarrow.dataset

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, Node, remove
from paceline.dev.ports import free_plan
from paceline.model.identifiers import TopicPartition
from paceline.pipeline.jobs.ingest.rows import MAX_TIMESTAMP_MS
from paceline_client import Admin, Consumer, NewTopic, Producer
from tests.support.killable_driver import PORT

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 6
VICTIMS = ("driver", "executor", "leader", "controller")
STEPS = {
    "ingest": ("planned", "task", "written", "dead-letters-committed", "committed"),
    "parquet": ("latest", "partitions", "read", "rows", "committed"),
    "copy": ("staged", "list", "decide", "read", "scan", "append", "done"),
}
MAX_FAILURES = 5
"""Number of times that the driver may fail without a kill; it is restarted, as by a supervisor."""
RUN_TIMEOUT_S = 3_600.0


@dataclass
class Processes:
    """The processes to kill: those of the Spark driver and those of the cluster."""

    cluster: LocalCluster
    topic: str
    """Topic whose leaders are killed."""
    driver: "subprocess.Popen[bytes] | None" = None
    _killed: "subprocess.Popen[bytes] | None" = None
    _down: list[Node] = field(default_factory=list)

    @property
    def driver_killed(self) -> bool:
        """Whether the present driver was killed; processes that outlive it still ask."""
        return self.driver is self._killed

    def kill(self, victim: str, asking_pid: int) -> str:
        """Kill a process of this kind with SIGKILL and return its name."""
        if victim == "driver":
            return self._kill_driver()
        if victim == "executor":
            return self._kill_executor(asking_pid)
        self.restore()
        node = self._leader() if victim == "leader" else self._active_controller()
        self.cluster.kill(node)
        self._down.append(node)
        return node.name

    def restore(self) -> None:
        """Start the killed broker or controller again."""
        while self._down:
            self.cluster.restart(self._down.pop())

    def _kill_driver(self) -> str:
        assert self.driver is not None
        self._killed = self.driver
        jvms = [pid for pid in _children_of(self.driver.pid) if "SparkSubmit" in _command(pid)]
        for pid in [self.driver.pid, *jvms]:
            with suppress(ProcessLookupError):  # the JVM ends by itself when Python is gone
                os.kill(pid, signal.SIGKILL)
        return f"driver {self.driver.pid}"

    def _kill_executor(self, asking_pid: int) -> str:
        """Kill the executor of the asking task; between tasks any executor, once Spark has replaced the last one."""
        assert self.driver is not None
        ancestors = [asking_pid, *_ancestors(asking_pid)]
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            processes = [*ancestors, *_children_of(self.driver.pid)]
            for executor in (pid for pid in processes if "CoarseGrained" in _command(pid)):
                os.kill(executor, signal.SIGKILL)
                return f"executor {executor}"
            time.sleep(0.2)
        raise SystemExit("Spark has not replaced its executor for a minute")

    def _leader(self) -> Node:
        with Admin(self.cluster.bootstrap) as admin:
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                (described,) = admin.describe_topics([self.topic])
                leader = described.partitions[0].leader
                if leader is not None and self.cluster.broker(leader).running:
                    return self.cluster.broker(leader)
                time.sleep(0.2)
        raise SystemExit(f"{self.topic}-0 has had no leader for two minutes")

    def _active_controller(self) -> Node:
        with Admin(self.cluster.bootstrap) as admin:
            controller_id = admin.describe_cluster().controller_id
        nodes = [node for node in self.cluster.nodes.values() if node.kind == "controller" and node.running]
        return next((node for node in nodes if node.node_id == controller_id), nodes[0])


class Matrix(socketserver.ThreadingTCPServer):
    """Answers the processes that ask before a step, after the kill that the plan has for the step."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, processes: Processes, plan: list[tuple[str, str]]) -> None:
        super().__init__(("127.0.0.1", 0), _Asked)
        self.processes = processes
        self.left = plan
        self.kills: list[str] = []
        self._lock = threading.Lock()

    def on_step(self, step: str, pid: int) -> None:
        """Kill the next victim that waits for this step."""
        with self._lock:
            due = next((each for each in self.left if each[0] == step), None)
            if due is None or self.processes.driver_killed:
                return
            self.left.remove(due)
            killed = self.processes.kill(due[1], pid)
            self.kills.append(f"{killed} at {step}")
            print(f"killed {killed} at step {step}, {len(self.left)} kills left", flush=True)


class _Asked(socketserver.StreamRequestHandler):
    server: Matrix

    def handle(self) -> None:
        asked = self.rfile.readline().decode().split()
        if not asked:
            return  # The process was killed after it had connected.
        step, pid = asked
        self.server.on_step(step, int(pid))
        self.wfile.write(b"go\n")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _parents() -> dict[int, int]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return found


def _ancestors(pid: int) -> Iterator[int]:
    parents = _parents()
    while (pid := parents.get(pid, 0)) > 1:
        yield pid


def _children_of(pid: int) -> list[int]:
    """Return every descendant."""
    parents = _parents()
    found, pending = [], [pid]
    while pending:
        here = pending.pop()
        children = [child for child, parent in parents.items() if parent == here]
        found += children
        pending += children
    return found


def run(what: str, cluster: LocalCluster, directory: Path, records: int, victims: Sequence[str]) -> list[str]:
    """Copy the rows with all kills of ``victims`` for one kind of job and return the problems."""
    source, target = f"{what}-in", f"{what}-out"
    with Admin(cluster.bootstrap) as admin:
        settings = {"min.insync.replicas": "2"}
        admin.create_topics([NewTopic(name, PARTITIONS, 3, configs=settings) for name in (source, target)])
    per_partition = records // PARTITIONS
    with Producer(cluster.bootstrap) as producer:
        for partition in range(PARTITIONS):
            _send_rows(producer, what, source, partition, per_partition)
        producer.flush(300)
    plan = [(step, victim) for victim in victims for step in STEPS[what]]
    processes = Processes(cluster, target if what == "copy" else source)
    place = f"{target}@{directory / 'checkpoint'}" if what == "copy" else str(directory / what)
    command = [sys.executable, "-m", "tests.support.killable_driver", what, cluster.bootstrap, source, place]
    with _serving(Matrix(processes, plan)) as matrix:
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, PORT: str(matrix.server_address[1]), "PYTHONPATH": paths}
        deadline = time.monotonic() + RUN_TIMEOUT_S
        code, failures = -1, 0
        while code:
            with (directory / f"{what}.log").open("ab") as log:
                processes.driver = subprocess.Popen(
                    [*command, str(records)], stdout=log, stderr=log, env=environment, cwd=ROOT, start_new_session=True
                )
                try:
                    code = processes.driver.wait(max(1.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    code = -1
                finally:
                    # Executors end after their driver; the process group is killed so that no executor remains.
                    _kill_group(processes.driver)
            if code and not processes.driver_killed:
                # Spark allows a Python process ten seconds to start, which a busy machine may exceed.
                failures += 1
                print(f"the driver ended by itself with exit code {code}", flush=True)
            if failures > MAX_FAILURES:
                return [f"{what}: the driver ended by itself {failures} times; see {directory / f'{what}.log'}"]
        processes.restore()
        left = [each for each in matrix.left if each[0] != "scan"]
        problems = [f"{what}: not reached: {left}"] if left else []
        print(f"{what}: {len(matrix.kills)} kills, {failures} other ends of the driver", flush=True)
    read: dict[str, Callable[[Path], dict[int, list[bytes]]]] = {"ingest": delta_rows, "parquet": parquet_rows}
    found = read[what](directory / what) if what in read else _topic_rows(cluster, target)
    return problems + compare(what, found, per_partition)


@contextmanager
def _serving(matrix: Matrix) -> Iterator[Matrix]:
    thread = threading.Thread(target=matrix.serve_forever, daemon=True)
    thread.start()
    try:
        yield matrix
    finally:
        matrix.shutdown()
        matrix.server_close()


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _send_rows(producer: Producer, what: str, topic: str, partition: int, count: int) -> None:
    """Send the rows of a partition; in an ingest into Delta, the time of one in a hundred makes it a dead letter."""
    bad = [number for number in range(count) if what == "ingest" and number % 100 == 7]
    first = 0
    for number in [*bad, count]:
        producer.send_many(topic, ((None, value_of(n)) for n in range(first, number)), partition=partition)
        if number < count:
            producer.send(topic, value_of(number), partition=partition, timestamp_ms=MAX_TIMESTAMP_MS + 1)
        first = number + 1


def value_of(number: int) -> bytes:
    """Return the value of a row."""
    return b"%d" % number


def delta_rows(table: Path) -> dict[int, list[bytes]]:
    """Return the values of the table and its dead letters by partition, in the order of their offsets."""
    return _in_order(deltalake.DeltaTable(path).to_pyarrow_dataset() for path in (table, f"{table}_dead_letters"))


def parquet_rows(table: Path) -> dict[int, list[bytes]]:
    """Return the values in the files of the log of Spark's file sink."""
    log = {int(path.name.split(".")[0]): path for path in (table / "_spark_metadata").glob("[0-9]*")}
    compacted = max((number for number, path in log.items() if path.suffix == ".compact"), default=0)
    lines = [line for number, path in log.items() if number >= compacted for line in path.read_text().splitlines()[1:]]
    files = sorted({unquote(json.loads(line)["path"]).removeprefix("file://") for line in lines})
    folders = {"partitioning": "hive", "partition_base_dir": str(table)}
    return _in_order([pyarrow.dataset.dataset(files, format="parquet", **folders)])


def _in_order(tables: Iterable[pyarrow.dataset.Dataset]) -> dict[int, list[bytes]]:
    rows: list[tuple[int, int, bytes]] = []
    for table in tables:
        found = table.to_table(columns=["partition", "offset", "value"])
        rows += zip(*(found.column(name).to_pylist() for name in found.column_names), strict=True)
    ordered: dict[int, list[bytes]] = {}
    for partition, _, value in sorted(rows):
        ordered.setdefault(partition, []).append(value)
    return ordered


def _topic_rows(cluster: LocalCluster, topic: str) -> dict[int, list[bytes]]:
    """Return the values of a topic by partition, in order, from its beginning to its present end."""
    found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    every = [TopicPartition(topic, partition) for partition in found]
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign(every)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(every)
        deadline = time.monotonic() + 300
        while any(consumer.position(tp) < end for tp, end in ends.items()) and time.monotonic() < deadline:
            for tp, records in consumer.poll(1_000).items():
                found[tp.partition] += [record.value or b"" for record in records]
    return found


def compare(what: str, found: dict[int, list[bytes]], per_partition: int) -> list[str]:
    """Return how the rows differ from all rows of every partition, once and in order."""
    expected = [value_of(number) for number in range(per_partition)]
    problems = []
    for partition in range(PARTITIONS):
        rows = found.get(partition, [])
        if rows != expected:
            distinct = len(set(rows))
            problems.append(
                f"{what}: partition {partition} has {len(rows)} rows, {distinct} distinct, of {per_partition}"
            )
    return problems


def kill_matrix(directory: Path, records: int, only: str | None, victims: Sequence[str]) -> list[str]:
    """Run all parts of the matrix, or only one, and return what is wrong with the rows."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    directory = directory.resolve()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    cluster = LocalCluster(directory / "cluster", CONFIG_FILE, brokers=3, controllers=2, ports=free_plan(2, 3))
    problems: list[str] = []
    try:
        cluster.start(timeout_s=300)
        for what in [only] if only else list(STEPS):
            problems += run(what, cluster, directory, records, victims)
    finally:
        cluster.stop(force=True)
        remove(directory / "cluster")
    return problems
