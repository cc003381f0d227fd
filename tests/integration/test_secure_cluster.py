"""A secure cluster: certificate rotation under load, no secret in any output, processes with wrong certificates."""

import contextlib
import datetime
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.cli.acl import read_rules
from paceline.dev.local_cluster import ACLS_FILE, CONFIG_FILE, LocalCluster
from paceline.model.identity import Identity, Role
from paceline.security.certificates import CertificateAuthority, summary_of
from paceline_client import Admin, Consumer, NewTopic, Producer, TopicPartition
from tests.support.console_visitor import ConsoleVisitor
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.cluster]

ROOT = Path(__file__).resolve().parents[2]
EVENTS = "__cluster_events"
DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(
        tmp_path_factory.mktemp("secure") / "run",
        CONFIG_FILE,
        secure=True,
        settings={"logging.level": "debug", "cluster.events.topic.enable": "true"},
    )
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop(force=True)


def shown_serial(cluster: LocalCluster, address: str) -> bytes:
    """Return the certificate, in DER, that the listener presents to a new connection."""
    tls = cluster.client_tls
    assert tls is not None
    context = ssl.create_default_context(cafile=tls.ca)
    context.load_cert_chain(str(tls.certificate), tls.key)
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 10) as raw, context.wrap_socket(raw, server_hostname=host) as end:
        shown = end.getpeercert(binary_form=True)
    assert shown is not None
    return shown


def test_certificates_rotate_under_load_without_a_failed_acknowledged_write(secure: LocalCluster) -> None:
    authority = CertificateAuthority.load(secure.certificates)
    with Admin(secure.bootstrap, tls=secure.client_tls) as admin:
        admin.create_topics([NewTopic("rotated", 3, 3)])
    addresses = [node.client_address for node in secure.nodes.values()]
    futures = []
    with Producer(secure.bootstrap, tls=secure.client_tls, linger_ms=1) as producer:
        for round_number in range(3):
            before = {address: shown_serial(secure, address) for address in addresses}
            for path in sorted(secure.certificates.glob("*-*.crt")):
                identity = summary_of(path).identity
                hosts = () if identity.role is Role.CLIENT else ("127.0.0.1", "localhost")
                authority.issue(identity, hosts, secure.certificates, DAY)

            def all_shown(old: dict[str, bytes] = before) -> bool:
                futures.extend(producer.send("rotated", b"%d" % len(futures)) for _ in range(200))
                return all(shown_serial(secure, address) != old[address] for address in addresses)

            eventually(all_shown, 30, "every listener uses the new certificates")
            if round_number == 1:
                # The restarted broker and the other brokers open new connections to each other.
                broker = secure.broker(3)
                assert secure.terminate(broker) == 0
                futures.extend(producer.send("rotated", b"%d" % len(futures)) for _ in range(200))
                secure.restart(broker)
        producer.flush()
        for future in futures:
            future.result(60)
    with Consumer(secure.bootstrap, tls=secure.client_tls, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("rotated", index) for index in range(3)])
        seen: set[bytes] = set()

        def all_read() -> bool:
            seen.update(record.value or b"" for records in consumer.poll(500).values() for record in records)
            return len(seen) == len(futures)

        eventually(all_read, 60, "every acknowledged record was read", 0)
    for node in secure.nodes.values():
        assert "certificates reloaded" in node.log_path.read_text()


def test_nodes_reach_zookeeper_over_tls_alone(secure: LocalCluster) -> None:
    assert secure.ports is not None and secure.zookeeper is not None
    port = secure.ports.zookeeper
    with socket.create_connection(("127.0.0.1", port), 10) as plain, contextlib.suppress(ConnectionResetError):
        plain.sendall(b"srvr, and as many bytes as the head of a TLS record")
        assert plain.recv(4_096) == b"", "without TLS no answer"
    ports = dict(line.split("=", 1) for line in secure.zookeeper.command("conf").splitlines() if "Port=" in line)
    assert {"clientPort": "-1", "secureClientPort": str(port)}.items() <= ports.items(), "no other port"
    connections = secure.zookeeper.command("srvr").partition("Connections: ")[2].split()[0]
    assert int(connections) > len(secure.nodes), "the nodes and this command"


def test_planted_secrets_show_in_no_log_metric_error_or_dump(secure: LocalCluster) -> None:
    password = (secure.certificates / "zookeeper.password").read_text().strip()
    keys = ["".join(path.read_text().splitlines()[1:-1])[60:100] for path in secure.certificates.glob("*.key")]
    assert len(password) == 64 and len(keys) >= 7
    with Admin(secure.bootstrap, tls=secure.client_tls) as admin:
        described = repr(admin.describe_broker_configs([1, 2, 3, None]))
    assert secure.ports is not None
    metrics = ""
    for ports in (*secure.ports.brokers, *secure.ports.controllers):
        with urllib.request.urlopen(f"http://127.0.0.1:{ports.metrics}/metrics", timeout=10) as answer:
            metrics += answer.read().decode()
    dumped = ""
    for node in secure.nodes.values():
        argv = [one for one in node.argv if one != "--die-with-parent"]
        dumped += subprocess.run([*argv, "--print-config"], capture_output=True, text=True, check=True).stdout
        process = node.process
        assert process is not None
        dumped += Path(f"/proc/{process.pid}/cmdline").read_text() + Path(f"/proc/{process.pid}/environ").read_text()
    assert "(hidden)" in dumped and "zookeeper.sasl.password" in dumped
    logs = {path: path.read_text(errors="replace") for path in secure.directory.rglob("*.log") if path.is_file()}
    assert sum("service.log" in str(path) for path in logs) == 5
    state = (secure.directory / "cluster.json").read_text()
    for secret in (password, *keys):
        for where, text in (
            *logs.items(),
            ("configs", described),
            ("metrics", metrics),
            ("dump", dumped),
            ("s", state),
        ):
            assert secret not in text, where
    for path in (*secure.certificates.glob("*.key"), secure.certificates / "zookeeper.password"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_processes_with_the_wrong_certificate_do_not_start(secure: LocalCluster, tmp_path: Path) -> None:
    def said(**changed: str) -> str:
        argv = [one for one in secure.broker(1).argv if one != "--die-with-parent"]
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in changed.items()]
        listeners = "--listeners=CLIENT://127.0.0.1:0,REPLICATION://127.0.0.1:0,CONTROL://127.0.0.1:0"
        own = [one for one in argv if not one.startswith(("--listeners", "--metrics-port", "--log-dirs"))]
        names = {flag.split("=")[0] for flag in flags}
        own = [one for one in own if one.split("=")[0] not in names]
        run = subprocess.run(
            [*own, *flags, listeners, f"--log-dirs={tmp_path}/data"], capture_output=True, text=True, timeout=60
        )
        assert run.returncode == 2, run.stderr
        return run.stderr

    (tmp_path / "data").mkdir()
    certs = secure.certificates
    assert "belongs to User:broker/2, but this process is broker/1" in said(
        ssl_certificate_file=f"{certs}/broker-2.crt", ssl_key_file=f"{certs}/broker-2.key"
    )
    assert "are not a certificate and its key" in said(ssl_key_file=f"{certs}/broker-2.key")
    home = CertificateAuthority.load(certs)
    other = home.issue(Identity("0" * 31 + "1", Role.BROKER, "1"), ["127.0.0.1"], tmp_path / "other", DAY)
    assert "but ZooKeeper to cluster" in said(ssl_certificate_file=str(other.certificate), ssl_key_file=str(other.key))


def test_command_line_and_clients_connect_with_the_exports_alone(secure: LocalCluster) -> None:
    tls = secure.client_tls
    assert tls is not None
    environment = {
        **os.environ,
        "PACELINE_BOOTSTRAP_SERVERS": secure.bootstrap,
        "PACELINE_SSL_CA_FILE": str(tls.ca),
        "PACELINE_SSL_CERTIFICATE_FILE": str(tls.certificate),
        "PACELINE_SSL_KEY_FILE": str(tls.key),
    }
    command = [str(Path(sys.executable).with_name("paceline")), "cluster", "info", "-o", "json"]
    begin = time.monotonic()
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0 and len(json.loads(run.stdout)) >= 1, run.stderr
    assert time.monotonic() - begin < 60


def test_the_command_line_says_in_a_line_why_a_handshake_fails(secure: LocalCluster, tmp_path: Path) -> None:
    tls = secure.client_tls
    assert tls is not None
    other = CertificateAuthority.create(tmp_path / "other")
    stranger = other.issue(Identity("0" * 31 + "1", Role.CLIENT, "eve"), [], tmp_path / "eve", DAY)
    ours = {"PACELINE_SSL_CERTIFICATE_FILE": str(tls.certificate), "PACELINE_SSL_KEY_FILE": str(tls.key)}
    theirs = {"PACELINE_SSL_CERTIFICATE_FILE": str(stranger.certificate), "PACELINE_SSL_KEY_FILE": str(stranger.key)}
    cases: dict[str, dict[str, str]] = {
        "without TLS": {},
        "without a certificate": {"PACELINE_SSL_CA_FILE": str(tls.ca)},
        "with a certificate of another authority": {"PACELINE_SSL_CA_FILE": str(tls.ca), **theirs},
        "with another authority": {"PACELINE_SSL_CA_FILE": str(tmp_path / "eve" / "ca.crt"), **ours},
    }
    command = [str(Path(sys.executable).with_name("paceline")), "cluster", "info", "-b", secure.bootstrap]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_SSL_")}
    with contextlib.ExitStack() as stack:
        running = {
            case: stack.enter_context(
                subprocess.Popen(command, env={**plain, **files}, stderr=subprocess.PIPE, text=True)
            )
            for case, files in cases.items()
        }
        said = {case: process.communicate(timeout=120)[1] for case, process in running.items()}
    for case, text in said.items():
        (error,) = [line for line in text.splitlines() if line.startswith("BROKER_NOT_AVAILABLE: ")]
        cause = "CERTIFICATE_VERIFY_FAILED: " if case == "with another authority" else "Socket closed: "
        addresses = ", ".join(secure.bootstrap.split(","))
        assert error.startswith(f"BROKER_NOT_AVAILABLE: no address answered: {addresses}: UNAVAILABLE: {cause}"), case
        assert error.count("PACELINE_SSL_CA_FILE") == 1, case


def test_groups_commit_and_cluster_events_are_published_over_tls(secure: LocalCluster) -> None:
    tls = secure.client_tls
    with Admin(secure.bootstrap, tls=tls) as admin:
        admin.create_topics([NewTopic("grouped", 1, 3)])
    with Producer(secure.bootstrap, tls=tls) as producer:
        for number in range(10):
            producer.send("grouped", b"%d" % number)
    read: list[bytes | None] = []
    with Consumer(secure.bootstrap, tls=tls, group_id="over-tls") as member:
        member.subscribe(["grouped"])

        def all_read() -> bool:
            read.extend(record.value for records in member.poll(timeout_ms=500).values() for record in records)
            return len(read) >= 10

        eventually(all_read, 120.0, "the member of the group has read every record")
        member.commit()
    assert read == [b"%d" % number for number in range(10)]
    with Admin(secure.bootstrap, tls=tls) as admin:
        assert "over-tls" in [listing.group_id for listing in admin.list_groups()]
        eventually(lambda: EVENTS in admin.list_topics(), 120.0, f"the topic {EVENTS} exists")
    with Consumer(secure.bootstrap, tls=tls) as reader:
        reader.assign([(EVENTS, partition) for partition in range(reader.partitions_for(EVENTS))])
        eventually(lambda: any(reader.poll(timeout_ms=500).values()), 120.0, f"{EVENTS} has records")


def test_the_console_is_a_client_with_its_own_certificate(secure: LocalCluster) -> None:
    with Admin(secure.bootstrap, tls=secure.client_tls) as admin:
        admin.create_topics([NewTopic("shown", 1, 3)])
    visitor = ConsoleVisitor(secure.start_console())
    eventually(lambda: "shown/0" in visitor.partitions(), 60, "the console shows the topic")

    def ends() -> list[int | None]:
        return [one["log_end_offset"] for one in visitor.get("/partition/shown/0")["replicas"]]

    eventually(lambda: ends() == [0, 0, 0], 60, "each broker describes its replica to the console")
    command = " ".join(secure.nodes["console"].argv)
    assert "client-console.key" in command and "client-admin" not in command


def test_the_rules_of_the_containers_clients_are_enough_for_the_profile_load(secure: LocalCluster) -> None:
    authority = CertificateAuthority.load(secure.certificates)
    authority.issue(Identity(authority.trust_domain, Role.CLIENT, "load"), (), secure.certificates, DAY)
    rules = read_rules(ACLS_FILE.read_text(encoding="utf-8"), ACLS_FILE.name)
    with Admin(secure.bootstrap, tls=secure.client_tls) as admin:
        admin.create_acls(rules)
    files = secure.client_files("load")
    environment = os.environ | {
        "PACELINE_BOOTSTRAP_SERVERS": secure.bootstrap,
        "PACELINE_SSL_CA_FILE": str(files.ca),
        "PACELINE_SSL_CERTIFICATE_FILE": str(files.certificate),
        "PACELINE_SSL_KEY_FILE": str(files.key),
    }
    with contextlib.ExitStack() as running:
        programs = []
        for role in ("produce", "consume"):
            program = subprocess.Popen(
                [sys.executable, str(ROOT / "examples" / "load.py"), role],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            running.callback(program.kill)
            programs.append(program)
            assert program.stdout is not None
            seen: list[str] = []
            for line in program.stdout:
                seen.append(line)
                if (" read=" in line and " read=0 " not in line) or re.search(r"acknowledged=[1-9]", line):
                    break
            else:
                raise AssertionError(f"{role} ended: {seen}")
        for program in programs:
            program.terminate()
            assert program.wait(60) == 0
