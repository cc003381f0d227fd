"""Let glibc keep freed memory in processes that read: docs/decisions/0021."""

import ctypes
import functools
import os
from typing import Final

KEEP_FREED_MEMORY: Final = "PACELINE_KEEP_FREED_MEMORY"
"""Environment variable; 0 leaves the settings of the allocator alone."""
_OWN_SETTINGS: Final = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_MMAP_THRESHOLD_BYTES: Final = 32 * 1024 * 1024
"""Above the size of a response."""
_TRIM_THRESHOLD_BYTES: Final = 256 * 1024 * 1024


@functools.cache
def keep_freed_memory() -> bool:
    """Tell glibc, once per process, to keep up to 256 MiB of freed memory; return whether it does.

    By default glibc returns the memory of each large response to the system and takes it again for the next response,
    a page fault for every 4 KiB. Does nothing with another C library, when the environment has settings for glibc's
    allocator, or when ``PACELINE_KEEP_FREED_MEMORY`` is 0.
    """
    if os.environ.get(KEEP_FREED_MEMORY) == "0" or any(name in os.environ for name in _OWN_SETTINGS):
        return False
    try:
        libc = ctypes.CDLL(None)
        mallopt, _ = libc.mallopt, libc.gnu_get_libc_version
    except (AttributeError, OSError, TypeError):  # no glibc; on Windows a library needs a name
        return False
    # Either setting alone makes reading slower.
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES) and mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES))
