"""Store the damage that a load found in a log, in a file of the log's directory.

A later load may not find the damage again: the list that shows a missing segment is compared once, a truncated log ends
with an intact batch, and a gap may count as damage only after a loss of power. The file is removed with the directory
when the log is set aside or deleted, and when a truncated log follows a leader.

Source: docs/protocol/log-format.md#damaged-logs.
"""

from typing import Final

from paceline.log.checkpoint import LEADER_EPOCH_CHECKPOINT
from paceline.log.files import Files, join, read_all, write_atomically

DAMAGE_FILE: Final = "known-damage"
TRUNCATED: Final = "cut"
"""The log ends earlier than at its last clean stop."""
GAP: Final = "gap"
"""A segment is missing, or a gap may hide lost records."""
NO_TOPIC_ID: Final = "no topic id"
"""The topic id was lost, so the records may belong to another topic."""
_VERSION: Final = "version: 0"


def read_known_damage(files: Files, path: str) -> dict[str, str]:
    """Return the description of each kind of damage in the file of the log at ``path``.

    A file that does not parse counts as a gap: the log is then rebuilt from its leader.

    Raises:
        OSError: storage failed.
    """
    file = join(path, DAMAGE_FILE)
    if not files.exists(file):
        return {}
    version, *lines = read_all(files, file).decode("utf-8", "replace").splitlines() or [""]
    found = {kind: reason for kind, separator, reason in (line.partition(": ") for line in lines) if separator}
    if version != _VERSION or not found or not found.keys() <= {TRUNCATED, GAP, NO_TOPIC_ID}:
        return {GAP: f"{file} cannot be read"}
    return found


def write_known_damage(files: Files, path: str, found: dict[str, str]) -> None:
    """Write the file durably.

    Raises:
        OSError: storage failed.
    """
    lines = [_VERSION, *(f"{kind}: {' '.join(reason.split())}" for kind, reason in found.items())]
    write_atomically(files, join(path, DAMAGE_FILE), "".join(f"{line}\n" for line in lines).encode())


def mark_damage_without_room(files: Files, path: str) -> bool:
    """Leave a file that does not parse, without writing a byte; return False if the log has no file for this.

    The epoch file may be renamed for it. The caller writes the epochs again later; until then a load takes them from
    the batches.

    Raises:
        OSError: storage failed.
    """
    file = join(path, DAMAGE_FILE)
    spare = next(filter(files.exists, (file, f"{file}.tmp", join(path, LEADER_EPOCH_CHECKPOINT))), None)
    if spare is None:
        return False
    if spare != file:
        files.rename(spare, file)
    files.truncate(file, 0)
    files.sync(file)
    files.sync_directory(path)
    return True
