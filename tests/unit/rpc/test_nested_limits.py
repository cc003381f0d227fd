"""Lists inside lists are counted before a message is parsed (docs/protocol/limits.md#nested-lists)."""

import random

import pytest

from paceline.internal.v1 import replica_manager_service_pb2 as control_pb
from paceline.model.errors import InvalidRequestError
from paceline.model.protobuf_wire import varint
from paceline.rpc.admission import message_limits
from paceline.rpc.admission.message_limits import MAX_STEPS, refuse_too_many_elements
from paceline.rpc.convert.common import MAX_RECORDS
from paceline.rpc.interceptors import typed_parser
from paceline.v1 import admin_service_pb2 as admin_pb
from paceline.v1 import log_service_pb2 as log_pb
from paceline.v1 import metadata_service_pb2 as metadata_pb
from paceline.v1 import record_pb2

FEW = 1_000


def field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field in wire format."""
    return varint(number << 3 | 2) + varint(len(content)) + content


FILTER = metadata_pb.WatchEventsRequest.DESCRIPTOR.fields_by_name["filter"].number
EMPTY_HEADERS = record_pb2.RecordList(
    records=[record_pb2.Record(value=b"v", headers=[record_pb2.Header()] * (FEW + 1))]
).SerializeToString()


@pytest.mark.parametrize("few_steps", [0, 2_000])
@pytest.mark.parametrize(
    ("message", "data"),
    [
        (admin_pb.CreateTopicsRequest, field(1, field(1, b"t") + field(4, b"") * (FEW + 1))),
        (admin_pb.CreateTopicsRequest, field(1, field(4, field(1, b"\x01" * (FEW + 1))))),
        (admin_pb.CreateTopicsRequest, field(1, field(5, b"") * (FEW + 1))),
        (admin_pb.CreateTopicsRequest, field(1, b"\xa2\x00\x00" * (FEW + 1))),
        (admin_pb.IncrementalAlterConfigsRequest, field(1, field(2, b"") * FEW) * 2),
        (admin_pb.DescribeConfigsRequest, field(1, field(2, b"key") * (FEW + 1))),
        (metadata_pb.WatchEventsRequest, field(FILTER, field(1, b"t") * (FEW + 1))),
        (log_pb.ProduceRequest, field(3, field(1, b"t") + field(5, EMPTY_HEADERS))),
        (log_pb.ProduceRequest, field(3, field(5, field(1, b"") * (FEW // 2))) * 3),
    ],
    ids=["messages", "numbers", "maps", "a longer tag", "two lists", "texts", "a filter", "headers", "records"],
)
def test_more_elements_in_inner_lists_than_are_allowed_are_refused(
    message: type, data: bytes, few_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    message.FromString(data)  # type: ignore[attr-defined]
    monkeypatch.setattr(message_limits, "_FEW_STEPS", few_steps)
    with pytest.raises(InvalidRequestError, match=f"more than {FEW} elements"):
        refuse_too_many_elements(data, message, FEW)


def test_encoded_batches_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_limits, "_marks", None)
    batches = [log_pb.ProducePartition(topic="t", partition=one, batch=b"\n" * 100_000) for one in range(20)]
    data = log_pb.ProduceRequest(partitions=batches).SerializeToString()
    refuse_too_many_elements(data, log_pb.ProduceRequest, FEW)


def test_the_largest_allowed_number_of_elements_is_accepted() -> None:
    rows = [admin_pb.ReplicaAssignment(broker_ids=[1, 2, 3])] * 100
    topics = [admin_pb.NewTopic(name="t", assignments=rows)]
    data = admin_pb.CreateTopicsRequest(topics=topics).SerializeToString()
    refuse_too_many_elements(data, admin_pb.CreateTopicsRequest, 1 + 100 + 300)
    with pytest.raises(InvalidRequestError):
        refuse_too_many_elements(data, admin_pb.CreateTopicsRequest, 1 + 100 + 299)


def test_the_largest_produce_request_with_a_header_per_record_is_accepted() -> None:
    one = record_pb2.Record(key=b"k", value=b"\x0a\x1a", headers=[record_pb2.Header(key="h")])
    records = record_pb2.RecordList(records=[one] * (MAX_RECORDS - 1))
    request = log_pb.ProduceRequest(partitions=[log_pb.ProducePartition(topic="t", records=records)])
    refuse_too_many_elements(request.SerializeToString(), log_pb.ProduceRequest)


def test_a_batch_may_contain_any_bytes() -> None:
    part = log_pb.ProducePartition(topic="t", batch=b"\x0a\x00" * 1_000_000)
    refuse_too_many_elements(log_pb.ProduceRequest(partitions=[part]).SerializeToString(), log_pb.ProduceRequest)


def test_a_message_of_millions_of_singular_fields_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=f"more than {MAX_STEPS} fields"):
        refuse_too_many_elements(field(1, b"\x10\x01" * (MAX_STEPS + 1)), admin_pb.CreateTopicsRequest)


def test_malformed_bytes_are_refused_by_the_parser() -> None:
    chance = random.Random(5)
    for _ in range(500):
        data = bytearray(field(1, field(1, b"t") + field(4, field(1, b"\x01\x02")) * 3) * 4)
        for _ in range(3):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            admin_pb.CreateTopicsRequest.FromString(bytes(data))
        except Exception:
            refuse_too_many_elements(bytes(data), admin_pb.CreateTopicsRequest, 60)


def test_messages_of_clients_are_counted_and_messages_of_nodes_are_not() -> None:
    crowd = admin_pb.CreateTopicsRequest(topics=[admin_pb.NewTopic(assignments=[admin_pb.ReplicaAssignment()] * FEW)])
    with pytest.raises(InvalidRequestError, match="elements in the lists"):
        typed_parser(admin_pb.CreateTopicsRequest.FromString, FEW, FEW)(crowd.SerializeToString())
    entry = control_pb.LeaderAndIsrPartition(topic="t", replicas=[1] * 2 * FEW)
    own = control_pb.LeaderAndIsrRequest(partitions=[entry]).SerializeToString()
    assert len(typed_parser(control_pb.LeaderAndIsrRequest.FromString, FEW)(own).partitions) == 1
