"""Streams of a client to brokers: one to each, and a pause after a broker refused one."""

import threading
from typing import Any

from paceline.rpc.channels import ChannelCache
from paceline_client.broker_streams import ASK_AGAIN_S, BrokerStreams
from tests.support.waiting import eventually


class Channel:
    """A channel without calls."""

    def stream_stream(self, method: str, **_options: Any) -> Any:
        return method

    def close(self) -> None:
        return None


def test_a_broker_that_refused_a_stream_is_asked_again_after_a_minute() -> None:
    now_s = 1_000.0
    streams = BrokerStreams(ChannelCache(lambda _address: Channel()), "/service/method", "test", lambda: now_s)
    stream = streams.get("a:1")
    assert stream is not None and streams.get("a:1") is stream
    streams.are_unknown("a:1")
    other = streams.get("b:1")
    assert streams.get("a:1") is None and other is not None and other is not stream
    now_s += ASK_AGAIN_S - 1
    assert streams.get("a:1") is None
    now_s += 1
    assert streams.get("a:1") is stream and streams.get("a:1") is stream
    streams.close()
    assert streams.get("c:1") is None


def test_streams_to_unused_addresses_end_with_their_threads() -> None:
    streams = BrokerStreams(ChannelCache(lambda _address: Channel()), "/service/method", "left")
    kept = streams.get("a:1")
    streams.get("b:1")
    streams.are_unknown("b:1")
    streams.keep({"a:1", "c:1"})
    wait_for_threads({"left-1"})
    assert streams.get("a:1") is kept
    assert streams.get("b:1") is not None
    wait_for_threads({"left-1", "left-3"})
    streams.close()
    wait_for_threads(set())


def wait_for_threads(names: set[str]) -> None:
    def alive() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("left-")}

    eventually(lambda: alive() == names, 60, f"the threads are {names}", pause_s=0.01)
