"""Configure the C allocator for a process with many large buffers.

glibc starts with a threshold of 128 KiB, above which each buffer is a separate mapping, and raises it only when such a
buffer is freed; it also returns free memory at the top of the heap to the system. Requests and responses then cause
hundreds of page faults each: a tenth of a broker's time, and more on some hypervisors. With fixed, large thresholds
the heap keeps and reuses the memory.
"""

import contextlib
import ctypes
import logging
from typing import Final

LOG = logging.getLogger("paceline.runtime.memory")

LARGEST_KEPT_BYTES: Final = 32 * 1024 * 1024
"""Larger buffers are still unmapped when freed; 32 MiB is the largest threshold that glibc accepts."""
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


def give_back_free_memory() -> None:
    """Return free pages in the middle of the heap to the system; takes 1 to 15 ms. Do nothing without glibc.

    A single buffer that is still used keeps all free memory before it, for example of the members of large groups.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
