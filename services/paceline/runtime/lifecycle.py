"""Life cycle of a process: exit codes, signals, ending with the parent."""

import asyncio
import ctypes
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """Exit codes of a service; 1 and 2 have the usual meaning, the others name the cause for a supervisor."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    """Invalid settings."""
    PORT_IN_USE = 10
    LOG_DIR_LOCKED = 11
    """Another process has locked the log directory, or it cannot be used."""
    ZOOKEEPER_UNREACHABLE = 12
    DUPLICATE_ID = 13
    """Another live process is registered with the same id."""
    FATAL = 14
    """The core ended the process, because continuing would be wrong."""
    INTERRUPTED = 130


class StartupError(Exception):
    """The process cannot start; the message tells the operator how to fix it."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILURE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


_PR_SET_PDEATHSIG: Final = 1
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends (Linux only)."""
    parent = os.getppid()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:  # the parent ended before the request took effect
        os._exit(ExitCode.INTERRUPTED)


def raise_open_file_limit(wanted: int = 65_536) -> int:
    """Raise the soft limit of open files towards ``wanted``, up to the hard limit, and return it.

    The usual soft limit is 1,024. Log segments alone can use that many descriptors, and the
    process could then accept no connection.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return raised


def open_file_limit() -> int:
    """Return the limit of file descriptors of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def descriptor_shares(limit: int, listeners: int, max_connections: int) -> tuple[int, int]:
    """Return (connections per listener, open log files) for a limit of file descriptors.

    Connections must not use the descriptors that files need: a log that cannot open its next segment must stop. A
    quarter is reserved for idle files, at most 1,024, and an eighth for files in use, ZooKeeper and outgoing
    connections.
    """
    files = min(1_024, limit // 4)
    return min(max_connections, max(1, (limit - files - limit // 8) // max(1, listeners))), files


def on_stop_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[str], None]) -> None:
    """Call ``stop`` with the signal's name on the first SIGTERM or SIGINT; the second ends the process immediately."""
    seen: list[int] = []

    def handle(number: signal.Signals) -> None:
        seen.append(number)
        if len(seen) > 1:
            os._exit(128 + number)
        stop(number.name)

    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, handle, number)


def exit_now_after(seconds: float, say: Callable[[], None] = lambda: None) -> Callable[[], None]:
    """End the process with FAILURE unless the returned function is called within ``seconds``.

    A stop must not hang; a separate thread works even when the event loop is blocked.
    """

    def expired() -> None:
        say()
        os._exit(ExitCode.FAILURE)

    timer = threading.Timer(seconds, expired)
    timer.daemon = True
    timer.start()
    return timer.cancel
