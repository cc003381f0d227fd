"""A local cluster whose brokers have their own network, disk and disk speed, as far as the machine allows.

Network namespaces and small file systems need root, a slow disk needs a C compiler. A part that is not possible is
omitted, with the reason in `Sandbox.missing`.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, Node
from paceline.dev.ports import free_plan

DISK_MIB = 192
_SHIM = Path(__file__).with_name("slow_disk.c")
_CALL_S = 30.0


def run(*argv: str) -> None:
    """Run a command; an error has the end of its output."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_CALL_S, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}")


class Network:
    """A bridge, and a network namespace with its own address for each broker."""

    def __init__(self, brokers: int) -> None:
        number = os.getpid()
        self._name = f"pl{number}"
        self._prefix = f"10.{200 + number % 50}.{number // 50 % 250}"
        self._brokers = brokers
        self._ends = contextlib.ExitStack()
        try:
            self._build()
            self._check()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove namespaces and bridge."""
        self._ends.close()

    def address(self, broker_id: int) -> str:
        """Return a broker's address; 0 stands for ZooKeeper, the controllers and the clients."""
        return f"{self._prefix}.{10 + broker_id}"

    def inside(self, broker_id: int) -> list[str]:
        """Return the command prefix that runs a command in a broker's namespace."""
        return ["ip", "netns", "exec", self._namespace(broker_id)]

    def drop(self, broker_id: int, *what: str) -> None:
        """Drop a broker's outgoing packets that match the iptables rule ``what``; incoming packets pass."""
        run(*self.inside(broker_id), "iptables", "-A", "OUTPUT", *what, "-j", "DROP")

    def heal(self, broker_id: int) -> None:
        """Remove all rules that drop packets."""
        run(*self.inside(broker_id), "iptables", "-F", "OUTPUT")

    def _namespace(self, broker_id: int) -> str:
        return f"{self._name}b{broker_id}"

    def _build(self) -> None:
        # The bridge has its own namespace, because this machine's firewall may drop forwarded packets.
        hub, outer = f"{self._name}hub", f"{self._name}h"
        self._add_namespace(hub)
        run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "bridge", "up")
        run("ip", "link", "add", outer, "type", "veth", "peer", "name", "host", "netns", hub)
        self._ends.callback(_quietly, "ip", "link", "del", outer)
        self._connect(hub, "host")
        run("ip", "addr", "add", f"{self.address(0)}/24", "dev", outer)
        run("ip", "link", "set", outer, "up")
        for broker_id in range(1, self._brokers + 1):
            namespace, port = self._namespace(broker_id), f"b{broker_id}"
            self._add_namespace(namespace)
            run("ip", "-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            self._connect(hub, port)
            run("ip", "-n", namespace, "addr", "add", f"{self.address(broker_id)}/24", "dev", "eth0")
            run("ip", "-n", namespace, "link", "set", "eth0", "up")
            run("ip", "-n", namespace, "link", "set", "lo", "up")
            self.heal(broker_id)

    def _add_namespace(self, name: str) -> None:
        run("ip", "netns", "add", name)
        self._ends.callback(_quietly, "ip", "netns", "del", name)

    def _connect(self, hub: str, port: str) -> None:
        run("ip", "-n", hub, "link", "set", port, "master", "bridge")
        run("ip", "-n", hub, "link", "set", port, "up")

    def _check(self) -> None:
        """Connect from every namespace to this machine and to each other; a firewall may be in the way."""
        for broker_id in range(self._brokers + 1):
            with self._listening(broker_id) as port:
                for other in range(1, self._brokers + 1):
                    if other != broker_id:
                        address = (self.address(broker_id), port)
                        run(*self.inside(other), sys.executable, "-c", _CONNECT, *map(str, address))

    @contextlib.contextmanager
    def _listening(self, broker_id: int) -> Iterator[int]:
        if broker_id == 0:
            with socket.create_server((self.address(0), 0)) as server:
                yield server.getsockname()[1]
            return
        argv = [*self.inside(broker_id), sys.executable, "-c", _LISTEN, self.address(broker_id)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdin is not None
            yield int(process.stdout.readline())
            process.stdin.close()


_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 10).close()"
_LISTEN = (
    "import socket, sys; s = socket.create_server((sys.argv[1], 0)); "
    "print(s.getsockname()[1], flush=True); sys.stdin.read()"
)


def _quietly(*argv: str) -> None:
    with contextlib.suppress(OSError):
        run(*argv)


class Disks:
    """A small file system for each broker's data, which can be filled."""

    def __init__(self, directory: Path, brokers: int) -> None:
        self._paths = {broker_id: directory / f"broker-{broker_id}" / "data" for broker_id in range(1, brokers + 1)}
        self._ends = contextlib.ExitStack()
        try:
            for path in self._paths.values():
                path.mkdir(parents=True, exist_ok=True)
                run("mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=0700", "tmpfs", str(path))
                self._ends.callback(_quietly, "umount", "-l", str(path))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unmount the file systems; their content is lost."""
        self._ends.close()

    def fill(self, broker_id: int) -> None:
        """Use all free bytes."""
        with contextlib.suppress(OSError), self._filler(broker_id).open("wb", buffering=0) as file:
            while file.write(bytes(65_536)):
                pass

    def empty(self, broker_id: int) -> None:
        """Free the bytes that `fill` used."""
        self._filler(broker_id).unlink(missing_ok=True)

    def _filler(self, broker_id: int) -> Path:
        return self._paths[broker_id] / "filler"


class Sandbox(LocalCluster):
    """The cluster of a soak; use it as a context manager, because it changes the machine's network."""

    def __init__(self, directory: Path, brokers: int, controllers: int, settings: Mapping[str, str]) -> None:
        self.missing: dict[str, str] = {}
        """Impossible parts with the reason."""
        self._slow = directory.resolve() / "slow"
        shutil.rmtree(directory, ignore_errors=True)
        self._slow.mkdir(parents=True)
        self._shim = self._compile()
        self.network = self._network(brokers)
        self.disks = self._disks(directory, brokers)
        super().__init__(
            directory,
            CONFIG_FILE,
            brokers=brokers,
            controllers=controllers,
            # Only this machine can reach the addresses of the namespaces.
            settings={"allow.insecure": "true", **settings},
            ports=free_plan(controllers, brokers),
        )

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(force=True)
        if self.disks is not None:
            self.disks.close()
        if self.network is not None:
            self.network.close()

    def host_of(self, kind: str, node_id: int) -> str:
        if self.network is None:
            return super().host_of(kind, node_id)
        return self.network.address(node_id if kind == "broker" else 0)

    def command_of(self, node: Node) -> list[str]:
        argv = node.argv
        if node.kind == "broker" and self._shim is not None:
            argv = ["env", f"LD_PRELOAD={self._shim}", f"SLOW_DISK_FILE={self._slow_file(node.node_id)}", *argv]
        if node.kind == "broker" and self.network is not None:
            argv = [*self.network.inside(node.node_id), *argv]
        return argv

    @property
    def can_slow_disks(self) -> bool:
        """Whether writes of brokers can be delayed."""
        return self._shim is not None

    def slow_disk(self, broker_id: int, write_ms: int) -> None:
        """Delay each write of a broker by this time, and each sync by ten times this time; 0 ends the delay."""
        path = self._slow_file(broker_id)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(str(write_ms))
        temporary.replace(path)

    def _slow_file(self, broker_id: int) -> Path:
        return self._slow / f"broker-{broker_id}"

    def _compile(self) -> Path | None:
        target = self._slow / "slow_disk.so"
        try:
            run("cc", "-O2", "-shared", "-fPIC", "-o", str(target), str(_SHIM), "-ldl")
        except OSError as error:
            self.missing["slow disks"] = str(error)
            return None
        return target

    def _network(self, brokers: int) -> Network | None:
        try:
            return Network(brokers)
        except OSError as error:
            self.missing["one-way cuts"] = str(error)
            return None

    def _disks(self, directory: Path, brokers: int) -> Disks | None:
        try:
            return Disks(directory, brokers)
        except OSError as error:
            self.missing["full disks"] = str(error)
            return None
