"""Control requests, health and reflection of a broker's servers."""

import asyncio
import contextlib
import threading
import time

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from paceline.broker.service.servers import CONTROL_THREADS
from paceline.internal.v1 import replica_manager_service_pb2 as control_pb
from paceline.internal.v1 import replica_manager_service_pb2_grpc
from paceline.model.client_io import FetchResponse, FetchResult
from paceline.model.control import ControlResponse
from paceline.model.errors import (
    ErrorCode,
    InvalidRequestError,
    PacelineError,
    RequestTimedOutError,
    UnknownServerError,
)
from paceline.model.identifiers import TopicPartition
from paceline.rpc.channels import channel_options
from paceline.rpc.errors import from_rpc_error
from tests.integration.served_core import STAMP, TP, Door, batches, door, errors_of, failure_of, fetch_of

__all__ = ["door"]


async def test_control_requests_run_on_the_event_loop(door: Door) -> None:
    door.core.control_outcome = ControlResponse(partition_errors={TP: ErrorCode.STALE_BROKER_EPOCH})
    response = await door.control().LeaderAndIsr(
        control_pb.LeaderAndIsrRequest(stamp=STAMP, partitions=[control_pb.LeaderAndIsrPartition(topic="t")])
    )
    assert (response.HasField("error"), response.partitions[0].error) == (False, ErrorCode.STALE_BROKER_EPOCH)
    door.core.control_outcome = ControlResponse(ErrorCode.STALE_CONTROLLER_EPOCH)
    stopped = await door.control().StopReplica(control_pb.StopReplicaRequest(stamp=STAMP))
    updated = await door.control().UpdateMetadata(control_pb.UpdateMetadataRequest(stamp=STAMP))
    assert stopped.error == updated.error == ErrorCode.STALE_CONTROLLER_EPOCH
    assert len(door.core.controls) == 3


async def test_log_directories_that_are_being_loaded_hold_no_control_thread(door: Door) -> None:
    control = door.control()
    request = control_pb.RetryLogDirRequest(path="/slow", stamp=STAMP)
    retries = [asyncio.ensure_future(control.RetryLogDir(request, timeout=60)) for _ in range(2 * CONTROL_THREADS)]
    deadline_s = time.monotonic() + 60
    while len(door.core.retried) < CONTROL_THREADS and time.monotonic() < deadline_s:
        await asyncio.sleep(0.01)
    await control.LeaderAndIsr(control_pb.LeaderAndIsrRequest(stamp=STAMP), timeout=10)
    assert len(door.core.controls) == 1
    assert all(answer.loading for answer in await asyncio.gather(*retries))


async def test_a_control_request_without_a_stamp_never_reaches_the_core(door: Door) -> None:
    assert isinstance(
        await failure_of(door.control().StopReplica(control_pb.StopReplicaRequest())), InvalidRequestError
    )
    assert door.core.controls == []


async def test_a_control_request_whose_call_has_ended_is_not_executed(door: Door) -> None:
    control = door.control()
    await control.StopReplica(control_pb.StopReplicaRequest(stamp=STAMP))
    request = control_pb.StopReplicaRequest(stamp=STAMP)
    address = door.address["CONTROL"]
    outcome: list[PacelineError] = []

    def call_and_give_up() -> None:
        with grpc.insecure_channel(address, channel_options()) as channel:
            stub = replica_manager_service_pb2_grpc.ReplicaManagerServiceStub(channel)
            try:
                stub.StopReplica(request, timeout=0.3)
            except grpc.RpcError as failure:
                outcome.append(from_rpc_error(failure))
        deadline = time.monotonic() + 60
        while errors_of(door, "REQUEST_TIMED_OUT") != 1 and time.monotonic() < deadline:
            time.sleep(0.01)  # the server's thread sees the deadline after the caller

    thread = threading.Thread(target=call_and_give_up)
    thread.start()
    thread.join(90)  # blocks the event loop, as a flood of data would
    assert isinstance(outcome[0], RequestTimedOutError)
    await control.UpdateMetadata(control_pb.UpdateMetadataRequest(stamp=STAMP))
    assert [type(request).__name__ for request in door.core.controls] == ["StopReplicaRequest", "UpdateMetadataRequest"]


async def test_a_bug_is_an_internal_error_with_an_id_and_no_traceback(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    door.core.control_outcome = RuntimeError("secret detail")
    control = await failure_of(door.control().StopReplica(control_pb.StopReplicaRequest(stamp=STAMP)))
    door.core.fetch_answer = FetchResponse([FetchResult(TopicPartition("other", 0), batches=batches())])
    data = await failure_of(door.log().Fetch(fetch_of()))
    for error in (control, data):
        assert isinstance(error, UnknownServerError)
        assert "secret" not in str(error) and "Traceback" not in str(error)
        assert error.metadata["failure_id"] in caplog.text


async def test_health_distinguishes_liveness_from_readiness_on_every_listener(door: Door) -> None:
    async def status(listener: str, service: str) -> int:
        request = health_pb2.HealthCheckRequest(service=service)
        return int((await door.health(listener).Check(request)).status)

    serving, not_serving = 1, 2
    names = {
        "CLIENT": "paceline.v1.LogService",
        "EXTERNAL": "paceline.v1.MetadataService",
        "REPLICATION": "paceline.internal.v1.ReplicationService",
        "CONTROL": "paceline.internal.v1.ReplicaManagerService",
    }
    for listener, service in names.items():
        for name in ("", "readiness", "liveness", service):
            assert await status(listener, name) == serving, (listener, name)
    await door.servers.set_serving(False)
    for listener, service in names.items():
        assert await status(listener, "liveness") == serving
        for name in ("", "readiness", service):
            assert await status(listener, name) == not_serving, (listener, name)


async def test_a_change_of_health_is_sent_to_watchers(door: Door) -> None:
    watch = door.health("CLIENT").Watch(health_pb2.HealthCheckRequest(service="readiness"), timeout=60)
    assert (await watch.read()).status == 1
    await door.servers.set_serving(False)
    assert (await watch.read()).status == 2
    watch.cancel()


async def test_health_cannot_be_watched_on_the_few_control_threads(door: Door) -> None:
    watch = door.health("CONTROL").Watch(health_pb2.HealthCheckRequest(service="readiness"), timeout=60)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await watch.read()
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_reflection_lists_every_service_of_a_clients_listener(door: Door) -> None:
    def services(listener: str) -> list[str]:
        with grpc.insecure_channel(door.address[listener]) as channel:
            return sorted(ProtoReflectionDescriptorDatabase(channel).get_services())

    base = ["grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"]
    expected = {
        "CLIENT": ["paceline.v1.GroupService", "paceline.v1.LogService", "paceline.v1.MetadataService"],
        "EXTERNAL": ["paceline.v1.GroupService", "paceline.v1.LogService", "paceline.v1.MetadataService"],
    }
    for listener, names in expected.items():
        assert await asyncio.to_thread(services, listener) == base + names


async def test_reflection_streams_on_the_control_listener_delay_no_control_request(door: Door) -> None:
    streams = []
    for listener in ("CONTROL", "REPLICATION"):
        for _ in range(CONTROL_THREADS):
            stream = reflection_pb2_grpc.ServerReflectionStub(door._channel(listener)).ServerReflectionInfo()
            with contextlib.suppress(grpc.RpcError):  # the server may have refused the stream already
                await stream.wait_for_connection()
            streams.append(stream)
    await door.control().StopReplica(control_pb.StopReplicaRequest(stamp=STAMP), timeout=60)
    assert len(door.core.controls) == 1
    for stream in streams:
        assert await stream.code() is grpc.StatusCode.UNIMPLEMENTED
