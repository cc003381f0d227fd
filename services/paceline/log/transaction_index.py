"""The transaction index of a segment: one 34-byte row per aborted transaction.

Source: docs/protocol/log-format.md#transaction-index.
"""

import struct

from paceline.log.files import Files, read_all
from paceline.log.producer_state import AbortedTransaction

_ROW = struct.Struct(">hqqqq")
_VERSION = 0


def encode_row(aborted: AbortedTransaction) -> bytes:
    """Return one row."""
    return _ROW.pack(_VERSION, *aborted)


def read_rows(files: Files, path: str) -> list[AbortedTransaction]:
    """Return the rows of a file in order; nothing when it is missing. A partial or foreign row ends the reading.

    Raises:
        OSError: storage failed.
    """
    if not files.exists(path):
        return []
    data = read_all(files, path)
    rows = []
    for version, *fields in _ROW.iter_unpack(data[: len(data) // _ROW.size * _ROW.size]):
        if version != _VERSION:
            break
        rows.append(AbortedTransaction(*fields))
    return rows


def append_row(files: Files, path: str, aborted: AbortedTransaction) -> None:
    """Add a row, creating the file.

    Raises:
        OSError: storage failed.
    """
    files.append(path, encode_row(aborted))


def truncate_rows(files: Files, path: str, offset: int) -> None:
    """Drop the rows of transactions that ended at or beyond ``offset``.

    Raises:
        OSError: storage failed.
    """
    rows = read_rows(files, path)
    kept = sum(1 for row in rows if row.last_offset < offset)
    if kept < len(rows):
        files.truncate(path, kept * _ROW.size)
