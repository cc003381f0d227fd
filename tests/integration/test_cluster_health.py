"""Six faults of real processes: the first lines of `paceline cluster health` name each, within five seconds.

The tests share a cluster; what happened in the last ten minutes may add findings of severity warning.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.cli.commands import cli
from paceline.cli.exit_codes import NEGATIVE_VERDICT
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, Node
from paceline.dev.ports import free_plan
from paceline_client import Admin, NewTopic, Producer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

DEADLINE_S = 60.0
ANSWER_S = 6.0
"""Five seconds, and the start of the command."""


@pytest.fixture(scope="module")
def four(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Four brokers and two controllers; replicas leave an ISR after 1.5 s."""
    directory = tmp_path_factory.mktemp("health")
    # A paused broker leaves its ISRs long before its session ends, also on a busy machine.
    settings = {"replica.lag.time.max.ms": "1500", "zookeeper.session.timeout.ms": "15000"}
    running = LocalCluster(directory, CONFIG_FILE, 4, 2, settings, ports=free_plan(2, 4), heap_mib=64)
    running.start(timeout_s=240)
    with Admin(running.bootstrap) as admin:
        admin.create_topics([NewTopic("t", assignments=((1, 2, 3), (2, 3, 1), (3, 1, 2)))])
    yield running
    running.stop(force=True)


def health(cluster: LocalCluster) -> list[dict[str, Any]]:
    """Return the findings, after a check of the time, the exit code and the order."""
    began = time.monotonic()
    done = CliRunner().invoke(cli, ["cluster", "health", "-o", "json", "-b", cluster.bootstrap])
    assert time.monotonic() - began < ANSWER_S
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert done.exit_code == (NEGATIVE_VERDICT if found[0]["severity"] in ("warning", "critical") else 0), done.output
    return found


def until_first(cluster: LocalCluster, text: str, lines: int = 1) -> None:
    """Wait until one of the first findings begins with ``text``."""
    seen: list[str] = []

    def is_named() -> bool:
        seen[:] = [one["sentence"] for one in health(cluster)]
        return any(sentence.startswith(text) for sentence in seen[:lines])

    try:
        eventually(is_named, DEADLINE_S, text)
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *seen])) from None


def until_nothing_is_critical(cluster: LocalCluster) -> None:
    eventually(lambda: health(cluster)[0]["severity"] != "critical", DEADLINE_S, "nothing is critical")


def restarted_with(cluster: LocalCluster, node: Node, *more: str, wait: bool = True) -> list[str]:
    """Restart a broker with further settings and return its former command line."""
    before = list(node.argv)
    cluster.terminate(node)
    names = {one.partition("=")[0] for one in more}
    node.argv[:] = [one for one in before if one.partition("=")[0] not in names] + list(more)
    cluster.restart(node, wait=wait)
    return before


def put_back(cluster: LocalCluster, node: Node, argv: list[str]) -> None:
    cluster.kill(node)
    node.argv[:] = argv
    cluster.restart(node)


def test_a_healthy_cluster_says_so(four: LocalCluster) -> None:
    eventually(lambda: health(four)[0]["kind"] == "healthy", DEADLINE_S, "healthy")


def test_a_full_disk_is_named_first(four: LocalCluster) -> None:
    before = restarted_with(four, four.broker(2), f"--log-dir-min-free-bytes={1 << 60}")
    try:
        until_first(four, "broker 2 refuses produce requests for")
    finally:
        put_back(four, four.broker(2), before)
    until_nothing_is_critical(four)


def test_a_wrong_advertised_address_is_named_first(four: LocalCluster) -> None:
    (listeners,) = (one.partition("=")[2] for one in four.broker(3).argv if one.startswith("--listeners="))
    wrong = ",".join("CLIENT://127.0.0.1:1" if one.startswith("CLIENT") else one for one in listeners.split(","))
    before = restarted_with(four, four.broker(3), f"--advertised-listeners={wrong}", wait=False)
    try:
        until_first(four, "broker 3 cannot be reached at 127.0.0.1:1, the address that it advertises to clients")
    finally:
        put_back(four, four.broker(3), before)
    until_nothing_is_critical(four)


def test_a_reassignment_to_a_dead_broker_is_named(four: LocalCluster) -> None:
    with Admin(four.bootstrap) as admin:
        four.pause(four.broker(4))  # it is registered, so the controller accepts it, and it copies nothing
        try:
            admin.alter_partition_reassignments({("t", 0): (1, 2, 4)})
            four.kill(four.broker(4))
            until_first(four, "broker 4 is not registered")
            until_first(four, "t/0 is being reassigned (adds 4, removes 3) and does not get on, because broker 4", 4)
        finally:
            admin.alter_partition_reassignments({("t", 0): None})
            four.kill(four.broker(4))
            four.restart(four.broker(4))
    until_nothing_is_critical(four)


def test_a_slow_follower_is_named(four: LocalCluster) -> None:
    over = threading.Event()

    def load() -> None:
        with Producer(four.bootstrap, acks=1) as producer:
            while not over.wait(0.05):
                for partition in range(3):
                    producer.send("t", b"x", partition=partition)

    def isrs() -> list[tuple[int, ...]]:
        # Not from the broker that stands still, and from the controller alone: brokers learn of a change one by one, so
        # that an old answer after a new one would pass for a departure or a return.
        with Admin(four.broker(2).client_address) as admin:
            return [one.isr for one in admin.describe_topics(["t"], from_controller=True)[0].partitions]

    def members() -> list[bool]:
        return [1 in isr for isr in isrs()]

    # The restarts of the tests above can leave broker 1 as leader of every partition; then no ISR shrinks.
    eventually(lambda: all(len(isr) == 3 for isr in isrs()), DEADLINE_S, "three replicas in sync")
    with Admin(four.bootstrap) as admin:
        admin.elect_leaders("preferred")
    thread = threading.Thread(target=load)
    thread.start()
    try:
        for _ in range(3):
            eventually(lambda: all(members()), DEADLINE_S, "in sync")
            four.pause(four.broker(1))
            try:
                eventually(lambda: not any(members()[1:]), DEADLINE_S, "out of the ISRs of other leaders")
            finally:
                four.resume(four.broker(1))
        eventually(lambda: all(members()), DEADLINE_S, "in sync")
        until_first(four, "broker 1 has left ISRs", 3)
    finally:
        over.set()
        thread.join()


def test_zookeeper_without_quorum_is_named_first(four: LocalCluster) -> None:
    assert four.zookeeper is not None and four.zookeeper.pid is not None
    os.kill(four.zookeeper.pid, signal.SIGSTOP)
    try:
        until_first(four, "ZooKeeper has not been reached for")
        eventually(lambda: "no-controller" in [one["kind"] for one in health(four)], DEADLINE_S, "no controller")
    finally:
        os.kill(four.zookeeper.pid, signal.SIGCONT)
    until_nothing_is_critical(four)


def test_a_hanging_broker_is_named_first(four: LocalCluster) -> None:
    four.pause(four.broker(2))
    try:
        until_first(four, "broker 2 accepts connections at")
    finally:
        four.resume(four.broker(2))
    until_nothing_is_critical(four)


def test_a_broker_that_restarts_again_and_again_is_named(four: LocalCluster) -> None:
    for _ in range(4):
        four.kill(four.broker(4))
        four.restart(four.broker(4))
    until_first(four, "broker 4 has registered", 4)  # the tests above can make each of the others flap, too
    (finding,) = (one for one in health(four) if one["subject"] == "broker 4" and one["kind"] == "flapping")
    assert "restarts again and again" in finding["cause"]
