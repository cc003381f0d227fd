"""Settings of transport security and of ZooKeeper credentials.

``listener.security.protocol.map=CLIENT:PLAINTEXT,EXTERNAL:SSL,REPLICATION:SSL,CONTROL:SSL`` sets the protocol of each
listener. Each ``ssl.*`` key can also be set for a single listener: ``listener.name.external.ssl.ca.file``.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, SecretStr
from pydantic_settings import BaseSettings

from paceline.coordination.credentials import ZooKeeperSecurity
from paceline.model.control import Endpoint
from paceline.model.tls import ListenerSecurity, TlsFiles
from paceline.rpc.security.private_files import private_file_problem
from paceline.runtime.settings.fields import OptionalText, blank_is_none, key, key_name

HIDDEN: Final = "(hidden)"
"""Printed instead of a secret."""
LISTENERS: Final = ("CLIENT", "EXTERNAL", "REPLICATION", "CONTROL")
INTERNAL_LISTENERS: Final = ("REPLICATION", "CONTROL")
_SSL_KEYS: Final = ("ssl_certificate_file", "ssl_key_file", "ssl_ca_file", "ssl_client_auth")
_FILE: Final = re.compile(r"\$\{file:(.+)\}")
_ClientAuth = Literal["required", "none"]
_OptionalSecret = Annotated[SecretStr | None, BeforeValidator(blank_is_none)]
_OptionalClientAuth = Annotated[_ClientAuth | None, BeforeValidator(blank_is_none)]


def _alone(listener: str) -> Any:
    return key(None, "", f"for {listener} only; default: the key without listener.name")


class SecurityKeys(BaseSettings):
    """Security keys of brokers and controllers."""

    listener_security_protocol_map: OptionalText = key(
        None, "", "CLIENT:PLAINTEXT,CONTROL:SSL,...; listeners without an entry are PLAINTEXT"
    )
    ssl_certificate_file: OptionalText = key(None, "", "PEM certificate of this process, followed by its chain")
    ssl_key_file: OptionalText = key(None, "", "PEM private key, readable by its owner only")
    ssl_ca_file: OptionalText = key(None, "", "PEM certificates of the trusted authorities")
    ssl_client_auth: _ClientAuth = key("required", "", "whether callers must present a certificate")
    listener_name_client_ssl_certificate_file: OptionalText = _alone("CLIENT")
    listener_name_client_ssl_key_file: OptionalText = _alone("CLIENT")
    listener_name_client_ssl_ca_file: OptionalText = _alone("CLIENT")
    listener_name_client_ssl_client_auth: _OptionalClientAuth = _alone("CLIENT")
    listener_name_external_ssl_certificate_file: OptionalText = _alone("EXTERNAL")
    listener_name_external_ssl_key_file: OptionalText = _alone("EXTERNAL")
    listener_name_external_ssl_ca_file: OptionalText = _alone("EXTERNAL")
    listener_name_external_ssl_client_auth: _OptionalClientAuth = _alone("EXTERNAL")
    listener_name_replication_ssl_certificate_file: OptionalText = _alone("REPLICATION")
    listener_name_replication_ssl_key_file: OptionalText = _alone("REPLICATION")
    listener_name_replication_ssl_ca_file: OptionalText = _alone("REPLICATION")
    listener_name_replication_ssl_client_auth: _OptionalClientAuth = _alone("REPLICATION")
    listener_name_control_ssl_certificate_file: OptionalText = _alone("CONTROL")
    listener_name_control_ssl_key_file: OptionalText = _alone("CONTROL")
    listener_name_control_ssl_ca_file: OptionalText = _alone("CONTROL")
    listener_name_control_ssl_client_auth: _OptionalClientAuth = _alone("CONTROL")
    allow_insecure: bool = key(False, "", "allow PLAINTEXT listeners on addresses reachable from other machines")
    super_users: OptionalText = key(None, "", "User:name;User:name; they may do everything")
    authorizer_mode: Literal["auto", "off", "log", "enforce"] = key(
        "auto",
        "",
        "whether access lists are ignored, only decide which refusals the audit log would have, or are obeyed; auto is "
        "log with TLS on a listener of clients, else off",
    )
    allow_everyone_if_no_acl_found: bool = key(False, "", "allow everybody what no access rule is about")
    audit_log_path: OptionalText = key(None, "", "file of the audit log; default: the service's log")
    zookeeper_sasl_username: OptionalText = key(None, "", "DIGEST-MD5 user of all controllers and brokers")
    zookeeper_sasl_password: _OptionalSecret = key(None, "", "${file:/path} with its password", secret=True)
    zookeeper_set_acl: bool = key(False, "", "set ACLs on new znodes: that user all, world read")
    zookeeper_ssl_client_enable: bool = key(False, "", "use TLS with ZooKeeper")
    zookeeper_ssl_ca_file: OptionalText = key(None, "", "PEM certificates of the authorities of ZooKeeper's servers")


SECRETS: Final = frozenset(
    key_name(field)
    for field, info in SecurityKeys.model_fields.items()
    if isinstance(info.json_schema_extra, dict) and info.json_schema_extra["secret"]
)
"""Keys whose values are never shown."""


@dataclass(frozen=True, slots=True)
class Security:
    """The validated security settings of a process."""

    listeners: Mapping[str, ListenerSecurity]
    super_users: frozenset[str]
    zookeeper: ZooKeeperSecurity
    authorizer_mode: str = "off"
    """``off``, ``log`` or ``enforce``."""
    allow_everyone_if_no_acl_found: bool = False


def security_of(keys: SecurityKeys, endpoints: Sequence[Endpoint], problems: list[str]) -> Security:
    """Return the security of a process with these listeners; adds errors to ``problems``."""
    protocols = _protocols(keys.listener_security_protocol_map or "", problems)
    listeners = {}
    for endpoint in endpoints:
        name = endpoint.listener
        if protocols.get(name, "PLAINTEXT") == "SSL":
            listeners[name] = _ssl_listener(keys, name, problems)
        else:
            listeners[name] = ListenerSecurity(name)
            if not keys.allow_insecure and not is_loopback(endpoint.host):
                problems.append(
                    f"listeners: {name} is PLAINTEXT on {endpoint.host}, which other machines can reach: set "
                    f"listener.security.protocol.map={name}:SSL, or allow.insecure=true to accept connections from them"
                )
    return Security(
        listeners,
        _super_users(keys.super_users or "", problems),
        _zookeeper(keys, problems),
        _authorizer_mode(keys.authorizer_mode, listeners),
        keys.allow_everyone_if_no_acl_found,
    )


def _authorizer_mode(mode: str, listeners: Mapping[str, ListenerSecurity]) -> str:
    if mode != "auto":
        return mode
    has_identities = any(one.tls is not None and name not in INTERNAL_LISTENERS for name, one in listeners.items())
    return "log" if has_identities else "off"


def resolve_secret(setting_key: str, text: str, origin: str, file: Path | None) -> str:
    """Return the value of a secret: the content of ``${file:/path}``, or the text of a settings file.

    Args:
        setting_key: the key.
        text: its value as written.
        origin: source of the value.
        file: the settings file, if it is the source.

    Raises:
        ValueError: the secret is in a flag or the environment, or its file is unreadable or open to other users; the
            message does not contain the secret.
    """
    if not text.strip():
        return ""
    match = _FILE.fullmatch(text.strip())
    if match is not None:
        path = Path(match[1])
        problem = private_file_problem(path)
        if problem:
            raise ValueError(f"{origin}: {setting_key}: {problem}")
        return path.read_text(encoding="utf-8").strip()
    if file is None:
        raise ValueError(
            f"{origin}: {setting_key} is a secret and must not be in flags or environment: use ${{file:/path}}"
        )
    problem = private_file_problem(file)
    if problem:
        raise ValueError(f"{origin}: {setting_key} is a secret: {problem}, or use ${{file:/path}}")
    return text


def _protocols(text: str, problems: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in (part.strip() for part in text.split(",") if part.strip()):
        name, colon, protocol = (word.strip().upper() for word in part.partition(":"))
        if not colon or name not in LISTENERS or protocol not in ("PLAINTEXT", "SSL"):
            problems.append(
                f"listener.security.protocol.map: {part!r} is not NAME:PLAINTEXT or NAME:SSL; "
                f"names are {', '.join(LISTENERS)}"
            )
        elif name in found:
            problems.append(f"listener.security.protocol.map: {name} is listed twice")
        found[name] = protocol
    return found


def _ssl_listener(keys: SecurityKeys, name: str, problems: list[str]) -> ListenerSecurity:
    values: dict[str, Any] = {}
    for suffix in _SSL_KEYS:
        values[suffix] = getattr(keys, f"listener_name_{name.lower()}_{suffix}") or getattr(keys, suffix)
    problems.extend(
        f"{key_name(suffix)} is required: listener {name} is SSL" for suffix in _SSL_KEYS[:3] if not values[suffix]
    )
    if values["ssl_client_auth"] == "none" and name in INTERNAL_LISTENERS:
        problems.append(f"ssl.client.auth must be required on {name}, which identifies callers by certificate")
    tls = TlsFiles(*(Path(values[suffix] or "") for suffix in ("ssl_ca_file", "ssl_certificate_file", "ssl_key_file")))
    if values["ssl_key_file"] and tls.key is not None:
        problem = private_file_problem(tls.key)
        if problem:
            problems.append(f"ssl.key.file: {problem}")
    return ListenerSecurity(name, tls, values["ssl_client_auth"] == "required")


def _super_users(text: str, problems: list[str]) -> frozenset[str]:
    names = [part.strip() for part in text.split(";") if part.strip()]
    problems.extend(
        f"super.users: {name!r} is not User:name; several are separated by ';'"
        for name in names
        if not name.startswith("User:") or not name[5:] or "," in name
    )
    return frozenset(names)


def _zookeeper(keys: SecurityKeys, problems: list[str]) -> ZooKeeperSecurity:
    username, secret = keys.zookeeper_sasl_username or "", keys.zookeeper_sasl_password
    password = secret.get_secret_value() if secret is not None else ""
    if bool(username) != bool(password):
        problems.append("zookeeper.sasl.username and zookeeper.sasl.password must be set together")
    if keys.zookeeper_set_acl and not username:
        problems.append("zookeeper.set.acl needs zookeeper.sasl.username for the ACL")
    if keys.zookeeper_ssl_ca_file and not keys.zookeeper_ssl_client_enable:
        problems.append("zookeeper.ssl.ca.file needs zookeeper.ssl.client.enable=true")
    return ZooKeeperSecurity(
        username, password, keys.zookeeper_set_acl, keys.zookeeper_ssl_client_enable, keys.zookeeper_ssl_ca_file
    )


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine can connect to a listener on this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
