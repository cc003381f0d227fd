"""One request in flight per broker, in order; a failed request is retried until it is answered."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from paceline.controller.channel.channel_manager import ChannelManager
from paceline.model.control import (
    ControllerStamp,
    ControlRequest,
    ControlResponse,
    Endpoint,
    LeaderAndIsrRequest,
    LiveBroker,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from paceline.model.errors import ErrorCode
from paceline.model.settings import ControllerConfig
from tests.support.virtual_time import VirtualTime

CONFIG = ControllerConfig(1_000_000)
OnDone = Callable[[ControlResponse | Exception], None]


class Transport:
    """Records calls; the test answers them."""

    def __init__(self) -> None:
        self.calls: list[tuple[LiveBroker, ControlRequest, int, OnDone]] = []
        self.closed: list[int] = []

    def send(self, broker: LiveBroker, request: ControlRequest, timeout_ms: int, on_done: OnDone) -> None:
        self.calls.append((broker, request, timeout_ms, on_done))

    def close(self, broker_id: int) -> None:
        self.closed.append(broker_id)


def broker(broker_id: int, epoch: int = 5, host: str = "h") -> LiveBroker:
    return LiveBroker(broker_id, (Endpoint("CONTROL", host, 1),), None, epoch)


def request(number: int) -> UpdateMetadataRequest:
    return UpdateMetadataRequest(ControllerStamp(number, 1, None), (), ())


def numbers(transport: Transport) -> list[int]:
    return [sent.stamp.controller_id for _, sent, _, _ in transport.calls]


def channels(
    config: ControllerConfig = CONFIG,
) -> tuple[ChannelManager, Transport, VirtualTime, list[tuple[int, int]]]:
    time, transport = VirtualTime(), Transport()
    answers: list[tuple[int, int]] = []
    manager = ChannelManager(
        config,
        time,
        transport,
        lambda b, sent, response: answers.append((b, sent.stamp.controller_id)),
        lambda *_: None,
        random.Random(1),
    )
    return manager, transport, time, answers


def test_the_next_request_goes_out_only_after_the_answer() -> None:
    manager, transport, _, answers = channels()
    manager.add_broker(broker(1))
    for number in (1, 2, 3):
        manager.send(1, request(number))
    assert numbers(transport) == [1]
    assert manager.total_queue_size == 3
    transport.calls[0][3](ControlResponse())
    assert numbers(transport) == [1, 2]
    assert answers == [(1, 1)]


def test_a_request_that_fails_repeatedly_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    manager, transport, time, _ = channels()
    manager.add_broker(broker(1))
    manager.send(1, request(1))
    manager.send(1, request(2))
    for _ in range(3):
        transport.calls[-1][3](ConnectionError("no way"))
        time.run_for(1_200)
    (report,) = [record.getMessage() for record in caplog.records]
    assert report.endswith("request=UpdateMetadata broker=1 waiting=2 error=no way")
    transport.calls[-1][3](ControlResponse())
    transport.calls[-1][3](ConnectionError("again"))
    assert len(caplog.records) == 2, "a failure of the next request is reported"


def test_the_same_request_is_sent_again_later_and_later_until_it_is_answered() -> None:
    manager, transport, time, answers = channels()
    manager.add_broker(broker(1))
    manager.send(1, request(1))
    manager.send(1, request(2))
    for pause_ms in (100, 200, 400, 800, 1_000, 1_000):
        _fail(transport, time, pause_ms)
    assert numbers(transport) == [1] * 7
    transport.calls[-1][3](ControlResponse())
    assert numbers(transport)[-1] == 2
    assert answers == [(1, 1)]
    _fail(transport, time, 100)


def _fail(transport: Transport, time: VirtualTime, pause_ms: float) -> None:
    """Fail the last request, and check that it is repeated after the pause, give or take a fifth."""
    transport.calls[-1][3](ConnectionError())
    before = len(transport.calls)
    time.run_for(0.8 * pause_ms - 1)
    assert len(transport.calls) == before
    time.run_for(0.4 * pause_ms + 2)
    assert len(transport.calls) == before + 1


def test_the_oldest_unanswered_request_that_may_end_a_leadership_has_an_age() -> None:
    manager, transport, time, _ = channels()
    manager.add_broker(broker(1))
    ages: list[int] = []

    def after(ms: int) -> None:
        time.run_for(ms)
        ages.append(manager.unanswered_ms(1))

    manager.send(1, request(1))
    after(1_000)
    manager.send(1, LeaderAndIsrRequest(ControllerStamp(2, 1, None), (), ()))
    after(200)
    transport.calls[-1][3](ControlResponse())
    manager.send(1, StopReplicaRequest(ControllerStamp(3, 1, None), ()))
    after(30)
    transport.calls[-1][3](ConnectionError())
    after(100)
    transport.calls[-1][3](ControlResponse())
    after(4)
    transport.calls[-1][3](ControlResponse())
    after(1)
    assert ages == [0, 200, 230, 330, 134, 0], "metadata ends no leadership; waiting and retries count"
    assert manager.unanswered_ms(2) == 0


def test_an_error_code_in_an_answer_is_final() -> None:
    manager, transport, time, answers = channels()
    manager.add_broker(broker(1))
    manager.send(1, request(1))
    transport.calls[0][3](ControlResponse(ErrorCode.STALE_CONTROLLER_EPOCH))
    time.run_for(1_000)
    assert numbers(transport) == [1]
    assert answers == [(1, 1)]


def test_brokers_do_not_wait_for_each_other() -> None:
    manager, transport, _, _ = channels()
    manager.add_broker(broker(1))
    manager.add_broker(broker(2))
    manager.send(1, request(1))
    manager.send(2, request(2))
    assert [called.broker_id for called, *_ in transport.calls] == [1, 2]
    assert manager.total_queue_size == 2


@pytest.mark.origin("S4-3")
def test_no_request_is_sent_after_a_broker_is_removed() -> None:
    manager, transport, time, answers = channels()
    manager.add_broker(broker(1))
    manager.send(1, request(1))
    manager.send(1, request(2))
    manager.remove_broker(1)
    transport.calls[0][3](ControlResponse())
    manager.send(1, request(3))
    time.run_for(1_000)
    assert numbers(transport) == [1]
    assert answers == []
    assert transport.closed == [1]


def test_a_pending_retry_is_dropped_with_its_broker() -> None:
    manager, transport, time, _ = channels()
    manager.add_broker(broker(1))
    manager.send(1, request(1))
    transport.calls[0][3](ConnectionError())
    manager.remove_broker(1)
    time.run_for(1_000)
    assert numbers(transport) == [1]


def test_the_broker_epoch_is_stamped_when_a_request_is_sent() -> None:
    manager, transport, _, _ = channels()
    manager.add_broker(broker(1, epoch=5))
    manager.send(1, request(1))
    manager.remove_broker(1)
    manager.add_broker(broker(1, epoch=9))
    manager.send(1, StopReplicaRequest(ControllerStamp(2, 1, None), ()))
    assert [sent.stamp.broker_epoch for _, sent, _, _ in transport.calls] == [5, 9]


@pytest.mark.parametrize(("socket_timeout_ms", "request_timeout_ms"), [(700, 30_000), (30_000, 700)])
def test_a_broker_has_the_shorter_of_both_timeouts_to_answer(socket_timeout_ms: int, request_timeout_ms: int) -> None:
    manager, transport, _, _ = channels(
        replace(CONFIG, controller_socket_timeout_ms=socket_timeout_ms, request_timeout_ms=request_timeout_ms)
    )
    manager.add_broker(broker(1))
    manager.send(1, request(1))
    assert transport.calls[0][2] == 700


def test_adding_a_broker_twice_keeps_its_queue() -> None:
    manager, transport, _, _ = channels()
    manager.add_broker(broker(1))
    manager.send(1, request(1))
    manager.add_broker(broker(1))
    assert manager.total_queue_size == 1
    assert transport.closed == []


def test_a_broker_that_changed_its_address_is_called_there() -> None:
    manager, transport, _, _ = channels()
    manager.add_broker(broker(1, host="old"))
    manager.send(1, request(1))
    manager.update_broker(broker(1, host="new"))
    transport.calls[0][3](ControlResponse())
    manager.send(1, request(2))
    assert [called.endpoints[0].host for called, *_ in transport.calls] == ["old", "new"]


def test_a_repeated_response_counts_once() -> None:
    manager, transport, _, answers = channels()
    manager.add_broker(broker(1))
    manager.send(1, request(1))
    manager.send(1, request(2))
    transport.calls[0][3](ControlResponse())
    transport.calls[0][3](ControlResponse())
    assert numbers(transport) == [1, 2]
    assert answers == [(1, 1)]
