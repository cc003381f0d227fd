"""The servers of a broker over real gRPC with a small core that records requests."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2_grpc

from paceline.broker.metadata_cache import MetadataCache
from paceline.broker.service.node_handle import NodeHandle
from paceline.broker.service.servers import BrokerServers
from paceline.internal.v1 import replica_manager_service_pb2 as control_pb
from paceline.internal.v1 import replica_manager_service_pb2_grpc, replication_service_pb2_grpc
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.model.client_io import (
    DeleteRecordsQuery,
    DeleteRecordsResult,
    EpochAnswer,
    EpochQuery,
    FetchRequest,
    FetchResponse,
    LeaderHint,
    OffsetAnswer,
    OffsetQuery,
    PartitionFailure,
    PartitionReplicasView,
    ProduceData,
    ProduceResult,
    RequiredAcks,
)
from paceline.model.control import (
    ControllerStamp,
    ControlRequest,
    ControlResponse,
    Endpoint,
    LiveBroker,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from paceline.model.errors import ErrorCode, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.model.replica_fetch import EpochEnd, ReplicaFetchRequest, ReplicaFetchResponse, ReplicaFetchResult
from paceline.rpc.channels import open_aio_channel
from paceline.rpc.errors import from_rpc_error
from paceline.runtime.asyncio_scheduler import AsyncioScheduler
from paceline.runtime.metrics import Metrics
from paceline.runtime.settings import load_broker
from paceline.v1 import log_service_pb2 as log_pb
from paceline.v1 import log_service_pb2_grpc, metadata_service_pb2_grpc

TP = TopicPartition("t", 0)


def epoch_ends(queries: Sequence[EpochQuery]) -> list[EpochAnswer]:
    return [EpochAnswer(query.topic_partition, None, EpochEnd(query.leader_epoch, 12)) for query in queries]


class SmallProvedCalls:
    """Answers the calls that need a proof of leadership at once."""

    def __init__(self, deleted: list[tuple[list[DeleteRecordsQuery], int]]) -> None:
        self._deleted = deleted

    def delete_records(
        self,
        queries: Sequence[DeleteRecordsQuery],
        timeout_ms: int,
        reply: Callable[[list[DeleteRecordsResult]], None],
    ) -> None:
        self._deleted.append((list(queries), timeout_ms))
        failure = PartitionFailure(ErrorCode.NOT_LEADER_OR_FOLLOWER, "elsewhere", leader=LeaderHint(2, 5))
        reply(
            [
                DeleteRecordsResult(query.topic_partition, failure if query.before_offset is None else None, 4)
                for query in queries
            ]
        )

    def offsets_for_leader_epoch(
        self, queries: Sequence[EpochQuery], timeout_ms: int, reply: Callable[[list[EpochAnswer]], None]
    ) -> None:
        reply(epoch_ends(queries))

    def list_offsets(
        self,
        queries: Sequence[OffsetQuery],
        timeout_ms: int,
        reply: Callable[[list[OffsetAnswer]], None],
    ) -> None:
        reply([OffsetAnswer(query.topic_partition, offset=5, leader_epoch=2) for query in queries])


class SmallCore:
    """A broker core that records requests and returns prepared answers."""

    def __init__(self) -> None:
        self.metadata = MetadataCache()
        self.cluster_id: str | None = "abcdefghijklmnopqrstuv"
        self.produced: list[tuple[RequiredAcks, int, list[ProduceData]]] = []
        self.fetched: list[FetchRequest] = []
        self.replica_fetched: list[ReplicaFetchRequest] = []
        self.controls: list[ControlRequest] = []
        self.produce_answer: list[ProduceResult] | None = None
        self.fetch_answer: FetchResponse | None = None
        self.fetch_replies: list[Callable[[FetchResponse], None]] = []
        self.cancelled: list[FetchRequest] = []
        self.deleted: list[tuple[list[DeleteRecordsQuery], int]] = []
        self.proved_calls = SmallProvedCalls(self.deleted)
        self.control_outcome: ControlResponse | Exception = ControlResponse()
        self.producers: list[Hashable] = []
        self.retried: list[str] = []
        """Log directories whose load goes on for ever."""
        self.producer_id: tuple[int, int] | PacelineError = (4_000, 0)

    def contacts(self) -> tuple[int | None, bool]:
        return 2_500, True

    def produce(
        self,
        acks: RequiredAcks,
        timeout_ms: int,
        data: Sequence[ProduceData],
        reply: Callable[[list[ProduceResult]], None],
        producer: Hashable = None,
    ) -> None:
        self.produced.append((acks, timeout_ms, list(data)))
        self.producers.append(producer)
        if self.produce_answer is not None:
            reply(self.produce_answer)

    def fetch(self, request: FetchRequest, reply: Callable[[FetchResponse], None]) -> Callable[[], None] | None:
        self.fetched.append(request)
        self.fetch_replies.append(reply)
        if self.fetch_answer is not None:
            reply(self.fetch_answer)
            return None
        return lambda: self.cancelled.append(request)

    def handle_replica_fetch(self, request: ReplicaFetchRequest, reply: Callable[[ReplicaFetchResponse], None]) -> None:
        self.replica_fetched.append(request)
        results = [
            ReplicaFetchResult(one.topic_partition, high_watermark=3, batches=b"B") for one in request.partitions
        ]
        reply(ReplicaFetchResponse(9, results))

    def offsets_for_leader_epoch(self, queries: Sequence[EpochQuery]) -> list[EpochAnswer]:
        return epoch_ends(queries)

    def describe_replicas(self, topic: str, partitions: Sequence[int]) -> list[PartitionReplicasView]:
        return [PartitionReplicasView(TopicPartition(topic, index), leader=1) for index in partitions]

    def init_producer_id(self, reply: Callable[[tuple[int, int] | PacelineError], None]) -> None:
        reply(self.producer_id)

    def retry_log_dir(self, path: str, *_: object) -> bool:
        self.retried.append(path)
        return True

    def when_epochs_read(self, on_read: Callable[[], None]) -> None:
        on_read()

    def handle_control(self, request: ControlRequest) -> ControlResponse:
        assert threading.current_thread() is threading.main_thread()
        self.controls.append(request)
        if isinstance(self.control_outcome, Exception):
            raise self.control_outcome
        return self.control_outcome


class Door:
    """The servers of a broker on free ports, and channels to them."""

    def __init__(self, servers: BrokerServers, core: SmallCore, metrics: Metrics) -> None:
        self.servers, self.core, self.metrics = servers, core, metrics
        self.channels: list[Any] = []
        self.address = {endpoint.listener: endpoint.address for endpoint in servers.advertised}

    def log(self, listener: str = "CLIENT") -> Any:
        return log_service_pb2_grpc.LogServiceStub(self._channel(listener))

    def metadata(self, listener: str = "CLIENT") -> Any:
        return metadata_service_pb2_grpc.MetadataServiceStub(self._channel(listener))

    def replication(self) -> Any:
        return replication_service_pb2_grpc.ReplicationServiceStub(self._channel("REPLICATION"))

    def control(self) -> Any:
        return replica_manager_service_pb2_grpc.ReplicaManagerServiceStub(self._channel("CONTROL"))

    def health(self, listener: str) -> Any:
        return health_pb2_grpc.HealthStub(self._channel(listener))

    def _channel(self, listener: str) -> Any:
        channel = open_aio_channel(self.address[listener])
        self.channels.append(channel)
        return channel


LISTENERS = "--listeners=CLIENT://127.0.0.1:0,EXTERNAL://127.0.0.1:0,REPLICATION://127.0.0.1:0,CONTROL://127.0.0.1:0"


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    settings = load_broker(["--zookeeper-connect=none", "--log-dirs=/none", LISTENERS], {})
    core, metrics, handle = SmallCore(), Metrics(), NodeHandle()
    servers = BrokerServers(settings, handle, AsyncioScheduler(asyncio.get_running_loop()), metrics, node_id=lambda: 1)
    await servers.start()
    handle.set(core)
    await servers.set_serving(True)
    made = Door(servers, core, metrics)
    yield made
    for channel in made.channels:
        await channel.close()
    await servers.stop(0.1)


def errors_of(door: Door, reason: str) -> float | None:
    return door.metrics.registry.get_sample_value("paceline_request_errors_total", {"reason": reason})


async def failure_of(call: Any) -> PacelineError:
    with pytest.raises(grpc.RpcError) as failure:
        await call
    return from_rpc_error(failure.value)


def produce_of(data: bytes = b"batch", **fields: Any) -> log_pb.ProduceRequest:
    return log_pb.ProduceRequest(partitions=[log_pb.ProducePartition(topic="t", batch=data)], **fields)


def fetch_of(**fields: Any) -> log_pb.FetchRequest:
    return log_pb.FetchRequest(partitions=[log_pb.FetchPartition(topic="t", fetch_offset=1)], **fields)


def batches() -> bytes:
    data = bytearray(
        encode_batch(
            [NewRecord(10, b"k0", b"v0"), NewRecord(11, None, b"v1", [("h", None)]), NewRecord(12, b"k2", None)]
        )
    )
    control = bytearray(encode_batch([NewRecord(13, b"\0\0\0\1", b"\0\0\0\0\0\0")], base_offset=3))
    control[22] |= 0x20  # the control bit; readers of a fetched batch do not check the CRC again
    more = encode_batch([NewRecord(14, b"k4", b"v4")], base_offset=4)
    return data + bytes(control) + more


def live(broker_id: int, external: bool = True) -> LiveBroker:
    endpoints = [Endpoint("CLIENT", f"broker-{broker_id}", 9092)]
    if external:
        endpoints.append(Endpoint("EXTERNAL", "localhost", 19_000 + broker_id))
    return LiveBroker(broker_id, tuple(endpoints), "r1" if broker_id == 1 else None, 7)


def learn(core: SmallCore) -> None:
    core.metadata.update(
        UpdateMetadataRequest(
            ControllerStamp(1_000_001, 4, None),
            (live(2), live(1, external=False)),
            (
                UpdateMetadataPartition(TopicPartition("t", 1), "i" * 22, 4, -1, 3, (2,), 5, (1, 2), (1,)),
                UpdateMetadataPartition(TP, "i" * 22, 4, 2, 3, (2, 1), 5, (1, 2)),
            ),
            (Endpoint("CLIENT", "controller", 9082), Endpoint("EXTERNAL", "localhost", 19_082)),
        )
    )


STAMP = control_pb.ControllerStamp(controller_id=1_000_001, controller_epoch=4)


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition did not become true"
        await asyncio.sleep(0.005)
