"""Check that no other user can read a secret."""

import os
import stat
from pathlib import Path


def private_file_problem(path: Path) -> str:
    """Return the reason why a file cannot be used for a secret, or "" if it can be used.

    Only the owner may read the file. If root owns it and the process is not root, its group may read it too: Kubernetes
    mounts secrets in this way.
    """
    try:
        status = path.stat()
        with path.open("rb"):
            pass
    except OSError as failure:
        return f"{path} cannot be read ({failure.strerror})"
    open_bits = stat.S_IMODE(status.st_mode) & (0o037 if status.st_uid == 0 and os.geteuid() != 0 else 0o077)
    return f"{path} is readable by other users: chmod 600 {path}" if open_bits else ""
