"""Run a flow on ZooKeeper from a coroutine: over a temporary session before a process opens its own, or over that."""

import asyncio
import time
from typing import TypeVar

from paceline.coordination.flow import Flow, FlowRun
from paceline.coordination.interface import SessionEvent, WatchEvent, ZooKeeper
from paceline.model.scheduler import Scheduler
from paceline.rpc.retry import wait_until

T = TypeVar("T")


async def ask_zookeeper(zookeeper: ZooKeeper, scheduler: Scheduler, flow: Flow[T], timeout_ms: int) -> T:
    """Run a flow over ``zookeeper``, a temporary session, and return its result.

    Raises:
        TimeoutError: ZooKeeper was not reached, or did not answer, in time.
        CoordinationError: the flow failed.
    """
    deadline_s = time.monotonic() + timeout_ms / 1000
    zookeeper.start(_ignore_session, _ignore_watch)
    try:
        if not await wait_until(lambda: zookeeper.connected, timeout_ms / 1000):
            raise TimeoutError
        return await run_flow(zookeeper, scheduler, flow, max(deadline_s - time.monotonic(), 1.0))
    finally:
        zookeeper.close()


async def run_flow(zookeeper: ZooKeeper, scheduler: Scheduler, flow: Flow[T], timeout_s: float) -> T:
    """Run a flow over the session of ``zookeeper`` and return its result.

    Raises:
        TimeoutError: ZooKeeper did not answer in time.
        PacelineError: the flow failed.
    """
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    run = FlowRun(flow, zookeeper, scheduler, outcome.set_result, outcome.set_exception).start()
    try:
        return await asyncio.wait_for(outcome, timeout_s)
    finally:
        run.cancel()


def _ignore_session(_event: SessionEvent) -> None:
    """Ignore the event: the session serves a single flow."""


def _ignore_watch(_event: WatchEvent) -> None:
    """Ignore the event: no watch is set."""
