"""The decoder against Kafka's own bytes, against aiokafka's codec, and against payloads that lie."""

import json
import random
import struct
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.model.errors import CorruptMessageError, MessageTooLargeError, UnsupportedCompressionTypeError
from paceline.pipeline.decode import records as decode_module
from paceline.pipeline.decode.batch_index import FetchedSlice, index_batches
from paceline.pipeline.decode.columns import arrow_schema
from paceline.pipeline.decode.records import decode_index
from paceline.pipeline.source.options import ALL_COLUMNS
from tests.unit.pipeline import golden
from tests.unit.pipeline.batches import decoded, encode, simple_records, to_records, whole, with_payload
from tests.unit.pipeline.golden import Expected

SEGMENTS = golden.segment_files()
BATCHES = sorted((golden.GOLDEN / "batches").glob("*.json"))


def zigzag(number: int) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def record(body: bytes) -> bytes:
    return zigzag(len(body)) + body


# --- Kafka's own bytes


def test_the_golden_files_are_there() -> None:
    assert len(SEGMENTS) > 30
    assert len(BATCHES) == 15


@pytest.mark.parametrize("path", SEGMENTS, ids=lambda path: f"{path.parent.parent.name}-{path.parent.name}-{path.stem}")
def test_a_golden_segment_decodes_to_what_kafka_says(path: Path) -> None:
    assert decoded(path.read_bytes()) == golden.segment_records(path)


@pytest.mark.parametrize("path", BATCHES, ids=lambda path: path.stem)
def test_a_batch_of_another_client_decodes_to_what_kafka_says(path: Path) -> None:
    assert decoded(path.with_suffix(".bin").read_bytes()) == golden.records(json.loads(path.read_text()))


def test_the_golden_segments_hold_every_codec_and_kind_of_batch() -> None:
    batches = [batch for path in (golden.GOLDEN / "log").rglob("*.ndjson") for batch in golden.batch_lines(path)]
    assert {batch["codec"] for batch in batches} == {"none", "gzip", "snappy", "lz4", "zstd"}
    assert any(batch["control"] for batch in batches)
    assert any(batch["timestamp_type"] == "LogAppendTime" for batch in batches)
    assert any(batch["count"] == 0 for batch in batches)
    assert any(batch["attributes"] & 64 for batch in batches)


# --- a second opinion


def aiokafka_opinion(data: bytes, first_offset: int) -> list[Expected]:
    found = [
        Expected(each.key, each.value, each.offset, each.timestamp, each.timestamp_type or 0, tuple(each.headers))
        for each in DefaultRecordBatch(bytearray(data))
    ]
    assert found[0].offset == first_offset
    return found


field = st.none() | st.binary(max_size=200)
header = st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20))
made_record = st.tuples(field, field, st.integers(0, 2**42), st.lists(header, max_size=4))


@given(
    batches=st.lists(st.tuples(st.lists(made_record, min_size=1, max_size=12), st.integers(0, 4)), max_size=6),
    base=st.integers(0, 2**40),
)
@example(batches=[([(None, None, 0, [])], 0)] * 70, base=0)
@example(batches=[([(b"k", b"v" * 9000, 5, [("h", b"x")])] * 80, 4)], base=1)
def test_made_records_decode_as_aiokafka_decodes_them(
    batches: list[tuple[list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]], int]], base: int
) -> None:
    data, opinion, offset = b"", [], base
    for made, codec in batches:
        records = [
            Expected(key, value, offset + delta, time, 0, tuple(headers))
            for delta, (key, value, time, headers) in enumerate(made)
        ]
        batch = encode(records, codec)
        opinion += aiokafka_opinion(batch, offset)
        assert opinion[-len(records) :] == records
        data += batch
        offset += len(records)
    assert decoded(data) == opinion


def test_few_long_batches_and_many_short_ones_decode_alike() -> None:
    """The lock-step walk, the plain scan, and the change from one to the other inside a buffer."""
    rng = random.Random(5)
    records = [
        Expected(
            None if rng.random() < 0.1 else rng.randbytes(rng.randrange(20)),
            None if rng.random() < 0.1 else rng.randbytes(rng.choice((0, 5, 100, 9_000))),
            offset,
            1_000 + rng.randrange(10_000),
            0,
            tuple((f"h{n}", None if n == 1 else b"x" * n) for n in range(rng.choice((0, 0, 0, 1, 3)))),
        )
        for offset in range(4_000)
    ]
    few = encode(records[:2_000]) + encode(records[2_000:])
    many = b"".join(encode(records[at : at + 7]) for at in range(0, 4_000, 7))
    mixed = b"".join(encode(records[at : at + 10]) for at in range(0, 1_000, 10)) + encode(records[1_000:])
    assert decoded(few) == decoded(many) == decoded(mixed) == records


@pytest.mark.parametrize("seed", range(8))
def test_runs_of_records_of_one_size_in_a_long_batch_are_read_like_any_others(seed: int) -> None:
    """Runs are skipped at once; they begin and end anywhere, also with the batch, and sizes repeat by chance."""
    rng = random.Random(seed)
    sizes: list[int] = []
    while len(sizes) < 3_000:
        sizes += [rng.choice((0, 1, 50, 51, 52, 100, 9_000))] * rng.choice((1, 1, 2, 4, 5, 6, 7, 70, 600))
    records = [
        Expected(None, rng.randbytes(size), offset, 1_000 + rng.choice((0, 0, 0, 70)), 0, ())
        for offset, size in enumerate(sizes)
    ]
    assert decoded(encode(records)) == records


@pytest.mark.parametrize("size", [6, 7, 63, 64, 200])
def test_a_run_that_claims_more_records_than_its_batch_holds_is_refused(size: int) -> None:
    body = b"\0" * size
    payload = record(body) * 40
    for cut in (1, len(record(body)), len(record(body)) + 1):
        with pytest.raises(CorruptMessageError):
            decoded(with_payload(payload[:-cut], 40))


# --- where a read starts and ends


def test_records_before_the_start_and_from_the_end_offset_are_left_out() -> None:
    data = encode(simple_records(10)) + encode(simple_records(10, 10)) + encode(simple_records(10, 20))
    assert [each.offset for each in decoded(data, 5, 27)] == list(range(5, 27))
    assert [each.offset for each in decoded(data, 10, 20)] == list(range(10, 20))


def test_the_next_offset_follows_the_last_complete_batch() -> None:
    data = encode(simple_records(10)) + encode(simple_records(10, 10))
    assert index_batches(data, whole(data)).next_offsets == [20]
    cut = data[:-1]
    index = index_batches(cut, whole(cut))
    assert index.next_offsets == [10]
    assert to_records(decode_index(index, ALL_COLUMNS)) == simple_records(10)


@pytest.mark.parametrize("kept", range(0, 90, 7))
def test_a_cut_first_batch_gives_nothing_and_no_progress(kept: int) -> None:
    data = encode(simple_records(3))[:kept]
    index = index_batches(data, whole(data, start=1))
    assert (len(index), index.next_offsets) == (0, [1])
    assert list(decode_index(index)) == []


def test_control_and_empty_batches_give_no_rows_but_move_the_next_offset() -> None:
    control = with_payload(record(bytes((0, 0, 0, 8)) + b"\0\0\0\1" + zigzag(6) + b"\0\0\0\0\0\0" + b"\0"), 1, 0, 0x30)
    empty = with_payload(b"", 0, last_offset_delta=4)
    for data, following in ((control, 1), (empty, 5)):
        index = index_batches(data, whole(data))
        assert list(decode_index(index)) == []
        assert index.next_offsets == [following]


def test_partitions_of_one_buffer_keep_their_names_and_bounds() -> None:
    first, second = encode(simple_records(10)), encode(simple_records(10, 100))
    data = b"junk" + first + b"rubbish" + second
    begin = len(data) - len(second)
    slices = [
        FetchedSlice("a", 3, 4, 4 + len(first), 2, 9),
        FetchedSlice("b", 7, begin, len(data), 0, 103),
        FetchedSlice("a", 4, 4, 4, 0, 5),
    ]
    [batch] = decode_index(index_batches(data, slices))
    rows = list(
        zip(batch["topic"].to_pylist(), batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
    )
    assert rows == [("a", 3, n) for n in range(2, 9)] + [("b", 7, n) for n in range(100, 103)]


def test_compressed_groups_are_split_so_that_one_answer_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_module, "GROUP_BYTES", 5_000)
    data = b"".join(encode(simple_records(50, at), codec=4) for at in range(0, 500, 50))
    batches = list(decode_index(index_batches(data, whole(data)), ALL_COLUMNS))
    assert len(batches) > 2
    assert to_records(batches) == simple_records(500)


# --- columns


@pytest.mark.parametrize(
    "columns",
    [("offset", "timestamp"), ("value",), ("headers", "key"), ("timestampType", "partition", "topic"), ALL_COLUMNS],
    ids=",".join,
)
def test_only_the_wanted_columns_come_in_the_wanted_order(columns: tuple[str, ...]) -> None:
    data = golden.partition("clean/codecs-0")
    everything = pa.Table.from_batches(list(decode_index(index_batches(data, whole(data)), ALL_COLUMNS)))
    some = pa.Table.from_batches(list(decode_index(index_batches(data, whole(data)), columns)))
    assert some.schema == arrow_schema(columns)
    assert some.equals(everything.select(list(columns)))


def test_a_header_key_that_is_not_text_is_replaced_not_fatal() -> None:
    body = b"\0\0\0" + zigzag(-1) + zigzag(-1) + zigzag(1) + zigzag(2) + b"\xffk" + zigzag(-1)
    [found] = decoded(with_payload(record(body), 1))
    assert found.headers == (("\ufffdk", None),)


def test_append_time_batches_report_the_append_time_for_every_record() -> None:
    found = decoded(golden.partition("clean/append_time-0"))
    assert found == golden.partition_records("clean/append_time-0")
    assert {each.timestamp_type for each in found} == {1}


# --- lies


def test_every_flipped_byte_under_the_checksum_is_noticed() -> None:
    data = encode(simple_records(3))
    for position in range(21, len(data)):
        broken = bytearray(data)
        broken[position] ^= 0x55
        with pytest.raises(CorruptMessageError):
            decoded(bytes(broken))


GOOD = b"\0" + zigzag(0) + zigzag(0) + zigzag(1) + b"k" + zigzag(1) + b"v" + zigzag(0)

LIES = {
    "a record longer than its batch": (zigzag(200) + GOOD, 1),
    "a record shorter than its fields": (record(b"\0\0\0\0\0"), 1),
    "a negative record length": (zigzag(-20) + GOOD, 1),
    "a length that does not end": (b"\xff" * 12, 1),
    "an offset delta that does not end": (record(b"\0\0" + b"\xff" * 8), 1),
    "more records than bytes": (record(GOOD), 2**31 - 1),
    "fewer records than bytes": (record(GOOD) + record(GOOD), 1),
    "one record twice": (record(GOOD) * 2, 2),
    "bytes behind the records": (record(GOOD) + b"\0", 1),
    "a key beyond the record": (record(b"\0\0\0" + zigzag(50) + b"k" + zigzag(1) + b"v\0"), 1),
    "a key of two gigabytes": (record(b"\0\0\0" + zigzag(2**31 - 1) + b"k" + zigzag(1) + b"v\0"), 1),
    "a key length below -1": (record(b"\0\0\0" + zigzag(-2) + b"k" + zigzag(1) + b"v\0"), 1),
    "a value beyond the record": (record(b"\0\0\0" + zigzag(1) + b"k" + zigzag(9) + b"v\0"), 1),
    "a value length below -1": (record(b"\0\0\0" + zigzag(1) + b"k" + zigzag(-7) + b"v\0"), 1),
    "bytes behind the headers": (record(GOOD + b"xx"), 1),
    "a negative header count": (record(GOOD[:-1] + zigzag(-3)), 1),
    "two billion headers": (record(GOOD[:-1] + zigzag(2**31 - 1)), 1),
    "a header without a key": (record(GOOD[:-1] + zigzag(1) + zigzag(-1) + zigzag(-1)), 1),
    "a header beyond the record": (record(GOOD[:-1] + zigzag(1) + zigzag(1) + b"h" + zigzag(40)), 1),
    "an offset beyond the last": (record(b"\0\0" + zigzag(5) + GOOD[3:]), 1),
    "a negative offset": (record(b"\0\0" + zigzag(-5) + GOOD[3:]), 1),
    "a timestamp at the end of days": (record(b"\0" + zigzag(2**62) + GOOD[2:]), 1),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_payload_that_lies_under_a_valid_checksum_is_a_typed_error(lie: str) -> None:
    payload, count = LIES[lie]
    data = with_payload(payload, count, last_offset_delta=max(count - 1, 1))
    with pytest.raises(CorruptMessageError, match="t/0"):
        decoded(data)
    # The same among enough honest batches that all are walked in lock-step.
    crowd = b"".join(encode(simple_records(3, 100 + 3 * at)) for at in range(80))
    with pytest.raises(CorruptMessageError, match="t/0"):
        decoded(data + crowd)


@settings(max_examples=400, deadline=None)
@given(payload=st.binary(min_size=0, max_size=120), count=st.integers(1, 12), times=st.sampled_from([1, 70]))
def test_any_payload_decodes_or_is_refused(payload: bytes, count: int, times: int) -> None:
    one = bytearray(with_payload(payload, count))
    data = bytearray()
    for at in range(times):
        struct.pack_into(">q", one, 0, at * count)
        data += one
    try:
        found = decoded(bytes(data))
    except CorruptMessageError:
        return
    assert found == [each for at in range(times) for each in aiokafka_opinion_of_garbage(bytes(one), at * count)]


def aiokafka_opinion_of_garbage(batch: bytes, base: int) -> list[Expected]:
    moved = bytearray(batch)
    struct.pack_into(">q", moved, 0, base)
    return [
        Expected(each.key, each.value, each.offset, each.timestamp, 0, tuple(each.headers))
        for each in DefaultRecordBatch(moved)
    ]


def test_wrong_headers_of_a_batch_are_typed_errors() -> None:
    good = bytearray(encode(simple_records(3)))
    for offset, code, number in (
        (8, ">i", 3),
        (8, ">i", -1),
        (16, ">b", 1),
        (0, ">q", -5),
        (57, ">i", -1),
        (57, ">i", 9),
    ):
        broken = bytearray(good)
        struct.pack_into(code, broken, offset, number)
        with pytest.raises(CorruptMessageError):
            decoded(bytes(broken))


def test_overlapping_batches_are_refused() -> None:
    data = encode(simple_records(5)) + encode(simple_records(5, 3))
    with pytest.raises(CorruptMessageError, match="overlaps"):
        decoded(data)


def test_damaged_and_unknown_compression_is_a_typed_error() -> None:
    with pytest.raises(CorruptMessageError, match="batch at offset 0"):
        decoded(with_payload(b"no zstd frame", 1, attributes=4))
    with pytest.raises(UnsupportedCompressionTypeError, match="t/0, batch at offset 0: codec 6"):
        decoded(with_payload(b"whatever", 1, attributes=6))


def test_a_decompression_bomb_is_refused() -> None:
    bomb = encode([Expected(None, bytes(80 << 20), 0, 0, 0, ())], codec=4)
    assert len(bomb) < 100_000
    with pytest.raises(MessageTooLargeError, match=r"t/0, batch at offset 0: .*expands to more"):
        decoded(bomb)


def test_a_time_that_spark_cannot_hold_is_named_and_can_be_left_out() -> None:
    records = [Expected(None, b"v", offset, 1 << 62 if offset == 2 else 5, 0, ()) for offset in range(4)]
    data = encode(records[:2]) + encode(records[2:])
    with pytest.raises(
        CorruptMessageError, match=r"the timestamp of the record at offset 2 is out of range for Spark.*columns"
    ):
        decoded(data)
    batches = list(decode_index(index_batches(data, whole(data)), ("offset", "value")))
    assert [number for batch in batches for number in batch["offset"].to_pylist()] == [0, 1, 2, 3]


def test_a_record_without_headers_has_null_there_as_in_sparks_kafka_source() -> None:
    with_one, without = Expected(None, b"a", 0, 1, 0, (("h", b"1"),)), Expected(None, b"b", 1, 1, 0, ())
    for records in ([with_one, without], [replace(without, offset=0)]):
        data = encode(records)
        [batch] = decode_index(index_batches(data, whole(data)), ALL_COLUMNS)
        expected = [[{"key": "h", "value": b"1"}] if each.headers else None for each in records]
        assert batch["headers"].to_pylist() == expected
