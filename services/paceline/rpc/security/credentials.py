"""The certificates of a server or client, which reload when their files change.

gRPC asks a server for its certificates at every handshake. A channel keeps the certificates it was opened with, so
`reopening_channel.py` opens another channel after a change.
"""

import logging
import os
import ssl
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from paceline.model.tls import TlsFiles

CHECK_INTERVAL_S: Final = 1.0
"""Shortest interval between two checks of the files; until the next check the loaded certificates are used."""

LOG = logging.getLogger("paceline.rpc.security")

Stamp = tuple[tuple[int, int, int], ...]
"""Inode, modification time and size of each file, by which a change is detected."""


class CertificateFilesError(Exception):
    """Certificate files cannot be used; the message names the file and the reason but never quotes the file."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """The content of a set of certificate files, with a key that matches the certificate."""

    ca: bytes
    certificate: bytes | None
    key: bytes | None

    def channel_credentials(self) -> Any:
        """Return credentials for a channel."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)

    def server_configuration(self, client_auth: bool) -> Any:
        """Return a server's certificate chain and its trusted CAs."""
        return grpc.ssl_server_certificate_configuration(
            [(self.key or b"", self.certificate or b"")], self.ca if client_auth else None
        )


class TlsCredentials:
    """The certificates in a set of files; thread-safe.

    If changed files cannot be used, for example because only the certificate and not yet the key was replaced, this is
    logged once, and the loaded certificates stay in use until a later check succeeds.

    Args:
        files: paths of the files.
        clock_s: returns monotonic seconds.

    Raises:
        CertificateFilesError: the files cannot be used.
    """

    def __init__(self, files: TlsFiles, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.files = files
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._stamp, self._certificates = _read(files)
        self._refused: Stamp | None = None
        """Stamp of changed files that could not be used, so that the same failure is logged once."""
        self._checked_s = clock_s()
        self._channels: weakref.WeakSet[Any] = weakref.WeakSet()

    def current(self) -> Certificates:
        """Return the current certificates: the same object as long as the files have not changed."""
        now_s = self._clock_s()
        if now_s - self._checked_s < CHECK_INTERVAL_S:
            return self._certificates
        with self._lock:
            if now_s - self._checked_s >= CHECK_INTERVAL_S:
                self._checked_s = now_s
                self._reload_if_changed()
            return self._certificates

    def add_channel(self, channel: Any) -> None:
        """Call ``channel.reopen_if_renewed()`` after each renewal, also when the channel has no calls."""
        with self._lock:
            self._channels.add(channel)

    def server_credentials(self, client_auth: bool) -> Any:
        """Return credentials for a server; each handshake uses the current certificates."""
        shown = self.current()

        def fetch() -> Any:
            nonlocal shown
            found = self.current()
            if found is shown:
                return None
            shown = found
            return found.server_configuration(client_auth)

        return grpc.dynamic_ssl_server_credentials(shown.server_configuration(client_auth), fetch, client_auth)

    def _reload_if_changed(self) -> None:
        try:
            stamp = _stamp_of(self.files)
            if stamp in (self._stamp, self._refused):
                return
            self._stamp, self._certificates = _read(self.files)
            self._refused = None
            LOG.info("certificates reloaded: certificate=%s ca=%s", self.files.certificate, self.files.ca)
            threading.Thread(target=_reopen, args=(tuple(self._channels),), name="reopen-channels", daemon=True).start()
        except CertificateFilesError as failure:
            refused = _try_stamp(self.files)
            if refused is None or refused != self._refused:
                LOG.warning("certificates not reloaded, still using the previous certificates: reason=%s", failure)
            self._refused = refused


def _reopen(channels: tuple[Any, ...]) -> None:
    for channel in channels:
        channel.reopen_if_renewed()


def _read(files: TlsFiles) -> tuple[Stamp, Certificates]:
    before = _stamp_of(files)
    found = Certificates(_content(files.ca), _content(files.certificate), _content(files.key))  # type: ignore[arg-type]
    _check(files)
    if _stamp_of(files) != before:
        raise CertificateFilesError(f"{files.certificate or files.ca} or a related file was replaced while it was read")
    return before, found


def _check(files: TlsFiles) -> None:
    """Check that OpenSSL can load the files; gRPC would only log an error, and only at the first handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=files.ca)
    except (ssl.SSLError, OSError) as failure:
        raise CertificateFilesError(f"{files.ca} has no certificate authority: {failure}") from None
    if (files.certificate is None) != (files.key is None):
        raise CertificateFilesError("a certificate and its key belong together: give both or neither")
    if files.certificate is None or files.key is None:
        return
    try:
        context.load_cert_chain(files.certificate, files.key, password=lambda: b"")
    except (ssl.SSLError, OSError) as failure:
        raise CertificateFilesError(
            f"{files.certificate} and {files.key} are not a certificate and its key: {failure}"
        ) from None


def _content(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as failure:
        raise CertificateFilesError(f"{path} cannot be read: {failure.strerror}") from None


def _stamp_of(files: TlsFiles) -> Stamp:
    stamps = []
    for path in (files.ca, files.certificate, files.key):
        if path is None:
            continue
        try:
            status = os.stat(path)  # noqa: PTH116 - follows the symbolic links by which Kubernetes swaps secrets
        except OSError as failure:
            raise CertificateFilesError(f"{path} cannot be read: {failure.strerror}") from None
        stamps.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(stamps)


def _try_stamp(files: TlsFiles) -> Stamp | None:
    try:
        return _stamp_of(files)
    except CertificateFilesError:
        return None
