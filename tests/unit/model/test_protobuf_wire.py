"""The wire format is the one of protobuf's own library."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.model.protobuf_wire import next_field, read_varint, varint
from paceline.v1 import log_service_pb2 as pb


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_a_varint_is_read_back_with_the_position_after_it(value: int, rest: bytes) -> None:
    data = b"\xff" + varint(value)
    assert read_varint(data + rest, 1) == read_varint(memoryview(data + rest), 1) == (value, len(data))


def test_a_cut_and_an_endless_varint_are_refused() -> None:
    with pytest.raises(IndexError):
        read_varint(b"\x80", 0)
    with pytest.raises(ValueError, match="more than ten bytes"):
        read_varint(b"\x80" * 11, 0)


def test_every_field_of_a_message_is_found_where_protobuf_wrote_it() -> None:
    message = pb.FetchPartition(topic="orders", partition=3, fetch_offset=1 << 40, max_bytes=7)
    data = message.SerializeToString()
    found, position = {}, 0
    while position < len(data):
        number, start, stop = next_field(data, position, len(data))
        found[number] = found.get(number, b"") + (data[start:stop] if number > 0 else data[position:stop])
        position = stop
    assert found[1] == b"orders"
    assert pb.FetchPartition.FromString(found[-1]) == pb.FetchPartition(partition=3, fetch_offset=1 << 40, max_bytes=7)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x0a\x05abc", "is incomplete"),
        (b"\x0a", "is incomplete"),
        (b"\x09\x00\x00", "is incomplete"),
        (b"\x0d\x00", "is incomplete"),
        (b"\x0b", "wire type 3"),
        (b"\x0f", "wire type 7"),
        (b"\x02\x00", "without a number"),
        (b"\x08" + b"\xff" * 11, "more than ten bytes"),
    ],
)
def test_a_field_that_is_not_whole_or_a_group_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        next_field(data, 0, len(data))
