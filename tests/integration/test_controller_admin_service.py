"""AdminService over real gRPC, except topic creation and deletion: conversion, errors, and standby controllers."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from paceline.model.errors import ErrorCode, InvalidRequestError, NotControllerError
from paceline.v1 import admin_service_pb2 as pb
from paceline.v1 import metadata_service_pb2 as metadata_pb
from tests.integration.test_controller_service import DEADLINE_S, Process, World, failure_of


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.stop()


async def started(world: World, brokers: int = 3) -> Process:
    """Start a controller and brokers that accept every request, and create topic ``a`` on brokers 1 and 2."""
    active = await world.start_controller(1_000_001)
    for broker_id in range(1, brokers + 1):
        await world.start_broker(broker_id)
    await world.until(lambda: len(active.node.describe_cluster().brokers) == brokers)
    topic = pb.NewTopic(name="a", assignments=[pb.ReplicaAssignment(broker_ids=[1, 2])], configs={"retention.ms": "9"})
    answer = await active.admin.CreateTopics(pb.CreateTopicsRequest(topics=[topic]), timeout=DEADLINE_S)
    assert not answer.topics[0].HasField("error")
    return active


def at(partition: int, topic: str = "a") -> pb.TopicPartition:
    return pb.TopicPartition(topic=topic, partition=partition)


def topic_a() -> pb.ConfigResource:
    return pb.ConfigResource(type=pb.CONFIG_RESOURCE_TYPE_TOPIC, name="a")


async def test_partitions_are_added_and_refusals_are_in_the_answer(world: World) -> None:
    active = await started(world)
    request = pb.CreatePartitionsRequest(
        topics=[
            pb.NewPartitions(name="a", count=2, assignments=[pb.ReplicaAssignment(broker_ids=[3, 1])]),
            pb.NewPartitions(name="nosuch", count=2),
        ]
    )
    grown, unknown = (await active.admin.CreatePartitions(request, timeout=DEADLINE_S)).topics
    assert not grown.HasField("error")
    assert (grown.name, grown.first_partition, list(grown.assignments[0].broker_ids)) == ("a", 1, [3, 1])
    assert (unknown.name, unknown.error.code) == ("nosuch", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def test_a_new_leader_that_does_not_acknowledge_ends_in_a_timeout(world: World) -> None:
    active = await started(world)
    await world.until(lambda: active.node.gauges()["controller_request_queue_size"] == 0)
    world.brokers[3].may_answer.clear()
    rows = [pb.ReplicaAssignment(broker_ids=[3, 1])]
    request = pb.CreatePartitionsRequest(topics=[pb.NewPartitions(name="a", count=2, assignments=rows)], timeout_ms=300)
    (result,) = (await active.admin.CreatePartitions(request, timeout=DEADLINE_S)).topics
    assert result.error.code == ErrorCode.REQUEST_TIMED_OUT
    assert result.first_partition == 1


async def test_a_reassignment_is_started_listed_with_its_reason_and_cancelled(world: World) -> None:
    active = await started(world)
    requested = [
        pb.PartitionReassignment(topic="a", partition=0, target=pb.ReplicaAssignment(broker_ids=[3, 2])),
        pb.PartitionReassignment(topic="a", partition=7, target=pb.ReplicaAssignment(broker_ids=[3, 2])),
    ]
    request = pb.AlterPartitionReassignmentsRequest(partitions=requested)
    accepted, refused = (await active.admin.AlterPartitionReassignments(request, timeout=DEADLINE_S)).partitions
    assert not accepted.HasField("error")
    assert (refused.partition, refused.error.code) == (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    listed = await active.admin.ListPartitionReassignments(pb.ListPartitionReassignmentsRequest(), timeout=DEADLINE_S)
    (move,) = listed.reassignments
    assert (list(move.replicas), list(move.adding_replicas), list(move.removing_replicas)) == ([3, 2, 1], [3], [1])
    assert (move.leader, list(move.isr)) == (1, [1, 2])
    assert [(each.broker_id, each.reason) for each in move.waiting_for] == [(3, pb.AWAITED_REASON_NOT_CAUGHT_UP)]
    described = await active.metadata.DescribeTopics(
        metadata_pb.DescribeTopicsRequest(topics=["a"]), timeout=DEADLINE_S
    )
    (partition,) = described.topics[0].partitions
    assert (list(partition.adding_replicas), list(partition.removing_replicas)) == ([3], [1])
    cancelled = pb.AlterPartitionReassignmentsRequest(partitions=[pb.PartitionReassignment(topic="a", partition=0)])
    for expected in (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
        (result,) = (await active.admin.AlterPartitionReassignments(cancelled, timeout=DEADLINE_S)).partitions
        assert (result.error.code if result.HasField("error") else None) == expected


async def test_leaders_are_elected_by_request(world: World) -> None:
    active = await started(world)
    reorder = pb.PartitionReassignment(topic="a", partition=0, target=pb.ReplicaAssignment(broker_ids=[2, 1]))
    await active.admin.AlterPartitionReassignments(
        pb.AlterPartitionReassignmentsRequest(partitions=[reorder]), timeout=DEADLINE_S
    )
    request = pb.ElectLeadersRequest(type=pb.ELECTION_TYPE_PREFERRED, partitions=[at(0), at(1)], validate_only=True)
    forecast, unknown = (await active.admin.ElectLeaders(request, timeout=DEADLINE_S)).partitions
    assert (forecast.leader, forecast.HasField("leader_epoch"), forecast.unclean) == (2, False, False)
    assert unknown.error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request = pb.ElectLeadersRequest(type=pb.ELECTION_TYPE_PREFERRED)
    (elected,) = (await active.admin.ElectLeaders(request, timeout=DEADLINE_S)).partitions
    assert (elected.topic, elected.partition, elected.leader) == ("a", 0, 2)
    assert elected.leader_epoch > 0
    again = pb.ElectLeadersRequest(type=pb.ELECTION_TYPE_UNCLEAN, partitions=[at(0)])
    (not_needed,) = (await active.admin.ElectLeaders(again, timeout=DEADLINE_S)).partitions
    assert not_needed.error.code == ErrorCode.ELECTION_NOT_NEEDED
    assert not not_needed.HasField("leader")


async def test_configurations_are_described_and_changed(world: World) -> None:
    active = await started(world)
    request = pb.DescribeConfigsRequest(
        resources=[
            pb.DescribeConfigsResource(resource=topic_a(), keys=["retention.ms", "segment.ms"]),
            pb.DescribeConfigsResource(resource=pb.ConfigResource(name="a")),
        ]
    )
    found, untyped = (await active.admin.DescribeConfigs(request, timeout=DEADLINE_S)).resources
    assert [(entry.key, entry.value, entry.source) for entry in found.entries] == [
        ("segment.ms", "604800000", pb.CONFIG_SOURCE_BUILT_IN_DEFAULT),
        ("retention.ms", "9", pb.CONFIG_SOURCE_TOPIC),
    ]
    assert untyped.error.code == ErrorCode.INVALID_REQUEST
    changes = [
        pb.ConfigChange(key="retention.ms", operation=pb.CONFIG_OPERATION_DELETE),
        pb.ConfigChange(key="segment.ms", operation=pb.CONFIG_OPERATION_SET, value="5"),
        pb.ConfigChange(key="cleanup.policy", operation=pb.CONFIG_OPERATION_APPEND, value="compact"),
    ]
    altered = await active.admin.IncrementalAlterConfigs(
        pb.IncrementalAlterConfigsRequest(resources=[pb.AlterConfigsResource(resource=topic_a(), changes=changes)]),
        timeout=DEADLINE_S,
    )
    assert not altered.resources[0].HasField("error")
    (after,) = (
        await active.admin.DescribeConfigs(
            pb.DescribeConfigsRequest(resources=[pb.DescribeConfigsResource(resource=topic_a())]), timeout=DEADLINE_S
        )
    ).resources
    own = {entry.key: entry.value for entry in after.entries if entry.source == pb.CONFIG_SOURCE_TOPIC}
    assert own == {"segment.ms": "5", "cleanup.policy": "delete,compact"}
    bad = pb.AlterConfigsResource(resource=topic_a(), changes=[pb.ConfigChange(key="retention.ms", value="5")])
    refused = await active.admin.IncrementalAlterConfigs(
        pb.IncrementalAlterConfigsRequest(resources=[bad]), timeout=DEADLINE_S
    )
    assert refused.resources[0].error.code == ErrorCode.INVALID_REQUEST, "no operation was named"


def requests(timeout_ms: int = 0) -> dict[str, Any]:
    return {
        "CreatePartitions": pb.CreatePartitionsRequest(timeout_ms=timeout_ms),
        "AlterPartitionReassignments": pb.AlterPartitionReassignmentsRequest(timeout_ms=timeout_ms),
        "ListPartitionReassignments": pb.ListPartitionReassignmentsRequest(timeout_ms=timeout_ms),
        "ElectLeaders": pb.ElectLeadersRequest(type=pb.ELECTION_TYPE_PREFERRED, timeout_ms=timeout_ms),
        "DescribeConfigs": pb.DescribeConfigsRequest(timeout_ms=timeout_ms),
        "IncrementalAlterConfigs": pb.IncrementalAlterConfigsRequest(timeout_ms=timeout_ms),
    }


@pytest.mark.parametrize("call", requests())
async def test_a_standby_names_the_active_controllers_address(world: World, call: str) -> None:
    active = await world.start_controller(1_000_001)
    standby = await world.start_controller(1_000_002)
    error = await failure_of(getattr(standby.admin, call)(requests()[call], timeout=DEADLINE_S))
    assert isinstance(error, NotControllerError)
    assert error.metadata["address"] == active.address


async def test_malformed_calls_are_refused_as_a_whole(world: World) -> None:
    active = await world.start_controller(1_000_001)
    for call, request in requests(timeout_ms=-1).items():
        error = await failure_of(getattr(active.admin, call)(request, timeout=DEADLINE_S))
        assert isinstance(error, InvalidRequestError), call
    for call, request in requests().items():
        await getattr(active.admin, call)(request, timeout=DEADLINE_S)
    error = await failure_of(active.admin.ElectLeaders(pb.ElectLeadersRequest(), timeout=DEADLINE_S))
    assert isinstance(error, InvalidRequestError)
