"""Threads for blocking calls: reused when free, one for each concurrent call, all ended by close."""

import threading

from paceline_client.call_threads import CallThreads
from tests.support.waiting import eventually

WAIT_S = 60.0


def named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_concurrent_calls_run_on_separate_threads() -> None:
    threads = CallThreads("at-once")
    barrier = threading.Barrier(4, timeout=WAIT_S)
    for _ in range(3):
        threads.submit(barrier.wait)
    barrier.wait()
    threads.close()


def test_consecutive_calls_use_one_thread() -> None:
    threads = CallThreads("in-turn")
    seen: list[threading.Thread] = []
    for count in range(1, 21):
        threads.submit(lambda: seen.append(threading.current_thread()))
        done = (count, 1)
        eventually(lambda done=done: (len(seen), threads._free) == done, WAIT_S, "the call has ended", pause_s=0.001)
    assert len(set(seen)) == 1
    threads.close()


def test_threads_end_when_closed_even_while_they_work() -> None:
    threads = CallThreads("closing")
    release, working = threading.Event(), threading.Event()

    def work() -> None:
        working.set()
        release.wait(WAIT_S)

    threads.submit(work)
    assert working.wait(WAIT_S)
    (thread,) = named("closing")
    threads.close()
    threads.join(0.01)
    assert thread.is_alive(), "joining ends with its time"
    release.set()
    threads.join(WAIT_S)
    assert not thread.is_alive()


def test_closing_and_joining_ends_every_free_thread() -> None:
    threads = CallThreads("left-over")
    barrier = threading.Barrier(6, timeout=WAIT_S)
    for _ in range(5):
        threads.submit(barrier.wait)
    barrier.wait()
    threads.close()
    threads.join(WAIT_S)
    assert named("left-over") == []
