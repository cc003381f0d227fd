"""Start and stop of the broker's process, around the node."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from paceline.broker.node import BrokerNode
from paceline.broker.service import process as process_module
from paceline.broker.service.process import BrokerProcess
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.runtime.lifecycle import ExitCode, StartupError
from paceline.runtime.settings import load_broker
from tests.unit.log.memory_files import MemoryFiles

SETTINGS = load_broker(
    ["--zookeeper-connect=zk:2181", "--broker-id=1", "--log-dirs=/d", "--shutdown-timeout-ms=1000"], {}
)


class FakeNode:
    """A node whose stop ends at once, or never."""

    def __init__(self, stops: bool) -> None:
        self._stops = stops

    def stop(self, on_done: Callable[[], None]) -> None:
        if self._stops:
            on_done()


@pytest.mark.parametrize("problem", ["no version", "cannot be read"])
def test_a_damaged_file_of_the_ids_ends_the_start_with_its_path(problem: str) -> None:
    files = MemoryFiles()
    logs = LogManager(files, ["/d"], LogConfig(), on_dir_failure=lambda *_: None)
    logs.load(0)
    files.contents["/d/meta.properties"] = bytearray(b"broker.id=1\n")
    if problem == "cannot be read":
        files.fails = lambda operation, path: operation == "read_at" and path == "/d/meta.properties"

    async def run() -> None:
        process = BrokerProcess(SETTINGS, asyncio.get_running_loop())
        process._logs = logs
        try:
            await process._resolve_broker_id()
        finally:
            process._logs = None
            await process._stop()

    with pytest.raises(StartupError, match=r"cannot be read: .*/d/meta\.properties") as raised:
        asyncio.run(run())
    assert raised.value.exit_code is ExitCode.LOG_DIR_LOCKED


@pytest.mark.parametrize("stops", [True, False])
def test_the_process_ends_in_time_although_a_thread_may_wait_for_a_disk(
    stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[float] = []

    def exit_now_after(seconds: float, _say: Any) -> Callable[[], None]:
        return lambda: cancelled.append(seconds)

    monkeypatch.setattr(process_module, "exit_now_after", exit_now_after)

    async def run() -> None:
        process = BrokerProcess(SETTINGS, asyncio.get_running_loop())
        process._node = cast(BrokerNode, FakeNode(stops))
        await process._stop()

    asyncio.run(run())
    assert cancelled == ([6.0] if stops else []), "after an incomplete stop the timer still ends the process"
