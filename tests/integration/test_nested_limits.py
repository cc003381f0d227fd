"""One request with millions of nested elements delays neither a broker nor a controller."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from paceline.model.client_io import ProduceResult
from paceline.model.errors import ErrorCode, InvalidRequestError
from paceline.rpc.errors import MAX_MESSAGE_CHARACTERS, from_rpc_error
from paceline.v1 import admin_service_pb2 as admin_pb
from paceline.v1 import log_service_pb2 as log_pb
from tests.integration.served_core import TP, Door, door, failure_of, produce_of
from tests.integration.test_controller_admin_service import started, world
from tests.integration.test_controller_service import DEADLINE_S, World
from tests.unit.rpc.test_nested_limits import field

__all__ = ["door", "world"]

MANY = 1_000_000


@pytest.fixture
async def admin(world: World) -> AsyncIterator[Any]:
    active = await started(world)
    yield active.channel()


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("CreateTopics", field(1, field(1, b"x") + field(4, b"") * MANY)),
        ("CreateTopics", field(1, field(1, b"x") + field(4, field(1, b"\x01" * MANY)))),
        ("CreatePartitions", field(1, field(1, b"a") + field(3, b"") * MANY)),
        ("AlterPartitionReassignments", field(1, field(1, b"a") + field(3, field(1, b"\x01" * MANY)))),
        ("IncrementalAlterConfigs", field(1, field(2, b"") * MANY)),
        ("DescribeConfigs", field(1, field(2, b"") * MANY)),
    ],
    ids=["assignments", "brokers", "rows", "target", "changes", "keys"],
)
async def test_a_controller_refuses_too_many_elements_in_an_inner_list(
    admin: Any, method: str, request_: bytes
) -> None:
    error = await failure_of(admin.unary_unary(f"/paceline.v1.AdminService/{method}")(request_, timeout=DEADLINE_S))
    assert isinstance(error, InvalidRequestError)
    assert "elements in the lists of one request" in str(error)


async def test_a_broker_refuses_too_many_headers_and_too_many_records_in_many_partitions(door: Door) -> None:
    headers = field(3, field(1, b"t") + field(5, field(1, field(3, b"") * MANY)))
    records = field(3, field(1, b"t") + field(5, field(1, b"") * 150_000)) * 4
    produce = door._channel("CLIENT").unary_unary("/paceline.v1.LogService/Produce")
    for crowd in (headers, records):
        error = await failure_of(produce(crowd, timeout=DEADLINE_S))
        assert isinstance(error, InvalidRequestError)
        assert "elements in the lists of one request" in str(error)
    assert door.core.produced == []


async def test_too_many_elements_on_a_stream_end_only_that_stream(door: Door) -> None:
    door.core.produce_answer = [ProduceResult(TP, None, 0, -1, 0)]
    headers = field(3, field(1, b"t") + field(5, field(1, field(3, b"") * MANY)))
    channel = door._channel("CLIENT")
    stream = channel.stream_stream("/paceline.v1.LogService/ProduceStream")(timeout=DEADLINE_S)
    await stream.write(headers)
    with pytest.raises(grpc.RpcError) as failure:
        await stream.read()
    assert "elements in the lists of one request" in str(from_rpc_error(failure.value))
    assert door.core.produced == []
    answer = await door.log().Produce(produce_of(), timeout=DEADLINE_S)
    assert answer.partitions == [log_pb.ProducePartitionResult(topic="t", log_append_time_ms=-1)]


async def test_a_refusal_does_not_repeat_a_long_list(admin: Any) -> None:
    rows = [admin_pb.ReplicaAssignment(broker_ids=[1] * 100_000)]
    request = admin_pb.CreateTopicsRequest(topics=[admin_pb.NewTopic(name="x", assignments=rows)])
    call = admin.unary_unary(
        "/paceline.v1.AdminService/CreateTopics", response_deserializer=admin_pb.CreateTopicsResponse.FromString
    )
    (result,) = (await call(request.SerializeToString(), timeout=DEADLINE_S)).topics
    assert result.error.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert 0 < len(result.error.message) <= MAX_MESSAGE_CHARACTERS
