"""Znodes of revoked certificates, which Kafka does not have; docs/protocol/zookeeper.md#revoked-certificates."""

from typing import Final

from paceline.coordination.znodes.json_codec import MAX_INT64, decode_object, encode_json
from paceline.model.revoked_certificate import RevokedCertificate

__all__ = ["REVOKED_CERTIFICATES", "decode_revoked_certificate", "encode_revoked_certificate"]

REVOKED_CERTIFICATES: Final = "/revoked_certificates"
"""Parent of a node for each certificate, which its serial number names."""
_VERSION: Final = 1


def encode_revoked_certificate(certificate: RevokedCertificate) -> bytes:
    """Return the JSON of a revoked certificate."""
    value = {"version": _VERSION, "principal": certificate.principal, "timestamp": str(certificate.revoked_at_ms)}
    return encode_json(value)  # type: ignore[arg-type]


def decode_revoked_certificate(path: str, data: bytes | None) -> tuple[str, int]:
    """Return principal and time of a revoked certificate.

    Raises:
        MalformedZnodeError: not this JSON.
    """
    found = decode_object(path, data)
    found.version(_VERSION)
    return found.string("principal"), found.decimal("timestamp", 0, MAX_INT64)
