"""Create the credentials and guards of a process from its settings."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from paceline.model.identity import Identity, Role
from paceline.model.quotas import ClientQuotas
from paceline.model.tls import ListenerSecurity, TlsFiles
from paceline.rpc.security.authorizer import Authorizer
from paceline.rpc.security.credentials import CertificateFilesError, TlsCredentials
from paceline.rpc.security.guard import Guard


class TransportSecurity:
    """Certificates for a process's listeners and for its calls to the same listeners of other processes.

    Args:
        listeners: protocol and files of each listener.
        super_users: see `Guard`.
        identity_of: reads the identity from a certificate file.
        serial_number_of: returns the serial number of a certificate in PEM, as in `Authorizer.revoked`.

    Raises:
        CertificateFilesError: files cannot be used, or the certificates are for different nodes.
    """

    def __init__(
        self,
        listeners: Mapping[str, ListenerSecurity],
        super_users: Collection[str],
        identity_of: Callable[[Path], Identity],
        serial_number_of: Callable[[bytes], str],
    ) -> None:
        self._listeners = listeners
        self._super_users = super_users
        self._serial_number_of = serial_number_of
        self._credentials: dict[TlsFiles, TlsCredentials] = {}
        self.authorizer = Authorizer()
        """Decides for every listener of this process; replaced before `guard` is called."""
        self.quotas = ClientQuotas()
        """Of the callers of every listener of this process; replaced before `guard` is called."""
        self.identity: Identity | None = None
        """Identity of this process, None when every listener is PLAINTEXT."""
        for listener in listeners.values():
            if listener.tls is None or listener.tls.certificate is None:
                continue
            if listener.tls not in self._credentials:
                self._credentials[listener.tls] = TlsCredentials(listener.tls)
            found = identity_of(listener.tls.certificate)
            if self.identity is not None and found != self.identity:
                raise CertificateFilesError(
                    f"{listener.tls.certificate} belongs to {found.uri}, but another listener's certificate to "
                    f"{self.identity.uri}: the certificates of all listeners must be for this process"
                )
            self.identity = found

    def check_node(self, role: Role, node_id: int) -> None:
        """Check that the certificate is for this node.

        Raises:
            CertificateFilesError: the certificate is for another role or id.
        """
        if self.identity is not None and (self.identity.role, self.identity.node_id) != (role, node_id):
            raise CertificateFilesError(
                f"ssl.certificate.file belongs to {self.identity.principal}, but this process is {role}/{node_id}: "
                f"create its certificate with paceline certs node DIRECTORY {role}/{node_id}"
            )

    def credentials(self, listener: str) -> TlsCredentials | None:
        """Return the certificates for calls to this listener of other processes; None for plaintext."""
        found = self._listeners.get(listener)
        return None if found is None or found.tls is None else self._credentials[found.tls]

    def certificates(self) -> dict[Path, bytes]:
        """Return the content of each certificate file in use, authorities included."""
        found: dict[Path, bytes] = {}
        for files, credentials in self._credentials.items():
            current = credentials.current()
            found[files.ca] = current.ca
            if files.certificate is not None and current.certificate is not None:
                found[files.certificate] = current.certificate
        return found

    def server_credentials(self, listener: str) -> Any:
        """Return the credentials to bind a listener of this process; None for plaintext."""
        credentials = self.credentials(listener)
        return None if credentials is None else credentials.server_credentials(self._listeners[listener].client_auth)

    def guard(self, listener: str) -> Guard:
        """Return the guard of a listener of this process."""
        found = self._listeners.get(listener)
        is_secure = self.credentials("CONTROL") is not None
        if found is None or found.tls is None or self.identity is None:
            return Guard(listener, anonymous_is_super=not is_secure, authorizer=self.authorizer, quotas=self.quotas)
        return Guard(
            listener, self.identity.cluster, found.client_auth, self._super_users, not is_secure, self.authorizer,
            self._serial_number_of, self.quotas,
        )  # fmt: skip


PLAINTEXT = TransportSecurity({}, (), Identity.parse, bytes.decode)  # type: ignore[arg-type]
"""The transport security of a process without certificates."""
