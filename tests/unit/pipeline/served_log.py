"""A few partitions served over real gRPC with the real contract, so that reads can be tested without a cluster.

Each broker of `ServedCluster` is a server on a port of its own that answers MetadataService and LogService from shared
partition logs. Leaders can be moved and faults planned; every fetch is kept for inspection.
"""

import bisect
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

from paceline.log.producer_state import ProducerStateManager
from paceline.log.record_batch import check_crc, parse_header, stamp
from paceline.model.addresses import address_of
from paceline.model.errors import (
    ErrorCode,
    MessageTooLargeError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    PacelineError,
    error_for,
)
from paceline.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    errors_pb2,
    log_service_pb2,
    log_service_pb2_grpc,
    metadata_service_pb2,
    metadata_service_pb2_grpc,
)
from tests.unit.pipeline.batches import decoded

MIB = 1 << 20


@dataclass
class ServedPartition:
    """One partition's log."""

    data: bytes
    leader: int | None = 1
    log_start_offset: int = 0
    high_watermark: int | None = None
    """None: the end of the data."""
    errors: list[ErrorCode] = field(default_factory=list)
    """Answered instead of data, one per fetch, before anything else."""

    produce_errors: list[ErrorCode] = field(default_factory=list)
    """Answered instead of an append, one per batch."""
    max_message_bytes: int = 1_048_588
    lost_answers: int = 0
    """So many appends are followed by a broken connection instead of an answer."""

    def __post_init__(self) -> None:
        self.producers = ProducerStateManager()
        self._index()

    def append(self, batch: bytes) -> int:
        """Append a producer's batch as a leader does; return the offset of its first record, also of a repeated one."""
        header = parse_header(batch)
        if header.size > self.max_message_bytes:
            raise MessageTooLargeError(f"{header.size} bytes are more than {self.max_message_bytes}")
        check_crc(batch, 0, header)
        if header.producer_id >= 0:
            if (duplicate := self.producers.find_duplicate(header)) is not None:
                return duplicate.first_offset
            self.producers.check(header)
        assert self.high_watermark is not None
        base = self.high_watermark
        stamped = bytearray(batch)
        stamp(stamped, base, 0)
        self.data += bytes(stamped)
        if header.producer_id >= 0:
            self.producers.update(parse_header(stamped))
        self.high_watermark = None
        self._index()
        return base

    def _index(self) -> None:
        self.batches: list[tuple[int, int, int]] = []
        position = 0
        while position < len(self.data):
            base, length = struct.unpack_from(">qi", self.data, position)
            (delta,) = struct.unpack_from(">i", self.data, position + 23)
            self.batches.append((base + delta, position, position + 12 + length))
            position += 12 + length
        if self.high_watermark is None:
            self.high_watermark = self.batches[-1][0] + 1 if self.batches else 0
        self._times: list[tuple[int, int]] | None = None

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole first batch, then up to ``max_bytes``; the last batch may be cut, as a broker cuts it."""
        found = bisect.bisect_left(self.batches, (offset, 0, 0))
        if found == len(self.batches):
            return b""
        _, begin, end = self.batches[found]
        return self.data[begin : max(end, begin + max_bytes)]

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """First offset whose record is at or after the time."""
        if self._times is None:
            self._times = [(each.timestamp_ms, each.offset) for each in decoded(self.data)]
        found = (offset for time, offset in self._times if time >= timestamp_ms and offset >= self.log_start_offset)
        return next(found, None)


class ServedCluster:
    """Brokers 1 to ``brokers`` over one set of logs; a context manager."""

    def __init__(
        self, partitions: dict[tuple[str, int], ServedPartition], brokers: int = 1, host: str = "127.0.0.1"
    ) -> None:
        self.partitions = partitions
        self.host = host
        self.topic_ids = {topic: f"id-of-{topic}".ljust(22, "0") for topic, _ in partitions}
        self.fetches: list[log_service_pb2.FetchRequest] = []
        self.fetching_brokers: list[int] = []
        self.produces: list[log_service_pb2.ProduceRequest] = []
        self.producer_ids = 0
        self.refuses_changes = False
        self.user_agents: set[str] = set()
        """How clients name themselves, of fetches and appends."""
        self.described: list[list[str]] = []
        """The names of each DescribeTopics."""
        self.failing_brokers: dict[int, grpc.StatusCode] = {}
        self.hold_fetches: threading.Event | None = None
        self.gives_hints = True
        self.false_hint: errors_pb2.LeaderHint | None = None
        """Given with every error instead of a true one."""
        self.lock = threading.Lock()
        self._servers = []
        self.ports: dict[int, int] = {}
        for broker_id in range(1, brokers + 1):
            server = grpc.server(
                ThreadPoolExecutor(32), options=[("grpc.max_send_message_length", 64 * MIB), ("grpc.so_reuseport", 0)]
            )
            log_service_pb2_grpc.add_LogServiceServicer_to_server(_LogService(self, broker_id), server)
            metadata_service_pb2_grpc.add_MetadataServiceServicer_to_server(_MetadataService(self, broker_id), server)
            admin_service_pb2_grpc.add_AdminServiceServicer_to_server(_AdminService(self), server)
            self.ports[broker_id] = server.add_insecure_port(address_of(host, 0))
            self._servers.append(server)

    def __enter__(self) -> "ServedCluster":
        for server in self._servers:
            server.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.hold_fetches is not None:
            self.hold_fetches.set()
        for stopped in [server.stop(grace=0) for server in self._servers]:
            stopped.wait(5)

    def stop(self, broker_id: int) -> None:
        """End one broker; its port refuses connections from now on."""
        self._servers[broker_id - 1].stop(grace=0).wait(5)

    @property
    def bootstrap(self) -> str:
        return address_of(self.host, self.ports[1])

    def fetched_partitions(self) -> list[tuple[str, int, int]]:
        """Topic, partition and offset of every partition in every fetch so far."""
        return [(p.topic, p.partition, p.fetch_offset) for request in self.fetches for p in request.partitions]


class _LogService(log_service_pb2_grpc.LogServiceServicer):
    def __init__(self, cluster: ServedCluster, broker_id: int) -> None:
        self._cluster, self._broker_id = cluster, broker_id

    def Fetch(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        cluster = self._cluster
        with cluster.lock:
            cluster.fetches.append(request)
            cluster.fetching_brokers.append(self._broker_id)
            cluster.user_agents.add(str(dict(context.invocation_metadata())["user-agent"]))
        if cluster.hold_fetches is not None:
            cluster.hold_fetches.wait(60)
        if self._broker_id in cluster.failing_brokers:
            context.abort(cluster.failing_brokers[self._broker_id], "planned")
        assert request.format == log_service_pb2.FETCH_FORMAT_BATCHES
        assert request.session_epoch == 0
        room = request.max_bytes or MIB
        response = log_service_pb2.FetchResponse()
        for asked in request.partitions:
            result = response.partitions.add(topic=asked.topic, partition=asked.partition)
            try:
                data = self._read(asked, room, first=room == request.max_bytes, result=result)
            except PacelineError as error:
                self._set_error(result, asked, error)
                continue
            room -= len(data)
            result.batches = data
        return response

    def _read(self, asked: Any, room: int, first: bool, result: Any) -> bytes:
        partition = self._owned(asked)
        if partition.errors:
            raise _error(partition.errors.pop(0))
        if asked.topic_id and asked.topic_id != self._cluster.topic_ids[asked.topic]:
            raise _error(ErrorCode.INCONSISTENT_TOPIC_ID)
        assert partition.high_watermark is not None
        result.high_watermark, result.log_start_offset = partition.high_watermark, partition.log_start_offset
        if not partition.log_start_offset <= asked.fetch_offset <= partition.high_watermark:
            raise OffsetOutOfRangeError("planned", partition.log_start_offset, partition.high_watermark)
        if room <= 0 or asked.fetch_offset >= partition.high_watermark:
            return b""
        limit = min(room, asked.max_bytes or MIB)
        data = partition.read(asked.fetch_offset, limit)
        return data if first else data[:limit]

    def _owned(self, asked: Any) -> ServedPartition:
        partition = self._cluster.partitions.get((asked.topic, asked.partition))
        if partition is None:
            raise _error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if partition.leader != self._broker_id:
            raise NotLeaderOrFollowerError("planned")
        return partition

    def _set_error(self, result: Any, asked: Any, error: PacelineError) -> None:
        result.error.code = int(error.code)
        result.error.message = str(error)
        if isinstance(error, OffsetOutOfRangeError):
            result.error.log_start_offset, result.error.high_watermark = error.log_start_offset, error.end_offset
        if self._cluster.false_hint is not None:
            result.error.current_leader.CopyFrom(self._cluster.false_hint)
            return
        partition = self._cluster.partitions.get((asked.topic, asked.partition))
        if not self._cluster.gives_hints or partition is None or partition.leader is None:
            return
        if isinstance(error, NotLeaderOrFollowerError):
            hint = errors_pb2.LeaderHint(
                leader_id=partition.leader, host=self._cluster.host, port=self._cluster.ports[partition.leader]
            )
            result.error.current_leader.CopyFrom(hint)

    def Produce(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        response = log_service_pb2.ProduceResponse()
        with self._cluster.lock:
            self._cluster.produces.append(request)
            self._cluster.user_agents.add(str(dict(context.invocation_metadata())["user-agent"]))
        is_lost = False
        for asked in request.partitions:
            result = response.partitions.add(topic=asked.topic, partition=asked.partition)
            try:
                with self._cluster.lock:
                    partition = self._owned(asked)
                    if partition.produce_errors:
                        raise _error(partition.produce_errors.pop(0))
                    result.base_offset = partition.append(asked.batch)
                    is_lost = is_lost or partition.lost_answers > 0
                    partition.lost_answers = max(0, partition.lost_answers - 1)
            except PacelineError as error:
                self._set_error(result, asked, error)
        if is_lost:
            context.abort(grpc.StatusCode.UNAVAILABLE, "planned")
        return response

    def ProduceStream(self, request_iterator: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        for request in request_iterator:
            yield self.Produce(request, context)

    def InitProducerId(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        with self._cluster.lock:
            self._cluster.producer_ids += 1
            return log_service_pb2.InitProducerIdResponse(producer_id=self._cluster.producer_ids, producer_epoch=0)

    def ListOffsets(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        response = log_service_pb2.ListOffsetsResponse()
        for asked in request.partitions:
            result = response.partitions.add(topic=asked.topic, partition=asked.partition)
            try:
                partition = self._owned(asked)
            except PacelineError as error:
                self._set_error(result, asked, error)
                continue
            offset = {
                log_service_pb2.OFFSET_SPEC_EARLIEST: lambda p=partition: p.log_start_offset,
                log_service_pb2.OFFSET_SPEC_LATEST: lambda p=partition: p.high_watermark,
                log_service_pb2.OFFSET_SPEC_TIMESTAMP: lambda p=partition, a=asked: p.offset_for_time(a.timestamp_ms),
            }[asked.spec]()
            if offset is not None:
                result.offset = offset
        return response


class _AdminService(admin_service_pb2_grpc.AdminServiceServicer):
    """The size limits of topics."""

    def __init__(self, cluster: ServedCluster) -> None:
        self._cluster = cluster

    def DescribeConfigs(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        response = admin_service_pb2.DescribeConfigsResponse()
        for asked in request.resources:
            described = response.resources.add(resource=asked.resource)
            limit = self._cluster.partitions[asked.resource.name, 0].max_message_bytes
            described.entries.add(key="max.message.bytes", value=str(limit))
        return response

    def IncrementalAlterConfigs(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        response = admin_service_pb2.IncrementalAlterConfigsResponse()
        for asked in request.resources:
            result = response.resources.add(resource=asked.resource)
            if self._cluster.refuses_changes:
                result.error.code, result.error.message = int(ErrorCode.POLICY_VIOLATION), "planned"
                continue
            for (topic, _), partition in self._cluster.partitions.items():
                if topic == asked.resource.name:
                    partition.max_message_bytes = int(asked.changes[0].value)
        return response


class _MetadataService(metadata_service_pb2_grpc.MetadataServiceServicer):
    def __init__(self, cluster: ServedCluster, broker_id: int) -> None:
        self._cluster, self._broker_id = cluster, broker_id

    def DescribeCluster(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        response = metadata_service_pb2.DescribeClusterResponse(cluster_id="x" * 22, node_id=self._broker_id)
        response.controller_id, response.controller_host = self._broker_id, self._cluster.host
        response.controller_port = self._cluster.ports[self._broker_id]
        for broker_id, port in self._cluster.ports.items():
            response.brokers.add(id=broker_id, host=self._cluster.host, port=port)
        return response

    def DescribeTopics(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        response = metadata_service_pb2.DescribeTopicsResponse()
        with self._cluster.lock:
            self._cluster.described.append(list(request.topics))
        existing = {topic for topic, _ in self._cluster.partitions}
        for name in request.topics or sorted(existing):
            topic = response.topics.add(name=name)
            if name not in existing:
                topic.error.code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            topic.topic_id = self._cluster.topic_ids[name]
            for (owner, number), partition in sorted(self._cluster.partitions.items()):
                if owner == name:
                    described = topic.partitions.add(partition=number)
                    described.replicas.extend(self._cluster.ports)
                    described.isr.extend(sorted(self._cluster.ports)[:1])
                    described.leader_epoch = 7
                    if partition.leader is not None:
                        described.leader = partition.leader
        return response


def _error(code: ErrorCode) -> PacelineError:
    return error_for(code, "planned")
