"""Transport security of a listener, as the settings give it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

CA_FILE: Final = "PACELINE_SSL_CA_FILE"
CERTIFICATE_FILE: Final = "PACELINE_SSL_CERTIFICATE_FILE"
KEY_FILE: Final = "PACELINE_SSL_KEY_FILE"
"""Variables that name a client's certificate files."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for one end of a connection; they may be replaced while the process runs."""

    ca: Path
    """Authorities whose certificates the other end may present."""
    certificate: Path | None = None
    """Our own certificate, None for a client that shows none."""
    key: Path | None = None
    """Its private key."""


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """Protocol of one listener."""

    listener: str
    tls: TlsFiles | None = None
    """None for PLAINTEXT."""
    client_auth: bool = True
    """Whether callers must present a certificate."""
