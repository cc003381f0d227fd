"""Bytes of the records in __consumer_offsets, written by hand from Kafka's schemas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.broker.groups.offsets_topic import partition_for
from paceline.broker.groups.records import (
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    UnknownRecordVersionError,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from paceline.model.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from paceline.model.errors import InvalidRequestError
from paceline.model.identifiers import TopicPartition

MEMBER = MemberValue("m-1", "i", "c", "/h", 60_000, 10_000, b"sub", b"asg")


def test_offset_commit_key_is_kafkas_version_1() -> None:
    raw = bytes.fromhex("000100016700017400000003")
    assert encode_offset_key("g", TopicPartition("t", 3)) == raw
    assert decode_key(raw) == OffsetKey("g", TopicPartition("t", 3))


def test_group_metadata_key_is_kafkas_version_2() -> None:
    assert encode_group_key("g") == bytes.fromhex("0002000167")
    assert decode_key(encode_group_key("g")) == GroupKey("g")


def test_offset_commit_value_is_kafkas_version_3() -> None:
    value = OffsetValue(5, 2, "n", 1_600_000_000_000)
    raw = bytes.fromhex("000300000000000000050000000200016e") + (1_600_000_000_000).to_bytes(8, "big")
    assert encode_offset_value(value) == raw
    assert decode_offset_value(raw) == value


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("0000000000000000000500016e0000000000000009", OffsetValue(5, -1, "n", 9)),
        ("0001000000000000000500016e0000000000000009000000000000000a", OffsetValue(5, -1, "n", 9, 10)),
        ("0002000000000000000500016e0000000000000009", OffsetValue(5, -1, "n", 9)),
    ],
)
def test_older_offset_commit_values_are_read(raw: str, expected: OffsetValue) -> None:
    assert decode_offset_value(bytes.fromhex(raw)) == expected


def test_group_metadata_value_is_kafkas_version_3() -> None:
    value = GroupValue("consumer", 7, "range", "m-1", 9, (MEMBER,))
    raw = encode_group_value(value)
    assert raw == (
        b"\x00\x03" b"\x00\x08consumer" b"\x00\x00\x00\x07" b"\x00\x05range" b"\x00\x03m-1" + (9).to_bytes(8, "big")
        + b"\x00\x00\x00\x01" b"\x00\x03m-1" b"\x00\x01i" b"\x00\x01c" b"\x00\x02/h" + (60_000).to_bytes(4, "big")
        + (10_000).to_bytes(4, "big") + b"\x00\x00\x00\x03sub" b"\x00\x00\x00\x03asg"
    )  # fmt: skip
    assert decode_group_value(raw) == value


def test_group_of_version_0_has_one_timeout_for_both() -> None:
    raw = (
        b"\x00\x00" b"\x00\x08consumer" b"\x00\x00\x00\x01" b"\xff\xff" b"\xff\xff" b"\x00\x00\x00\x01"
        b"\x00\x01m" b"\x00\x01c" b"\x00\x01h" b"\x00\x00\x27\x10" b"\xff\xff\xff\xff" b"\xff\xff\xff\xff"
    )  # fmt: skip
    (member,) = decode_group_value(raw).members
    assert (member.rebalance_timeout_ms, member.session_timeout_ms, member.group_instance_id) == (10_000, 10_000, None)


def test_record_of_a_newer_version_is_refused() -> None:
    with pytest.raises(UnknownRecordVersionError):
        decode_key(b"\x00\x03\x00\x01g")
    with pytest.raises(UnknownRecordVersionError):
        decode_offset_value(b"\x00\x04" + bytes(20))


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    for decode in (decode_key, decode_offset_value, decode_group_value, decode_subscription, decode_assignment):
        try:
            decode(data)
        except InvalidRequestError:
            pass


def test_subscription_is_kafkas_version_3() -> None:
    subscription = Subscription(("t",), b"u", {"t": (1,)}, 4, "r")
    raw = bytes.fromhex("000300000001000174000000017500000001000174000000010000000100000004000172")
    assert encode_subscription(subscription) == raw
    assert decode_subscription(raw) == subscription
    assert decode_subscription(bytes.fromhex("000000000001000174ffffffff")) == Subscription(("t",))


def test_assignment_is_kafkas() -> None:
    raw = bytes.fromhex("000100000001000174000000020000000000000002ffffffff")
    assert encode_assignment(Assignment({"t": (0, 2)})) == raw
    assert decode_assignment(raw) == Assignment({"t": (0, 2)})
    assert decode_assignment(b"") == Assignment()


@pytest.mark.parametrize(
    ("group_id", "partition"),
    [
        ("", 0),
        ("my-group", 12),
        ("polygenelubricants", 0),  # its hash code is -2^31, whose absolute value Java cannot hold
    ],
)
def test_group_is_stored_in_the_same_partition_as_in_kafka(group_id: str, partition: int) -> None:
    assert partition_for(group_id, 50) == partition
