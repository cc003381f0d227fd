"""`StreamReader` passes messages, the end and failures to the caller's thread."""

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from paceline_client.stream_reader import StreamReader

pytestmark = pytest.mark.timeout(20)


class Call:
    """Messages, then a failure if there is one."""

    def __init__(self, messages: list[Any], failure: Exception | None = None) -> None:
        self._messages, self._failure = messages, failure
        self.readers: set[threading.Thread] = set()
        self._iterator = self._read()

    def __next__(self) -> Any:
        return next(self._iterator)

    def _read(self) -> Iterator[Any]:
        for message in self._messages:
            self.readers.add(threading.current_thread())
            yield message
        if self._failure is not None:
            raise self._failure

    def cancel(self) -> None:
        """Do nothing."""


def test_messages_are_read_on_another_thread_which_ends_with_the_stream() -> None:
    call = Call([1, 2])
    assert list(StreamReader(call)) == [1, 2]
    (reader,) = call.readers
    assert reader is not threading.current_thread()
    reader.join(10)
    assert not reader.is_alive()


@pytest.mark.parametrize("failure", [grpc.RpcError("refused"), ValueError("the channel is closed")])
def test_a_failure_of_any_kind_reaches_the_caller(failure: Exception) -> None:
    stream = StreamReader(Call([1], failure))
    assert next(stream) == 1
    with pytest.raises(type(failure), match=str(failure)):
        next(stream)


def test_a_cancelled_stream_ends_its_thread() -> None:
    call = Call([1, 2])
    stream = StreamReader(call)
    next(stream)
    stream.cancel()
    (reader,) = call.readers
    reader.join(10)
    assert not reader.is_alive()
