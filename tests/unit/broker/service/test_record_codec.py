"""Structured records: batches are decoded only up to the budget of the response."""

import threading
import tracemalloc

import pytest

from paceline.broker.service import record_codec
from paceline.broker.service.record_codec import RecordCodec, decode
from paceline.log.compression import Codec
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.model.errors import CorruptMessageError

MIB = 1 << 20


def empty_records(count: int, codec: Codec = Codec.ZSTD) -> bytes:
    return encode_batch((NewRecord(1, None, None) for _ in range(count)), codec=codec)


def test_a_batch_of_many_records_is_decoded_only_until_the_budget_is_reached() -> None:
    batch = empty_records(330_000)
    tracemalloc.start()
    records, _ = decode(batch, 0, 2_000)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0 < len(records.records) < 200
    assert peak_bytes < 16 * MIB  # the expanded batch, and no list of its records


def test_decoding_begins_at_the_fetch_offset() -> None:
    records, _ = decode(empty_records(1_000), 990, MIB)
    assert [record.offset for record in records.records] == list(range(990, 1_000))


def test_the_first_record_is_returned_even_when_it_exceeds_the_budget() -> None:
    records, _ = decode(encode_batch([NewRecord(1, None, b"x" * 5_000)]), 0, 100)
    assert len(records.records) == 1


def test_an_unreadable_stored_batch_is_a_corrupt_message() -> None:
    batch = bytearray(encode_batch([NewRecord(1, None, b"v", [("name", b"x")])]))
    batch[batch.index(b"name") + 1] = 0xFF
    with pytest.raises(CorruptMessageError):
        decode(bytes(batch), 0, MIB)


@pytest.mark.parametrize(
    ("batch", "in_a_thread"),
    [
        (empty_records(100, Codec.NONE), False),
        (empty_records(100), False),
        (empty_records(20_000, Codec.NONE), True),
        (empty_records(20_000), True),
        (encode_batch([NewRecord(1, None, bytes(8 * MIB))], codec=Codec.ZSTD), True),
        (encode_batch([NewRecord(1, None, bytes(MIB))]), True),
    ],
    ids=["few", "few-zstd", "many", "many-zstd", "grows", "large"],
)
async def test_batches_that_expand_to_many_bytes_are_decoded_outside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, batch: bytes, in_a_thread: bool
) -> None:
    threads: list[threading.Thread] = []

    def noted(*arguments: object) -> object:
        threads.append(threading.current_thread())
        return decode(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(record_codec, "decode", noted)
    codec = RecordCodec()
    await codec.decode(batch, 0, 1_000)
    codec.close()
    assert [thread is not threading.current_thread() for thread in threads] == [in_a_thread]
