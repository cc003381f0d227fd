"""Kafka 2.8's ``kafka-acls.sh`` at the ZooKeeper of a cluster: it lists the rules written here, and writes others."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from paceline.coordination import znodes
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.model.acls import PatternType, ResourcePattern, ResourceType
from paceline_client import AccessRule, Admin, NewTopic
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
POM = ROOT / "tests" / "golden" / "kafka-acls" / "pom.xml"
pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.cluster, pytest.mark.timeout(900)]
OBEYED_S = 10.0


@pytest.fixture(scope="module")
def jars() -> Path:
    """The folder of Kafka's jars, from Maven; PACELINE_KAFKA_28_JARS names one that exists."""
    folder = Path(os.environ.get("PACELINE_KAFKA_28_JARS", ROOT / "build" / "kafka-2.8-jars"))
    if shutil.which("java") is None:
        pytest.skip("no java")
    if not list(folder.glob("kafka_2.13-2.8*.jar")):
        if shutil.which("mvn") is None:
            pytest.skip(f"no {folder} and no mvn to fetch it")
        command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            pytest.skip(f"mvn failed: {done.stdout[-300:]}")
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster without TLS, whose only principal is User:ANONYMOUS, under access lists."""
    settings = {"authorizer.mode": "enforce", "default.replication.factor": "1", "min.insync.replicas": "1"}
    cluster = LocalCluster(
        tmp_path_factory.mktemp("acls") / "run", CONFIG_FILE, brokers=1, controllers=1, settings=settings
    )
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop(force=True)


class Tool:
    """kafka-acls.sh."""

    def __init__(self, jars: Path, cluster: LocalCluster) -> None:
        self._command = ["java", "-cp", f"{jars}/*", "kafka.admin.AclCommand", "--authorizer-properties",
                         f"zookeeper.connect={cluster.zookeeper_connect}"]  # fmt: skip

    def run(self, *words: str) -> str:
        done = subprocess.run([*self._command, *words], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def test_kafkas_tool_writes_rules_that_are_obeyed_and_lists_rules_written_here(
    jars: Path, cluster: LocalCluster
) -> None:
    tool = Tool(jars, cluster)
    with Admin(cluster.bootstrap) as admin:
        (result,) = admin.create_topics([NewTopic("rides", 1, 1)], raise_errors=False)
        assert result.error is not None and result.error.code.name == "TOPIC_AUTHORIZATION_FAILED"
        everybody = ("--add", "--allow-principal", "User:ANONYMOUS", "--operation", "All")
        tool.run(*everybody, "--cluster")
        tool.run(*everybody, "--topic", "rid", "--resource-pattern-type", "prefixed")
        eventually(lambda: admin.check_acl("User:x", "Read", "Topic", "a") is not None, OBEYED_S, "obeyed")
        admin.create_topics([NewTopic("rides", 1, 1)])
        eventually(lambda: admin.list_topics() == ["rides"], OBEYED_S, "a prefixed rule of Kafka's tool is obeyed")

        # A Deny of the tool, and its removal.
        deny = ("--deny-principal", "User:ANONYMOUS", "--operation", "Describe", "--topic", "rides")
        tool.run("--add", *deny)
        eventually(lambda: admin.list_topics() == [], OBEYED_S, "a Deny of Kafka's tool is obeyed")
        tool.run("--remove", "--force", *deny)
        eventually(lambda: admin.list_topics() == ["rides"], OBEYED_S, "its removal is seen")

        ours = [
            AccessRule("User:alice", "Read", "Topic", "rides"),
            AccessRule("User:alice", "Write", "Topic", "team-", "PREFIXED"),
            AccessRule("User:bob", "Read", "Group", "*", "LITERAL", "Deny", "10.0.0.7"),
            AccessRule("User:carl", "IdempotentWrite", "Cluster", "kafka-cluster"),
        ]
        admin.create_acls(ours)
        listed = tool.run("--list")
        for words in (
            "ResourcePattern(resourceType=TOPIC, name=rides, patternType=LITERAL)",
            "(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)",
            "ResourcePattern(resourceType=TOPIC, name=team-, patternType=PREFIXED)",
            "ResourcePattern(resourceType=GROUP, name=*, patternType=LITERAL)",
            "(principal=User:bob, host=10.0.0.7, operation=READ, permissionType=DENY)",
            "(principal=User:carl, host=*, operation=IDEMPOTENT_WRITE, permissionType=ALLOW)",
        ):
            assert words in listed
        rules = admin.describe_acls().rules
        assert set(ours) <= set(rules)
        assert AccessRule("User:ANONYMOUS", "All", "Topic", "rid", "PREFIXED") in rules


def test_the_znodes_have_the_bytes_of_kafkas_tool(jars: Path, cluster: LocalCluster) -> None:
    tool = Tool(jars, cluster)
    pairs = {
        "literal": ResourcePattern(ResourceType.TOPIC, "by-kafka"),
        "prefixed": ResourcePattern(ResourceType.GROUP, "by-kafka", PatternType.PREFIXED),
    }
    zookeeper = KazooClient(cluster.zookeeper_connect)
    zookeeper.start(30)
    try:
        for pattern, resource in pairs.items():
            named = (f"--{resource.type.lower()}", resource.name, "--resource-pattern-type", pattern)
            tool.run("--add", "--allow-principal", "User:alice", "--operation", "Read", *named)
            theirs, _ = zookeeper.get(znodes.acl_path(resource))
            assert theirs == znodes.encode_acls(znodes.decode_acls("", theirs))
            folder = znodes.acl_change_prefix(resource.pattern).rpartition("/")[0]
            latest = max(zookeeper.get_children(folder))
            assert zookeeper.get(f"{folder}/{latest}")[0] == znodes.encode_acl_change(resource)
    finally:
        zookeeper.stop()
        zookeeper.close()
