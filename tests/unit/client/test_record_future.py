"""`RecordFuture` is a standard future whose state is the batch's."""

import asyncio
import threading
from concurrent.futures import FIRST_COMPLETED, Future, wait

import pytest

from paceline.model.errors import MessageTooLargeError, PacelineError, RequestTimedOutError
from paceline.model.identifiers import TopicPartition
from paceline_client.batch import ProducerBatch, RecordFuture, RecordMetadata
from paceline_client.codec import new_encoder


def new_batch() -> ProducerBatch:
    return ProducerBatch(TopicPartition("t", 1), new_encoder(1_000), 0)


def resolve(batch: ProducerBatch, error: PacelineError | None = None) -> None:
    batch.resolve(None if error else 40, None, error)
    batch.announce()


async def test_wrap_future_waits_for_the_batch_of_another_thread() -> None:
    batch = new_batch()
    waiting = [asyncio.wrap_future(RecordFuture(batch, index)) for index in range(2)]
    threading.Thread(target=resolve, args=(batch,)).start()
    assert await asyncio.gather(*waiting) == [RecordMetadata("t", 1, 40, None), RecordMetadata("t", 1, 41, None)]


async def test_wrap_future_raises_the_error_of_the_batch() -> None:
    batch = new_batch()
    resolve(batch, MessageTooLargeError("too large"))
    with pytest.raises(MessageTooLargeError):
        await asyncio.wrap_future(RecordFuture(batch, 0))


async def test_cancelled_wrapper_leaves_the_record_and_its_neighbours_alone() -> None:
    batch = new_batch()
    sent = RecordFuture(batch, 0)
    cancelled, neighbour = asyncio.wrap_future(sent), asyncio.wrap_future(RecordFuture(batch, 1))
    cancelled.cancel()
    resolve(batch)
    assert (await neighbour).offset == 41
    assert not sent.cancelled() and sent.result().offset == 40


def test_functions_of_concurrent_futures_take_it() -> None:
    first, second = new_batch(), new_batch()
    futures = [RecordFuture(first, 0), RecordFuture(second, 0)]
    assert wait(futures, timeout=0).not_done == set(futures)
    resolve(second)
    assert wait(futures, timeout=30, return_when=FIRST_COMPLETED).done == {futures[1]}
    called = []
    futures[0].add_done_callback(called.append)
    resolve(first)
    assert called == [futures[0]]


def test_the_timeout_has_the_keyword_of_the_standard_library() -> None:
    batch = new_batch()
    sent: Future[RecordMetadata] = RecordFuture(batch, 0)
    for wait_for_it in (sent.result, sent.exception):
        with pytest.raises(RequestTimedOutError, match=r"in 0\.001 s"):
            wait_for_it(timeout=0.001)
    resolve(batch)
    assert (sent.result(timeout=0).offset, sent.exception(timeout=0)) == (40, None)


def test_listener_of_a_resolved_batch_is_called_at_once_and_once() -> None:
    batch = new_batch()
    called: list[ProducerBatch] = []
    batch.when_resolved(called.append)
    assert called == []
    resolve(batch)
    batch.when_resolved(called.append)
    assert called == [batch, batch]
