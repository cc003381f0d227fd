"""Certificate files of a job as options of the data source."""

from typing import Final

from paceline.model.tls import TlsFiles

_OPTIONS: Final = ("paceline.ssl.ca.file", "paceline.ssl.certificate.file", "paceline.ssl.key.file")


def ssl_options(tls: TlsFiles | None) -> dict[str, str]:
    """Return the options of the data source that name these files."""
    if tls is None:
        return {}
    files = (tls.ca, tls.certificate, tls.key)
    return {name: str(file) for name, file in zip(_OPTIONS, files, strict=True) if file is not None}
