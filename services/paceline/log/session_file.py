"""Store, in each log directory, the ZooKeeper sessions of the processes that used it.

A process that holds the locks of its log directories knows that every earlier process with the same locks is dead, and
that the registrations of its sessions are left over. The proof has three conditions: the kernel has not restarted, the
lock files are the same files, and this process holds all locks that the earlier process held. A copied or restored
directory has other lock files; a directory that was moved to another machine has another boot id.

Source: docs/decisions/0018-restarted-brokers.md.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from paceline.log.checkpoint import DamagedFileError

SESSION_FILE: Final = ".zookeeper_sessions"
MAX_SESSIONS: Final = 16
"""Maximum number of sessions in the file; sessions of the last few restarts may not have expired yet."""


@dataclass(frozen=True, slots=True)
class SessionFile:
    """The content of the session file of one log directory."""

    boot_id: str
    locks: tuple[str, ...]
    """Identities of all lock files that the writing process held."""
    sessions: tuple[int, ...]
    """Oldest first."""

    def proves_death(self, boot_id: str, held_locks: Collection[str]) -> bool:
        """Whether the processes of these sessions are dead, given this process's boot id and locks."""
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
    """Return the content of the session file at ``path``.

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
