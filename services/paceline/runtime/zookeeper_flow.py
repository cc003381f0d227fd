"""One flow over a ZooKeeper session of its own, for questions that a process asks before it starts."""

import asyncio
import time
from typing import TypeVar

from paceline.coordination.flow import Flow, FlowRun
from paceline.coordination.interface import SessionEvent, WatchEvent, ZooKeeper
from paceline.model.scheduler import Scheduler
from paceline.rpc.retry import wait_until

T = TypeVar("T")


async def ask_zookeeper(zookeeper: ZooKeeper, scheduler: Scheduler, flow: Flow[T], timeout_ms: int) -> T:
    """Return the outcome of a flow that is run over a session of its own, before the process has one.

    Raises:
        TimeoutError: ZooKeeper was not reached, or did not answer, in time.
        CoordinationError: ZooKeeper refused.
    """
    deadline = time.monotonic() + timeout_ms / 1000
    zookeeper.start(_ignore_session, _ignore_watch)
    try:
        if not await wait_until(lambda: zookeeper.connected, timeout_ms / 1000):
            raise TimeoutError
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        run = FlowRun(flow, zookeeper, scheduler, outcome.set_result, outcome.set_exception).start()
        try:
            return await asyncio.wait_for(outcome, max(deadline - time.monotonic(), 1.0))
        finally:
            run.cancel()
    finally:
        zookeeper.close()


def _ignore_session(_event: SessionEvent) -> None:
    """The session serves one question."""


def _ignore_watch(_event: WatchEvent) -> None:
    """No watch is set."""
