"""Large buffers are reused: allocating and freeing one again and again costs no page faults."""

import platform
import subprocess
import sys
import textwrap

import pytest

_FAULTS = textwrap.dedent(
    """
    import resource
    from paceline.rpc.memory import keep_freed_memory
    if {keep}:
        keep_freed_memory()
    kept = [bytearray(300_000)]
    bytearray(1 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        # Two at a time: glibc by itself learns to keep the first freed size, not what grows beyond it.
        first, second = bytearray(1 << 20), bytearray(1 << 20)
        del first, second
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    """
)


def _faults(keep: bool) -> int:
    code = _FAULTS.format(keep=keep)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_large_buffers_are_reused_without_page_faults() -> None:
    assert _faults(keep=True) < 1_000 < _faults(keep=False)


_RESIDENT = textwrap.dedent(
    """
    import re
    from paceline.rpc.memory import give_back_free_memory, keep_freed_memory
    keep_freed_memory()
    def resident_mib():
        return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024
    held = [bytes(65_000) for _ in range(1_600)]
    last = held.pop()
    held.clear()
    print(resident_mib())
    give_back_free_memory()
    print(resident_mib())
    """
)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_free_memory_before_a_used_buffer_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", _RESIDENT], capture_output=True, text=True, timeout=60, check=True)
    before, after = map(int, done.stdout.split())
    assert before - after > 60, "100 MiB were freed"
