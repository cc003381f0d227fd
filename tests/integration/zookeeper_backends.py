"""One interface to the real ZooKeeper through kazoo and to the in-memory one, so that a test can run on both."""

from collections.abc import Callable
from typing import Protocol

from kazoo.client import KazooClient

from paceline.coordination.interface import Request, Response, ZooKeeper
from paceline.coordination.kazoo.client import KazooZooKeeper
from paceline.runtime.embedded_zookeeper import EmbeddedZooKeeper
from tests.integration.real_time import PumpedScheduler
from tests.integration.tcp_proxy import TcpProxy
from tests.support.virtual_time import VirtualTime
from tests.support.zookeeper.client import MemoryZooKeeper, MemoryZooKeeperServer
from tests.support.zookeeper.recorder import Recorder

SESSION_TIMEOUT_MS = 30_000
"""Long enough that no session expires on a slow machine."""
SHORT_SESSION_MS = 4_000
"""For tests that wait until a session expires."""


class Time(Protocol):
    """A scheduler that a test drives."""

    def now_ms(self) -> int: ...
    def wall_ms(self) -> int: ...
    def call_soon(self, callback: Callable[[], None]) -> None: ...
    def run_until(self, condition: Callable[[], bool], max_ms: float = ...) -> None: ...
    def run_for(self, duration_ms: float) -> None: ...


class Client(Protocol):
    """One ZooKeeper client, with its own connection that a test can break."""

    zookeeper: ZooKeeper
    recorder: Recorder

    def cut(self, *, requests: bool = True, replies: bool = True) -> None:
        """Hold traffic back without closing the connection."""

    def heal(self) -> None:
        """Forward traffic again."""

    def sever(self) -> None:
        """Reset the connection."""

    def expire(self) -> None:
        """Make the server end the session."""


class Backend:
    """Creates clients and waits for their responses."""

    slack_ms = 0
    """Tolerance of the time limits in tests, in milliseconds."""

    def __init__(self, time: VirtualTime | PumpedScheduler) -> None:
        self.time = time
        self.clients: list[Client] = []

    def new_client(self, session_timeout_ms: int) -> Client:
        raise NotImplementedError

    def client(self, session_timeout_ms: int = SESSION_TIMEOUT_MS) -> Client:
        """Return a connected client."""
        client = self.new_client(session_timeout_ms)
        self.clients.append(client)
        self.time.run_until(lambda: client.zookeeper.connected)
        return client

    def ask(self, client: Client, *requests: Request) -> list[Response]:
        answers = client.recorder.submit(*requests)
        self.time.run_until(lambda: len(answers) == len(requests))
        return answers

    def close(self) -> None:
        for client in self.clients:
            client.zookeeper.close()


class MemoryClient:
    def __init__(self, server: MemoryZooKeeperServer, scheduler: VirtualTime, session_timeout_ms: int) -> None:
        self._server = server
        self._client = MemoryZooKeeper(server, scheduler, session_timeout_ms=session_timeout_ms)
        self.zookeeper: ZooKeeper = self._client
        self.recorder = Recorder(self._client)

    def cut(self, *, requests: bool = True, replies: bool = True) -> None:
        self._client.link.cut(requests=requests, replies=replies)

    def heal(self) -> None:
        self._client.link.heal()

    def sever(self) -> None:
        self._client.disconnect()

    def expire(self) -> None:
        self._server.expire(self._client.session_id)


class MemoryBackend(Backend):
    slack_ms = 200

    def __init__(self, seed: int = 0) -> None:
        scheduler = VirtualTime(seed=seed)
        super().__init__(scheduler)
        self._scheduler = scheduler
        self.server = MemoryZooKeeperServer(scheduler)

    def new_client(self, session_timeout_ms: int) -> Client:
        return MemoryClient(self.server, self._scheduler, session_timeout_ms)


class RealClient:
    def __init__(
        self, server: EmbeddedZooKeeper, chroot: str, scheduler: PumpedScheduler, session_timeout_ms: int
    ) -> None:
        self._server = server
        self.proxy = TcpProxy(server.host, server.port)
        self._client = KazooZooKeeper(f"{self.proxy.address}/{chroot}", session_timeout_ms, scheduler.post)
        self.zookeeper: ZooKeeper = self._client
        self.recorder = Recorder(self._client)
        self._credentials: tuple[int, bytes] | None = None

    def cut(self, *, requests: bool = True, replies: bool = True) -> None:
        self._remember()
        self.proxy.cut(requests=requests, replies=replies)

    def heal(self) -> None:
        self.proxy.heal()

    def sever(self) -> None:
        self._remember()
        self.proxy.sever()

    def expire(self) -> None:
        """Close the session through a second client with the same session id and password."""
        self._remember()
        twin = KazooClient(self._server.address, client_id=self._credentials, timeout=SESSION_TIMEOUT_MS / 1000)
        twin.start(timeout=60)
        twin.stop()
        twin.close()

    def _remember(self) -> None:
        self._credentials = self._client._client.client_id or self._credentials


class RealBackend(Backend):
    slack_ms = 15_000

    def __init__(self, server: EmbeddedZooKeeper, chroot: str) -> None:
        scheduler = PumpedScheduler()
        super().__init__(scheduler)
        self._scheduler = scheduler
        self._server = server
        self._chroot = chroot.partition("/")[2]

    def new_client(self, session_timeout_ms: int) -> Client:
        return RealClient(self._server, self._chroot, self._scheduler, session_timeout_ms)

    def close(self) -> None:
        for client in self.clients:
            client.heal()
        super().close()
        for client in self.clients:
            assert isinstance(client, RealClient)
            client.proxy.close()
