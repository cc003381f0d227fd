"""Renewed certificates on real TLS connections: which certificate each handshake presents."""

import contextlib
import datetime
import itertools
import queue
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from paceline.model.identity import Identity, Role
from paceline.model.tls import TlsFiles
from paceline.rpc.channels import open_channel
from paceline.rpc.security.credentials import TlsCredentials
from paceline.rpc.streams.stream_client import StreamClient
from paceline.security.certificates import CertificateAuthority
from tests.support.waiting import eventually

DAY = datetime.timedelta(days=1)
SHORT = datetime.timedelta(seconds=2)
CALL = "/test.Service/Call"
ESTABLISHED = "01"
STREAM = "/test.Service/Stream"


class Party:
    """A client whose certificate is renewed, and the authority of client and server."""

    def __init__(self, folder: Path) -> None:
        self._authority = CertificateAuthority.create(folder)
        self._client = Identity(self._authority.trust_domain, Role.CLIENT, "a")
        self._folder = folder
        self._seconds = itertools.count()
        server = Identity(self._authority.trust_domain, Role.BROKER, "1")
        self.server = self._authority.issue(server, ["127.0.0.1"], folder, DAY)
        self.renew(SHORT)
        files = TlsFiles(folder / "ca.crt", folder / "client-a.crt", folder / "client-a.key")
        self.tls = TlsCredentials(files, lambda: float(next(self._seconds)))  # every use checks the files

    def renew(self, valid_for: datetime.timedelta) -> None:
        self._authority.issue(self._client, [], self._folder, valid_for)

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server.certificate, self.server.key)
        context.load_verify_locations(self._folder / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["h2"])
        return context

    def server_credentials(self) -> Any:
        pair = (self.server.key.read_bytes(), self.server.certificate.read_bytes())
        return grpc.ssl_server_credentials([pair], (self._folder / "ca.crt").read_bytes(), require_client_auth=True)


@pytest.fixture
def party(tmp_path: Path) -> Party:
    return Party(tmp_path)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


class Handshakes:
    """A TLS server that notes the outcome of every handshake, and then closes the connection."""

    def __init__(self, context: ssl.SSLContext, port: int) -> None:
        self.outcomes: list[str] = []
        self._context = context
        self._listening = socket.create_server(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                connection.settimeout(5)
                try:
                    with self._context.wrap_socket(connection, server_side=True):
                        self.outcomes.append("accepted")
                except ssl.SSLError as failure:
                    self.outcomes.append(failure.reason or str(failure))
                except OSError as failure:
                    self.outcomes.append(str(failure))

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)


@contextlib.contextmanager
def handshakes(party: Party, port: int) -> Iterator[Handshakes]:
    server = Handshakes(party.server_context(), port)
    try:
        yield server
    finally:
        server.close()


def call(channel: Any) -> None:
    """Make a call that fails: no server listens, or the server ends the connection."""
    with pytest.raises(grpc.RpcError):
        channel.unary_unary(CALL)(b"", timeout=2)


def after_the_expiry_of_earlier_certificates() -> None:
    issued_s = time.monotonic()
    eventually(lambda: time.monotonic() - issued_s > SHORT.total_seconds() + 1, 30, "the earlier certificates expired")


def test_a_connection_whose_calls_have_ended_makes_no_handshake_with_an_old_certificate(party: Party) -> None:
    """While the server is away, a channel that had a call tries to connect once a second, until it is closed."""
    port = free_port()
    channel = open_channel(f"127.0.0.1:{port}", tls=party.tls)
    for _ in range(4):
        call(channel)
        party.renew(SHORT)
    call(channel)
    party.renew(DAY)
    call(channel)
    after_the_expiry_of_earlier_certificates()
    with handshakes(party, port) as server:
        eventually(lambda: server.outcomes.count("accepted") >= 3, 30, "three handshakes with the new certificate")
        assert set(server.outcomes) == {"accepted"}
    channel.close()


def test_a_channel_without_calls_does_not_keep_an_old_certificate(party: Party) -> None:
    """The calls of one channel detect the renewal for every channel with the same certificates."""
    port, elsewhere = free_port(), free_port()
    unused = open_channel(f"127.0.0.1:{port}", tls=party.tls)
    used = open_channel(f"127.0.0.1:{elsewhere}", tls=party.tls)
    call(unused)
    party.renew(DAY)
    call(used)
    after_the_expiry_of_earlier_certificates()
    with handshakes(party, port) as server, handshakes(party, elsewhere) as other:
        eventually(lambda: other.outcomes.count("accepted") >= 3, 30, "three handshakes of the other channel")
        assert server.outcomes == []
        call(unused)
        assert set(server.outcomes) == {"accepted"}
    unused.close()
    used.close()


class Echo(grpc.GenericRpcHandler):
    """Answers calls, and each message of a stream."""

    def __init__(self) -> None:
        self.peers: set[str] = set()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method == CALL:
            return grpc.unary_unary_rpc_method_handler(lambda request, _: request)
        return grpc.stream_stream_rpc_method_handler(lambda requests, _: requests)


def connections_to(port: int) -> int:
    """Return the number of connections of this process to a port of this machine."""
    tables = [Path("/proc/self/net", name).read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return sum(remote.endswith(f":{port:04X}") and state == ESTABLISHED for _, _, remote, state, *_ in rows)


@pytest.mark.parametrize("last", ["call", "stream"])
def test_calls_in_progress_finish_and_their_old_connection_closes_with_the_last_of_them(
    party: Party, last: str
) -> None:
    server = grpc.server(ThreadPoolExecutor(4), [Echo()])
    port = server.add_secure_port("127.0.0.1:0", party.server_credentials())
    server.start()
    channel = open_channel(f"127.0.0.1:{port}", own_connection=True, tls=party.tls)
    stream = StreamClient(channel, STREAM, "test-stream")
    answers: list[Any] = []
    messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    call = channel.stream_stream(STREAM)(iter(messages.get, None))

    def ask_call(message: bytes) -> None:
        messages.put(message)
        assert next(call) == message

    def end_call() -> None:
        messages.put(None)
        assert list(call) == []

    def ask_stream(message: bytes) -> None:
        stream.ask(message, 30, answers.append)
        eventually(lambda: answers[-1:] == [message], 30, f"the stream answers {message!r}", 0.01)

    try:
        for renewal in range(4):
            assert channel.unary_unary(CALL)(b"%d" % renewal, timeout=30) == b"%d" % renewal
            ask_call(b"message %d" % renewal)
            ask_stream(b"message %d" % renewal)
            party.renew(DAY)
        eventually(lambda: connections_to(port) == 2, 30, "only the first and the last connection are open")
        (stream.close if last == "call" else end_call)()
        (ask_call if last == "call" else ask_stream)(b"on the first connection")
        assert connections_to(port) == 2
        (end_call if last == "call" else stream.close)()
        eventually(lambda: connections_to(port) == 1, 30, "the first connection closed after its last call")
    finally:
        messages.put(None)
        stream.close()
        channel.close()
        server.stop(0)


def test_a_watched_channel_connects_again_after_a_renewal_and_reports_the_end_of_that_connection(party: Party) -> None:
    server = grpc.server(ThreadPoolExecutor(4), [Echo()])
    port = server.add_secure_port("127.0.0.1:0", party.server_credentials())
    server.start()
    channel = open_channel(f"127.0.0.1:{port}", own_connection=True, tls=party.tls)
    states: list[grpc.ChannelConnectivity] = []
    channel.subscribe(states.append)

    def ends_with(*last: grpc.ChannelConnectivity) -> bool:
        return tuple(states[-len(last) :]) == last

    try:
        channel.unary_unary(CALL)(b"", timeout=30)
        eventually(lambda: ends_with(grpc.ChannelConnectivity.READY), 30, "the channel is connected")
        party.renew(DAY)
        party.tls.current()
        eventually(lambda: ends_with(grpc.ChannelConnectivity.READY) and len(states) > 3, 30, "connected again")
        assert states.count(grpc.ChannelConnectivity.SHUTDOWN) == 1
        eventually(lambda: connections_to(port) == 1, 30, "the old connection is closed")
        server.stop(0)
        eventually(lambda: not ends_with(grpc.ChannelConnectivity.READY), 30, "the channel reports the end")
    finally:
        channel.close()
        server.stop(0)
