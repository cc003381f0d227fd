"""Requests of a client to brokers: on one stream to each, and as unary calls after a broker refused a stream."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from paceline.rpc.channels import ChannelCache
from paceline.rpc.errors import ConnectionBrokenError
from paceline_client import broker_streams
from paceline_client.broker_streams import ASK_AGAIN_S, BrokerStreams
from tests.support.waiting import eventually


def failed(code: grpc.StatusCode) -> grpc.RpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())


REFUSED = failed(grpc.StatusCode.UNIMPLEMENTED)


class Call:
    """A unary call in flight."""

    def __init__(self, method: str, request: bytes, timeout: float) -> None:
        self.sent = (method, request, timeout)
        self.answer: Any = None
        self.is_cancelled = False
        self._callback: Callable[[Any], None] = lambda _call: None

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback

    def end(self, answer: bytes | Exception) -> None:
        self.answer = answer
        self._callback(self)

    def cancel(self) -> None:
        self.is_cancelled = True
        self._callback(self)

    def cancelled(self) -> bool:
        return self.is_cancelled

    def exception(self) -> Exception | None:
        return self.answer if isinstance(self.answer, Exception) else None

    def result(self) -> bytes:
        assert isinstance(self.answer, bytes)
        return self.answer


class Channel:
    """A channel that holds unary calls; `StreamCall` finds other internals than gRPC's in it."""

    def __init__(self, calls: list[Call]) -> None:
        self._calls = calls

    def unary_unary(self, method: str, _serializer: None, _deserializer: None) -> Any:
        def future(request: bytes, timeout: float) -> Call:
            self._calls.append(Call(method, request, timeout))
            return self._calls[-1]

        return SimpleNamespace(future=future)

    def close(self) -> None:
        return None


class Stream:
    """Stands for a `StreamClient`: holds requests."""

    def __init__(self, _channel: Any, method: str, _name: str, _one_at_a_time: bool) -> None:
        self.method = method
        self.asked: list[Callable[[bytes | Exception], None]] = []
        self.interrupts = 0

    def ask(self, _request: bytes, _timeout_s: float, on_done: Callable[[bytes | Exception], None]) -> None:
        self.asked.append(on_done)

    def interrupt(self) -> None:
        self.interrupts += 1

    def close(self) -> None:
        return None

    def join(self, _timeout_s: float) -> None:
        return None


class Requests:
    """Requests to one broker, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.calls: list[Call] = []
        self.outcomes: list[bytes | Exception] = []
        channels = ChannelCache(lambda _address: Channel(self.calls))
        self.streams = BrokerStreams(channels, "/service/Method", "test", lambda: self.now_s)

    def ask(self) -> Callable[[], object]:
        return self.streams.ask("a:1", b"request", 5.0, self.outcomes.append)

    @property
    def stream(self) -> Stream:
        found: Any = self.streams._callers["a:1"]
        assert isinstance(found, Stream)
        return found


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    monkeypatch.setattr(broker_streams, "StreamClient", Stream)
    return Requests()


def test_a_broker_that_refused_a_stream_gets_unary_calls_for_a_minute(requests: Requests) -> None:
    requests.ask()
    assert (requests.stream.method, requests.calls) == ("/service/MethodStream", [])
    requests.stream.asked[0](REFUSED)
    assert [call.sent for call in requests.calls] == [("/service/Method", b"request", 5.0)]
    assert requests.outcomes == [], "the unary call has no response yet"
    requests.calls[0].end(b"first")
    requests.now_s += ASK_AGAIN_S - 1
    requests.ask()
    requests.calls[1].end(b"second")
    assert (len(requests.stream.asked), requests.outcomes) == (1, [b"first", b"second"])
    requests.now_s += 1
    requests.ask()
    requests.stream.asked[1](b"third")
    assert (len(requests.calls), requests.outcomes[2:]) == (2, [b"third"])


def test_only_an_unknown_method_or_a_missing_slot_leads_to_unary_calls(requests: Requests) -> None:
    failures = [ConnectionBrokenError("broken"), failed(grpc.StatusCode.UNAVAILABLE)]
    for failure in failures:
        requests.ask()
        requests.stream.asked[-1](failure)
    assert (requests.outcomes, requests.calls, len(requests.stream.asked)) == (failures, [], 2)


def test_a_request_is_interrupted_on_its_stream_or_as_a_unary_call(requests: Requests) -> None:
    interrupt = requests.ask()
    interrupt()
    assert requests.stream.interrupts == 1
    requests.stream.asked[0](REFUSED)
    assert requests.calls[0].is_cancelled, "it was interrupted before the broker refused the stream"
    interrupt = requests.ask()
    interrupt()
    assert requests.calls[1].is_cancelled
    requests.now_s += ASK_AGAIN_S
    interrupt = requests.ask()
    requests.stream.asked[1](REFUSED)
    interrupt()
    assert requests.calls[2].is_cancelled
    assert [type(outcome) for outcome in requests.outcomes] == [ConnectionBrokenError] * 3


def test_a_request_that_cannot_be_sent_again_as_a_unary_call_fails(requests: Requests) -> None:
    requests.ask()
    requests.streams._channels.close()
    requests.stream.asked[0](REFUSED)
    assert [type(outcome) for outcome in requests.outcomes] == [RuntimeError]


def test_an_idle_stream_ends_with_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = BrokerStreams(ChannelCache(lambda _address: Channel([])), "/service/Method", "left")
    for address in ("a:1", "b:1"):
        streams.ask(address, b"", 5.0, lambda _outcome: None)
    streams.expire()
    wait_for_threads({"left-1", "left-2"})
    monkeypatch.setattr(broker_streams, "IDLE_S", 0.0)
    streams.expire()
    wait_for_threads(set())
    streams.ask("b:1", b"", 5.0, lambda _outcome: None)
    wait_for_threads({"left-3"})
    streams.close()
    wait_for_threads(set())


def wait_for_threads(names: set[str]) -> None:
    def alive() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("left-")}

    eventually(lambda: alive() == names, 60, f"the threads are {names}", pause_s=0.01)
