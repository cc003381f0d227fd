"""Client quotas with real processes: a TLS cluster, throttled clients, an old client, and callers beside them."""

import datetime
import itertools
import json
import queue
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.cli.quota import quota
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.model.errors import InvalidRequestError, ThrottlingQuotaExceededError
from paceline.model.identity import Identity, Role
from paceline.model.tls import TlsFiles
from paceline.rpc.channels import open_channel
from paceline.rpc.security.client_tls import client_credentials
from paceline.security.certificates import CertificateAuthority
from paceline.v1 import log_service_pb2 as pb
from paceline_client import Admin, Consumer, NewTopic, Producer, TopicPartition
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.cluster]

SETTINGS = {
    "default.replication.factor": "1", "min.insync.replicas": "1", "offsets.topic.replication.factor": "1",
    "quota.window.num": "2", "authorizer.mode": "off",
}  # fmt: skip
RATE = 200_000
VALUE = b"x" * 10_000
RECORDS = 80
"""800 kB: one second of the quota at once, and three seconds of it one after the other."""
LEAST_S = 2.5
SETTLED_S = 10.0


class Quotas:
    """A secure cluster of one broker, and clients by name."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        authority = CertificateAuthority.load(cluster.certificates)
        for name in ("alice", "bob", "carol", "dave", "erin", "fred"):
            identity = Identity(authority.trust_domain, Role.CLIENT, name)
            authority.issue(identity, (), cluster.certificates, datetime.timedelta(days=1))
        with self.admin() as admin:
            admin.create_topics([NewTopic(name, 1, 1) for name in ("rides", "full", "old", "beside")])

    def files(self, name: str) -> TlsFiles:
        return self.cluster.client_files(name)

    def admin(self, name: str = "admin", **more: Any) -> Admin:
        return Admin(self.cluster.bootstrap, tls=self.files(name), **more)

    def set(self, user: str | None = None, client_id: str | None = None, **changes: float | None) -> None:
        """Set quotas, and wait until every process obeys them."""
        with self.admin() as admin:
            admin.alter_client_quotas(changes, user=user, client_id=client_id)
        time.sleep(1.0)

    def producer(self, name: str, **more: Any) -> Producer:
        return Producer(self.cluster.bootstrap, tls=self.files(name), batch_size=50_000, **more)

    def write(self, producer: Producer, topic: str, count: int = RECORDS) -> float:
        """Write records, and return the seconds until all are delivered."""
        began_s = time.monotonic()
        for future in [producer.send(topic, VALUE) for _ in range(count)]:
            future.result(60)
        return time.monotonic() - began_s

    def read(self, name: str, topic: str, count: int) -> tuple[float, int]:
        """Read records from the beginning; return the seconds, and the throttle time in ms."""
        partition = TopicPartition(topic, 0)
        with Consumer(
            self.cluster.bootstrap, tls=self.files(name), max_partition_fetch_bytes=50_000, fetch_max_bytes=50_000
        ) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            began_s, found = time.monotonic(), 0
            while found < count and time.monotonic() - began_s < 60:
                found += sum(len(records) for records in consumer.poll(1_000).values())
            assert found >= count
            return time.monotonic() - began_s, consumer.throttle_time_ms

    def audit(self) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = []
        for node in self.cluster.nodes.values():
            path = Path(node.log_path.with_name("audit.log"))
            lines += map(json.loads, path.read_text().splitlines() if path.exists() else [])
        return lines

    def throttled_s(self, user: str, key: str) -> float:
        """Return a user's throttle time in the metrics of the broker."""
        (port,) = (one.partition("=")[2] for one in self.cluster.broker(1).argv if one.startswith("--metrics-port="))
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
        found = re.search(rf'client_throttle_seconds_total{{quota="{key}",user="{user}"}} (\S+)', text)
        return float(found[1]) if found else 0.0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quotas]:
    cluster = LocalCluster(
        tmp_path_factory.mktemp("quotas") / "run", CONFIG_FILE, brokers=1, controllers=1, secure=True, settings=SETTINGS
    )
    cluster.start()
    try:
        yield Quotas(cluster)
    finally:
        cluster.stop(force=True)


def test_a_producer_above_its_quota_waits_by_itself_and_others_do_not(world: Quotas) -> None:
    world.set("alice", producer_byte_rate=RATE)
    with world.producer("alice") as alice, world.producer("bob") as bob:
        futures = [alice.send("rides", VALUE) for _ in range(RECORDS)]
        began_s = time.monotonic()
        beside_s = []
        while not all(future.done() for future in futures):
            beside_s.append(world.write(bob, "beside", 1))
            time.sleep(0.02)
        assert time.monotonic() - began_s >= LEAST_S
        assert [future.result(1).offset for future in futures] == list(range(RECORDS)), "no record is lost or doubled"
        assert alice.throttle_time_ms >= 1_000 * LEAST_S and bob.throttle_time_ms == 0
        assert sorted(beside_s)[len(beside_s) // 2] < 0.2
    eventually(lambda: world.throttled_s("alice", "producer_byte_rate") >= LEAST_S, SETTLED_S, "the metric has it")
    assert world.throttled_s("bob", "producer_byte_rate") == 0


def test_a_consumer_above_its_quota_waits_by_itself_and_others_do_not(world: Quotas) -> None:
    with world.producer("admin") as admin:
        world.write(admin, "full")
    world.set("carol", consumer_byte_rate=RATE)
    seconds, throttled_ms = world.read("carol", "full", RECORDS)
    assert seconds >= LEAST_S and throttled_ms >= 1_000 * LEAST_S
    seconds, throttled_ms = world.read("bob", "full", RECORDS)
    assert seconds < LEAST_S and throttled_ms == 0


@pytest.mark.parametrize("method", ["Produce", "ProduceStream"])
def test_an_old_client_that_ignores_the_field_is_held_back_all_the_same(world: Quotas, method: str) -> None:
    user = {"Produce": "dave", "ProduceStream": "erin"}[method]
    world.set(user, producer_byte_rate=RATE)
    request = pb.ProduceRequest(timeout_ms=60_000)
    request.partitions.add(topic="old", partition=0).records.records.add(value=b"x" * 100_000)
    data, tls = request.SerializeToString(), client_credentials(world.files(user), {})
    with open_channel(world.cluster.broker(1).client_address, tls=tls) as channel:
        began_s, throttled = time.monotonic(), 0
        if method == "Produce":
            call = channel.unary_unary(f"/paceline.v1.LogService/{method}")
            answers: Any = (call(data, timeout=60) for _ in range(8))
        else:
            requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            for _ in range(8):
                requests.put(data)
            answers = channel.stream_stream(f"/paceline.v1.LogService/{method}")(iter(requests.get, None), timeout=60)
        for answer in itertools.islice(answers, 8):
            response = pb.ProduceResponse.FromString(answer)
            assert not response.partitions[0].HasField("error")
            throttled += response.throttle_ms > 0
        seconds = time.monotonic() - began_s
        if method == "ProduceStream":
            requests.put(None)
    assert throttled >= 5
    assert seconds >= 2.4, "all but the burst and the last request, whose pause is not waited for"


def test_a_client_id_has_a_quota_of_its_own(world: Quotas) -> None:
    world.set("fred", "slow", producer_byte_rate=RATE)
    with world.producer("fred", client_id="fast") as fast, world.producer("fred", client_id="slow") as slow:
        assert world.write(fast, "rides") < LEAST_S and fast.throttle_time_ms == 0
        assert world.write(slow, "rides") >= LEAST_S


def test_admin_waits_for_the_quota_of_partitions_and_fails_when_its_time_is_too_short(world: Quotas) -> None:
    world.set("bob", controller_mutation_rate=2.0)
    with world.admin("bob") as admin:
        began_s = time.monotonic()
        created = admin.create_topics([NewTopic(f"made-{number}", 4, 1) for number in range(3)])
        assert [one.error for one in created] == [None] * 3 and 2.0 < time.monotonic() - began_s < 30
        assert admin.throttle_time_ms > 1_000
    with world.admin("bob") as admin:
        admin.create_topics([NewTopic("made-9", 9, 1)], timeout_ms=30_000)
        with pytest.raises(ThrottlingQuotaExceededError):
            admin.delete_topics(["made-0"], timeout_ms=300)
    assert "made-0" in world.admin().list_topics()
    world.set("bob", controller_mutation_rate=None)
    with world.admin("bob") as admin:
        admin.delete_topics([f"made-{number}" for number in (0, 1, 2, 9)], timeout_ms=20_000)


def test_the_command_line_sets_lists_and_removes_quotas(world: Quotas, monkeypatch: pytest.MonkeyPatch) -> None:
    files = world.files("admin")
    for key, path in zip(("CA", "CERTIFICATE", "KEY"), (files.ca, files.certificate, files.key), strict=True):
        monkeypatch.setenv(f"PACELINE_SSL_{key}_FILE", str(path))

    def run(*words: str) -> str:
        result = CliRunner().invoke(quota, [*words, "-b", world.cluster.bootstrap])
        assert result.exit_code == 0, result.output
        return result.output

    assert "request_percentage=50" in run("set", "--user", "User:zoe", "--client", "etl", "request_percentage=50")
    (row,) = json.loads(run("list", "--user", "zoe", "-o", "json"))
    assert (row["user"], row["client_id"], row["request_percentage"]) == ("zoe", "etl", 50.0)
    (line,) = [one for one in world.audit() if one["resource"] == "quota of user zoe, client id etl"]
    assert (line["old"], line["new"], line["principal"]) == ({}, {"request_percentage": 50.0}, "User:admin")
    run("remove", "--user", "zoe", "--client", "etl")
    assert json.loads(run("list", "--user", "zoe", "-o", "json")) == []
    for words in (["set", "--user", "zoe", "speed=1"], ["set", "--user", "zoe", "producer_byte_rate=-1"],
                  ["set", "--user", "", "producer_byte_rate=1"], ["set", "producer_byte_rate=1"],
                  ["set", "--user", "zoe", "producer_byte_rate"]):  # fmt: skip
        assert CliRunner().invoke(quota, [*words, "-b", world.cluster.bootstrap]).exit_code != 0
    with world.admin() as admin, pytest.raises(InvalidRequestError):
        admin.alter_client_quotas({"producer_byte_rate": 1}, user="")
