"""Settings of security: protocols per listener, files of certificates, secrets."""

from pathlib import Path

import pytest

from paceline.runtime.settings import BrokerSettings, SettingsError, load_broker

REQUIRED = ["--zookeeper-connect=zk:2181", "--log-dirs=/data"]
PASSWORD = "correct-horse-battery"


@pytest.fixture
def ssl_flags(tmp_path: Path) -> list[str]:
    key = tmp_path / "node.key"
    key.touch(0o600)
    return [f"--ssl-certificate-file={tmp_path}/node.crt", f"--ssl-key-file={key}", f"--ssl-ca-file={tmp_path}/ca.crt"]


def broker(*flags: str, environment: dict[str, str] | None = None) -> BrokerSettings:
    return load_broker([*REQUIRED, *flags], environment or {})


def refused(*flags: str, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as failure:
        broker(*flags, environment=environment)
    return str(failure.value)


def secret_file(path: Path, text: str = PASSWORD, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "broker-1", "[::]", "[fe80::1]"])
def test_plaintext_beyond_loopback_must_be_enabled_explicitly(host: str, ssl_flags: list[str]) -> None:
    flags = [
        f"--listeners=CLIENT://{host}:1,REPLICATION://127.0.0.1:2,CONTROL://[::1]:3",
        "--advertised-listeners=CLIENT://b:1",
    ]
    assert "CLIENT is PLAINTEXT on" in refused(*flags) and "allow.insecure=true" in refused(*flags)
    broker(*flags, "--allow-insecure=true")
    secure = broker(*flags, "--listener-security-protocol-map=CLIENT:SSL", *ssl_flags)
    assert secure.security.listeners["CLIENT"].tls is not None
    assert secure.security.listeners["CONTROL"].tls is None


def test_a_listener_has_files_of_its_own_before_the_shared_ones(ssl_flags: list[str], tmp_path: Path) -> None:
    settings = broker(
        "--listener-security-protocol-map=client:ssl, CONTROL:SSL,REPLICATION:SSL",
        *ssl_flags,
        f"--listener-name-client-ssl-ca-file={tmp_path}/public.crt",
        "--listener-name-client-ssl-client-auth=none",
    )
    client, control = (settings.security.listeners[name] for name in ("CLIENT", "CONTROL"))
    assert client.tls is not None and control.tls is not None
    assert client.tls.ca == tmp_path / "public.crt" and control.tls.ca == tmp_path / "ca.crt"
    assert not client.client_auth and control.client_auth


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--listener-security-protocol-map=CLIENT:TLS"], "'CLIENT:TLS' is not NAME:PLAINTEXT or NAME:SSL"),
        (["--listener-security-protocol-map=DATA:SSL"], "names are CLIENT, EXTERNAL"),
        (["--listener-security-protocol-map=CLIENT:SSL,CLIENT:SSL"], "CLIENT is listed twice"),
        (["--listener-security-protocol-map=CONTROL:SSL"], "ssl.ca.file is required: listener CONTROL is SSL"),
        (["--super-users=admin"], "'admin' is not User:name"),
        (["--super-users=User:a,User:b"], "separated by ';'"),
        (["--zookeeper-sasl-username=paceline"], "must be set together"),
        (["--zookeeper-set-acl=true"], "needs zookeeper.sasl.username"),
        (["--zookeeper-ssl-ca-file=/ca"], "needs zookeeper.ssl.client.enable"),
        (["--ssl-keystore-location=/a.jks"], "certificates are PEM files"),
    ],
)
def test_invalid_settings_are_refused_with_a_hint(flags: list[str], expected: str) -> None:
    assert expected in refused(*flags)


def test_internal_listeners_always_require_certificates(ssl_flags: list[str]) -> None:
    said = refused("--listener-security-protocol-map=CONTROL:SSL", "--ssl-client-auth=none", *ssl_flags)
    assert "ssl.client.auth must be required on CONTROL" in said


def test_a_key_that_others_can_read_is_refused(ssl_flags: list[str], tmp_path: Path) -> None:
    (tmp_path / "node.key").chmod(0o644)
    assert "node.key is readable by other users: chmod 600" in refused(
        "--listener-security-protocol-map=CONTROL:SSL", *ssl_flags
    )


def test_a_secret_comes_from_a_private_file_and_is_never_shown(tmp_path: Path) -> None:
    path = secret_file(tmp_path / "zk", f"{PASSWORD}\n")
    settings = broker("--zookeeper-sasl-username=paceline", f"--zookeeper-sasl-password=${{file:{path}}}")
    assert settings.security.zookeeper.password == PASSWORD
    assert PASSWORD not in settings.print_config() and "(hidden)" in settings.print_config()
    assert PASSWORD not in repr(settings)
    path.chmod(0o640)
    said = refused("--zookeeper-sasl-username=paceline", f"--zookeeper-sasl-password=${{file:{path}}}")
    assert "readable by other users" in said and PASSWORD not in said


def test_an_empty_secret_in_the_environment_means_none() -> None:
    settings = broker(
        environment={"PACELINE_ZOOKEEPER_SASL_PASSWORD": "", "PACELINE_ZOOKEEPER_SASL_USERNAME": ""},
    )
    assert settings.security.zookeeper.password == ""


def test_a_secret_in_a_flag_or_the_environment_is_refused_without_repeating_it(tmp_path: Path) -> None:
    for said in (
        refused(f"--zookeeper-sasl-password={PASSWORD}"),
        refused(environment={"PACELINE_ZOOKEEPER_SASL_PASSWORD": PASSWORD}),
        refused(f"--zookeeper-sasl-password={PASSWORD}", "--zookeeper-sasl-username=a"),
    ):
        assert "use ${file:/path}" in said and PASSWORD not in said
    config = secret_file(
        tmp_path / "a.properties", f"zookeeper.sasl.username=p\nzookeeper.sasl.password={PASSWORD}\n", 0o644
    )
    said = refused(f"--config={config}")
    assert "readable by other users" in said and PASSWORD not in said
    config.chmod(0o600)
    assert broker(f"--config={config}").security.zookeeper.password == PASSWORD
