"""`paceline certs`: the certificate authority of a cluster, its certificates, and those that it has revoked."""

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.connection import bootstrap_option, open_admin
from paceline.cli.failures import reported
from paceline.cli.output import output_option, show, tell
from paceline.model.errors import InvalidRequestError
from paceline.model.identity import Identity, InvalidIdentityError, Role, cluster_id_of, trust_domain_of
from paceline.model.serial_numbers import serial_number_of

if TYPE_CHECKING:
    from types import ModuleType

    from paceline.security.certificates import CertificateFiles

_directory = click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
_days = click.option("--days", type=click.IntRange(1, 36_500), default=365, show_default=True, help="validity")
_out = click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="write the certificate, its key and ca.crt here [default: DIRECTORY]",
)


@click.group()
def certs() -> None:
    """Create and revoke the certificates of controllers, brokers and clients of a secure cluster."""


@certs.command()
@_directory
@click.option("--cluster-id", help="id of an existing cluster, from paceline cluster info [default: a new id]")
@click.option("--days", type=click.IntRange(1, 36_500), default=3_650, show_default=True, help="validity")
def ca(directory: Path, cluster_id: str | None, days: int) -> None:
    """Create the certificate authority of a cluster: ca.crt and ca.key in DIRECTORY."""
    certificates = _certificates()
    try:
        domain = trust_domain_of(cluster_id) if cluster_id else None
        authority = certificates.CertificateAuthority.create(directory, domain, days)
    except (certificates.CertificateError, InvalidIdentityError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"authority of cluster {cluster_id_of(authority.trust_domain)}: {directory / 'ca.crt'}")
    click.echo(f"do not copy {directory / 'ca.key'} to cluster machines: it can issue any identity", err=True)


@certs.command()
@_directory
@click.argument("node", metavar="broker/ID|controller/ID|gateway/NAME")
@click.option("--host", "hosts", multiple=True, required=True, help="name or address of the node; repeatable")
@_days
@_out
def node(directory: Path, node: str, hosts: tuple[str, ...], days: int, out: Path | None) -> None:
    """Issue the certificate of a broker, controller or gateway, or renew it."""
    role, _, name = node.partition("/")
    if role not in ("broker", "controller", "gateway"):
        raise click.BadParameter(f"{node!r} is not broker/ID, controller/ID or gateway/NAME", param_hint="NODE")
    _issue(directory, Role(role), name, hosts, days, out)


@certs.command()
@_directory
@click.argument("name")
@_days
@_out
def client(directory: Path, name: str, days: int, out: Path | None) -> None:
    """Issue the certificate of the client User:NAME, or renew it."""
    files = _issue(directory, Role.CLIENT, name, (), days, out)
    click.echo(f"export PACELINE_SSL_CA_FILE={(out or directory).resolve() / 'ca.crt'}")
    click.echo(f"export PACELINE_SSL_CERTIFICATE_FILE={files.certificate.resolve()}")
    click.echo(f"export PACELINE_SSL_KEY_FILE={files.key.resolve()}")


@certs.command("show")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@output_option
def show_certificates(files: tuple[Path, ...], output: str) -> None:
    """Show identity, hosts, serial number and validity of certificates, and cluster and validity of authorities."""
    certificates = _certificates()
    rows = []
    for path in files:
        try:
            authorities = certificates.authorities_in(path)
            found = None if authorities else certificates.summary_of(path)
        except certificates.CertificateError as error:
            raise click.ClickException(str(error)) from None
        rows += [
            {
                "file": str(path),
                "principal": "authority",
                "cluster_id": cluster_id_of(each.trust_domain),
                "uri": f"spiffe://{each.trust_domain}",
                "hosts": "",
                "serial_number": "",
                "not_after": each.not_after.isoformat(),
            }
            for each in authorities
        ]
        if found is None:
            continue
        rows.append(
            {
                "file": str(path),
                "principal": found.identity.principal,
                "cluster_id": cluster_id_of(found.identity.cluster),
                "uri": found.identity.uri,
                "hosts": ",".join(found.hosts),
                "serial_number": found.serial_number,
                "not_after": found.not_after.isoformat(),
            }
        )
    show(rows, output)


_certificate = click.argument("certificate", metavar="SERIAL_NUMBER|FILE")


@certs.command("revoke")
@_certificate
@output_option
@bootstrap_option
def revoke(certificate: str, output: str, bootstrap: str) -> None:
    """Make every process refuse a certificate, given by its serial number or its file.

    Within a minute its streams end and its calls are refused. Other certificates of the same principal stay valid.
    """
    with reported(output):
        number, principal = _serial_number(certificate)
        with open_admin(bootstrap) as admin:
            admin.revoke_certificate(number, principal)
        row = {"serial_number": number, "principal": principal}
        tell([row], output, f"revoked: {number} {principal}".rstrip() + "; every process refuses it within a minute")


@certs.command("restore")
@_certificate
@output_option
@bootstrap_option
def restore(certificate: str, output: str, bootstrap: str) -> None:
    """Make every process accept a revoked certificate again."""
    with reported(output):
        number, _ = _serial_number(certificate)
        with open_admin(bootstrap) as admin:
            admin.restore_certificate(number)
        tell([{"serial_number": number}], output, f"restored: {number}")


@certs.command("revoked")
@output_option
@bootstrap_option
def revoked(output: str, bootstrap: str) -> None:
    """List the revoked certificates."""
    with reported(output), open_admin(bootstrap) as admin:
        rows = [
            {"serial_number": number, "principal": principal}
            for number, principal in admin.describe_revoked_certificates().items()
        ]
    show(rows, output, ("serial_number", "principal"))


def _serial_number(certificate: str) -> tuple[str, str]:
    """Return serial number and principal of a certificate file, or a serial number without a principal."""
    path = Path(certificate)
    if not path.is_file():
        try:
            return serial_number_of(certificate), ""
        except InvalidRequestError as error:
            raise click.ClickException(f"there is no such file, and {error}") from None
    certificates = _certificates()
    try:
        found = certificates.summary_of(path)
    except certificates.CertificateError as error:
        raise click.ClickException(str(error)) from None
    return found.serial_number, found.identity.principal


def _issue(
    directory: Path, role: Role, name: str, hosts: tuple[str, ...], days: int, out: Path | None
) -> "CertificateFiles":
    certificates = _certificates()
    try:
        authority = certificates.CertificateAuthority.load(directory)
        identity = Identity(authority.trust_domain, role, name)
        files: CertificateFiles = authority.issue(identity, hosts, out or directory, datetime.timedelta(days=days))
    except (certificates.CertificateError, InvalidIdentityError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{identity.principal}: {files.certificate}", err=True)
    return files


def _certificates() -> "ModuleType":
    try:
        from paceline.security import certificates
    except ImportError:
        raise click.ClickException("certificates need the extra security: pip install 'paceline[security]'") from None
    return certificates
