"""The hand-written reader of a FetchResponse agrees with protobuf's own, and refuses what is not one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.model.errors import InvalidRequestError
from paceline.pipeline.fetch_wire import FETCH_METHOD, parse_fetch_answer
from paceline.v1 import log_service_pb2

payload = st.binary(max_size=300)
numbers = st.integers(-(2**63), 2**63 - 1)


def test_the_method_is_the_one_of_the_contract() -> None:
    service = log_service_pb2.DESCRIPTOR.services_by_name["LogService"]
    assert f"/{service.full_name}/{service.methods_by_name['Fetch'].name}" == FETCH_METHOD


@given(results=st.lists(st.tuples(st.text(max_size=5), numbers, payload | st.none(), st.booleans()), max_size=5))
def test_batches_are_found_in_place_and_all_else_is_parsed(
    results: list[tuple[str, int, bytes | None, bool]],
) -> None:
    response = log_service_pb2.FetchResponse(session_id=7)
    for topic, number, data, failed in results:
        result = response.partitions.add(topic=topic, partition=3, high_watermark=number)
        if data is not None:
            result.batches = data
        if failed:
            result.error.code = 6
            result.error.message = "moved"
    answer = parse_fetch_answer(response.SerializeToString())
    assert len(answer.partitions) == len(results)
    for (_, _, data, _), whole, part in zip(results, response.partitions, answer.partitions, strict=True):
        assert answer.buffer[part.begin : part.stop] == (data or b"")
        whole.ClearField("batches")
        assert part.result == whole


@given(garbage=st.binary(max_size=60))
def test_garbage_is_refused_or_read_within_its_bounds(garbage: bytes) -> None:
    from google.protobuf.message import DecodeError

    try:
        answer = parse_fetch_answer(garbage)
    except (InvalidRequestError, DecodeError):
        return
    assert all(0 <= part.begin <= part.stop <= len(garbage) for part in answer.partitions)


def test_an_incomplete_response_is_refused() -> None:
    response = log_service_pb2.FetchResponse()
    response.partitions.add(topic="t", batches=b"x" * 100)
    with pytest.raises(InvalidRequestError, match="is incomplete"):
        parse_fetch_answer(response.SerializeToString()[:-1])
