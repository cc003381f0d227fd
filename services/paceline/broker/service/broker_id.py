"""Which id a broker has: the one it is told, the one it kept, or a new one (spec/log-format.md section 9.1)."""

import asyncio
import time
from collections.abc import Mapping

from paceline.coordination.flow import FlowRun
from paceline.coordination.interface import SessionEvent, WatchEvent, ZooKeeper
from paceline.coordination.recipes import generate_broker_id
from paceline.log.checkpoint import MetaProperties
from paceline.model.scheduler import Scheduler
from paceline.runtime.lifecycle import ExitCode, StartupError

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


async def generated_broker_id(zookeeper: ZooKeeper, scheduler: Scheduler, reserved_max_id: int, timeout_ms: int) -> int:
    """Return a new broker id from ZooKeeper's sequence, over a session of its own.

    Raises:
        TimeoutError: ZooKeeper was not reached in time.
        CoordinationError: ZooKeeper refused.
    """
    deadline = time.monotonic() + timeout_ms / 1000
    zookeeper.start(_ignore_session, _ignore_watch)
    while not zookeeper.connected:
        if time.monotonic() > deadline:
            raise TimeoutError
        await asyncio.sleep(_POLL_S)
    outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    FlowRun(
        generate_broker_id(reserved_max_id), zookeeper, scheduler, outcome.set_result, outcome.set_exception
    ).start()
    return await asyncio.wait_for(outcome, max(deadline - time.monotonic(), 1.0))


def _ignore_session(_event: SessionEvent) -> None:
    """The session serves one question."""


def _ignore_watch(_event: WatchEvent) -> None:
    """No watch is set."""
