"""C allocator settings for a process with many large buffers.

glibc allocates buffers of at least 128 KiB as separate pages and returns them when they are freed, so that every
request and response causes hundreds of page faults: a tenth of a broker's time, and more on some hypervisors. When they
are kept in the heap, freed buffers are reused.
"""

import ctypes
import logging
from typing import Final

LOG = logging.getLogger("paceline.runtime.memory")

LARGEST_KEPT_BYTES: Final = 32 * 1024 * 1024
"""Larger buffers are still returned; 32 MiB is glibc's own limit."""
KEPT_FREE_BYTES: Final = 128 * 1024 * 1024
"""Free memory to keep at the end of a heap; more is returned to the system."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_large_buffers() -> bool:
    """Make the C allocator reuse large buffers; return False when it has no such settings (it is not glibc)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    kept = bool(mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES))
    LOG.debug("allocator configured: keeps_large_buffers=%s", kept)
    return kept
