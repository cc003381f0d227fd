"""Credentials and encryption for ZooKeeper."""

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class ZooKeeperSecurity:
    """How a process authenticates to ZooKeeper and protects its nodes."""

    username: str = ""
    """DIGEST-MD5 user; "" for no authentication."""
    password: str = field(default="", repr=False)
    set_acl: bool = False
    """Whether new nodes get an ACL: all rights for the user, read for everyone."""
    tls: bool = False
    ca_file: str | None = None
    """PEM certificates of the authorities of ZooKeeper's servers; None for the system's authorities."""


NO_SECURITY: Final = ZooKeeperSecurity()
SECRET_ROOTS: Final = ("/config/users", "/kafka-acl", "/kafka-acl-extended", "/delegation_token")
"""Only the user may read these nodes and their descendants, as in Kafka for its users and ACLs."""
