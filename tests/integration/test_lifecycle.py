"""How a process ends: signals, the parent's death, a stop that hangs."""

import os
import resource
import select
import signal
import subprocess
import sys
import textwrap

import pytest

from paceline.runtime.lifecycle import ExitCode, descriptor_shares, raise_open_file_limit

TIMEOUT_S = 120


def run(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


LOOP = """
    import asyncio
    from paceline.runtime.lifecycle import on_stop_signals
    async def main():
        stopped = asyncio.get_running_loop().create_future()
        on_stop_signals(asyncio.get_running_loop(), lambda name: stopped.set_result(name))
        print("up", flush=True)
        print(await stopped, flush=True)
        await asyncio.sleep(WAIT)
    asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_starts_an_orderly_stop(number: signal.Signals) -> None:
    process = run(LOOP.replace("WAIT", "0"))
    assert line_of(process) == "up"
    process.send_signal(number)
    assert line_of(process) == number.name
    assert process.wait(TIMEOUT_S) == 0


def test_the_second_signal_ends_the_process_at_once() -> None:
    process = run(LOOP.replace("WAIT", "3600"))
    assert line_of(process) == "up"
    process.send_signal(signal.SIGTERM)
    assert line_of(process) == "SIGTERM"
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT_S) == 128 + signal.SIGINT


def test_a_stop_that_hangs_is_ended_even_when_the_main_thread_is_stuck() -> None:
    process = run(
        """
        import time
        from paceline.runtime.lifecycle import exit_now_after
        exit_now_after(0.2, lambda: print("too long", flush=True))
        time.sleep(3600)
        """
    )
    assert process.wait(TIMEOUT_S) == ExitCode.FAILURE
    assert line_of(process) == "too long"


def test_a_stop_in_time_is_not_interrupted() -> None:
    process = run(
        """
        import time
        from paceline.runtime.lifecycle import exit_now_after
        exit_now_after(1.0)()
        time.sleep(1.5)
        """
    )
    assert process.wait(TIMEOUT_S) == 0


def test_a_process_dies_with_its_parent() -> None:
    child_code = (
        "import time; from paceline.runtime.lifecycle import die_with_parent; die_with_parent();"
        "print('up', flush=True); time.sleep(3600)"
    )
    parent = run(
        f"""
        import subprocess, sys, time
        process = subprocess.Popen([sys.executable, "-c", {child_code!r}], stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        print(process.pid, flush=True)
        time.sleep(3600)
        """
    )
    child = int(line_of(parent))
    descriptor = os.pidfd_open(child)
    try:
        parent.kill()
        parent.wait(TIMEOUT_S)
        readable, _, _ = select.select([descriptor], [], [], TIMEOUT_S)
        assert readable, "the child outlives its parent"
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("limit", [256, 1_024, 65_536, sys.maxsize])
@pytest.mark.parametrize("listeners", [1, 4])
def test_connections_and_idle_files_together_leave_descriptors_for_the_rest(limit: int, listeners: int) -> None:
    connections, files = descriptor_shares(limit, listeners, 10_000)
    assert 0 < connections <= 10_000
    assert listeners * connections + files <= limit - limit // 8


def test_the_limit_of_open_files_is_raised_and_never_lowered() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert raise_open_file_limit(before[0]) == before[0]
        raised = raise_open_file_limit(before[0] + 10)
        assert raised >= before[0]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (raised, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
