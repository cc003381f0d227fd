"""The transaction index of a segment: one 34-byte row per aborted transaction.

Source: docs/protocol/log-format.md#transaction-index.
"""

import struct
from typing import Final

from paceline.log.files import Files, read_all
from paceline.log.producer_state import AbortedTransaction

_ROW = struct.Struct(">hqqqq")
ROW_BYTES: Final = _ROW.size
_VERSION = 0


def read_rows(files: Files, path: str) -> list[AbortedTransaction]:
    """Return the rows of a file in order, an empty list when it is missing.

    Reading stops before an incomplete row or a row of another version.

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
    """Append a row; create the file when it is missing.

    Raises:
        OSError: storage failed.
    """
    files.append(path, _ROW.pack(_VERSION, *aborted))


def truncate_rows(files: Files, path: str, offset: int) -> None:
    """Remove the rows of transactions that ended at or above ``offset``.

    Raises:
        OSError: storage failed.
    """
    rows = read_rows(files, path)
    kept = sum(1 for row in rows if row.last_offset < offset)
    if kept < len(rows):
        files.truncate(path, kept * _ROW.size)
