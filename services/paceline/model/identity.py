"""Identities of processes and clients: the URI in a certificate, ``spiffe://<cluster id in hex>/<role>/<name>``.

The cluster id is the trust domain. SPIFFE trust domains are lower case, so the 16 bytes of the cluster id are written
in hex there; ZooKeeper and every API keep Kafka's form, 22 characters of URL-safe base64.
"""

import base64
import binascii
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

_URI: Final = re.compile(r"spiffe://([0-9a-f]{32})/(controller|broker|gateway|client)/([A-Za-z0-9._-]{1,100})")
_NODE_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_MAX_NODE_ID: Final = 2**31 - 1
PRINCIPAL_KEY: Final = "paceline-principal"
"""gRPC metadata in which a gateway names the client that it calls for."""
ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a caller without a certificate, named as in Kafka."""


class InvalidIdentityError(ValueError):
    """A text is not a Paceline identity; the message has the reason."""


class Role(StrEnum):
    """Role of a certificate's owner."""

    CONTROLLER = "controller"
    BROKER = "broker"
    GATEWAY = "gateway"
    """A client that acts for other clients. It is no node, and never a super user."""
    CLIENT = "client"

    @property
    def is_node(self) -> bool:
        """Whether the owner is a controller or a broker, which has a number in place of a name."""
        return self in (Role.CONTROLLER, Role.BROKER)


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner of a certificate.

    Raises:
        InvalidIdentityError: the name is not valid for the role.
    """

    cluster: str
    """The trust domain: 32 hex digits."""
    role: Role
    name: str
    """A decimal id for controllers and brokers, ``[A-Za-z0-9._-]+`` for clients and gateways."""

    def __post_init__(self) -> None:
        if _URI.fullmatch(self.uri) is None:
            raise InvalidIdentityError(
                f"{self.uri!r} is not spiffe://<32 hex digits>/<role>/<name>; "
                "a name has 1 to 100 ASCII letters, digits, '.', '_' and '-'"
            )
        is_id = _NODE_ID.fullmatch(self.name) is not None and int(self.name) <= _MAX_NODE_ID
        if self.role.is_node and not is_id:
            raise InvalidIdentityError(f"{self.name!r} is not the id of a {self.role}, a number without leading zeros")

    @classmethod
    def parse(cls, uri: str) -> Self:
        """Return the identity in a URI.

        Raises:
            InvalidIdentityError: the URI is not a Paceline identity.
        """
        match = _URI.fullmatch(uri)
        if match is None:
            raise InvalidIdentityError(f"{uri!r} is not spiffe://<cluster id in hex>/<role>/<name>")
        return cls(match[1], Role(match[2]), match[3])

    @property
    def uri(self) -> str:
        """``spiffe://<cluster>/<role>/<name>``."""
        return f"spiffe://{self.cluster}/{self.role}/{self.name}"

    @property
    def node_id(self) -> int | None:
        """Id of a controller or broker, None for a client or gateway."""
        return int(self.name) if self.role.is_node else None

    @property
    def principal(self) -> str:
        """``User:<name>`` for a client, ``User:broker/1`` for another role; client names cannot contain a slash."""
        return f"User:{self.name}" if self.role is Role.CLIENT else f"User:{self.role}/{self.name}"


def trust_domain_of(cluster_id: str) -> str:
    """Return a cluster id as 32 hex digits.

    Raises:
        InvalidIdentityError: the cluster id is not the base64 of 16 bytes.
    """
    try:
        raw = base64.b64decode(cluster_id + "==", altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raw = b""
    if len(raw) != 16 or cluster_id_of(raw.hex()) != cluster_id:
        raise InvalidIdentityError(f"the cluster id {cluster_id!r} is not 22 characters of URL-safe base64")
    return raw.hex()


def cluster_id_of(trust_domain: str) -> str:
    """Return the cluster id of a trust domain, in ZooKeeper's form."""
    return base64.urlsafe_b64encode(bytes.fromhex(trust_domain)).rstrip(b"=").decode()
