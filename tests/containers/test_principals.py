"""Two principals in containers, in Python and Go, read their own topics alone; the audit log names rule and request."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from paceline.model.errors import TopicAuthorizationError
from paceline_client import AccessRule, Admin, Consumer, NewTopic, Producer, TopicPartition
from tests.containers.compose import BROKERS, CONTROLLERS, ROOT, ComposeCluster
from tests.support.waiting import eventually

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800), pytest.mark.slow]

TEAMS = {"alice": "orders", "bob": "payments"}
REFUSED = "TOPIC_AUTHORIZATION_FAILED"

Read = Callable[[ComposeCluster, str, str], str]
"""Reads a topic as a principal; returns the value of its record, or the name of the error."""


def read_python(cluster: ComposeCluster, name: str, topic: str) -> str:
    try:
        with Consumer(cluster.bootstrap, tls=cluster.files(name)) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            consumer.seek(TopicPartition(topic, 0), 0)
            deadline_s = time.monotonic() + 60
            while time.monotonic() < deadline_s:
                found = [one.value for records in consumer.poll(2_000).values() for one in records]
                if found:
                    return (found[0] or b"").decode()
    except TopicAuthorizationError as error:
        return error.code.name
    return ""


def read_go(cluster: ComposeCluster, name: str, topic: str) -> str:
    if shutil.which("go") is None:
        pytest.skip("the Go toolchain is not installed")
    tls = cluster.files(name)
    environment = {
        "PACELINE_SSL_CA_FILE": str(tls.ca),
        "PACELINE_SSL_CERTIFICATE_FILE": str(tls.certificate),
        "PACELINE_SSL_KEY_FILE": str(tls.key),
    }
    arguments = ["-bootstrap", ",".join(cluster.bootstrap), "-topic", topic, "-count", "1"]
    done = subprocess.run(
        ["go", "run", "./samples/consume", *arguments],
        cwd=ROOT / "clients" / "go",
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=900.0,
    )
    if done.returncode == 0:
        return done.stdout.strip().rpartition("=")[2]
    return REFUSED if REFUSED in done.stderr else done.stderr


def audit(cluster: ComposeCluster, **fields: str) -> list[dict[str, Any]]:
    """Return the lines of the audit log of all nodes with these values."""
    found = []
    for service in (*BROKERS.values(), *CONTROLLERS.values()):
        for line in cluster.log(service, 5_000).splitlines():
            if '{"time"' in line and '"request_id"' in line:
                entry = json.loads(line[line.index('{"time"') : line.rindex("}") + 1])
                found += [entry] if fields.items() <= entry.items() else []
    return found


@pytest.mark.parametrize("read", [read_python, read_go], ids=["python", "go"])
def test_each_of_two_principals_reads_its_own_topic_alone(cluster: ComposeCluster, read: Read) -> None:
    language = read.__name__.removeprefix("read_")
    topics = {name: f"{team}-{language}" for name, team in TEAMS.items()}
    with Admin(cluster.bootstrap, tls=cluster.tls) as admin:
        admin.create_topics([NewTopic(topic, 1, 3) for topic in topics.values()])
        admin.create_acls([AccessRule(f"User:{name}", "Read", "Topic", topic) for name, topic in topics.items()])
    with Producer(cluster.bootstrap, tls=cluster.tls) as producer:
        for future in [producer.send(topic, topic.encode()) for topic in topics.values()]:
            future.result(60)
    for name, topic in topics.items():
        other = next(one for one in topics.values() if one != topic)
        eventually(lambda name=name, topic=topic: read(cluster, name, topic) == topic, 120, f"{name} reads {topic}")
        assert read(cluster, name, other) == REFUSED
        refused = audit(cluster, event="denied", principal=f"User:{name}", resource=f"Topic:LITERAL:{other}")
        assert refused and {line["rule"] for line in refused} == {"no rule allows it"}
        single = [line for line in refused if line["count"] == 1]
        assert single and all(line["request_id"] and line["address"] and line["rpc"] for line in single)
    rules = audit(cluster, event="changed", rpc="/paceline.v1.AclService/CreateAcls", principal="User:admin")
    added = [line for line in rules if line["resource"].removeprefix("Topic:LITERAL:") in topics.values()]
    assert len(added) == len(topics) and len({line["request_id"] for line in added}) == 1, "lines of one request"
    assert {line["rule"] for line in added} == {"super user"}
