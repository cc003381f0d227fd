"""Certificates of a cluster: one authority, and a certificate per controller, broker and client.

    authority = CertificateAuthority.create(directory)
    authority.issue(Identity(authority.trust_domain, Role.BROKER, "1"), ["broker-1"], directory)

Keys are EC P-256. The authority's certificate contains the cluster's trust domain, and so does every certificate that
it issues. Files: ``ca.crt``, ``ca.key``, and ``<role>-<name>.crt``, ``.key``; keys have mode 0600.
"""

import datetime
import ipaddress
import os
import re
import secrets
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from paceline.model.identity import Identity, InvalidIdentityError, Role

CA_CERTIFICATE: Final = "ca.crt"
CA_KEY: Final = "ca.key"
_CLOCK_SKEW: Final = datetime.timedelta(minutes=5)
"""Certificates are valid from this long before their creation, for machines whose clock is behind."""
_HOST: Final = re.compile(r"[A-Za-z0-9*]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")


class CertificateError(Exception):
    """A certificate cannot be created or read; the message has the file and the reason."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Paths of a certificate and its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class CertificateSummary:
    """Data of a certificate for display."""

    identity: Identity
    hosts: tuple[str, ...]
    not_after: datetime.datetime
    serial_number: str
    """Hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class AuthoritySummary:
    """Data of an authority's certificate for display."""

    trust_domain: str
    not_after: datetime.datetime


class CertificateAuthority:
    """The certificate authority of a cluster."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key
        self.trust_domain = _trust_domain(certificate)
        """The cluster id as 32 hex digits."""

    @classmethod
    def create(cls, directory: Path, trust_domain: str | None = None, days: int = 3_650) -> Self:
        """Create an authority and write its certificate and key.

        Args:
            directory: created with mode 0700 if missing.
            trust_domain: of an existing cluster; None creates a new trust domain.
            days: validity.

        Raises:
            CertificateError: the directory already has an authority, or cannot be written.
        """
        for file in (CA_CERTIFICATE, CA_KEY):
            if (directory / file).exists():
                raise CertificateError(f"{directory / file} exists; a cluster has a single authority")
        domain = trust_domain or uuid.uuid4().hex
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Paceline cluster {domain}")])
        builder = (
            _builder(name, name, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"spiffe://{domain}")]), critical=False
            )
        )
        certificate = builder.sign(key, hashes.SHA256())
        _write(directory / CA_KEY, _key_bytes(key), 0o600)
        _write(directory / CA_CERTIFICATE, _certificate_bytes(certificate), 0o644)
        return cls(certificate, key)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read an authority.

        Raises:
            CertificateError: a file is missing or not valid.
        """
        certificate = load_certificate(directory / CA_CERTIFICATE)
        path = directory / CA_KEY
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except (OSError, ValueError, TypeError) as failure:
            raise CertificateError(f"{path} cannot be read as a private key: {_reason(failure)}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise CertificateError(f"{path} is not the key of {directory / CA_CERTIFICATE}")
        return cls(certificate, key)

    def issue(
        self, identity: Identity, hosts: Iterable[str], directory: Path, valid_for: datetime.timedelta
    ) -> CertificateFiles:
        """Create a certificate and key for a node or client and write both, replacing earlier files.

        Args:
            identity: URI in the certificate.
            hosts: names and addresses of a server; empty for a client, which then cannot be a server.
            directory: created with mode 0700 if missing; also gets ``ca.crt``.
            valid_for: validity from now.

        Raises:
            CertificateError: a host is neither a name nor an address, or a file cannot be written.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{identity.role}-{identity.name}"[:64])])
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        hosts = tuple(hosts)
        if identity.role is not Role.CLIENT or hosts:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri), *map(_general_name, hosts)]
        certificate = (
            _builder(subject, self._certificate.subject, key.public_key(), valid_for)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self._put_authority(directory / CA_CERTIFICATE)
        stem = f"{identity.role}-{identity.name}"
        files = CertificateFiles(directory / f"{stem}.crt", directory / f"{stem}.key")
        _write(files.key, _key_bytes(key), 0o600)
        _write(files.certificate, _certificate_bytes(certificate), 0o644)
        return files

    def _put_authority(self, path: Path) -> None:
        mine = _certificate_bytes(self._certificate)
        if not path.exists():
            _write(path, mine, 0o644)
        elif mine.strip() not in path.read_bytes():
            raise CertificateError(
                f"{path} is of another authority: delete it, or append the certificate of this authority"
            )


def load_certificate(path: Path) -> x509.Certificate:
    """Return the first certificate of a PEM file.

    Raises:
        CertificateError: it has no certificate, or cannot be read.
    """
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as failure:
        raise CertificateError(f"{path} cannot be read as a certificate: {_reason(failure)}") from None


def authorities_in(path: Path) -> list[AuthoritySummary]:
    """Return the authorities in a PEM file, which may have several while the authority changes; [] without any.

    Raises:
        CertificateError: the file has no certificate, or an authority without a cluster, or cannot be read.
    """
    load_certificate(path)
    return [
        AuthoritySummary(_trust_domain(each), each.not_valid_after_utc)
        for each in x509.load_pem_x509_certificates(path.read_bytes())
        if _signs_certificates(each)
    ]


def _signs_certificates(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _reason(failure: Exception) -> str:
    return failure.strerror or str(failure) if isinstance(failure, OSError) else str(failure)


def summary_of(path: Path) -> CertificateSummary:
    """Return the data of a node's or client's certificate.

    Raises:
        CertificateError: it has no Paceline identity.
    """
    certificate = load_certificate(path)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
        identity = Identity.parse(uri)
    except (x509.ExtensionNotFound, InvalidIdentityError, ValueError) as failure:
        raise CertificateError(
            f"{path} has no identity: its subject alternative names must have one URI "
            f"spiffe://<cluster id in hex>/<role>/<name> ({failure})"
        ) from None
    hosts = (
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    )
    return CertificateSummary(identity, hosts, certificate.not_valid_after_utc, f"{certificate.serial_number:x}")


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, valid_for: datetime.timedelta | int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    length = datetime.timedelta(days=valid_for) if isinstance(valid_for, int) else valid_for
    not_after = now + length
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, not_after) - _CLOCK_SKEW)
        .not_valid_after(not_after)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        if _HOST.fullmatch(host) is None:
            raise CertificateError(f"{host!r} is neither a host name nor an address") from None
        return x509.DNSName(host)


def _trust_domain(certificate: x509.Certificate) -> str:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, ValueError):
        uri = ""
    domain = uri.removeprefix("spiffe://")
    if re.fullmatch(r"[0-9a-f]{32}", domain) is None:
        raise CertificateError("the authority's certificate has no cluster id; create it with paceline certs ca")
    return domain


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _certificate_bytes(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Replace a file atomically: a process that reloads its certificate never reads half of it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as failure:
        raise CertificateError(f"{path} cannot be written: {failure.strerror}") from None
