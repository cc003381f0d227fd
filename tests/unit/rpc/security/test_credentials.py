"""Certificate files that change: when the new files are loaded, and when the old credentials stay."""

import datetime
import os
import shutil
from pathlib import Path

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


class Opened:
    """A channel that was opened."""

    def __init__(self) -> None:
        self.closed = False

    def unary_unary(self, name: str, **_: object) -> object:
        return lambda: (self, name)

    def close(self) -> None:
        self.closed = True


def test_calls_after_a_renewal_use_a_new_connection_and_the_old_one_stays_open(made: Files) -> None:
    opened: list[Opened] = []

    def open_one(_credentials: object) -> Opened:
        opened.append(Opened())
        return opened[-1]

    channel = ReopeningChannel(made.credentials(), open_one)
    method = channel.unary_unary("/a/b", _registered_method=True)
    assert method() == (opened[0], "/a/b")
    for renewal in range(1, 12):
        made.renew()
        os.utime(made.files.ca, ns=(renewal, renewal))
        made.now_s += 1.0
        assert method()[0] is opened[renewal]
    assert [one.closed for one in opened] == [True] * 3 + [False] * 9
    channel.close()
    assert all(one.closed for one in opened)
