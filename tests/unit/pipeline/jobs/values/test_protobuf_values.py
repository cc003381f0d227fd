"""Protobuf messages become typed columns or name the reason why not."""

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from paceline.model.errors import InvalidConfigError
from paceline.pipeline.jobs.values.parser import BadValueError, parse_values
from paceline.pipeline.jobs.values.protobuf_values import ProtobufParser

Field = descriptor_pb2.FieldDescriptorProto


def descriptors() -> bytes:
    """A FileDescriptorSet with ``shop.Order``, as protoc would write it."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kind = file.enum_type.add(name="Kind")
    for number, name in enumerate(("KIND_UNSPECIFIED", "KIND_ONLINE")):
        kind.value.add(name=name, number=number)
    order = file.message_type.add(name="Order")
    for number, (name, kind_of, label, type_name) in enumerate(
        [
            ("id", Field.TYPE_INT64, Field.LABEL_OPTIONAL, ""),
            ("total", Field.TYPE_UINT64, Field.LABEL_OPTIONAL, ""),
            ("name", Field.TYPE_STRING, Field.LABEL_OPTIONAL, ""),
            ("price", Field.TYPE_DOUBLE, Field.LABEL_OPTIONAL, ""),
            ("tags", Field.TYPE_STRING, Field.LABEL_REPEATED, ""),
            ("kind", Field.TYPE_ENUM, Field.LABEL_OPTIONAL, ".shop.Kind"),
            ("at", Field.TYPE_MESSAGE, Field.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
            ("part", Field.TYPE_MESSAGE, Field.LABEL_OPTIONAL, ".shop.Order"),
        ],
        start=1,
    ):
        order.field.add(name=name, number=number, type=kind_of, label=label, type_name=type_name or None)
    known = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(known)
    return descriptor_pb2.FileDescriptorSet(file=[known, file]).SerializeToString()


def order(**fields: Any) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(**fields)


@pytest.fixture(scope="module")
def parser() -> ProtobufParser:
    return ProtobufParser(descriptors(), "shop.Order")


def test_every_kind_of_field_becomes_its_column(parser: ProtobufParser) -> None:
    message = order(id=-(2**63), total=2**63 - 1, name="é", price=math.inf, tags=["a", "b"], kind=1)
    message.at.FromMilliseconds(1_700_000_000_001)
    message.part.id = 7
    found = parse_values(parser, pa.array([message.SerializeToString()], type=pa.binary()))
    assert not found.bad
    row = {name: array[0].as_py() for name, array in found.arrays.items()}
    assert row["id"] == -(2**63) and row["total"] == 2**63 - 1 and row["price"] == math.inf
    assert row["tags"] == ["a", "b"] and row["kind"] == "KIND_ONLINE" and json.loads(row["part"]) == {"id": "7"}
    assert found.arrays["at"].cast(pa.int64())[0].as_py() == 1_700_000_000_001_000


def test_a_message_field_that_is_not_set_is_null(parser: ProtobufParser) -> None:
    row = dict(zip([c.name for c in parser.columns], parser.parse(order(id=1).SerializeToString()), strict=True))
    assert row["at"] is None and row["part"] is None and row["name"] == ""


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "null-value"),
        (b"", "empty-value"),
        (b"\x08", "invalid-protobuf"),
        (order(name="name").SerializeToString()[:-1], "invalid-protobuf"),
        (b"\x1a\x02\xff\xfe", "invalid-protobuf"),
        (b"\xf8\x06\x01", "unknown-field"),
        (b'{"id": 1}', "invalid-protobuf"),
        (order(total=2**64 - 1).SerializeToString(), "out-of-range"),
        (b"\x3a\x0a" + timestamp_pb2.Timestamp(seconds=2**62).SerializeToString(), "out-of-range"),
        (b"\x3a\x0b" + timestamp_pb2.Timestamp(nanos=-1).SerializeToString(), "out-of-range"),
        (b"\x0b" * 200, "invalid-protobuf"),
    ],
)
def test_a_value_that_does_not_fit_names_its_reason(parser: ProtobufParser, value: bytes | None, reason: str) -> None:
    with pytest.raises(BadValueError) as caught:
        parser.parse(value)
    assert caught.value.reason == reason


def test_deep_nesting_is_refused_and_does_not_end_the_process(parser: ProtobufParser) -> None:
    value = b""
    for _ in range(5000):
        length = len(value)
        varint = b""
        while True:
            varint += bytes([length & 0x7F | (0x80 if length > 0x7F else 0)])
            length >>= 7
            if not length:
                break
        value = b"\x42" + varint + value
    with pytest.raises(BadValueError) as caught:
        parser.parse(value)
    assert caught.value.reason == "invalid-protobuf"


def test_unknown_fields_can_be_allowed() -> None:
    assert ProtobufParser(descriptors(), "shop.Order", allow_unknown=True).parse(b"\xf8\x06\x01")[0] == 0


def test_descriptors_that_lack_the_message_are_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"no message shop\.Invoice"):
        ProtobufParser(descriptors(), "shop.Invoice")
    with pytest.raises(InvalidConfigError):
        ProtobufParser(b"\xff", "shop.Order")
