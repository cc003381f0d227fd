"""Values that exceed their protobuf field are refused before a request is sent."""

from collections.abc import Callable
from typing import Any

import pytest

from paceline.model.errors import InvalidRequestError
from paceline_client import Admin, NewPartitions, NewTopic

BEYOND_INT32 = 2**31
BEYOND_INT64 = 2**63
HALF_A_CHARACTER = "\ud800"

REQUESTS: dict[str, Callable[[Admin], Any]] = {
    "partitions of a new topic": lambda admin: admin.create_topics({"t": (BEYOND_INT32, 1)}),
    "replication factor": lambda admin: admin.create_topics({"t": (1, BEYOND_INT32)}),
    "broker of a new topic": lambda admin: admin.create_topics([NewTopic("t", assignments=[[BEYOND_INT32]])]),
    "timeout": lambda admin: admin.create_topics({"t": (1, 1)}, timeout_ms=BEYOND_INT64),
    "name": lambda admin: admin.delete_topics([HALF_A_CHARACTER]),
    "name asked for": lambda admin: admin.describe_topics([HALF_A_CHARACTER]),
    "number of partitions": lambda admin: admin.create_partitions({"t": BEYOND_INT32}),
    "broker of a new partition": lambda admin: admin.create_partitions([NewPartitions("t", 2, [[BEYOND_INT32]])]),
    "target": lambda admin: admin.alter_partition_reassignments({("t", 0): [BEYOND_INT32]}),
    "partition to move": lambda admin: admin.alter_partition_reassignments({("t", BEYOND_INT32): None}),
    "partition that moves": lambda admin: admin.list_partition_reassignments([("t", BEYOND_INT32)]),
    "partition to elect for": lambda admin: admin.elect_leaders("preferred", [("t", BEYOND_INT32)]),
    "key": lambda admin: admin.describe_configs(["t"], [HALF_A_CHARACTER]),
    "value": lambda admin: admin.alter_configs({"t": {"retention.ms": HALF_A_CHARACTER}}),
    "broker with directories": lambda admin: admin.describe_log_dirs([BEYOND_INT32]),
    "path": lambda admin: admin.alter_replica_log_dirs({("t", 0, 1): HALF_A_CHARACTER}),
    "offset": lambda admin: admin.delete_records({("t", 0): 1, ("t", 1): BEYOND_INT64}),
    "topic to watch": lambda admin: next(admin.watch_events(topics=[HALF_A_CHARACTER])),
}


@pytest.mark.parametrize("call", REQUESTS.values(), ids=REQUESTS)
def test_a_value_that_exceeds_its_field_is_an_invalid_request(call: Callable[[Admin], Any]) -> None:
    with (
        Admin("localhost:1") as admin,
        pytest.raises(InvalidRequestError, match=r"^the request cannot be sent: \S") as refused,
    ):
        call(admin)
    assert refused.value.definite
