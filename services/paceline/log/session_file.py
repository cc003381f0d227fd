"""Remember, in each log directory, the ZooKeeper sessions of the processes that used it.

A process that holds the locks of a directory set knows that every earlier process with the same locks is dead, and so
that the registrations of their sessions are left over. Proof takes three things: the kernel has not started again
since, the lock files are the very same files, and all locks that the earlier process held are held now. A copied or
restored directory has other lock files; a directory that moved to another machine has another boot id.

Source: docs/decisions/0018-restarted-brokers.md.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from paceline.log.checkpoint import DamagedFileError

SESSION_FILE: Final = ".zookeeper_sessions"
MAX_SESSIONS: Final = 16
"""Sessions that are kept. Those of earlier processes count until they time out, a few restarts later."""


@dataclass(frozen=True, slots=True)
class SessionFile:
    """The content of one file."""

    boot_id: str
    locks: tuple[str, ...]
    """Identities of all lock files that the process held."""
    sessions: tuple[int, ...]
    """Oldest first."""

    def proves_death(self, boot_id: str, held_locks: Collection[str]) -> bool:
        """Whether the processes that wrote this are dead, given the locks that this process holds."""
        return bool(boot_id) and self.boot_id == boot_id and bool(self.locks) and set(self.locks) <= set(held_locks)

    def encode(self) -> bytes:
        """Return the content of the file."""
        content = {
            "version": 1,
            "boot_id": self.boot_id,
            "locks": list(self.locks),
            "sessions": [f"{session:x}" for session in self.sessions[-MAX_SESSIONS:]],
        }
        return json.dumps(content).encode()


def decode_session_file(path: str, data: bytes) -> SessionFile:
    """Return the content of a file.

    Raises:
        DamagedFileError: the format differs from that of `SessionFile.encode`.
    """
    try:
        content = json.loads(data)
        if content["version"] != 1:
            raise DamagedFileError(f"{path}: version {content['version']} is not known")
        return SessionFile(
            str(content["boot_id"]),
            tuple(str(lock) for lock in content["locks"]),
            tuple(int(session, 16) for session in content["sessions"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"{path} is not a list of sessions: {error}") from None
