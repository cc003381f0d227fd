"""Requests for log directories end in time although brokers do not answer, however many brokers there are."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from paceline.controller.service import log_dirs_servicer
from paceline.controller.service.log_dirs_servicer import (
    BROKERS_AT_ONCE,
    AskingController,
    alter_replica_log_dirs,
    describe_log_dirs,
    retry_log_dir,
)
from paceline.internal.v1 import replica_manager_service_pb2 as control_pb
from paceline.model.control import LiveBroker
from paceline.model.errors import RequestTimedOutError
from paceline.v1 import admin_service_pb2 as pb

TIMEOUT_S = 0.2
BROKERS = {broker_id: LiveBroker(broker_id, ()) for broker_id in range(3 * BROKERS_AT_ONCE)}
ASKING = AskingController(control_pb.ControllerStamp())


class FakeBrokers:
    """Takes the place of the calls to brokers: ``silent`` brokers do not answer before the call's timeout."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, silent: set[int]) -> None:
        self.timeouts_s: dict[int, float] = {}
        self.repeated: list[bool] = []
        self._silent = silent
        monkeypatch.setattr(log_dirs_servicer, "_asked", self._asked)

    async def _asked(
        self, _broker: LiveBroker, broker_id: int, call: Callable[[Any], Awaitable[Any]], _tls: object
    ) -> Any:
        self._broker_id = broker_id
        return await call(self)

    async def DescribeLogDirs(self, _request: object, timeout: float) -> Any:  # noqa: N802
        return await self._answer(self._broker_id, timeout, control_pb.DescribeLogDirsResponse())

    async def AlterReplicaLogDirs(  # noqa: N802
        self,
        request: control_pb.AlterReplicaLogDirsRequest,
        timeout: float,
    ) -> Any:
        results = [pb.AlterReplicaLogDirResult(broker_id=one.broker_id) for one in request.replicas]
        return await self._answer(self._broker_id, timeout, control_pb.AlterReplicaLogDirsResponse(results=results))

    async def RetryLogDir(self, request: control_pb.RetryLogDirRequest, timeout: float) -> Any:  # noqa: N802
        self.repeated.append(request.is_repeated)
        is_loading = self._broker_id in self._silent or len(self.repeated) < 3
        return control_pb.RetryLogDirResponse(loading=is_loading)

    async def _answer(self, broker_id: int, timeout_s: float, answer: Any) -> Any:
        self.timeouts_s[broker_id] = timeout_s
        if broker_id not in self._silent:
            return answer
        await asyncio.sleep(timeout_s)
        return RequestTimedOutError("no answer")


def test_a_page_ends_after_a_broker_that_did_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = FakeBrokers(monkeypatch, silent={5})

    async def page(token: str) -> tuple[list[pb.BrokerLogDirs], str]:
        return await describe_log_dirs(BROKERS, [], [], TIMEOUT_S, 0, token, ASKING)

    first, token = asyncio.run(page(""))
    assert [entry.broker_id for entry in first] == list(range(BROKERS_AT_ONCE))
    assert [entry.broker_id for entry in first if entry.HasField("error")] == [5]
    entries = list(first)
    while token:
        more, token = asyncio.run(page(token))
        entries.extend(more)
    assert [entry.broker_id for entry in entries] == list(BROKERS)
    assert min(brokers.timeouts_s.values()) >= TIMEOUT_S / 2, "each broker has time to answer"


def test_a_broker_that_is_asked_late_has_only_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = FakeBrokers(monkeypatch, silent=set(range(BROKERS_AT_ONCE)))
    replicas = [pb.ReplicaLogDir(broker_id=broker_id) for broker_id in range(BROKERS_AT_ONCE + 3)]
    results = asyncio.run(alter_replica_log_dirs(BROKERS, replicas, TIMEOUT_S, ASKING))
    assert [result.HasField("error") for result in results] == [True] * BROKERS_AT_ONCE + [False] * 3
    assert all(brokers.timeouts_s[broker_id] < TIMEOUT_S / 2 for broker_id in range(BROKERS_AT_ONCE, len(replicas)))


@pytest.mark.parametrize("silent", [set(), {1}])
def test_the_controller_asks_until_the_directory_is_loaded_or_the_time_has_passed(
    monkeypatch: pytest.MonkeyPatch, silent: set[int]
) -> None:
    brokers = FakeBrokers(monkeypatch, silent)
    monkeypatch.setattr(log_dirs_servicer, "_RETRY_POLL_S", TIMEOUT_S / 8)
    request = pb.RetryLogDirRequest(broker_id=1, path="/slow")
    error = asyncio.run(retry_log_dir(BROKERS[1], request, TIMEOUT_S, ASKING))
    assert brokers.repeated[:3] == [False, True, True]
    assert (error is None, isinstance(error, RequestTimedOutError)) == (not silent, bool(silent))
