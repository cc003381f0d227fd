"""Large buffers are reused: allocating and freeing one again and again costs no page faults."""

import platform
import subprocess
import sys
import textwrap

import pytest

_FAULTS = textwrap.dedent(
    """
    import resource
    from paceline.runtime.memory import keep_large_buffers
    if {keep}:
        keep_large_buffers()
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
