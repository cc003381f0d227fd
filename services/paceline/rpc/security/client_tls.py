"""Certificates of clients, from arguments or from environment variables.

``PACELINE_SSL_CA_FILE``, ``PACELINE_SSL_CERTIFICATE_FILE`` and ``PACELINE_SSL_KEY_FILE`` are printed by
``paceline certs client`` and ``paceline dev up --secure``.
"""

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from paceline.model.errors import InvalidRequestError
from paceline.model.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE, TlsFiles
from paceline.rpc.security.credentials import CertificateFilesError, TlsCredentials
from paceline.rpc.security.private_files import private_file_problem

FILE_VARIABLES: Final = (CA_FILE, CERTIFICATE_FILE, KEY_FILE)
"""Environment variables of the files, in the order of the fields of `TlsFiles`."""

_lock = threading.Lock()
_credentials: dict[TlsFiles, TlsCredentials] = {}


def tls_files(ca_file: str, certificate_file: str = "", key_file: str = "") -> TlsFiles | None:
    """Return the files of a client, None for plaintext if all names are empty.

    Raises:
        InvalidRequestError: the CA file is missing, or only one of certificate and key is given.
    """
    if not (ca_file or certificate_file or key_file):
        return None
    if not ca_file or bool(certificate_file) != bool(key_file):
        raise InvalidRequestError(
            "TLS needs the CA file, and certificate and key together "
            f"({CA_FILE}, {CERTIFICATE_FILE}, {KEY_FILE}, or the arguments of those names)"
        )
    return TlsFiles(
        Path(ca_file),
        Path(certificate_file) if certificate_file else None,
        Path(key_file) if key_file else None,
    )


def files_in_environment(environment: Mapping[str, str] = os.environ) -> TlsFiles | None:
    """Return the files that the three environment variables name, None for plaintext if all are unset.

    Raises:
        InvalidRequestError: the CA file is missing, or only one of certificate and key is given.
    """
    return tls_files(*(environment.get(name, "") for name in FILE_VARIABLES))


def client_credentials(files: TlsFiles | None, environment: Mapping[str, str] = os.environ) -> TlsCredentials | None:
    """Return credentials for ``files``, or for the files that the environment names; None for plaintext.

    Raises:
        InvalidRequestError: a file is missing or cannot be used, or other users can read the key.
    """
    found = files or files_in_environment(environment)
    if found is None:
        return None
    with _lock:
        if found not in _credentials:
            problem = private_file_problem(found.key) if found.key is not None else ""
            if problem:
                raise InvalidRequestError(problem)
            try:
                _credentials[found] = TlsCredentials(found)
            except CertificateFilesError as failure:
                raise InvalidRequestError(str(failure)) from None
        return _credentials[found]
