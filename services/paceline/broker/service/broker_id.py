"""Find the broker's id: the configured one, the one it kept, or a new one; and ask ZooKeeper before the start."""

import asyncio
import time
from collections.abc import Mapping
from typing import TypeVar

from paceline.coordination.flow import Flow, FlowRun
from paceline.coordination.interface import SessionEvent, WatchEvent, ZooKeeper
from paceline.log.checkpoint import MetaProperties
from paceline.model.scheduler import Scheduler
from paceline.runtime.lifecycle import ExitCode, StartupError

T = TypeVar("T")

_POLL_S = 0.05


def broker_id_of(configured: int, stored: Mapping[str, MetaProperties | None]) -> int | None:
    """Return the broker's id, None when one has to be generated.

    Args:
        configured: ``broker.id``, -1 when not set.
        stored: ``meta.properties`` of each log directory.

    Raises:
        StartupError: the directories belong to different brokers, or to another one than configured.
    """
    kept = {
        directory: meta.broker_id
        for directory, meta in stored.items()
        if meta is not None and meta.broker_id is not None
    }
    ids = sorted(set(kept.values()))
    if len(ids) > 1:
        listed = ", ".join(f"{directory}: {broker_id}" for directory, broker_id in sorted(kept.items()))
        raise StartupError(f"the log directories belong to different brokers ({listed})", ExitCode.USAGE)
    if not ids:
        return configured if configured >= 0 else None
    if configured >= 0 and configured != ids[0]:
        raise StartupError(
            f"broker.id is {configured}, but the log directories belong to broker {ids[0]} (meta.properties)",
            ExitCode.USAGE,
        )
    return ids[0]


async def ask_zookeeper(zookeeper: ZooKeeper, scheduler: Scheduler, flow: Flow[T], timeout_ms: int) -> T:
    """Return the outcome of a flow that is run over a session of its own, before the broker has one.

    Raises:
        TimeoutError: ZooKeeper was not reached, or did not answer, in time.
        CoordinationError: ZooKeeper refused.
    """
    deadline = time.monotonic() + timeout_ms / 1000
    zookeeper.start(_ignore_session, _ignore_watch)
    try:
        while not zookeeper.connected:
            if time.monotonic() > deadline:
                raise TimeoutError
            await asyncio.sleep(_POLL_S)
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
