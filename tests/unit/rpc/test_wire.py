"""The hand-written codecs of bulk messages agree with the generated messages, byte for byte and value for value."""

from dataclasses import replace

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from paceline.internal.v1 import replication_service_pb2 as replica_pb
from paceline.model import client_io, replica_fetch
from paceline.model.client_io import LeaderHint, PartitionFailure, ProduceData, RequiredAcks
from paceline.model.errors import ErrorCode, InvalidRequestError
from paceline.model.identifiers import TopicPartition
from paceline.model.protobuf_wire import varint
from paceline.rpc import wire
from paceline.rpc.convert import fetch
from paceline.v1 import log_service_pb2 as pb
from paceline_client.wire import decode_fetch_answer
from tests.support import reverse_conversions

PARTITIONS = st.builds(TopicPartition, st.text("abc._-", min_size=1, max_size=12), st.integers(0, 2**31 - 1))
OFFSETS = st.integers(-1, 2**63 - 1)
EPOCH_ENDS = st.none() | st.builds(replica_fetch.EpochEnd, st.integers(0, 9), OFFSETS)
# Sizes on both sides of every varint length and of the limit below which parts are parsed whole.
PAYLOADS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([127, 128, 900, 1_024, 1_100, 16_383, 16_384, 70_000]).map(lambda size: b"\x5a" * size),
)
FAILURES = st.none() | st.builds(
    PartitionFailure,
    st.sampled_from([code for code in ErrorCode if code]),
    st.text(min_size=1, max_size=9),
    st.none() | st.builds(LeaderHint, st.integers(0, 9), st.integers(0, 9)),
)
FETCH_RESULTS = st.lists(
    st.builds(client_io.FetchResult, PARTITIONS, FAILURES, OFFSETS, OFFSETS, OFFSETS, EPOCH_ENDS, PAYLOADS), max_size=4
)
REPLICA_RESPONSES = st.builds(
    replica_fetch.ReplicaFetchResponse,
    st.integers(0, 2**31 - 1),
    st.lists(
        st.builds(
            replica_fetch.ReplicaFetchResult,
            PARTITIONS,
            st.sampled_from(list(ErrorCode)),
            st.integers(-1, 9),
            OFFSETS,
            OFFSETS,
            OFFSETS,
            EPOCH_ENDS,
            PAYLOADS,
        ),
        max_size=4,
    ),
    st.sampled_from(list(ErrorCode)),
)
PRODUCE_DATA = st.lists(
    st.builds(ProduceData, PARTITIONS, st.none() | st.just("i" * 22), PAYLOADS.filter(len)), max_size=4
)


@given(st.integers(0, 2**31 - 1), FETCH_RESULTS)
def test_a_fetch_answer_has_the_bytes_of_the_generated_message(
    session_id: int, results: list[client_io.FetchResult]
) -> None:
    message = pb.FetchResponse(
        session_id=session_id, partitions=[fetch.fetch_result_to_proto(result) for result in results]
    )
    assert wire.fetch_response(session_id, results) == message.SerializeToString()


def test_the_preferred_read_replica_survives_every_encoding() -> None:
    result = client_io.FetchResult(TopicPartition("t", 1), None, 5, 5, 0, preferred_read_replica=7)
    data = wire.fetch_response(3, [result])
    assert data == pb.FetchResponse(session_id=3, partitions=[fetch.fetch_result_to_proto(result)]).SerializeToString()
    (decoded,) = decode_fetch_answer(data).partitions
    assert (decoded.preferred_read_replica, decoded.high_watermark, decoded.batches) == (7, 5, b"")
    (without,) = decode_fetch_answer(wire.fetch_response(3, [replace(result, preferred_read_replica=None)])).partitions
    assert without.preferred_read_replica is None


@given(REPLICA_RESPONSES)
def test_a_followers_answer_has_the_bytes_of_the_generated_message(
    response: replica_fetch.ReplicaFetchResponse,
) -> None:
    data = reverse_conversions.replica_fetch_response_to_proto(response).SerializeToString()
    assert wire.replica_fetch_response(response) == data
    assert wire.parse_replica_fetch_response(data) == response


@given(st.sampled_from(list(RequiredAcks)), st.integers(0, 2**31 - 1), PRODUCE_DATA)
def test_a_produce_request_is_parsed_like_the_generated_message(
    acks: RequiredAcks, timeout_ms: int, data: list[ProduceData]
) -> None:
    message = pb.ProduceRequest(acks=pb.Acks.Value(f"ACKS_{acks.name}"), timeout_ms=timeout_ms)
    for one in data:
        topic, partition = one.topic_partition
        message.partitions.add(topic=topic, partition=partition, topic_id=one.topic_id or "", batch=one.batch)
    assert_same_produce(message.SerializeToString())


def assert_same_produce(data: bytes) -> None:
    """The hand-written parser and the generated one agree, also about what is not a message."""
    try:
        expected = pb.ProduceRequest.FromString(data)
    except DecodeError:
        with pytest.raises(InvalidRequestError):
            wire.parse_produce(data)
        return
    call = wire.parse_produce(data)
    assert (call.acks, call.timeout_ms, len(call.partitions)) == (
        expected.acks,
        expected.timeout_ms,
        len(expected.partitions),
    )
    for part, one in zip(call.partitions, expected.partitions, strict=True):
        assert (part.head.topic, part.head.partition, part.head.topic_id) == (one.topic, one.partition, one.topic_id)
        assert part.batch == (one.batch if one.WhichOneof("data") == "batch" else None)
        assert (part.head.WhichOneof("data") == "records") == (one.WhichOneof("data") == "records")
        assert part.head.records == one.records


BIG = b"\x5a" * 2_000
BIG_RECORDS = pb.ProducePartition(topic="t", records={"records": [{"value": BIG}]}).SerializeToString()
BIG_BATCH = pb.ProducePartition(topic="t", batch=BIG).SerializeToString()


def request_of(part: bytes) -> bytes:
    return pb.ProduceRequest(acks=pb.ACKS_LEADER).SerializeToString() + b"\x1a" + varint(len(part)) + part


@pytest.mark.parametrize(
    "part",
    [
        BIG_RECORDS,
        BIG_BATCH + b"\x22\x01x",  # the batch twice: the last one counts
        BIG_BATCH + pb.ProducePartition(records={"records": [{"value": b"v"}]}).SerializeToString(),
        BIG_RECORDS + b"\x22\x01x",
        BIG_BATCH + b"\x10\x07",  # a field after the payload
        BIG_BATCH + b"\xc0\x3e\x01",  # a field of a later version
        BIG_BATCH + b"\x0d\x00\x00\x00\x00",  # a known number with another wire type
        BIG_BATCH + b"\x0b\x0c",  # a group
        BIG_BATCH + b"\x0a\x01\xff",  # not UTF-8
        BIG_BATCH[:-1],
        BIG_BATCH + b"\x80",
        BIG_BATCH + b"\x10" + b"\x80" * 10 + b"\x01",
        BIG_BATCH + b"\x00\x00",
        BIG_BATCH + b"\x22\xff\xff\xff\xff\x0f",
        b"",
    ],
)
def test_unusual_produce_requests_are_parsed_as_the_generated_message_parses_them(part: bytes) -> None:
    assert_same_produce(request_of(part))
    assert_same_produce(request_of(part) + b"\x08\x02")  # a second value for acks
    assert_same_produce(request_of(part)[:-1])


@given(
    st.lists(
        st.sampled_from([b"\x1a", b"\x22", b"\x2a", b"\x08", b"\x80", b"\x01", b"\x0b", b"t", b"\xff"]), max_size=9
    ),
    st.integers(0, 2_100),
    st.integers(0, 3),
)
@example([b"\x1a", b"\x80"], 3, 1)
def test_damaged_produce_requests_are_handled_as_by_the_generated_parser(
    garbage: list[bytes], position: int, cut: int
) -> None:
    whole = request_of(BIG_BATCH)
    assert_same_produce(whole[:position] + b"".join(garbage) + whole[position + cut :])


@given(REPLICA_RESPONSES, st.data())
def test_damaged_responses_of_leaders_are_refused_or_parsed_as_by_the_generated_parser(
    response: replica_fetch.ReplicaFetchResponse, data: st.DataObject
) -> None:
    whole = bytearray(wire.replica_fetch_response(response))
    if whole:
        whole[data.draw(st.integers(0, min(len(whole), 60) - 1))] = data.draw(st.integers(0, 255))
    try:
        expected = replica_pb.FetchResponse.FromString(bytes(whole))
    except DecodeError:
        with pytest.raises(InvalidRequestError):
            wire.parse_replica_fetch_response(bytes(whole))
        return
    assert wire.parse_replica_fetch_response(bytes(whole)) == reverse_conversions.replica_fetch_response_from_proto(
        expected
    )
