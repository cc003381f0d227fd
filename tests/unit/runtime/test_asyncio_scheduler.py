"""The real clock and queue keep the promises of `runtime.ports.Scheduler`."""

import asyncio
import threading

from paceline.runtime.asyncio_scheduler import AsyncioScheduler

LONG_S = 60.0


async def test_callbacks_run_in_the_order_they_were_queued() -> None:
    scheduler = AsyncioScheduler(asyncio.get_running_loop())
    seen: list[int] = []
    done = asyncio.Event()
    for number in range(5):
        scheduler.call_soon(lambda number=number: seen.append(number))  # type: ignore[misc]
    scheduler.call_soon(done.set)
    assert seen == []
    await asyncio.wait_for(done.wait(), LONG_S)
    assert seen == [0, 1, 2, 3, 4]


async def test_a_timer_never_runs_early_by_its_own_clock() -> None:
    scheduler = AsyncioScheduler(asyncio.get_running_loop())
    early: list[int] = []
    remaining = 40
    done = asyncio.Event()

    def arm(delay_ms: int) -> None:
        begin = scheduler.now_ms()

        def fire() -> None:
            nonlocal remaining
            if scheduler.now_ms() - begin < delay_ms:
                early.append(delay_ms)
            remaining -= 1
            if not remaining:
                done.set()

        scheduler.call_later(delay_ms, fire)

    for delay_ms in range(40):
        arm(delay_ms)
    await asyncio.wait_for(done.wait(), LONG_S)
    assert early == []


async def test_a_cancelled_timer_does_not_run() -> None:
    scheduler = AsyncioScheduler(asyncio.get_running_loop())
    seen: list[str] = []
    done = asyncio.Event()
    scheduler.call_later(1, lambda: seen.append("cancelled")).cancel()
    scheduler.call_later(5, done.set)
    await asyncio.wait_for(done.wait(), LONG_S)
    assert seen == []


async def test_other_threads_post_to_the_loops_thread() -> None:
    scheduler = AsyncioScheduler(asyncio.get_running_loop())
    ran_on: list[int] = []
    done = asyncio.Event()

    def callback() -> None:
        ran_on.append(threading.get_ident())
        done.set()

    thread = threading.Thread(target=scheduler.post, args=(callback,))
    thread.start()
    await asyncio.wait_for(done.wait(), LONG_S)
    thread.join(LONG_S)
    assert ran_on == [threading.get_ident()]


def test_posting_to_a_closed_loop_is_harmless() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    seen: list[int] = []
    AsyncioScheduler(loop).post(lambda: seen.append(1))
    assert seen == []
