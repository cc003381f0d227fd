"""Accumulators of one producer, and the steps of its sender that the tests play."""

from paceline.log.compression import Codec
from paceline.model.identifiers import TopicPartition
from paceline_client.accumulator import Accumulator
from paceline_client.batch import ProducerBatch
from paceline_client.codec import finish
from paceline_client.record_buffer import AccumulatorConfig

TP = TopicPartition("t", 0)


def put(accumulator: Accumulator, value: bytes, now_ms: int = 0, tp: TopicPartition = TP) -> tuple[ProducerBatch, int]:
    batch, index, _ = accumulator.append(accumulator.queue(tp), 1_000, None, value, [], now_ms)
    return batch, index


def take(accumulator: Accumulator, now_ms: int, max_bytes: int = 1 << 20) -> list[ProducerBatch]:
    drained = accumulator.drain(accumulator.ready(now_ms).partitions, max_bytes, now_ms)
    for batch in drained:
        encode(accumulator, batch)
    return drained


def encode(accumulator: Accumulator, batch: ProducerBatch) -> bytes:
    if batch.data is None:
        queue = accumulator.queue(batch.topic_partition)
        assert batch.encoder is not None
        if batch.base_sequence is None:
            batch.data = finish(batch.encoder, Codec.NONE)
        else:
            assert queue.producer_id is not None
            batch.data = finish(batch.encoder, Codec.NONE, queue.producer_id, queue.producer_epoch, batch.base_sequence)
    return bytes(batch.data)


def make(**settings: int | bool) -> Accumulator:
    accumulator = Accumulator(AccumulatorConfig(**{"linger_ms": 0, "batch_size": 100, **settings}))  # type: ignore[arg-type]
    accumulator.set_producer_id(7, 0)
    return accumulator


def fill(accumulator: Accumulator, count: int, now_ms: int = 0) -> list[ProducerBatch]:
    """Append ``count`` records that need a batch each."""
    return [put(accumulator, bytes(60), now_ms)[0] for _ in range(count)]


def acknowledge_one(accumulator: Accumulator) -> None:
    put(accumulator, b"first")
    (first,) = take(accumulator, 0)
    accumulator.complete(first, 0, None)


def sequences(accumulator: Accumulator) -> list[int | None]:
    return [batch.base_sequence for batch in accumulator.queue(TP).unresolved]
