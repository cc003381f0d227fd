"""``zookeeper.connect``: ``host:port,host:port/chroot``, with the chroot once, at the end.

A mistake in this setting makes the ZooKeeper client raise an obscure error, or wait forever without a message, because
every path below an invalid chroot is invalid. So the setting is checked before the client is created.
"""

import re

_SERVER = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^:/\s\[\]@?#]+)(?::(\d{1,5}))?")
_NOT_IN_A_NAME = re.compile("[,\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


def zookeeper_problems(connect: str) -> list[str]:
    """Return the errors in the setting, one line each."""
    servers, _, chroot = connect.partition("/")
    problems = []
    for server in servers.split(","):
        match = _SERVER.fullmatch(server.strip())
        if match is None or not 0 < int(match[1] or 2181) <= 65_535:
            problems.append(f"zookeeper.connect: {server.strip()!r} is not host:port (in {connect!r})")
    names = chroot.strip("/").split("/") if chroot.strip("/") else []
    if any(name in ("", ".", "..") or _NOT_IN_A_NAME.search(name) for name in names):
        problems.append(
            f"zookeeper.connect: {'/' + chroot!r} is not a ZooKeeper path; write the chroot once, after the last server"
        )
    return problems
