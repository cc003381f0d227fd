"""Certificate files of a job: resolved once on the driver, because the environment of workers may name none."""

from typing import Final

from paceline.model.tls import TlsFiles
from paceline.rpc.security.client_tls import files_in_environment

_OPTIONS: Final = ("paceline.ssl.ca.file", "paceline.ssl.certificate.file", "paceline.ssl.key.file")


def driver_tls(given: TlsFiles | None) -> TlsFiles | None:
    """Return the given files, otherwise the files that the driver's environment names; None for plaintext.

    Raises:
        InvalidRequestError: the environment names only some of the files that belong together.
    """
    return given or files_in_environment()


def ssl_options(tls: TlsFiles | None) -> dict[str, str]:
    """Return the options of the data source that name these files."""
    if tls is None:
        return {}
    files = (tls.ca, tls.certificate, tls.key)
    return {name: str(file) for name, file in zip(_OPTIONS, files, strict=True) if file is not None}
