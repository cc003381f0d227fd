"""RecordBatch: known bytes, codecs, and batches of a hostile producer."""

import gzip
import random
import struct
import time
import zlib

import cramjam
import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.log.batch_validation import MAX_BATCH_RECORDS, prepare_client_batch
from paceline.log.compression import MAX_DECOMPRESSED_BYTES, MAX_PARTS, Codec, compress, decompress
from paceline.log.log_config import LogConfig, TimestampType
from paceline.log.record_batch import (
    HEADER_BYTES,
    NewRecord,
    Record,
    crc_of,
    decode_batch,
    encode_batch,
    iterate_headers,
    parse_header,
    stamp,
)
from paceline.model.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    PacelineError,
    RecordListTooLargeError,
    UnsupportedCompressionTypeError,
)
from tests.golden.reference_decoder import decode as reference_decode
from tests.support.batches import decode_records
from tests.unit.log.helpers import NOW_MS, batch
from tests.unit.log.memory_files import MemoryFiles

V1 = bytes.fromhex(
    "0000000000000005 00000048 00000003 02 16545f15 0000 00000001 00000000000003e8 00000000000003ed"
    "ffffffffffffffff ffff ffffffff 00000002"
    "12 00 00 00 02 6b 04 7630 00"
    "18 00 0a 02 01 04 7631 02 02 68 02 78"
)
V1_RECORDS = [Record(5, 1000, b"k", b"v0", []), Record(6, 1005, None, b"v1", [("h", b"x")])]
CODECS = list(Codec)
CONFIG = LogConfig()


def with_crc(raw: bytearray | bytes) -> bytes:
    """Return the batch with a checksum that matches its present bytes."""
    raw = bytearray(raw)
    struct.pack_into(">I", raw, 17, google_crc32c.value(bytes(raw[21:])))
    return bytes(raw)


def changed(raw: bytes, layout: str, position: int, value: int) -> bytes:
    """Return the batch with one header field changed and a valid checksum."""
    copy = bytearray(raw)
    struct.pack_into(layout, copy, position, value)
    return with_crc(copy)


def test_the_known_batch_encodes_byte_for_byte() -> None:
    records = [NewRecord(1000, b"k", b"v0"), NewRecord(1005, None, b"v1", [("h", b"x")])]
    assert encode_batch(records, base_offset=5, leader_epoch=3) == V1


def test_the_known_batch_decodes() -> None:
    header = parse_header(V1)
    assert (header.base_offset, header.last_offset, header.leader_epoch, header.crc) == (5, 6, 3, 0x16545F15)
    assert crc_of(V1, 0, len(V1)) == header.crc
    assert decode_batch(V1) == V1_RECORDS == reference_decode(V1)


def test_stamping_offset_and_epoch_leaves_the_checksum_valid() -> None:
    raw = bytearray(V1)
    stamp(raw, 0, 0)
    assert parse_header(raw).crc == 0x16545F15 == crc_of(raw, 0, len(raw))
    stamp(raw, 5, 3)
    assert raw == V1


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_decompresses_to_its_input(codec: Codec) -> None:
    records = [NewRecord(NOW_MS + i, None if i % 3 else b"key", b"value" * 20, [("h", None)]) for i in range(200)]
    raw = encode_batch(records, codec=codec)
    assert parse_header(raw).codec is codec
    decoded = decode_batch(raw)
    assert [record.offset for record in decoded] == list(range(200))
    assert [NewRecord(*record[1:]) for record in decoded] == records
    assert reference_decode(raw) == decoded


def test_snappy_reads_both_framings() -> None:
    data = bytes(range(256)) * 500
    assert bytes(decompress(Codec.SNAPPY, compress(Codec.SNAPPY, data))) == data
    assert bytes(decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data)))) == data


def test_lz4_frames_have_independent_blocks_and_linked_ones_are_refused() -> None:
    data = bytes(range(256)) * 2000
    assert bytes(decompress(Codec.LZ4, compress(Codec.LZ4, data))) == data
    with pytest.raises(CorruptMessageError):
        decompress(Codec.LZ4, bytes(cramjam.lz4.compress(data)))


def test_gzip_reads_members_one_after_the_other() -> None:
    assert bytes(decompress(Codec.GZIP, compress(Codec.GZIP, b"one") + compress(Codec.GZIP, b"two"))) == b"onetwo"


@pytest.mark.parametrize("size", [16 * 1024 - 1, 16 * 1024, 16 * 1024 + 1, 100_000])
def test_gzip_members_may_end_anywhere_between_two_reads(size: int) -> None:
    member = compress(Codec.GZIP, random.Random(7).randbytes(size))
    data = member * 3
    assert bytes(decompress(Codec.GZIP, data)) == gzip.decompress(data)


def xerial(blocks: int) -> bytes:
    """Return a xerial stream of empty blocks."""
    return compress(Codec.SNAPPY, b"") + (b"\x00\x00\x00\x01" + b"\x00") * blocks


@pytest.mark.parametrize(
    ("codec", "part"),
    [(Codec.GZIP, gzip.compress(b"", mtime=0)), (Codec.SNAPPY, xerial(1)[16:])],
    ids=["gzip", "snappy"],
)
def test_a_block_of_too_many_empty_parts_is_refused_before_it_takes_long(codec: Codec, part: bytes) -> None:
    prefix = xerial(0) if codec is Codec.SNAPPY else b""
    assert decompress(codec, prefix + part * MAX_PARTS) == b""
    with pytest.raises(MessageTooLargeError, match=f"more than {MAX_PARTS}"):
        decompress(codec, prefix + part * (MAX_PARTS + 1))


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_many_empty_frames_take_time_in_proportion_to_their_bytes(codec: Codec) -> None:
    frame = compress(codec, b"")

    def cpu_s(frames: int) -> float:
        begin = time.process_time()
        assert decompress(codec, frame * frames) == b""
        return time.process_time() - begin

    # Other processes slow down single attempts by a multiple.
    few, many = (min(cpu_s(frames) for _ in range(5)) for frames in (20_000, 200_000))
    assert many < 30 * max(few, 0.001)


def test_decoding_several_batches_skips_an_incomplete_last_batch() -> None:
    data = batch(b"a", b"b") + batch(b"c", base_offset=2)
    assert [record.value for record in decode_records(data + data[:40])] == [b"a", b"b", b"c"]
    assert len(list(iterate_headers(data[:-1]))) == 1


HOSTILE = {
    "nothing": (b"", CorruptMessageError),
    "less than a header": (V1[:60], CorruptMessageError),
    "wrong checksum": (V1[:-1] + b"y", CorruptMessageError),
    "wrong magic": (batch(b"a")[:16] + b"\x01" + batch(b"a")[17:], CorruptMessageError),
    "length beyond the data": (batch(b"a")[:-1], CorruptMessageError),
    "length too small": (changed(batch(b"a"), ">i", 8, 20), CorruptMessageError),
    "negative length": (changed(batch(b"a"), ">i", 8, -1), CorruptMessageError),
    "bytes behind the batch": (batch(b"a") + b"\x00", InvalidRecordError),
    "two batches": (batch(b"a") + batch(b"b"), InvalidRecordError),
    "base offset set": (batch(b"a", base_offset=7), InvalidRecordError),
    "no records": (changed(changed(batch(b"a"), ">i", 57, 0), ">i", 23, 0), InvalidRecordError),
    "negative count": (changed(batch(b"a"), ">i", 57, -1), CorruptMessageError),
    "huge count": (changed(changed(batch(b"a"), ">i", 57, 2**31 - 1), ">i", 23, 2**31 - 2), MessageTooLargeError),
    "negative delta": (changed(batch(b"a"), ">i", 23, -5), CorruptMessageError),
    "delta and count disagree": (changed(batch(b"a", b"b"), ">i", 23, 5), InvalidRecordError),
    "one record too many": (changed(changed(batch(b"a", b"b"), ">i", 57, 1), ">i", 23, 0), CorruptMessageError),
    "one record too few": (changed(changed(batch(b"a", b"b"), ">i", 57, 3), ">i", 23, 2), CorruptMessageError),
    "control": (changed(batch(b"a"), ">h", 21, 0x20), InvalidRecordError),
    "transactional": (changed(batch(b"a"), ">h", 21, 0x10), InvalidRecordError),
    "log append time": (changed(batch(b"a"), ">h", 21, 0x08), InvalidTimestampError),
    "delete horizon": (changed(batch(b"a"), ">h", 21, 0x40), InvalidRecordError),
    "unknown codec": (changed(batch(b"a"), ">h", 21, 0x07), UnsupportedCompressionTypeError),
    "says gzip and is not": (changed(batch(b"a"), ">h", 21, 0x01), CorruptMessageError),
    "says snappy and is not": (changed(batch(b"a"), ">h", 21, 0x02), CorruptMessageError),
    "says lz4 and is not": (changed(batch(b"a"), ">h", 21, 0x03), CorruptMessageError),
    "says zstd and is not": (changed(batch(b"a"), ">h", 21, 0x04), CorruptMessageError),
    "producer without sequence": (batch(b"a", producer=(5, 0, -1)), InvalidRecordError),
    "producer without epoch": (batch(b"a", producer=(5, -1, 0)), InvalidRecordError),
    "negative producer": (batch(b"a", producer=(-7, 0, 0)), InvalidRecordError),
    "negative timestamp": (batch(b"a", timestamp=-9), InvalidTimestampError),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_batch_is_refused_with_its_own_error(case: str) -> None:
    raw, error = HOSTILE[case]
    with pytest.raises(error):
        prepare_client_batch(raw, CONFIG, NOW_MS)


def test_offset_deltas_must_count_up_from_zero() -> None:
    raw = bytearray(batch(b"a", b"b", key=None))
    position = raw.index(b"\x02\x01\x02b")  # offset delta 1, no key, one byte of value
    raw[position] = 0x04
    with pytest.raises(InvalidRecordError):
        prepare_client_batch(with_crc(raw), CONFIG, NOW_MS)


@pytest.mark.parametrize("length", [b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xff" * 12, b"\x80" * 3])
def test_varints_with_false_lengths_are_refused(length: bytes) -> None:
    raw = bytearray(batch(b"abcdefghijklmnopqrstuvwxyz", key=None))
    start = raw.index(b"\x34abc")
    raw[start : start + len(length)] = length
    with pytest.raises(CorruptMessageError):
        prepare_client_batch(with_crc(raw), CONFIG, NOW_MS)


def test_header_names_that_are_not_utf8_are_refused() -> None:
    raw = encode_batch([NewRecord(1, None, b"v", [("name", b"x")])])
    with pytest.raises(CorruptMessageError):
        prepare_client_batch(with_crc(raw.replace(b"name", b"n\xff\xfee")), CONFIG, NOW_MS)


def bomb(codec: Codec, size: int) -> bytes:
    header = bytearray(batch(b"a")[:HEADER_BYTES])
    payload = compress(codec, bytes(size))
    struct.pack_into(">i", header, 8, HEADER_BYTES - 12 + len(payload))
    struct.pack_into(">h", header, 21, codec)
    return with_crc(bytes(header) + payload)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_decompression_bomb_is_refused(codec: Codec) -> None:
    raw = bomb(codec, MAX_DECOMPRESSED_BYTES + 1)
    with pytest.raises(MessageTooLargeError):
        prepare_client_batch(raw, LogConfig(max_message_bytes=2**31 - 1), NOW_MS)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_truncated_compressed_block_is_refused(codec: Codec) -> None:
    block = compress(codec, b"some bytes that repeat " * 50)
    for cut in (1, 5, len(block) - 3):
        with pytest.raises(CorruptMessageError):
            decompress(codec, block[:-cut])


def test_a_batch_above_the_limits_is_refused() -> None:
    raw = batch(b"x" * 2000)
    with pytest.raises(MessageTooLargeError):
        prepare_client_batch(raw, LogConfig(max_message_bytes=len(raw) - 1), NOW_MS)
    with pytest.raises(RecordListTooLargeError):
        prepare_client_batch(raw, LogConfig(segment_bytes=len(raw) - 1), NOW_MS)
    assert prepare_client_batch(raw, LogConfig(max_message_bytes=len(raw)), NOW_MS).size == len(raw)


@pytest.mark.parametrize("codec", CODECS)
def test_a_small_batch_with_too_many_records_is_refused(codec: Codec) -> None:
    raw = encode_batch((NewRecord(1, None, None) for _ in range(MAX_BATCH_RECORDS + 1)), codec=codec)
    with pytest.raises(MessageTooLargeError, match=f"the limit is {MAX_BATCH_RECORDS}"):
        prepare_client_batch(raw, LogConfig(max_message_bytes=len(raw)), NOW_MS)


def test_a_compacted_topic_needs_keys() -> None:
    config = LogConfig(cleanup_policy=frozenset({"compact"}))
    with pytest.raises(InvalidRecordError):
        prepare_client_batch(batch(b"a", key=None), config, NOW_MS)
    prepare_client_batch(batch(b"a", None), config, NOW_MS)


@pytest.mark.parametrize(("difference", "accepted"), [(1000, True), (-1000, True), (1001, False), (-1001, False)])
def test_timestamps_stay_within_the_allowed_difference(difference: int, accepted: bool) -> None:
    config = LogConfig(message_timestamp_difference_max_ms=1000)
    raw = batch(b"a", timestamp=NOW_MS + difference)
    if accepted:
        prepare_client_batch(raw, config, NOW_MS)
    else:
        with pytest.raises(InvalidTimestampError):
            prepare_client_batch(raw, config, NOW_MS)


def test_records_without_a_timestamp_are_accepted() -> None:
    prepared = prepare_client_batch(batch(b"a", timestamp=-1), CONFIG, NOW_MS)
    assert prepared.max_timestamp.timestamp == -1


def test_log_append_time_overrides_the_producers_time() -> None:
    config = LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    prepared = prepare_client_batch(batch(b"a", b"b"), config, NOW_MS)
    raw = bytes(prepared.buffer[: prepared.size])
    assert crc_of(raw, 0, len(raw)) == parse_header(raw).crc
    assert [record.timestamp for record in decode_batch(raw)] == [NOW_MS, NOW_MS]


def test_a_false_maximum_timestamp_is_corrected() -> None:
    raw = changed(batch(b"a", b"b", timestamp=500), ">q", 35, 10**15)
    prepared = prepare_client_batch(raw, CONFIG, NOW_MS)
    header = parse_header(prepared.buffer)
    assert header.max_timestamp == 501
    assert header.crc == crc_of(prepared.buffer, 0, prepared.size)


@pytest.mark.parametrize("source", CODECS)
@pytest.mark.parametrize("target", CODECS)
def test_a_topics_codec_replaces_the_producers(source: Codec, target: Codec) -> None:
    raw = batch(*[b"value" * 30] * 20, codec=source)
    prepared = prepare_client_batch(raw, LogConfig(compression_type=target), NOW_MS)
    stored = bytes(prepared.buffer[: prepared.size])
    assert parse_header(stored).codec is target
    assert parse_header(stored).crc == crc_of(stored, 0, len(stored))
    assert decode_batch(stored) == decode_batch(raw)
    if source is target:
        assert stored == raw


def _mutate(raw: bytearray, mutations: list[tuple[int, int]], fix_crc: bool, cut: int) -> bytes:
    for place, value in mutations:
        raw[place % len(raw)] = value
    if cut:
        del raw[-min(cut, len(raw)) :]
    return with_crc(raw) if fix_crc and len(raw) >= 21 else bytes(raw)


@settings(max_examples=600, deadline=None)
@given(
    codec=st.sampled_from(CODECS),
    mutations=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6),
    fix_crc=st.booleans(),
    cut=st.sampled_from([0, 0, 0, 1, 7, 50]),
)
def test_no_mutation_of_a_batch_escapes_the_typed_errors(
    codec: Codec, mutations: list[tuple[int, int]], fix_crc: bool, cut: int
) -> None:
    records = [NewRecord(NOW_MS + i, b"key", b"value" * 10, [("h", b"x"), ("n", None)]) for i in range(5)]
    raw = _mutate(bytearray(encode_batch(records, codec=codec)), mutations, fix_crc, cut)
    try:
        prepared = prepare_client_batch(raw, CONFIG, NOW_MS)
    except PacelineError:
        return
    stored = bytes(prepared.buffer[: prepared.size])
    assert len(decode_batch(stored)) == parse_header(stored).record_count


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.builds(
            NewRecord,
            st.integers(0, 2**45),
            st.none() | st.binary(max_size=50),
            st.none() | st.binary(max_size=200),
            st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3),
        ),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from(CODECS),
)
def test_encoded_batches_are_accepted_and_decode_to_the_same_records(records: list[NewRecord], codec: Codec) -> None:
    raw = encode_batch(records, codec=codec)
    prepared = prepare_client_batch(raw, CONFIG, NOW_MS)
    assert prepared.max_timestamp.timestamp == max(record.timestamp for record in records)
    assert [NewRecord(*record[1:]) for record in decode_batch(raw)] == records
    assert reference_decode(raw) == decode_batch(raw)


def test_crc32c_is_not_the_crc_of_zlib() -> None:
    assert parse_header(V1).crc != zlib.crc32(V1[21:])
    assert MemoryFiles().exists("/nothing") is False
