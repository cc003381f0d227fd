"""Check what a broker or controller needs: settings, disks, addresses, ZooKeeper, certificates and limits.

Nothing is changed, and a running process is not disturbed; a port that is in use may belong to it.
"""

import datetime
import errno
import ipaddress
import os
import resource
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from paceline.model.identity import Role
from paceline.rpc.security.credentials import CertificateFilesError
from paceline.runtime.lifecycle import StartupError
from paceline.runtime.node_identity import certificates_in_use, open_transport_security
from paceline.runtime.settings import (
    BrokerSettings,
    LoadedSettings,
    SettingsError,
    load_broker,
    load_controller,
)

_CONNECT_S: Final = 2.0
_WANTED_FILES: Final = 16_384
_DEFAULT_MIN_FREE: Final = 1 << 30
_SOON: Final = datetime.timedelta(days=14)


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    subject: str
    verdict: str
    """``ok``, ``warning`` or ``wrong``."""
    text: str


def examine(role: str, arguments: Sequence[str], environment: Mapping[str, str]) -> list[Check]:
    """Return the results for the process that would be started with this command line and environment.

    Args:
        role: ``broker`` or ``controller``.
        arguments: its command line, such as ``--config FILE``.
        environment: its environment variables.
    """
    settings: LoadedSettings[Any]
    try:
        settings = load_broker(arguments, environment) if role == "broker" else load_controller(arguments, environment)
    except SettingsError as failure:
        return [Check("settings", "wrong", line) for line in str(failure).splitlines()]
    found = [
        Check("settings", "ok", f"{len(settings.origins)} keys are set; --print-config shows all with their origin")
    ]
    if isinstance(settings, BrokerSettings):
        limit = settings.keys.log_dir_min_free_bytes
        found += [_directory(Path(path), limit) for path in settings.log_dirs]
    in_use = set()
    for listener in settings.listeners:
        check, is_used = _listener(listener.listener, listener.host, listener.port)
        found.append(check)
        in_use |= {listener.listener} if is_used else set()
    found += [_advertised(one.listener, one.host, one.port, one.listener in in_use) for one in settings.advertised]
    found += _zookeeper(settings.zookeeper_hosts)
    found += _certificates(role, settings)
    found.append(_limits())
    return found


def _directory(path: Path, min_free_bytes: int | None) -> Check:
    subject, there = f"log directory {path}", path
    while not there.exists():
        there = there.parent
    if path.exists() and not path.is_dir():
        return Check(subject, "wrong", "it is not a directory")
    if not os.access(there, os.W_OK | os.X_OK):
        return Check(subject, "wrong", f"{there} cannot be written by user {os.geteuid()}: chown or chmod it")
    disk = shutil.disk_usage(there)
    limit = min(_DEFAULT_MIN_FREE, disk.total // 20) if min_free_bytes is None else min_free_bytes
    text = f"{disk.free / 2**30:.1f} of {disk.total / 2**30:.1f} GiB are free"
    if disk.free <= limit:
        return Check(subject, "wrong", f"{text}: below log.dir.min.free.bytes, so produce requests would be refused")
    return Check(subject, "ok" if disk.free > 2 * limit else "warning", text)


def _listener(name: str, host: str, port: int) -> tuple[Check, bool]:
    """Return whether the address can be bound, and whether it is in use."""
    subject = f"listener {name}"
    try:
        family, _, _, _, address = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(address)
    except OSError as failure:
        if failure.errno == errno.EADDRINUSE:
            text = f"{host}:{port} is in use: by this process, if it runs already"
            return Check(subject, "warning", text), True
        return Check(subject, "wrong", f"{host}:{port} cannot be bound: {failure.strerror or failure}"), False
    return Check(subject, "ok", f"{host}:{port} is free"), False


def _advertised(name: str, host: str, port: int, is_running: bool) -> Check:
    """Check the address that others are told: it must have a meaning on their machines, and lead here."""
    subject = f"advertised {name}"
    if host in ("0.0.0.0", "::", ""):
        return Check(subject, "wrong", f"{host}:{port} is no address that others could call: set advertised.listeners")
    try:
        addresses = {str(one[4][0]) for one in socket.getaddrinfo(host, port or None, type=socket.SOCK_STREAM)}
    except OSError as failure:
        return Check(subject, "wrong", f"the name {host} is not known here: {failure.strerror}")
    text = f"{host}:{port}"
    if host not in addresses:
        text += f" is {', '.join(sorted(addresses))}"
    if is_running:
        try:
            socket.create_connection((host, port), _CONNECT_S).close()
        except OSError as failure:
            return Check(subject, "wrong", f"{text}, but nothing answers there: {failure.strerror or failure}")
        return Check(subject, "ok", f"{text}, and it accepts connections")
    if all(ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in addresses):
        return Check(subject, "warning", f"{text}: only processes of this machine reach it")
    return Check(subject, "ok", text)


def _zookeeper(hosts: str) -> Iterator[Check]:
    servers = hosts.partition("/")[0].split(",")
    serving = 0
    for server in servers:
        name, _, port = server.strip().rpartition(":") if ":" in server else (server.strip(), "", "2181")
        try:
            with socket.create_connection((name.strip("[]"), int(port)), _CONNECT_S) as connection:
                connection.settimeout(_CONNECT_S)
                connection.sendall(b"srvr")
                answer = b"".join(iter(lambda: connection.recv(4_096), b"")).decode("ascii", "replace")
        except OSError as failure:
            yield Check(f"ZooKeeper {server}", "warning", f"it does not answer: {failure.strerror or failure}")
            continue
        mode = next((line.partition(": ")[2] for line in answer.splitlines() if line.startswith("Mode: ")), "")
        serving += bool(mode)
        problem = "it serves no requests: its ensemble has no quorum" if "not currently serving" in answer else ""
        problem = problem or ("" if mode else "it does not allow the command srvr (4lw.commands.whitelist)")
        yield Check(f"ZooKeeper {server}", "warning" if problem else "ok", problem or f"it serves as {mode}")
    if not serving:
        text = f"none of {len(servers)} servers serves: a majority of the ensemble must run"
        yield Check("ZooKeeper", "wrong", text)


def _certificates(role: str, settings: LoadedSettings[Any]) -> Iterator[Check]:
    try:
        security = open_transport_security(settings.security, Role(role))
        node_id = settings.keys.broker_id if role == "broker" else settings.keys.controller_id
        if node_id >= 0:
            security.check_node(Role(role), node_id)
        found = certificates_in_use(security)
    except (StartupError, CertificateFilesError) as failure:
        yield Check("certificates", "wrong", str(failure))
        return
    now = datetime.datetime.now(datetime.UTC)
    for one in found:
        end = datetime.datetime.fromtimestamp(one.not_after_ms / 1000, datetime.UTC)
        verdict = "wrong" if end <= now else "warning" if end - now < _SOON else "ok"
        yield Check(f"certificate {one.path}", verdict, f"valid until {end:%Y-%m-%d %H:%M} UTC")


def _limits() -> Check:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = "no limit" if hard == resource.RLIM_INFINITY else f"{hard:,} files"
    if hard != resource.RLIM_INFINITY and hard < _WANTED_FILES:
        return Check("open files", "warning", f"{shown}: fewer connections are accepted (ulimit -n, LimitNOFILE)")
    return Check("open files", "ok", shown)
