"""Credentials and encryption for ZooKeeper."""

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class ZooKeeperSecurity:
    """How a process proves itself to ZooKeeper, and protects what it writes there."""

    username: str = ""
    """DIGEST-MD5 user; "" for none."""
    password: str = field(default="", repr=False)
    set_acl: bool = False
    """Whether new nodes get an access list: the user all, the world read."""
    tls: bool = False
    ca_file: str | None = None
    """PEM certificates of the authorities of ZooKeeper's servers; None for the system's."""


NO_SECURITY: Final = ZooKeeperSecurity()
SECRET_ROOTS: Final = ("/config/users", "/kafka-acl", "/kafka-acl-extended", "/delegation_token")
"""Nodes here and below are read by the user alone, as Kafka has it for its users and access lists."""
