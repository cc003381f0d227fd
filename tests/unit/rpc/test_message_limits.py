"""A message of millions of tiny fields is refused before it is parsed (docs/protocol/limits.md#field-count)."""

import time

import pytest

from paceline.internal.v1 import replica_manager_service_pb2 as control_pb
from paceline.model.errors import InvalidRequestError
from paceline.rpc import wire
from paceline.rpc.admission.message_limits import MAX_CLIENT_FIELDS, MAX_SINGLE_FIELDS, parsed, refuse_too_many_fields
from paceline.rpc.convert.common import MAX_CLIENT_PARTITIONS, MAX_RECORDS
from paceline.rpc.interceptors import typed_parser
from paceline.v1 import log_service_pb2 as pb
from paceline.v1.record_pb2 import Record, RecordList

MANY = 4_000_000
EMPTY_PART = b"\x1a\x00"
UNKNOWN_NUMBER = b"\x78\x01"
GROUP = b"\x7b\x7c"
SOON_S = 2.0
"""Walking all of the fields takes several times as long; counting to the limit takes milliseconds."""


@pytest.mark.parametrize(
    "data",
    [EMPTY_PART * MANY, UNKNOWN_NUMBER * MANY, GROUP + EMPTY_PART * MANY, GROUP * MANY],
    ids=["partitions", "unknown fields", "behind a group", "groups"],
)
def test_a_produce_request_of_millions_of_fields_is_refused_quickly(data: bytes) -> None:
    begin = time.process_time()
    with pytest.raises(InvalidRequestError, match="more than"):
        wire.parse_produce(data)
    assert time.process_time() - begin < SOON_S


@pytest.mark.parametrize("content", [UNKNOWN_NUMBER * MANY, b"\x0a\x00" * MANY], ids=["unknown fields", "records"])
def test_a_partition_of_millions_of_fields_is_refused_quickly(content: bytes) -> None:
    part = pb.ProducePartition(topic="t").SerializeToString()
    part += content if content[:1] == b"\x78" else _field(5, content)
    begin = time.process_time()
    with pytest.raises(InvalidRequestError, match="more than"):
        wire.parse_produce(_field(3, part))
    assert time.process_time() - begin < SOON_S


def test_the_largest_allowed_number_of_partitions_and_records_is_accepted() -> None:
    parts = [pb.ProducePartition(topic="t", partition=index, batch=b"x") for index in range(MAX_CLIENT_PARTITIONS)]
    assert len(wire.parse_produce(pb.ProduceRequest(partitions=parts).SerializeToString()).partitions) == len(parts)
    records = RecordList(records=[Record()] * MAX_RECORDS)
    request = pb.ProduceRequest(partitions=[pb.ProducePartition(topic="t", records=records)])
    assert len(wire.parse_produce(request.SerializeToString()).partitions[0].head.records.records) == MAX_RECORDS


def test_a_message_of_the_generated_classes_is_counted_before_it_is_parsed() -> None:
    with pytest.raises(InvalidRequestError, match=f"more than {MAX_CLIENT_FIELDS} fields"):
        parsed(pb.FetchRequest, b"\x42\x00" * MANY)
    parse = typed_parser(control_pb.LeaderAndIsrRequest.FromString, 1_000)
    with pytest.raises(InvalidRequestError, match="more than 1000 fields"):
        parse(EMPTY_PART * MANY)
    assert len(parse(EMPTY_PART * 1_000).partitions) == 1_000
    with pytest.raises(InvalidRequestError, match="cannot be parsed"):
        parse(b"\xff")


@pytest.mark.parametrize(
    "data", [b"\x08" * 3_001 + b"\x01", b"\x08" + b"\x80" * 4_000, b"\x07" * 4_000, b"\x12\xff\xff\x7f" * 1_000]
)
def test_malformed_bytes_are_refused_by_the_parser(data: bytes) -> None:
    refuse_too_many_fields(data, 2_000)


def test_every_kind_of_field_is_counted_once() -> None:
    fields = (b"\x08\x80\x01", b"\x09" + bytes(8), b"\x0d" + bytes(4), b"\x12\x03abc", b"\xf2\x3f\x01a")
    crowd = b"".join(fields) * MAX_SINGLE_FIELDS
    refuse_too_many_fields(crowd, len(fields) * MAX_SINGLE_FIELDS)
    with pytest.raises(InvalidRequestError):
        refuse_too_many_fields(crowd, len(fields) * MAX_SINGLE_FIELDS - 1)


def _field(number: int, content: bytes) -> bytes:
    size = len(content)
    out = bytearray((number << 3 | 2,))
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out) + content
