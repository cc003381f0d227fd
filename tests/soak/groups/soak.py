"""``python -m tests.soak groups --minutes 10``: 50 members on 200 partitions; members and coordinators die.

Each minute the coordinator is killed and restarted, and two processes with five members each are killed and replaced.
When all members are alive, another member joins and later leaves. At the end: no partition had two owners in a
generation, every record was processed at least once, no acknowledged commit is lost, and the join of the additional
member took at most two heartbeats.
"""

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline_client import Admin, Consumer, NewTopic, Producer, TopicPartition
from tests.soak.groups.account import GROUP, HEARTBEAT_MS, TOPIC, Account, check, read, rebalance_seconds

PARTITIONS: Final = 200
WORKERS: Final = 10
MEMBERS_EACH: Final = 5
RECORDS_PER_S: Final = 400
DEADLINE_S: Final = 400.0


class Worker:
    """A process with members."""

    def __init__(self, bootstrap: str, directory: Path, name: str, members: int) -> None:
        self.members = members
        self.path = directory / f"{name}.notes"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.groups.worker", bootstrap, str(self.path), name, str(members)],
            stdin=subprocess.PIPE,
            stdout=(directory / f"{name}.log").open("wb"),
            stderr=subprocess.STDOUT,
        )

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()

    def begin_stop(self) -> None:
        """Make its members leave the group."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def stop(self) -> None:
        """Make its members leave the group, and wait for the end of the process."""
        self.begin_stop()
        self._process.wait(180)


class Load(threading.Thread):
    """Sends records to all partitions in turn."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(bootstrap, linger_ms=20)
        self._over = threading.Event()
        self.sent = 0

    def run(self) -> None:
        while not self._over.wait(0.1):
            for _ in range(RECORDS_PER_S // 10):
                self._producer.send(TOPIC, b"%d" % self.sent, partition=self.sent % PARTITIONS)
                self.sent += 1

    def stop(self) -> None:
        """Stop sending, and wait for the results of all records."""
        self._over.set()
        self.join()
        self._producer.flush()
        self._producer.close()


class Soak:
    """A run of the soak."""

    def __init__(self, directory: Path, cluster: LocalCluster, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._cluster = cluster
        self._say = say
        self._chance = random.Random(18)
        self._workers: list[Worker] = []
        self._paths: list[Path] = []
        self._started = 0
        self.rebalances_s: list[float | None] = []
        self.coordinator_kills = 0
        self.member_kills = 0

    def run(self, minutes: int) -> list[str]:
        """Run all phases; return every broken rule."""
        for _ in range(WORKERS):
            self._start()
        self._await_settled("the group forms", 0.0)
        load = Load(self._cluster.bootstrap)
        load.start()
        for minute in range(minutes):
            self._say(
                f"minute {minute + 1} of {minutes}: {load.sent} records, {self._account().generations} generations"
            )
            self._one_minute()
        load.stop()
        self._say(f"{load.sent} records sent, waiting for the members to process them")
        ends = self._ends()
        self._await(
            lambda: check(self._account(), ends, ends) == [] or self._is_processed(ends), "all records are processed"
        )
        for worker in self._workers:
            worker.begin_stop()
        for worker in self._workers:
            worker.stop()
        with Admin(self._cluster.bootstrap) as admin:
            committed = {one.partition: at.offset for one, at in admin.group_offsets(GROUP).items()}
        return check(self._account(), ends, committed)

    def _one_minute(self) -> None:
        begin = time.monotonic()
        node = self._cluster.broker(self._coordinator())
        self._cluster.kill(node)
        self.coordinator_kills += 1
        time.sleep(10)
        self._cluster.restart(node, wait=False)
        for _ in range(2):
            time.sleep(5)
            self._workers.pop(self._chance.randrange(len(self._workers))).kill()
            self.member_kills += MEMBERS_EACH
            since = time.monotonic()
            self._start()
        self._await_settled("all members own partitions again", since)
        since = time.monotonic()
        extra = self._start(members=1)
        members = sum(worker.members for worker in self._workers)
        self._await(lambda: self._whole_since(since, members) is not None, "another member has joined")
        joined = next(at for at in self._account().joins[::-1] if at >= since)
        self.rebalances_s.append(self._whole_since(joined, members))
        self._workers.remove(extra)
        extra.stop()
        time.sleep(max(0.0, 60 - (time.monotonic() - begin)))

    def _start(self, members: int = MEMBERS_EACH) -> Worker:
        self._started += 1
        worker = Worker(self._cluster.bootstrap, self._directory, f"w{self._started}", members)
        self._workers.append(worker)
        self._paths.append(worker.path)
        return worker

    def _coordinator(self) -> int:
        with Admin(self._cluster.bootstrap) as admin:
            return admin.describe_groups([GROUP])[0].coordinator

    # Waiting

    def _account(self) -> Account:
        return read(line for path in self._paths if path.exists() for line in path.open(encoding="utf-8"))

    def _whole_since(self, since: float, members: int) -> float | None:
        return rebalance_seconds(self._account(), since, members)

    def _await_settled(self, what: str, since: float) -> None:
        """Wait until every member has its partitions in a generation that began after ``since``."""
        begin = time.monotonic()
        members = sum(worker.members for worker in self._workers)
        self._await(lambda: self._whole_since(since, members) is not None, what)
        self._say(f"  {what}: after {time.monotonic() - begin:.1f} s")

    def _ends(self) -> dict[int, int]:
        with Consumer(self._cluster.bootstrap) as consumer:
            partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
            return {one.partition: end for one, end in consumer.end_offsets(partitions).items()}

    def _is_processed(self, ends: dict[int, int]) -> bool:
        return not any("never processed" in problem for problem in check(self._account(), ends, ends))

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {DEADLINE_S:.0f} s: {what}")
            time.sleep(1)


def group_soak(minutes: int, say: Callable[[str], None]) -> tuple[dict[str, object], list[str]]:
    """Run the soak and return its figures and the rules that were broken."""
    with tempfile.TemporaryDirectory(prefix="paceline-group-soak-") as name:
        directory = Path(name)
        cluster = LocalCluster(directory / "cluster", CONFIG_FILE, ports=free_plan(2, 3), heap_mib=128)
        cluster.start()
        try:
            with Admin(cluster.bootstrap) as admin:
                admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, configs={"min.insync.replicas": "2"})])
            soak = Soak(directory, cluster, say)
            try:
                problems = soak.run(minutes)
            finally:
                account = soak._account()
                for worker in soak._workers:
                    worker.kill()
        finally:
            cluster.stop(force=True)
    late = [one for one in soak.rebalances_s if one is None or one > 2 * HEARTBEAT_MS / 1000]
    if late:
        problems = [*problems, f"{len(late)} rebalances took longer than two heartbeats"]
    figures: dict[str, object] = {
        "generations": account.generations,
        "coordinator_kills": soak.coordinator_kills,
        "member_kills": soak.member_kills,
        "rebalances_s": [None if one is None else round(one, 2) for one in soak.rebalances_s],
        "load_average": os.getloadavg()[0],
    }
    return figures, problems
