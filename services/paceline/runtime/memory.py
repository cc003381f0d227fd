"""The C allocator's settings for a process that moves megabyte buffers all day.

glibc gives buffers from 128 KiB on pages of their own and gives them back as soon as they are free, so every request
and every answer paid for hundreds of page faults: a tenth of a broker's time, and more where a hypervisor has to back
the pages again. Kept in the heap, a freed buffer is the next one.
"""

import ctypes
import logging
from typing import Final

LOG = logging.getLogger("paceline.runtime.memory")

LARGEST_KEPT_BYTES: Final = 32 * 1024 * 1024
"""Buffers above this size still come and go by themselves; 32 MiB is glibc's own limit."""
KEPT_FREE_BYTES: Final = 128 * 1024 * 1024
"""Free memory at the end of a heap that is kept; beyond it goes back to the system."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_large_buffers() -> bool:
    """Have the C allocator reuse large buffers; return False where it has no such settings (it is not glibc)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    kept = bool(mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES))
    LOG.debug("large buffers are kept: %s", kept)
    return kept
