"""Certificate files of a client or server, and the security protocol of a listener."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

CA_FILE: Final = "PACELINE_SSL_CA_FILE"
CERTIFICATE_FILE: Final = "PACELINE_SSL_CERTIFICATE_FILE"
KEY_FILE: Final = "PACELINE_SSL_KEY_FILE"
"""Environment variables with a client's certificate files."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a client or server; the files may be replaced while the process runs."""

    ca: Path
    """Authorities trusted to sign the peer's certificate."""
    certificate: Path | None = None
    """The owner's certificate; None for a client without a certificate."""
    key: Path | None = None
    """Private key of the certificate."""


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """Security protocol of a listener: SSL with its files, or PLAINTEXT."""

    listener: str
    tls: TlsFiles | None = None
    """None for PLAINTEXT."""
    client_auth: bool = True
    """Whether callers must present a certificate."""
