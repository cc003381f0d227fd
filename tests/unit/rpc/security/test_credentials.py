"""Certificate files that change: when the new files are loaded, and when the old credentials stay."""

import datetime
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from paceline.model.errors import InvalidRequestError
from paceline.model.identity import Identity, Role
from paceline.model.tls import TlsFiles
from paceline.rpc.security.client_tls import client_credentials, tls_files
from paceline.rpc.security.credentials import CertificateFilesError, TlsCredentials
from paceline.rpc.security.reopening_channel import ReopeningChannel
from paceline.security.certificates import CertificateAuthority

DAY = datetime.timedelta(days=1)


class Files:
    """A client's certificate that can be renewed, and a clock."""

    def __init__(self, folder: Path) -> None:
        self._authority = CertificateAuthority.create(folder)
        self._identity = Identity(self._authority.trust_domain, Role.CLIENT, "a")
        self.folder = folder
        self.now_s = 0.0
        self.renew()
        self.files = TlsFiles(folder / "ca.crt", folder / "client-a.crt", folder / "client-a.key")

    def renew(self) -> None:
        self._authority.issue(self._identity, [], self.folder, DAY)

    def credentials(self) -> TlsCredentials:
        return TlsCredentials(self.files, lambda: self.now_s)


@pytest.fixture
def made(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_renewed_files_are_loaded_at_the_next_check(made: Files) -> None:
    credentials = made.credentials()
    first = credentials.current()
    made.renew()
    assert credentials.current() is first
    made.now_s = 1.0
    second = credentials.current()
    assert second is not first and second.certificate != first.certificate
    made.now_s = 2.0
    assert credentials.current() is second


def test_an_incomplete_renewal_keeps_the_old_credentials_and_is_logged_once(
    made: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    credentials = made.credentials()
    first = credentials.current()
    shutil.copy(tmp_path / "client-a.crt", tmp_path / "old.crt")
    made.renew()
    shutil.copy(tmp_path / "old.crt", tmp_path / "client-a.crt")
    for second in range(1, 4):
        made.now_s = float(second)
        assert credentials.current() is first
    assert caplog.text.count("certificates not reloaded") == 1
    assert "PRIVATE KEY" not in caplog.text
    made.renew()
    made.now_s = 9.0
    assert credentials.current() is not first


def test_missing_files_keep_the_old_credentials(made: Files, tmp_path: Path) -> None:
    credentials = made.credentials()
    first = credentials.current()
    (tmp_path / "client-a.key").unlink()
    made.now_s = 1.0
    assert credentials.current() is first


def test_unusable_files_are_errors_that_name_the_file(made: Files, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for files, says in (
        (TlsFiles(tmp_path / "nowhere"), "nowhere cannot be read"),
        (TlsFiles(tmp_path / "empty"), "empty has no certificate authority"),
        (TlsFiles(made.files.ca, made.files.certificate, tmp_path / "empty"), "not a certificate and its key"),
        (TlsFiles(made.files.ca, made.files.certificate), "belong together"),
    ):
        with pytest.raises(CertificateFilesError, match=says):
            TlsCredentials(files)


def test_clients_take_files_from_arguments_before_the_environment(made: Files) -> None:
    environment = {
        "PACELINE_SSL_CA_FILE": str(made.files.ca),
        "PACELINE_SSL_CERTIFICATE_FILE": str(made.files.certificate),
        "PACELINE_SSL_KEY_FILE": str(made.files.key),
    }
    found = client_credentials(None, environment)
    assert found is not None and found.files == made.files
    assert client_credentials(TlsFiles(made.files.ca), environment) is not found
    assert client_credentials(None, {}) is None and tls_files("") is None
    with pytest.raises(InvalidRequestError, match="PACELINE_SSL_CA_FILE"):
        tls_files("", "a.crt", "a.key")
    with pytest.raises(InvalidRequestError, match="together"):
        tls_files("ca.crt", "a.crt")
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        client_credentials(TlsFiles(Path("/nowhere/ca.crt")), {})


@pytest.mark.parametrize(("mode", "is_refused"), [(0o600, False), (0o644, True), (0o604, True)])
def test_a_client_refuses_a_key_that_other_users_can_read(made: Files, mode: int, is_refused: bool) -> None:
    assert made.files.key is not None
    made.files.key.chmod(mode)
    if is_refused:
        with pytest.raises(InvalidRequestError, match="readable by other users: chmod 600"):
            client_credentials(made.files)
    else:
        assert client_credentials(made.files) is not None


class Call:
    """A call in progress on a channel that was opened."""

    def __init__(self, channel: "Opened") -> None:
        self.channel = channel
        self._callbacks: list[Callable[[], None]] = []

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self._callbacks.append(callback)
        return True

    def end(self) -> None:
        for callback in self._callbacks:
            callback()


class Opened:
    """A channel that was opened."""

    def __init__(self) -> None:
        self.is_closed = threading.Event()
        self.watchers: list[tuple[Callable[[grpc.ChannelConnectivity], None], bool | None]] = []

    def unary_unary(self, _name: str, **_: object) -> Callable[[], "Opened"]:
        return lambda: self

    def unary_stream(self, _name: str, **_: object) -> Callable[[], Call]:
        return lambda: Call(self)

    def subscribe(self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool | None) -> None:
        self.watchers.append((callback, try_to_connect))

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        self.watchers = [one for one in self.watchers if one[0] != callback]

    def close(self) -> None:
        self.is_closed.set()


class Reopening:
    """A channel, and the connections that it opened."""

    def __init__(self, made: Files) -> None:
        self._made = made
        self.opened: list[Opened] = []
        self.tls = made.credentials()
        self.channel = ReopeningChannel(self.tls, self._open)

    def _open(self, _credentials: object) -> Opened:
        self.opened.append(Opened())
        return self.opened[-1]

    def renew(self) -> None:
        self._made.renew()
        self._made.now_s += 1.0


def test_calls_after_a_renewal_use_a_new_connection_and_the_old_one_closes_with_its_last_call(made: Files) -> None:
    reopening = Reopening(made)
    call, stream = (getattr(reopening.channel, kind)("/a/b") for kind in ("unary_unary", "unary_stream"))
    first, second = stream(), stream()
    for renewal in range(1, 12):
        reopening.renew()
        assert call() is reopening.opened[renewal]
    assert first.channel is second.channel is reopening.opened[0]
    for one in reopening.opened[1:-1]:
        assert one.is_closed.wait(10)
    first.end()
    assert not reopening.opened[0].is_closed.is_set() and not reopening.opened[-1].is_closed.is_set()
    second.end()
    assert reopening.opened[0].is_closed.wait(10)
    assert stream().channel is reopening.opened[-1]
    reopening.channel.close()
    assert reopening.opened[-1].is_closed.is_set()


def test_a_failed_call_does_not_keep_its_connection(made: Files) -> None:
    reopening = Reopening(made)
    call = reopening.channel.unary_unary("/a/b")
    with pytest.raises(TypeError):
        call("an argument that the method does not take")
    reopening.renew()
    call()
    assert reopening.opened[0].is_closed.wait(10)


def test_a_renewal_reopens_channels_without_calls_and_moves_their_watchers(made: Files) -> None:
    """A watcher hears SHUTDOWN, because this process closes the old connection, and then of the new connection."""
    reopening = Reopening(made)
    states: list[grpc.ChannelConnectivity] = []
    reopening.channel.subscribe(states.append)
    assert reopening.opened[0].watchers == [(states.append, False)]
    reopening.renew()
    reopening.tls.current()
    assert reopening.opened[0].is_closed.wait(10)
    assert states == [grpc.ChannelConnectivity.SHUTDOWN]
    assert reopening.opened[0].watchers == [] and reopening.opened[1].watchers == [(states.append, True)]
    reopening.channel.unsubscribe(states.append)
    assert reopening.opened[1].watchers == []
    reopening.channel.close()
    reopening.renew()
    reopening.tls.current()
    reopening.channel.reopen_if_renewed()
    assert len(reopening.opened) == 2
