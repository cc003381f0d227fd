"""The identity of a controller or broker process, from its certificate."""

import datetime
import functools
import logging
from pathlib import Path
from typing import Final

from paceline.model.identity import Identity, Role, cluster_id_of
from paceline.model.node_description import NodeCertificate
from paceline.model.serial_numbers import serial_number_of
from paceline.rpc.security.audit_log import AuditLog
from paceline.rpc.security.authorizer import Authorizer, Mode
from paceline.rpc.security.credentials import CertificateFilesError
from paceline.rpc.security.transport_security import TransportSecurity
from paceline.runtime.lifecycle import ExitCode, StartupError
from paceline.runtime.settings.security import Security

_EXPIRES_SOON: Final = datetime.timedelta(days=14)

LOG = logging.getLogger("paceline.identity")


def open_transport_security(settings: Security, role: Role) -> TransportSecurity:
    """Return the credentials of a process, and what authorizes its callers.

    Raises:
        StartupError: certificate files cannot be used.
    """
    try:
        security = TransportSecurity(settings.listeners, settings.super_users, _identity_of, _serial_number_of)
    except CertificateFilesError as failure:
        raise StartupError(str(failure), ExitCode.USAGE) from None
    # Brokers decide about the callers of a gateway.
    mode = Mode.OFF if role is Role.GATEWAY else Mode(settings.authorizer_mode)
    identity = security.identity
    audit = AuditLog(identity.principal.removeprefix("User:") if identity is not None else role.value)
    security.authorizer = Authorizer(mode, settings.super_users, settings.allow_everyone_if_no_acl_found, audit)
    if mode is Mode.LOG:
        LOG.warning(
            "authorizer.mode=log: access lists refuse nothing, the audit log has what they would refuse; "
            "set authorizer.mode=enforce when it has no more such lines"
        )
    return security


def check_cluster_id(identity: Identity, found: str) -> None:
    """Raise unless ZooKeeper's cluster id is the cluster id of this process's certificate.

    Raises:
        StartupError: ZooKeeper belongs to another cluster.
    """
    wanted = cluster_id_of(identity.cluster)
    if found != wanted:
        raise StartupError(
            f"ssl.certificate.file belongs to cluster {wanted}, but ZooKeeper to cluster {found}: create the "
            f"authority of an existing cluster with paceline certs ca DIRECTORY --cluster-id {found}",
            ExitCode.USAGE,
        )


def certificates_in_use(security: TransportSecurity) -> tuple[NodeCertificate, ...]:
    """Return the loaded certificates, by path; of a file with several authorities the one that is valid longest."""
    return tuple(
        NodeCertificate(str(path), not_after_ms(content)) for path, content in sorted(security.certificates().items())
    )


@functools.lru_cache(maxsize=16)
def not_after_ms(content: bytes) -> int:
    """Return the end of the validity of a certificate, or of the last of several authorities, in ms since the epoch."""
    from cryptography import x509

    found = x509.load_pem_x509_certificates(content)
    # A node's certificate comes first and may be followed by its issuers; authorities in one file replace each other.
    is_chain = len(found) > 1 and found[0].issuer != found[0].subject
    ends = [found[0].not_valid_after_utc] if is_chain else [each.not_valid_after_utc for each in found]
    return int(max(ends).timestamp() * 1000)


def _serial_number_of(pem: bytes) -> str:
    from cryptography import x509

    return serial_number_of(f"{x509.load_pem_x509_certificate(pem).serial_number:x}")


def _identity_of(certificate: Path) -> Identity:
    try:
        from paceline.security.certificates import CertificateError, summary_of
    except ImportError:
        raise CertificateFilesError("SSL listeners need the extra security: pip install 'paceline[security]'") from None
    try:
        found = summary_of(certificate)
    except CertificateError as failure:
        raise CertificateFilesError(str(failure)) from None
    left = found.not_after - datetime.datetime.now(datetime.UTC)
    log = LOG.warning if left < _EXPIRES_SOON else LOG.info
    log(
        "certificate: principal=%s cluster_id=%s hosts=%s not_after=%s",
        found.identity.principal,
        cluster_id_of(found.identity.cluster),
        ",".join(found.hosts),
        found.not_after.isoformat(),
    )
    return found.identity
