"""Let glibc keep the memory of large messages: docs/decisions/0008 (brokers) and 0021 (readers).

By default glibc returns the memory of each large request and response to the system and takes it again for the next
one, a page fault for every 4 KiB: a tenth of a broker's time, and more on some hypervisors.
"""

import contextlib
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
"""Larger buffers are still unmapped when freed; 32 MiB is the largest threshold that every glibc accepts."""


@functools.cache
def keep_freed_memory(kept_mib: int = 256) -> bool:
    """Tell glibc, once per process, to keep this much freed memory at the end of a heap; return whether it does.

    Does nothing with another C library, when the environment has settings for glibc's allocator, or when
    ``PACELINE_KEEP_FREED_MEMORY`` is 0.
    """
    if os.environ.get(KEEP_FREED_MEMORY) == "0" or any(name in os.environ for name in _OWN_SETTINGS):
        return False
    try:
        libc = ctypes.CDLL(None)
        mallopt, _ = libc.mallopt, libc.gnu_get_libc_version
    except (AttributeError, OSError, TypeError):  # no glibc; on Windows a library needs a name
        return False
    # Either setting alone makes reading slower.
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES) and mallopt(_M_TRIM_THRESHOLD, kept_mib << 20))


def give_back_free_memory() -> None:
    """Return free pages in the middle of the heap to the system; takes 1 to 15 ms. Do nothing without glibc.

    A single buffer that is still used keeps all free memory before it, for example of the members of large groups.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
