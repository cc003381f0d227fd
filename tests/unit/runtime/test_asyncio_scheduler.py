"""The real clock and queue keep the promises of `runtime.ports.Scheduler`."""

import asyncio
import threading

from paceline.model.scheduler import Cancellable
from paceline.runtime.asyncio_scheduler import COARSE_FROM_MS, TICK_MS, AsyncioScheduler

LONG_S = 60.0


async def test_callbacks_run_in_the_order_in_which_they_were_queued() -> None:
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


async def test_time_outs_share_timers_and_run_after_their_delay() -> None:
    loop = asyncio.get_running_loop()
    scheduler = AsyncioScheduler(loop)
    done = asyncio.Event()
    early: list[int] = []
    seen: list[str] = []

    def arm(delay_ms: int, last: bool) -> None:
        begin_ms = scheduler.now_ms()

        def fire() -> None:
            if scheduler.now_ms() - begin_ms < delay_ms:
                early.append(delay_ms)
            if last:
                done.set()

        scheduler.call_later(delay_ms, fire)

    for number in range(101):
        arm(COARSE_FROM_MS + number % TICK_MS, last=False)
    cancelled = [scheduler.call_later(COARSE_FROM_MS, lambda: seen.append("cancelled")) for _ in range(100)]
    arm(COARSE_FROM_MS + 2 * TICK_MS, last=True)
    assert len(scheduler._ticks) <= 5
    for one in cancelled:
        one.cancel()
    await asyncio.wait_for(done.wait(), LONG_S)
    assert early == seen == []


async def test_time_out_that_an_earlier_one_of_its_tick_cancels_does_not_run() -> None:
    scheduler = AsyncioScheduler(asyncio.get_running_loop())
    seen: list[str] = []
    done = asyncio.Event()
    later: list[Cancellable] = []
    scheduler.call_later(COARSE_FROM_MS, lambda: later[0].cancel())
    later.append(scheduler.call_later(COARSE_FROM_MS, lambda: seen.append("cancelled")))
    scheduler.call_later(COARSE_FROM_MS + 2 * TICK_MS, done.set)
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
