"""A call that takes long logs its cause."""

import logging
import threading
from collections.abc import Iterator

import pytest

from paceline_client.wait_notice import wait_notice


class Records(logging.Handler):
    """Records log messages and signals each one."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []
        self.came = threading.Semaphore(0)

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        self.came.release()


@pytest.fixture
def records() -> Records:
    return Records()


@pytest.fixture(autouse=True)
def _handler(records: Records) -> Iterator[None]:
    logger = logging.getLogger("paceline.client")
    logger.addHandler(records)
    yield
    logger.removeHandler(records)


def test_a_long_wait_logs_the_last_cause_repeatedly(records: Records) -> None:
    with wait_notice("the active controller", first_s=0.01, next_s=0.01) as wait:
        assert records.came.acquire(timeout=60)
        assert records.messages[0] == "waiting for the active controller"
        wait.failed(ValueError("connection refused"))
        while records.messages[-1] != "waiting for the active controller: connection refused":
            assert records.came.acquire(timeout=60)


def test_a_short_wait_logs_nothing(records: Records) -> None:
    with wait_notice("an answer", first_s=3_600):
        pass
    assert not records.messages
