"""Processes of a local cluster: start, watch, pause, kill, restart, stop. Used by `dev up`, `make run` and tests."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import grpc

from paceline.dev.detached_cluster import (
    CONSOLE,
    FAST_RECONNECT,
    STATE_FILE,
    STOP_ORDER,
    STOP_SECONDS,
    address_file,
    launch,
    stop_detached,
    tail,
    why_not_serving,
    write_state,
)
from paceline.dev.ports import CONSOLE as CONSOLE_PORT
from paceline.dev.ports import GATEWAY, GATEWAY_METRICS, PortPlan, choose_plan, choose_port, load_plan, save_plan
from paceline.model.identity import Identity, Role
from paceline.model.tls import TlsFiles
from paceline.rpc.channels import open_channel
from paceline.rpc.security.client_tls import client_credentials
from paceline.runtime.embedded_zookeeper import EmbeddedZooKeeper
from paceline.v1 import acl_service_pb2, acl_service_pb2_grpc, metadata_service_pb2, metadata_service_pb2_grpc

FIRST_CONTROLLER_ID = 1_000_000
ZOOKEEPER_USER = "paceline"
ZOOKEEPER = "zookeeper"
"""Name in ZooKeeper's certificate, which has the role of a client: it must not pass for a controller or broker."""
HOST = "127.0.0.1"
_HERE = Path(__file__).resolve()
_PACKAGED = _HERE.with_name("dev.properties")
CONFIG_FILE = _PACKAGED if _PACKAGED.is_file() else _HERE.parents[3] / "config" / "dev.properties"
"""The settings file of local clusters and containers, which is also packaged in the wheel."""
ACLS_FILE = CONFIG_FILE.with_name("client-acls.json")
"""The access rules of the clients that a local cluster or the containers start."""
_VALIDITY = timedelta(days=365)


class LocalClusterError(Exception):
    """A process of the cluster failed; the message ends with the tail of its log."""


@dataclass
class Node:
    """A controller, broker, gateway or console process."""

    kind: str
    """``controller``, ``broker``, ``gateway`` or ``console``."""
    node_id: int
    argv: list[str]
    log_path: Path
    client_address: str
    external_address: str
    process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """Name of the node in messages, and of its folder."""
        return CONSOLE if self.kind == CONSOLE else f"{self.kind}-{self.node_id}"

    @property
    def running(self) -> bool:
        """Whether the process has been started and has not ended."""
        return self.process is not None and self.process.poll() is None


def settings_of_few(brokers: int) -> dict[str, str]:
    """Return the settings that one or two brokers need to create topics and accept writes (KIP-115)."""
    if brokers >= 3:
        return {}
    return {
        "default.replication.factor": str(brokers),
        "min.insync.replicas": "1",
        "offsets.topic.replication.factor": str(brokers),
        "cluster.events.topic.replication.factor": str(brokers),
    }


@dataclass
class LocalCluster:
    """An embedded ZooKeeper, controllers and brokers on loopback, with all files in one directory.

    With ``detached`` the processes outlive this process, and `stop_detached` ends them; otherwise they end with this
    process. ``settings`` are keys with Kafka's names that override the settings file.
    """

    directory: Path
    config_file: Path
    brokers: int = 3
    controllers: int = 2
    settings: Mapping[str, str] = field(default_factory=dict)
    detached: bool = False
    ports: PortPlan | None = None
    heap_mib: int = 128
    secure: bool = False
    """Whether every listener uses TLS, with certificates in the subdirectory ``certs``."""
    racks: Sequence[str] = ()
    """Racks, assigned to the brokers in turn; consumers with a rack then read from a replica in their rack."""
    nodes: dict[str, Node] = field(default_factory=dict, init=False)
    zookeeper: EmbeddedZooKeeper | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.directory = self.directory.resolve()

    def start(self, timeout_s: float = 180.0, say: Callable[[str], None] = lambda _: None) -> None:
        """Start all processes; returns when every process serves and every broker knows all brokers.

        Raises:
            LocalClusterError: the directory cannot be one of ``log.dirs``, or holds the data of a cluster with another
                kind of security; or a process ended or was not ready in time, and everything has been stopped again.
        """
        if "," in str(self.directory):
            raise LocalClusterError(f"{self.directory} has a comma, which separates log directories: choose another")
        self._check_earlier_data()
        deadline = time.monotonic() + timeout_s
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        plan = self.ports or load_plan(self.directory, self.controllers, self.brokers, HOST)
        plan = plan or choose_plan(self.controllers, self.brokers, HOST)
        self.ports = plan
        try:
            say("starting ZooKeeper")
            self.zookeeper = EmbeddedZooKeeper(
                self.directory / "zookeeper",
                port=plan.zookeeper,
                host=self.host_of("zookeeper", 0),
                heap_mib=self.heap_mib,
                detached=self.detached,
                user=self._zookeeper_user(),
                tls=self.client_files(ZOOKEEPER) if self.secure else None,
                on_launch=self._write_state,
            )
            self._plan_nodes(plan)
            if self.secure:
                self._make_certificates(plan)
            self.zookeeper.start()
            say(f"starting {self.controllers} controllers and {self.brokers} brokers")
            for node in self.nodes.values():
                self._spawn(node)
            for node in self.nodes.values():
                self.wait_ready(node, deadline - time.monotonic())
            for node in self.nodes.values():
                if node.kind == "broker" and self.controllers:
                    self._wait_told(node, deadline - time.monotonic())
            if self.secure and self.controllers and self.settings.get("authorizer.mode", "enforce") == "enforce":
                self._give_rules(deadline - time.monotonic())
            save_plan(self.directory, plan)
        except BaseException:
            self.stop(force=True)
            raise

    def _check_earlier_data(self) -> None:
        """Raise when the directory has data of a cluster with TLS and this cluster has no TLS, or vice versa."""
        if not (self.directory / "zookeeper").exists() or self.secure == self._password_file.exists():
            return
        earlier, this = ("without", "with") if self.secure else ("with", "without")
        raise LocalClusterError(
            f"{self.directory} has the data of a cluster {earlier} TLS, this cluster is {this} TLS: "
            "choose another directory, or delete this one"
        )

    @property
    def certificates(self) -> Path:
        """Folder of the certificates of a secure cluster."""
        return self.directory / "certs"

    @property
    def client_tls(self) -> TlsFiles | None:
        """Certificate files of the client ``admin``, None when the cluster is not secure."""
        return self.client_files("admin") if self.secure else None

    def client_files(self, name: str) -> TlsFiles:
        """Return the paths of a client's certificate files."""
        folder = self.certificates
        return TlsFiles(folder / "ca.crt", folder / f"client-{name}.crt", folder / f"client-{name}.key")

    @property
    def bootstrap(self) -> str:
        """Client addresses of all brokers, comma separated."""
        return ",".join(node.client_address for node in self.nodes.values() if node.kind == "broker")

    @property
    def controller_addresses(self) -> list[str]:
        """Client addresses of all controllers."""
        return [node.client_address for node in self.nodes.values() if node.kind == "controller"]

    @property
    def zookeeper_connect(self) -> str:
        """Connection string with the cluster's chroot."""
        assert self.ports is not None
        return f"{self.host_of('zookeeper', 0)}:{self.ports.zookeeper}/paceline"

    def host_of(self, kind: str, node_id: int) -> str:
        """Return the address that a process listens on; a subclass may use an address per process."""
        return HOST

    def command_of(self, node: Node) -> list[str]:
        """Return the command line of a process; a subclass may add a prefix."""
        return node.argv

    def broker(self, broker_id: int) -> Node:
        """Return a broker by id."""
        return self.nodes[f"broker-{broker_id}"]

    def controller(self, index: int) -> Node:
        """Return the n-th controller, from 0."""
        return self.nodes[f"controller-{FIRST_CONTROLLER_ID + index}"]

    def kill(self, node: Node) -> None:
        """Send SIGKILL and wait until the process has ended."""
        assert node.process is not None
        node.process.kill()
        node.process.wait(timeout=60)

    def pause(self, node: Node) -> None:
        """Send SIGSTOP."""
        assert node.process is not None
        node.process.send_signal(signal.SIGSTOP)

    def resume(self, node: Node) -> None:
        """Send SIGCONT."""
        assert node.process is not None
        node.process.send_signal(signal.SIGCONT)

    def terminate(self, node: Node, timeout_s: float = STOP_SECONDS) -> int:
        """Ask the process to stop and return its exit code.

        Raises:
            LocalClusterError: it did not stop in time and was killed.
        """
        assert node.process is not None
        self.resume(node)
        node.process.terminate()
        try:
            return node.process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.kill(node)
            raise LocalClusterError(f"{node.name} did not stop within {timeout_s:g} s\n{tail(node.log_path)}") from None

    def restart(self, node: Node, timeout_s: float = 120.0, wait: bool = True) -> None:
        """Start a stopped process again, with the same ports and data."""
        assert not node.running
        self._spawn(node)
        if wait:
            self.wait_ready(node, timeout_s)

    def wait_ready(self, node: Node, timeout_s: float) -> None:
        """Return when the process answers SERVING to a health check.

        Raises:
            LocalClusterError: it ended, or was not ready in time.
        """
        self._wait_until(node, timeout_s, "was not ready", why_not_serving)

    def _wait_told(self, node: Node, timeout_s: float) -> None:
        """Return when a broker knows all brokers, so that a client of this broker finds each of them."""

        def why_not(channel: grpc.Channel) -> str:
            stub = metadata_service_pb2_grpc.MetadataServiceStub(channel)
            answer = stub.DescribeCluster(metadata_service_pb2.DescribeClusterRequest(), timeout=1.0)
            told = len(answer.brokers)
            return "" if told >= self.brokers else f"knows {told} brokers"

        self._wait_until(node, timeout_s, f"did not know {self.brokers} brokers", why_not)

    def _give_rules(self, timeout_s: float) -> None:
        """Give the console the rules that it needs; the client ``admin`` is a super user."""
        rows = json.loads(ACLS_FILE.read_text(encoding="utf-8"))
        acls = [acl_service_pb2.Acl(**row) for row in rows if row["principal"] == f"User:{CONSOLE}"]
        request = acl_service_pb2.CreateAclsRequest(acls=acls)

        def why_not(channel: grpc.Channel) -> str:
            acl_service_pb2_grpc.AclServiceStub(channel).CreateAcls(request, timeout=5.0)
            return ""

        controller = next(node for node in self.nodes.values() if node.kind == "controller")
        self._wait_until(controller, timeout_s, "did not take the access rules", why_not)

    def _wait_until(self, node: Node, timeout_s: float, what: str, why_not: Callable[[grpc.Channel], str]) -> None:
        """Poll a process until ``why_not`` returns no reason."""
        deadline = time.monotonic() + timeout_s
        last = "no answer yet"
        tls = client_credentials(self.client_tls, {})
        with open_channel(node.client_address, tls=tls, more_options=FAST_RECONNECT) as channel:
            while time.monotonic() < deadline:
                if not node.running:
                    code = node.process.returncode if node.process else None
                    raise LocalClusterError(f"{node.name} ended with exit code {code}\n{tail(node.log_path)}")
                try:
                    last = why_not(channel)
                    if not last:
                        return
                except grpc.RpcError as error:
                    last = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else str(error)
                time.sleep(0.05)
        raise LocalClusterError(f"{node.name} {what} within {timeout_s:.0f} s ({last})\n{tail(node.log_path)}")

    def start_console(self, timeout_s: float = 60.0) -> str:
        """Start `paceline console`, on its documented port if that is free, and return the address to open.

        It shows what is in records. With TLS it is the client ``console``, without the rights of a super user.

        Raises:
            LocalClusterError: it ended, or did not listen in time.
        """
        address, port = address_file(self.directory), choose_port(CONSOLE_PORT, HOST)
        address.parent.mkdir(mode=0o700, exist_ok=True)
        address.unlink(missing_ok=True)
        argv = [sys.executable, "-m", "paceline.cli", CONSOLE, f"--port={port}", f"--address-file={address}"]
        argv += ["--show-records", f"--bootstrap-servers={self.bootstrap}"]
        if self.secure:
            files = self.client_files(CONSOLE)
            argv += [f"--tls-ca={files.ca}", f"--tls-cert={files.certificate}", f"--tls-key={files.key}"]
        node = Node(CONSOLE, 0, argv, address.with_name("service.log"), f"{HOST}:{port}", "")
        self.nodes[node.name] = node
        self._spawn(node)
        self._wait_until(node, timeout_s, "did not listen", lambda _: "" if address.exists() else "no address yet")
        return self.console_address

    def start_gateway(self, index: int = 1, timeout_s: float = 60.0, **settings: str) -> Node:
        """Start a `paceline gateway`, on its documented port if that is free, and return it when it serves.

        Args:
            index: number of the gateway, from 1.
            timeout_s: longest wait.
            settings: further settings, with underscores for dots.

        Raises:
            LocalClusterError: it ended, or was not ready in time.
        """
        folder = self.directory / f"gateway-{index}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        host = self.host_of("gateway", index)
        address = f"{host}:{choose_port(GATEWAY, host)}"
        values = {
            "bootstrap.servers": self.bootstrap,
            "listeners": f"CLIENT://{address}",
            "metrics.port": str(choose_port(GATEWAY_METRICS, host)),
            "gateway.token.key.file": str(_made_once(self.directory / "gateway.keys")),
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
        if self.secure:
            from paceline.security.certificates import CertificateAuthority

            authority = CertificateAuthority.load(self.certificates)
            identity = Identity(authority.trust_domain, Role.GATEWAY, str(index))
            authority.issue(identity, (HOST, "localhost"), self.certificates, _VALIDITY)
            stem = self.certificates / f"gateway-{index}"
            values |= {
                "listener.security.protocol.map": "CLIENT:SSL",
                "ssl.ca.file": str(self.certificates / "ca.crt"),
                "ssl.certificate.file": f"{stem}.crt",
                "ssl.key.file": f"{stem}.key",
            }
        argv = [sys.executable, "-m", "paceline.gateway"]
        argv += [f"--{key.replace('.', '-')}={value}" for key, value in values.items()]
        argv += [] if self.detached else ["--die-with-parent"]
        node = Node("gateway", index, argv, folder / "service.log", address, "")
        self.nodes[node.name] = node
        self._spawn(node)
        self.wait_ready(node, timeout_s)
        return node

    @property
    def console_address(self) -> str:
        """The address that lets the next browser into the console; each is good for one browser."""
        return address_file(self.directory).read_text(encoding="utf-8").strip()

    def stop(self, force: bool = False) -> None:
        """Stop console, gateways, brokers, controllers and ZooKeeper; kills processes that do not stop in time."""
        for kind in STOP_ORDER:
            nodes = [node for node in self.nodes.values() if node.kind == kind and node.running]
            for node in nodes:
                assert node.process is not None
                self.resume(node)
                node.process.send_signal(signal.SIGKILL if force else signal.SIGTERM)
            deadline = time.monotonic() + STOP_SECONDS
            for node in nodes:
                assert node.process is not None
                try:
                    node.process.wait(timeout=max(deadline - time.monotonic(), 0.1))
                except subprocess.TimeoutExpired:
                    self.kill(node)
        if self.zookeeper is not None:
            self.zookeeper.stop()
            self.zookeeper = None
        with contextlib.suppress(FileNotFoundError):
            (self.directory / STATE_FILE).unlink()

    def _plan_nodes(self, plan: PortPlan) -> None:
        for index, ports in enumerate(plan.controllers):
            self._add("controller", FIRST_CONTROLLER_ID + index, ports.listeners, ports.metrics, {})
        # Override the settings file: with one or two brokers, consumer groups would wait forever for a third broker.
        offsets = {key: value for key, value in settings_of_few(self.brokers).items() if key.startswith("offsets.")}
        for index, ports in enumerate(plan.brokers):
            data = self.directory / f"broker-{index + 1}" / "data"
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
            data.chmod(0o700)
            more = {"log.dirs": str(data), **offsets}
            if self.racks:
                more |= {
                    "broker.rack": self.racks[index % len(self.racks)],
                    "replica.selector.class": "rack-aware",
                }
            self._add("broker", index + 1, ports.listeners, ports.metrics, more)

    def _zookeeper_user(self) -> tuple[str, str] | None:
        """Return the ZooKeeper user of controllers and brokers; its password is created once."""
        if not self.secure:
            return None
        return ZOOKEEPER_USER, _made_once(self._password_file).read_text(encoding="ascii").strip()

    @property
    def _password_file(self) -> Path:
        return self.certificates / "zookeeper.password"

    def _make_certificates(self, plan: PortPlan) -> None:
        """Create the authority once, and the certificates of ZooKeeper, nodes and clients at every start."""
        from paceline.security.certificates import CA_CERTIFICATE, CertificateAuthority, CertificateError

        try:
            if (self.certificates / CA_CERTIFICATE).exists():
                authority = CertificateAuthority.load(self.certificates)
            else:
                authority = CertificateAuthority.create(self.certificates)
            names = [(Role.CONTROLLER, FIRST_CONTROLLER_ID + index) for index in range(len(plan.controllers))]
            names += [(Role.BROKER, index + 1) for index in range(len(plan.brokers))]
            for role, node_id in names:
                identity = Identity(authority.trust_domain, role, str(node_id))
                authority.issue(identity, (HOST, "localhost"), self.certificates, _VALIDITY)
            for name, hosts in (("admin", ()), (CONSOLE, ()), (ZOOKEEPER, (self.host_of("zookeeper", 0),))):
                identity = Identity(authority.trust_domain, Role.CLIENT, name)
                authority.issue(identity, hosts, self.certificates, _VALIDITY)
        except CertificateError as failure:
            raise LocalClusterError(str(failure)) from None

    def _security_settings(self, kind: str, node_id: int) -> dict[str, str]:
        if not self.secure:
            return {}
        stem = self.certificates / f"{kind}-{node_id}"
        return {
            "listener.security.protocol.map": "CLIENT:SSL,EXTERNAL:SSL,REPLICATION:SSL,CONTROL:SSL",
            "ssl.ca.file": str(self.certificates / "ca.crt"),
            "ssl.certificate.file": f"{stem}.crt",
            "ssl.key.file": f"{stem}.key",
            "super.users": "User:admin",
            "authorizer.mode": "enforce",
            "audit.log.path": str(self.directory / f"{kind}-{node_id}" / "audit.log"),
            "zookeeper.sasl.username": ZOOKEEPER_USER,
            "zookeeper.sasl.password": f"${{file:{self._password_file}}}",
            "zookeeper.set.acl": "true",
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.ca.file": str(self.certificates / "ca.crt"),
        }

    def _add(self, kind: str, node_id: int, listeners: dict[str, int], metrics: int, more: Mapping[str, str]) -> None:
        folder = self.directory / f"{kind}-{node_id}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        host = self.host_of(kind, node_id)
        settings = {
            f"{kind}.id": str(node_id),
            "zookeeper.connect": self.zookeeper_connect,
            "listeners": ",".join(f"{name}://{host}:{port}" for name, port in listeners.items()),
            "metrics.port": str(metrics),
            "state.change.log.path": str(folder / "state-change.log"),
            **more,
            **self._security_settings(kind, node_id),
            **self.settings,
        }
        argv = [sys.executable, "-m", f"paceline.{kind}", "--config", str(self.config_file)]
        for key, value in settings.items():
            argv.append(f"--{key.replace('.', '-')}={value}")
        if not self.detached:
            argv.append("--die-with-parent")
        node = Node(
            kind,
            node_id,
            argv,
            folder / "service.log",
            f"{host}:{listeners['CLIENT']}",
            f"{host}:{listeners['EXTERNAL']}",
        )
        self.nodes[node.name] = node

    def _spawn(self, node: Node) -> None:
        node.process = _SPAWNER.submit(launch, self.command_of(node), node.log_path).result()
        self._write_state()

    def _write_state(self) -> None:
        """Write the state file after each start; `stop_detached` then finds every process if this process ends."""
        assert self.zookeeper is not None
        state = {
            "bootstrap": self.bootstrap,
            "controllers": self.controller_addresses,
            "tls": _tls_state(self.client_tls),
            "zookeeper": {"connect": self.zookeeper_connect, "pid": self.zookeeper.pid},
            "nodes": [
                {
                    "name": node.name,
                    "kind": node.kind,
                    "id": node.node_id,
                    "pid": node.process.pid if node.process else None,
                    "client": node.client_address,
                    "external": node.external_address,
                    "log": str(node.log_path),
                    "argv": node.argv,
                }
                for node in self.nodes.values()
            ],
        }
        write_state(self.directory, state)


# The kernel ties a child that dies with its parent to the *thread* that started it. Therefore a single thread that
# lives as long as this process starts all children; otherwise a child would end with a short-lived thread that
# restarted it.
_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")


def _tls_state(files: TlsFiles | None) -> dict[str, str] | None:
    if files is None:
        return None
    return {"ca": str(files.ca), "certificate": str(files.certificate), "key": str(files.key)}


def remove(directory: Path) -> None:
    """Stop a detached cluster and delete its directory."""
    stop_detached(directory)
    shutil.rmtree(directory, ignore_errors=True)


def _made_once(path: Path) -> Path:
    """Return a file with 32 random bytes as hex digits that only its owner can read, created if it does not exist."""
    if path.exists() and not path.stat().st_size:
        path.unlink()  # An earlier start was killed before it wrote the file, so no process has used it.
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
    return path
