"""Certificates: identities, files and their modes."""

import datetime
import json
import ssl
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli.commands import cli
from paceline.model.identity import Identity, InvalidIdentityError, Role, cluster_id_of, trust_domain_of
from paceline.security.certificates import CertificateAuthority, CertificateError, summary_of

DAY = datetime.timedelta(days=1)


def test_cluster_id_and_trust_domain_are_the_same_16_bytes() -> None:
    domain = "0123456789abcdef" * 2
    assert trust_domain_of(cluster_id_of(domain)) == domain
    for wrong in ("", "abc", "A" * 23, "!" * 22, cluster_id_of(domain)[:-1] + "~"):
        with pytest.raises(InvalidIdentityError, match="cluster id"):
            trust_domain_of(wrong)


@pytest.mark.parametrize(
    "uri",
    [
        "spiffe://ABCDEF0123456789ABCDEF0123456789/broker/1",
        "spiffe://0123/broker/1",
        "spiffe://" + "0" * 32 + "/admin/1",
        "spiffe://" + "0" * 32 + "/broker/01",
        "spiffe://" + "0" * 32 + "/broker/one",
        "spiffe://" + "0" * 32 + "/broker/4294967296",
        "spiffe://" + "0" * 32 + "/client/a/b",
        "spiffe://" + "0" * 32 + "/client/",
        "spiffe://" + "0" * 32 + "/client/a\n",
    ],
)
def test_foreign_uri_is_not_an_identity(uri: str) -> None:
    with pytest.raises(InvalidIdentityError):
        Identity.parse(uri)


def test_principals_of_nodes_cannot_be_taken_by_clients() -> None:
    domain = "0" * 32
    assert Identity(domain, Role.BROKER, "1").principal == "User:broker/1"
    assert Identity(domain, Role.CLIENT, "admin").principal == "User:admin"
    with pytest.raises(InvalidIdentityError):
        Identity(domain, Role.CLIENT, "broker/1")


def test_issued_certificate_carries_identity_hosts_and_a_private_key(tmp_path: Path) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca")
    identity = Identity(authority.trust_domain, Role.BROKER, "1")
    files = CertificateAuthority.load(tmp_path / "ca").issue(identity, ["broker-1", "10.0.0.7"], tmp_path / "b1", DAY)
    found = summary_of(files.certificate)
    assert found.identity == identity and found.hosts == ("broker-1", "10.0.0.7")
    assert files.key.stat().st_mode & 0o777 == 0o600 and (tmp_path / "ca" / "ca.key").stat().st_mode & 0o777 == 0o600
    ssl.create_default_context(cafile=tmp_path / "b1" / "ca.crt").load_cert_chain(files.certificate, files.key)


def test_authority_is_created_once_and_never_replaced(tmp_path: Path) -> None:
    CertificateAuthority.create(tmp_path / "one")
    with pytest.raises(CertificateError, match="exists"):
        CertificateAuthority.create(tmp_path / "one")
    other = CertificateAuthority.create(tmp_path / "two")
    with pytest.raises(CertificateError, match="another authority"):
        other.issue(Identity(other.trust_domain, Role.CLIENT, "a"), [], tmp_path / "one", DAY)
    with pytest.raises(CertificateError, match="no identity"):
        _ = summary_of(tmp_path / "one" / "ca.crt").identity


def test_commands_create_certificates_of_authority_node_and_client(tmp_path: Path) -> None:
    run = CliRunner()
    made = run.invoke(cli, ["certs", "ca", str(tmp_path)])
    assert made.exit_code == 0, made.output
    node = run.invoke(cli, ["certs", "node", str(tmp_path), "broker/1", "--host", "localhost"])
    assert node.exit_code == 0, node.output
    client = run.invoke(cli, ["certs", "client", str(tmp_path), "admin"])
    assert f"PACELINE_SSL_KEY_FILE={tmp_path / 'client-admin.key'}" in client.output
    shown = run.invoke(cli, ["certs", "show", "-o", "json", str(tmp_path / "broker-1.crt")])
    assert '"User:broker/1"' in shown.output and '"localhost"' in shown.output
    authority = run.invoke(cli, ["certs", "show", "-o", "json", str(tmp_path / "ca.crt")])
    (row,) = json.loads(authority.stdout)
    assert row["principal"] == "authority" and row["cluster_id"] in made.stdout and row["not_after"] > "2030"
    two = tmp_path / "two"
    assert run.invoke(cli, ["certs", "ca", str(two)]).exit_code == 0
    both = tmp_path / "both.crt"
    both.write_bytes((tmp_path / "ca.crt").read_bytes() + (two / "ca.crt").read_bytes())
    assert len(json.loads(run.invoke(cli, ["certs", "show", "-o", "json", str(both)]).stdout)) == 2
    missing = run.invoke(cli, ["certs", "client", str(tmp_path / "none"), "admin"])
    assert missing.stderr.endswith("ca.crt cannot be read as a certificate: No such file or directory\n")
    wrong = run.invoke(cli, ["certs", "node", str(tmp_path), "broker/x", "--host", "localhost"])
    assert wrong.exit_code == 1 and "'x' is not the id of a broker" in wrong.output
