import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.model.errors import CorruptMessageError
from paceline.v1.errors_pb2 import PartitionError
from paceline.v1.log_service_pb2 import EpochEndOffset, FetchPartitionResult, FetchResponse, ProduceRequest
from paceline_client.wire import ProducePiece, decode_fetch_answer, encode_produce_request

pieces = st.lists(
    st.builds(
        ProducePiece,
        st.text(max_size=10),
        st.integers(0, 2**31 - 1),
        st.binary(max_size=300),
        st.text(max_size=40),
        st.none() | st.integers(0, 2**31 - 1),
    )
)
int64 = st.integers(-(2**63), 2**63 - 1)
results = st.lists(
    st.builds(
        FetchPartitionResult,
        topic=st.text(max_size=10),
        partition=st.integers(0, 2**31 - 1),
        error=st.none() | st.builds(PartitionError, code=st.just(6), message=st.text(max_size=5)),
        high_watermark=int64,
        last_stable_offset=int64,
        log_start_offset=int64,
        diverging_epoch=st.none() | st.builds(EpochEndOffset, epoch=st.integers(0, 9), end_offset=int64),
        batches=st.binary(max_size=300),
    )
)


@given(st.integers(0, 3), st.integers(0, 2**31 - 1), pieces)
def test_an_encoded_produce_request_parses_as_protobuf(
    acks: int, timeout_ms: int, given_pieces: list[ProducePiece]
) -> None:
    read = ProduceRequest.FromString(encode_produce_request(acks, timeout_ms, given_pieces))
    assert (read.acks, read.timeout_ms) == (acks, timeout_ms)
    found = [
        (
            p.topic,
            p.partition,
            p.batch,
            p.topic_id,
            p.current_leader_epoch if p.HasField("current_leader_epoch") else None,
        )
        for p in read.partitions
    ]
    assert found == [tuple(piece) for piece in given_pieces]
    assert all(p.WhichOneof("data") == "batch" for p in read.partitions)


@given(st.integers(0, 2**31 - 1), results, st.booleans())
def test_a_fetch_response_parses_as_protobuf_encoded_it(
    session_id: int, partitions: list[FetchPartitionResult], copy: bool
) -> None:
    response = FetchResponse(session_id=session_id, partitions=partitions).SerializeToString()
    answer = decode_fetch_answer(response, copy)
    assert answer.session_id == session_id
    assert len(answer.partitions) == len(partitions)
    for read, wrote in zip(answer.partitions, partitions, strict=True):
        batches = read.batches if copy else answer.data[read.begin : read.stop]
        assert (read.topic, read.partition, batches) == (wrote.topic, wrote.partition, wrote.batches)
        assert read.high_watermark == wrote.high_watermark
        assert read.log_start_offset == wrote.log_start_offset
        assert (read.error is not None) == wrote.HasField("error")
        if read.error is not None:
            assert read.error == wrote.error
        end = wrote.diverging_epoch
        assert read.diverging == ((end.epoch, end.end_offset) if wrote.HasField("diverging_epoch") else None)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_parse_or_are_refused_as_corrupt(data: bytes, copy: bool) -> None:
    try:
        answer = decode_fetch_answer(data, copy)
        assert all(0 <= part.begin <= part.stop <= len(data) for part in answer.partitions)
    except CorruptMessageError:
        pass


def test_fields_of_a_newer_server_are_skipped() -> None:
    message = FetchResponse(session_id=5).SerializeToString()
    later = b"\xa2\x06\x03abc" + b"\xa8\x06\x07" + b"\xb1\x06" + bytes(8) + b"\xb5\x06" + bytes(4)
    assert decode_fetch_answer(later + message).session_id == 5


def test_a_truncated_response_is_corrupt() -> None:
    whole = FetchResponse(partitions=[FetchPartitionResult(topic="t", batches=bytes(100))]).SerializeToString()
    with pytest.raises(CorruptMessageError):
        decode_fetch_answer(whole[:-1])
