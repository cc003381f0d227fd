"""Metadata of a broker, the addresses that each listener returns, and servers that start."""

import asyncio

import pytest
from grpc_health.v1 import health_pb2

from paceline.broker.service.node_handle import NodeHandle
from paceline.broker.service.servers import BrokerServers
from paceline.internal.v1 import replica_manager_service_pb2 as control_pb
from paceline.model.client_io import LeaderHint, PartitionFailure, ProduceResult
from paceline.model.control import ControllerStamp, LiveBroker, UpdateMetadataRequest
from paceline.model.errors import BrokerNotAvailableError, ErrorCode
from paceline.runtime.asyncio_scheduler import AsyncioScheduler
from paceline.runtime.lifecycle import ExitCode, StartupError
from paceline.runtime.metrics import Metrics
from paceline.runtime.settings import load_broker
from paceline.v1 import metadata_service_pb2 as metadata_pb
from paceline_client import Admin
from tests.integration.served_core import (
    LISTENERS,
    STAMP,
    TP,
    Door,
    SmallCore,
    door,
    failure_of,
    fetch_of,
    learn,
    produce_of,
)
from tests.support.reverse_conversions import leader_address_from_proto

__all__ = ["door"]


async def test_a_broker_without_metadata_refuses_questions_about_topics(door: Door) -> None:
    metadata = door.metadata()
    for topics in ([], ["t"]):
        refused = await failure_of(metadata.DescribeTopics(metadata_pb.DescribeTopicsRequest(topics=topics)))
        assert isinstance(refused, BrokerNotAvailableError), refused
    assert not (await metadata.DescribeCluster(metadata_pb.DescribeClusterRequest())).brokers
    learn(door.core)
    answer = await metadata.DescribeTopics(metadata_pb.DescribeTopicsRequest())
    assert [topic.name for topic in answer.topics] == ["t"]


async def test_a_start_names_each_listener_without_tls_and_warns_if_other_machines_reach_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    listeners = "CLIENT://127.0.0.1:0,REPLICATION://0.0.0.0:0,CONTROL://127.0.0.1:0"
    arguments = ["--zookeeper-connect=none", "--log-dirs=/none", f"--listeners={listeners}", "--allow-insecure=true"]
    arguments.append("--advertised-listeners=CLIENT://a:1,REPLICATION://a:2,CONTROL://a:3")
    loop = AsyncioScheduler(asyncio.get_running_loop())
    servers = BrokerServers(load_broker(arguments, {}), NodeHandle(), loop, Metrics(), node_id=lambda: 1)
    await servers.start()
    await servers.stop(0.1)
    lines = [one for one in caplog.records if "listener without TLS" in one.getMessage()]
    assert [one.levelname for one in lines] == ["INFO", "WARNING", "INFO"]
    assert "CLIENT" in lines[0].getMessage() and "act as a follower" in lines[1].getMessage()


async def test_every_listener_answers_with_its_own_addresses(door: Door) -> None:
    learn(door.core)
    inside = await door.metadata("CLIENT").DescribeCluster(metadata_pb.DescribeClusterRequest())
    outside = await door.metadata("EXTERNAL").DescribeCluster(metadata_pb.DescribeClusterRequest())
    assert [(one.id, one.host, one.port, one.rack) for one in inside.brokers] == [
        (1, "broker-1", 9092, "r1"),
        (2, "broker-2", 9092, ""),
    ]
    assert [(one.host, one.port) for one in outside.brokers] == [("broker-1", 9092), ("localhost", 19_002)]
    assert (inside.controller_id, inside.controller_host, outside.controller_port) == (1_000_001, "controller", 19_082)
    assert (inside.cluster_id, inside.node_id, inside.controller_epoch) == ("abcdefghijklmnopqrstuv", 1, 4)
    assert (inside.controller_silent_ms, inside.zookeeper_connected) == (2_500, True)

    door.core.produce_answer = [
        ProduceResult(TP, PartitionFailure(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved", LeaderHint(2, 3)))
    ]
    for listener, address in (("CLIENT", ("broker-2", 9092)), ("EXTERNAL", ("localhost", 19_002))):
        response = await door.log(listener).Produce(produce_of())
        assert leader_address_from_proto(response.partitions[0]) == address


async def test_topics_are_described_from_the_cache(door: Door) -> None:
    learn(door.core)
    everything = await door.metadata().DescribeTopics(metadata_pb.DescribeTopicsRequest())
    (topic,) = everything.topics
    assert (topic.name, topic.topic_id) == ("t", "i" * 22)
    first, second = topic.partitions
    assert (first.partition, first.leader, list(first.isr), list(first.replicas)) == (0, 2, [2, 1], [1, 2])
    assert (second.partition, second.HasField("leader"), list(second.offline_replicas)) == (1, False, [1])
    named = await door.metadata().DescribeTopics(metadata_pb.DescribeTopicsRequest(topics=["nope", "t"]))
    assert [one.name for one in named.topics] == ["nope", "t"]
    assert named.topics[0].error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_port_in_use_is_reported_with_a_message(door: Door) -> None:
    port = door.address["CLIENT"].rpartition(":")[2]
    settings = load_broker(
        [
            "--zookeeper-connect=none",
            "--log-dirs=/none",
            f"--listeners=CLIENT://127.0.0.1:{port},REPLICATION://127.0.0.1:0,CONTROL://127.0.0.1:0",
        ],
        {},
    )
    servers = BrokerServers(
        settings, NodeHandle(), AsyncioScheduler(asyncio.get_running_loop()), Metrics(), node_id=lambda: 1
    )
    with pytest.raises(
        StartupError, match=rf"^port {port} is in use \(CLIENT listener on 127\.0\.0\.1:{port}\)$"
    ) as error:
        await servers.start()
    assert error.value.exit_code is ExitCode.PORT_IN_USE
    await servers.stop(0)


@pytest.mark.usefixtures("ipv6")
async def test_clients_reach_a_broker_with_ipv6_listeners_at_the_address_it_returns() -> None:
    listeners = "--listeners=CLIENT://[::1]:0,REPLICATION://[::1]:0,CONTROL://[::1]:0"
    settings = load_broker(["--zookeeper-connect=none", "--log-dirs=/none", listeners], {})
    core, handle = SmallCore(), NodeHandle()
    servers = BrokerServers(
        settings, handle, AsyncioScheduler(asyncio.get_running_loop()), Metrics(), node_id=lambda: 1
    )
    await servers.start()
    handle.set(core)
    await servers.set_serving(True)
    endpoints = tuple(servers.advertised)
    core.metadata.update(UpdateMetadataRequest(ControllerStamp(1_000_001, 4, None), (LiveBroker(1, endpoints),), ()))
    made = Door(servers, core, Metrics())
    try:
        port = endpoints[0].port
        assert (endpoints[0].host, made.address["CLIENT"]) == ("::1", f"[::1]:{port}")
        await made.control().UpdateMetadata(control_pb.UpdateMetadataRequest(stamp=STAMP), timeout=60)
        with Admin(made.address["CLIENT"]) as admin:
            (broker,) = (await asyncio.to_thread(admin.describe_cluster)).brokers
        with Admin(broker.address) as admin:
            found = await asyncio.to_thread(admin.describe_cluster)
        assert (broker.address, found.brokers) == (f"[::1]:{port}", (broker,))
    finally:
        for channel in made.channels:
            await channel.close()
        await servers.stop(0.1)


async def test_before_the_core_exists_requests_are_refused_because_the_broker_is_starting() -> None:
    settings = load_broker(["--zookeeper-connect=none", "--log-dirs=/none", LISTENERS], {})
    servers = BrokerServers(
        settings, NodeHandle(), AsyncioScheduler(asyncio.get_running_loop()), Metrics(), node_id=lambda: 1
    )
    await servers.start()
    made = Door(servers, SmallCore(), Metrics())
    try:
        for call in (
            made.log().Fetch(fetch_of()),
            made.metadata().DescribeCluster(metadata_pb.DescribeClusterRequest()),
            made.control().UpdateMetadata(control_pb.UpdateMetadataRequest(stamp=STAMP)),
        ):
            error = await failure_of(call)
            assert isinstance(error, BrokerNotAvailableError) and "starting" in str(error)
        for listener in made.address:
            for name, expected in (("liveness", 1), ("readiness", 2), ("", 2)):
                answer = await made.health(listener).Check(health_pb2.HealthCheckRequest(service=name))
                assert answer.status == expected, (listener, name)
    finally:
        for channel in made.channels:
            await channel.close()
        await servers.stop(0.1)
