"""A broker that advertises a REPLICATION address which no follower reaches does not keep its leaderships."""

import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline.dev.local_cluster import CONFIG_FILE, HOST, LocalCluster, Node
from paceline.dev.ports import free_plan
from paceline_client import Admin, Producer
from tests.support.waiting import eventually

UNREACHED = 1
TOPIC = {"min.insync.replicas": "2"}
SETTINGS = {"replica.lag.time.max.ms": "9000", "controller.broker.lease.ms": "3000"}
WAIT_S = 90.0


class OneHiddenBroker(LocalCluster):
    """A cluster whose first broker advertises another REPLICATION address than it listens on."""

    address = ""

    def command_of(self, node: Node) -> list[str]:
        """Add the advertised address to the command line of the first broker."""
        hidden = ["--advertised-listeners", f"REPLICATION://{self.address}"]
        return [*node.argv, *hidden] if node.name == f"broker-{UNREACHED}" else node.argv


@contextmanager
def refusing_address() -> Iterator[str]:
    """Reserve an address that refuses connections: it is bound, but nothing listens."""
    with socket.socket() as bound:
        bound.bind((HOST, 0))
        yield f"{HOST}:{bound.getsockname()[1]}"


def leaders(admin: Admin, topic: str) -> list[int | None]:
    (described,) = admin.describe_topics([topic])
    return [partition.leader for partition in described.partitions]


def unanswered_s(port: int) -> float:
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    series = f'paceline_replica_fetcher_unanswered_seconds{{fetcher="0",leader="{UNREACHED}"}}'
    return next((float(line.split()[-1]) for line in lines if line.startswith(series)), 0.0)


@pytest.mark.cluster
def test_topics_get_leaders_that_followers_reach_and_the_followers_say_which_address_fails(tmp_path: Path) -> None:
    plan = free_plan(1, 3)
    with refusing_address() as address:
        cluster = OneHiddenBroker(
            tmp_path, CONFIG_FILE, brokers=3, controllers=1, settings=SETTINGS, ports=plan, heap_mib=64
        )
        cluster.address = address
        try:
            cluster.start()
            with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap, acks="all") as producer:
                admin.create_topics({"first": (3, 3, TOPIC)})
                created_s = time.monotonic()
                eventually(lambda: UNREACHED not in leaders(admin, "first"), WAIT_S, "the leader moved")
                print(f"leader moved {time.monotonic() - created_s:.1f} s after the creation of the topic")
                admin.create_topics({"second": (6, 3, TOPIC)})
                assert UNREACHED not in leaders(admin, "second"), "known before the topic was created"
                sent = [producer.send("first", b"value", partition=partition) for partition in range(3)]
                sent += [producer.send("second", b"value", partition=partition) for partition in range(6)]
                producer.flush(WAIT_S)
                assert all(future.result(0).offset == 0 for future in sent)
            for follower in (cluster.broker(2), cluster.broker(3)):
                log = follower.log_path.read_text(encoding="utf-8")
                assert f"leader does not answer fetches: leader={UNREACHED} address={address}" in log
                assert "warning" in next(line for line in log.splitlines() if f"address={address}" in line).lower()
                assert unanswered_s(plan.brokers[follower.node_id - 1].metrics) > 3, (
                    "the follower still asks, although the broker leads nothing"
                )
                changes = (tmp_path / follower.name / "state-change.log").read_text(encoding="utf-8")
                assert "leader-unreachable" in changes
        finally:
            cluster.stop()
