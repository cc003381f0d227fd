"""Run a real ZooKeeper server as a child process, from the jars that PySpark ships.

For development and tests. Standard library only; needs a Java runtime.
"""

import atexit
import ctypes
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from paceline.coordination.credentials import NO_SECURITY, ZooKeeperSecurity
from paceline.coordination.errors import JavaNotFoundError, ZooKeeperJarsNotFoundError, ZooKeeperStartError
from paceline.coordination.kazoo.probe import four_letter_word
from paceline.model.tls import TlsFiles

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.05
_MAX_CONNECTIONS = 1_000
"""From one address; every process of a local cluster has one."""
_PR_SET_PDEATHSIG = 1
_SASL_CONFIG = (
    "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\nsessionRequireClientSASLAuth=true\n"
)
_TLS_CONFIG = (
    "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"  # the default one has no TLS
    "ssl.keyStore.type=PEM\nssl.clientAuth=none\n"
    "ssl.trustStore.type=PEM\n"  # trusts no client, but without this store each connection logs a warning
)


def java_path() -> str:
    """Return the java command.

    Raises:
        JavaNotFoundError: no java command is on the PATH.
    """
    found = shutil.which("java")
    if found is None:
        raise JavaNotFoundError(
            "java is not on the PATH; the embedded ZooKeeper needs Java 17 or later: "
            "apt-get install openjdk-17-jre-headless"
        )
    return found


def jars_path() -> Path:
    """Return the folder with PySpark's jars.

    Raises:
        ZooKeeperJarsNotFoundError: PySpark is not installed, or does not contain ZooKeeper.
    """
    spec = importlib.util.find_spec("pyspark")
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    jars = Path(locations[0]) / "jars" if locations else None
    if jars is None or not list(jars.glob("zookeeper-3*.jar")):
        raise ZooKeeperJarsNotFoundError(
            "PySpark jars not found; the embedded ZooKeeper comes with them: pip install 'paceline[pipeline]'"
        )
    return jars


class EmbeddedZooKeeper:
    """A standalone server. Its data stays in ``data_dir`` when it stops, so that it can be started again.

    Args:
        data_dir: created if missing; contains snapshots, transaction log, configuration and ``zookeeper.log``.
        port: the port for clients.
        tick_time_ms: a session ends within its timeout plus one tick.
        max_session_timeout_ms: longest session timeout of a client.
        heap_mib: size of the Java heap.
        host: address to listen on.
        detached: the server continues after this process ends; otherwise the server ends too.
        user: name and password; the server then accepts only clients that authenticate as this user with SASL.
        tls: the server's certificate and key; the port then accepts only TLS, without certificates of clients.
        on_launch: called when the process exists, before the server answers.
    """

    def __init__(
        self,
        data_dir: str | Path,
        port: int,
        tick_time_ms: int = 500,
        max_session_timeout_ms: int = 60_000,
        heap_mib: int = 128,
        host: str = "127.0.0.1",
        detached: bool = False,
        user: tuple[str, str] | None = None,
        tls: TlsFiles | None = None,
        on_launch: Callable[[], None] = lambda: None,
    ) -> None:
        self.data_dir = Path(data_dir)
        self.host = host
        self.port = port
        self._tick_time_ms = tick_time_ms
        self._max_session_timeout_ms = max_session_timeout_ms
        self._heap_mib = heap_mib
        self._detached = detached
        self._user = user
        self._tls = tls
        self._on_launch = on_launch
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """``host:port`` for clients; append a chroot if needed."""
        return f"{self.host}:{self.port}"

    @property
    def log_path(self) -> Path:
        """File with the server's output."""
        return self.data_dir / "zookeeper.log"

    @property
    def running(self) -> bool:
        """Whether the process exists, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process is not None and self.running else None

    def __enter__(self) -> "EmbeddedZooKeeper":
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it answers; does nothing if the server is running.

        Raises:
            JavaNotFoundError: no java command is on the PATH.
            ZooKeeperJarsNotFoundError: PySpark is not installed, or does not contain ZooKeeper.
            ZooKeeperStartError: the server did not answer; the message has the end of its log.
        """
        if self.running:
            return
        self._launch(java_path(), jars_path())

    def stop(self) -> None:
        """Stop the server, with SIGKILL if it does not stop in time; does nothing if the server is not running."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._process = None
        atexit.unregister(self.stop)

    def kill(self) -> None:
        """Kill the server with SIGKILL, as in a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            atexit.unregister(self.stop)

    def command(self, word: str, timeout_s: float = 30.0) -> str:
        """Return the answer to a four-letter word such as ``srvr`` or ``cons``; raises OSError without an answer."""
        security = ZooKeeperSecurity(tls=True, ca_file=str(self._tls.ca)) if self._tls else NO_SECURITY
        return four_letter_word(self.host, self.port, word, timeout_s, security).decode(errors="replace")

    def _launch(self, java: str, jars: Path) -> None:
        config = self._write_config()
        command = [
            java,
            f"-Xmx{self._heap_mib}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xshare:auto",
            "-Dzookeeper.admin.enableServer=false",
            "-Dorg.apache.logging.log4j.level=WARN",
            *self._login_options(),
            "-cp",
            _class_path(jars),
            _MAIN,
            str(config),
        ]
        self.log_path.touch(0o600)
        with self.log_path.open("ab") as log:
            # In its own session, so that Ctrl-C in a terminal reaches only the process that owns the server.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                umask=0o077,
                preexec_fn=None if self._detached else _die_with_parent(),
            )
        if not self._detached:
            atexit.register(self.stop)
        self._on_launch()
        self._await_answer(self._process)

    def _login_options(self) -> list[str]:
        """Write the login file with the user's password; return the JVM options that name the file."""
        if self._user is None:
            return []
        name, password = self._user
        path = self.data_dir / "jaas.conf"
        _write_private(
            path,
            "Server {\n"
            "  org.apache.zookeeper.server.auth.DigestLoginModule required\n"
            f'  user_{name}="{password}";\n'
            "};\n",
        )
        return [f"-Djava.security.auth.login.config={path}"]

    def _write_config(self) -> Path:
        data = self.data_dir / "data"
        data.mkdir(parents=True, exist_ok=True)
        for directory in (self.data_dir, data):
            directory.chmod(0o700)
        port = "secureClientPort" if self._tls else "clientPort"
        config = self.data_dir / "zoo.cfg"
        config.write_text(
            f"dataDir={data.resolve()}\n"
            f"{port}={self.port}\n"
            f"{port}Address={self.host}\n"
            f"tickTime={self._tick_time_ms}\n"
            f"maxSessionTimeout={self._max_session_timeout_ms}\n"
            f"maxClientCnxns={_MAX_CONNECTIONS}\n"
            "admin.enableServer=false\n"
            "4lw.commands.whitelist=conf,srvr,ruok,mntr,envi\n"
            "autopurge.purgeInterval=1\n"
            "forceSync=no\n" + (_SASL_CONFIG if self._user is not None else "") + self._tls_config()
        )
        return config

    def _tls_config(self) -> str:
        """Write the file with the server's key and certificate; return the lines of the configuration that name it."""
        if self._tls is None or self._tls.certificate is None or self._tls.key is None:
            return ""
        path = self.data_dir / "server.pem"
        _write_private(path, self._tls.key.read_text() + self._tls.certificate.read_text())
        stores = f"ssl.keyStore.location={path.resolve()}\nssl.trustStore.location={self._tls.ca.resolve()}\n"
        return _TLS_CONFIG + stores

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if process.poll() is not None:
                break
            try:
                # The data directory distinguishes this server from another server that took the port first.
                mine = f"dataDir={(self.data_dir / 'data').resolve()}/"
                if "Mode: standalone" in self.command("srvr", timeout_s=1.0) and mine in self.command("conf", 1.0):
                    return
            except OSError:
                pass
            time.sleep(_POLL_S)
        state = "did not answer" if process.poll() is None else f"ended with status {process.returncode}"
        self.kill()
        raise ZooKeeperStartError(f"ZooKeeper {state}; end of {self.log_path}:\n{self._log_tail()}")

    def _log_tail(self) -> str:
        return self.log_path.read_text(errors="replace")[-2_000:]


def _write_private(path: Path, text: str) -> None:
    """Replace a file; only this user can read it."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def _class_path(jars: Path) -> str:
    # Put the few needed jars first: the JVM opens them in order, and Spark's folder has hundreds.
    first = [str(path) for pattern in ("zookeeper*", "slf4j-api*", "log4j-*") for path in sorted(jars.glob(pattern))]
    return ":".join([*first, f"{jars}/*"])


def _die_with_parent() -> Callable[[], None] | None:
    """Return a function that makes a child end with this process on Linux, even after a crash.

    The kernel ties the child to the *thread* that started it, so on any other thread the result is None.
    """
    if not sys.platform.startswith("linux") or threading.current_thread() is not threading.main_thread():
        return None
    prctl = ctypes.CDLL(None).prctl
    number = int(signal.SIGKILL)

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)

    return prepare
