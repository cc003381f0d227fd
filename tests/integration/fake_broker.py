"""The gRPC server of one broker or controller of a `FakeCluster`."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
from grpc_status.rpc_status import to_status

from paceline.broker.service.record_codec import decode, encode
from paceline.log.record_batch import parse_header
from paceline.model.errors import (
    ErrorCode,
    FetchSessionIdNotFoundError,
    InvalidFetchSessionEpochError,
    NotControllerError,
    PacelineError,
    UnknownServerError,
)
from paceline.model.identifiers import TopicPartition
from paceline.rpc.errors import to_rpc_status
from paceline.v1 import admin_service_pb2 as admin
from paceline.v1 import log_service_pb2 as pb
from paceline.v1 import metadata_service_pb2 as meta
from paceline.v1.admin_service_pb2_grpc import AdminServiceServicer, add_AdminServiceServicer_to_server
from paceline.v1.errors_pb2 import LeaderHint, PartitionError, TopicError
from paceline.v1.log_service_pb2_grpc import LogServiceServicer, add_LogServiceServicer_to_server
from paceline.v1.metadata_service_pb2_grpc import MetadataServiceServicer, add_MetadataServiceServicer_to_server

if TYPE_CHECKING:
    from tests.integration.fake_cluster import FakeCluster

CONTROLLER_ID = 1_000_000


class FakeBroker(LogServiceServicer, MetadataServiceServicer, AdminServiceServicer):  # type: ignore[misc]
    """The gRPC server of one broker or controller."""

    def __init__(self, cluster: "FakeCluster", node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.port = 0
        self.told_port: int | None = None
        """Port of this node in the metadata, if it is not the port of the server."""
        self.server: Any = None
        self.remembered: tuple[Any, dict[str, Any]] | None = None
        """Metadata of the time of `cut_off`, which this node keeps returning; None before `cut_off`."""
        self.sessions: dict[int, tuple[int, dict[TopicPartition, pb.FetchPartition]]] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.server = grpc.server(
            ThreadPoolExecutor(64),
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 64 << 20)],
        )
        add_LogServiceServicer_to_server(self, self.server)
        add_MetadataServiceServicer_to_server(self, self.server)
        add_AdminServiceServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        self.server.start()

    def stop(self) -> None:
        """Break open calls and drop fetch sessions at once, as a killed process does."""
        if self.server is not None:
            self.server.stop(0).wait(60)
            self.server = None
        self.sessions.clear()

    @property
    def alive(self) -> bool:
        return self.server is not None

    def cut_off(self, alone: bool = False) -> None:
        """Keep returning the present metadata, as an isolated broker does; ``alone`` leaves out the other brokers."""
        brokers = self._cluster_now()
        if alone:
            own = [one for one in brokers.brokers if one.id == self.node_id]
            del brokers.brokers[:]
            brokers.brokers.extend(own)
        self.remembered = brokers, {one.name: one for one in self._topics_now(())}

    # Metadata ----------------------------------------------------------------------------------------------------

    def DescribeCluster(self, request: Any, context: Any) -> Any:  # noqa: N802
        cluster = self.cluster
        cluster.metadata_requests += 1
        if cluster.faults.hold_metadata is not None:
            cluster.faults.hold_metadata.wait(120)
        return self._cluster_now() if self.remembered is None else self.remembered[0]

    def _cluster_now(self) -> Any:
        cluster = self.cluster
        if cluster.faults.knows_nobody == self.node_id:
            return meta.DescribeClusterResponse(cluster_id="fake", node_id=self.node_id)
        return meta.DescribeClusterResponse(
            cluster_id="fake",
            brokers=[
                meta.BrokerInfo(id=broker.node_id, host="127.0.0.1", port=broker.told_port or broker.port)
                for broker in cluster.brokers.values()
                if broker.alive
            ],
            controller_id=CONTROLLER_ID,
            controller_epoch=1,
            controller_host="127.0.0.1",
            controller_port=cluster.controller.port,
            node_id=self.node_id,
            **cluster.faults.cluster_fields,
        )

    def _no_leader(self) -> PartitionError:
        return PartitionError(code=ErrorCode.LEADER_NOT_AVAILABLE, message="on purpose")

    def _count(self, method: str, context: Any) -> None:
        with self.cluster.lock:
            self.cluster.calls[method] += 1
            planned = self.cluster.faults.abort.get(method)
            error = planned.pop(0) if planned else None
        if error is not None:
            context.abort_with_status(to_status(to_rpc_status(error)))

    def DescribeTopics(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._count("DescribeTopics", context)
        if self.remembered is None:
            return meta.DescribeTopicsResponse(topics=self._topics_now(request.topics))
        known = self.remembered[1]
        names = request.topics or sorted(known)
        return meta.DescribeTopicsResponse(topics=[known.get(name) or _unknown(name) for name in names])

    def _topics_now(self, wanted: Any) -> list[Any]:
        topics = []
        with self.cluster.lock:
            known = {} if self.cluster.faults.knows_nobody == self.node_id else self.cluster.logs
            names = list(wanted) or sorted({tp.topic for tp in known})
            for name in names:
                logs = {tp: log for tp, log in known.items() if tp.topic == name}
                if not logs:
                    topics.append(_unknown(name))
                    continue
                topics.append(
                    meta.TopicDescription(
                        name=name,
                        topic_id=self.cluster.topic_id(name),
                        partitions=[
                            meta.PartitionDescription(
                                partition=tp.partition,
                                leader=log.leader,
                                error=self._no_leader() if log.leader is None else None,
                                leader_epoch=log.epoch,
                                replicas=sorted(self.cluster.brokers),
                                isr=self._isr(),
                            )
                            for tp, log in logs.items()
                        ],
                    )
                )
        return topics

    def _isr(self) -> list[int]:
        told = self.cluster.faults.isr
        return sorted(self.cluster.brokers) if told is None else told

    def DescribeReplicas(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = meta.DescribeReplicasResponse()
        with self.cluster.lock:
            for index in request.partitions:
                log = self.cluster.logs[TopicPartition(request.topic, index)]
                answer.partitions.append(
                    meta.PartitionReplicas(
                        topic=request.topic,
                        partition=index,
                        leader=self.node_id,
                        leader_epoch=log.epoch,
                        high_watermark=log.end,
                        isr=[1],
                        replicas=[meta.ReplicaProgress(broker_id=self.node_id, log_end_offset=log.end, in_sync=True)],
                    )
                )
        return answer

    # Admin -------------------------------------------------------------------------------------------------------

    def CreateTopics(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._count("CreateTopics", context)
        self._only_on_the_controller(context)
        answer = admin.CreateTopicsResponse()
        for topic in request.topics:
            result = answer.topics.add(name=topic.name, topic_id=f"id-of-{topic.name}")
            code = self.cluster.create_error
            if any(tp.topic == topic.name for tp in self.cluster.logs):
                code = ErrorCode.TOPIC_ALREADY_EXISTS
            if code is not None:
                result.error.CopyFrom(TopicError(code=code, message="refused"))
                continue
            self.cluster.created[topic.name] = topic
            if not request.validate_only:
                self.cluster.topic(topic.name, topic.partitions or 1)
        return answer

    def DeleteTopics(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._only_on_the_controller(context)
        answer = admin.DeleteTopicsResponse()
        with self.cluster.lock:
            for name in request.topics:
                result = answer.topics.add(name=name)
                gone = [tp for tp in self.cluster.logs if tp.topic == name]
                if not gone:
                    result.error.CopyFrom(TopicError(code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message="none"))
                for tp in gone:
                    del self.cluster.logs[tp]
        return answer

    def _only_on_the_controller(self, context: Any) -> None:
        if self is not self.cluster.controller:
            error = NotControllerError("not active").with_metadata(address=self.cluster.controller.address)
            context.abort_with_status(to_status(to_rpc_status(error)))

    # Writing -----------------------------------------------------------------------------------------------------

    def InitProducerId(self, request: Any, context: Any) -> Any:  # noqa: N802
        with self.cluster.lock:
            self.cluster.producer_id_requests_s.append(time.monotonic())
            if self.cluster.faults.no_producer_ids:
                context.abort_with_status(to_status(to_rpc_status(UnknownServerError("the session was lost"))))
            self.cluster.next_producer_id += 1
            return pb.InitProducerIdResponse(producer_id=self.cluster.next_producer_id, producer_epoch=0)

    def Produce(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._count("Produce", context)
        faults = self.cluster.faults
        if faults.hold_produce is not None:
            faults.hold_produce.wait(120)
        if not self.alive:
            context.abort(grpc.StatusCode.UNAVAILABLE, "stopped")
        with self.cluster.lock:
            self.cluster.produce_requests += 1
            if faults.drop_before > 0:
                faults.drop_before -= 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
            answer = pb.ProduceResponse(partitions=[self._produce_one(piece) for piece in request.partitions])
            self.cluster.lock.notify_all()
            if faults.drop_after > 0:
                faults.drop_after -= 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
        return pb.ProduceResponse() if request.acks == pb.ACKS_NONE else answer

    def FetchStream(self, requests: Any, context: Any) -> Any:  # noqa: N802
        if self.cluster.faults.no_streams:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        for request in requests:
            self.cluster.streamed_fetches += 1
            yield self.Fetch(request, context)

    def ProduceStream(self, requests: Any, context: Any) -> Any:  # noqa: N802
        if self.cluster.faults.no_streams:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        for request in requests:
            self.cluster.streamed_requests += 1
            yield self.Produce(request, context)

    def _produce_one(self, piece: Any) -> Any:
        tp = TopicPartition(piece.topic, piece.partition)
        result = pb.ProducePartitionResult(topic=tp.topic, partition=tp.partition, log_append_time_ms=-1)
        code = self._refusal(tp, self.cluster.faults.refuse) or self.cluster.faults.refuse_always
        if code is None and piece.topic_id not in ("", self.cluster.topic_id(tp.topic)):
            code = ErrorCode.INCONSISTENT_TOPIC_ID
        if code is None:
            batch = piece.batch
            if piece.WhichOneof("data") == "records":
                batch = encode(piece.records, int(time.time() * 1000))
            appended = self.cluster.logs[tp].append(batch)
            if not isinstance(appended, ErrorCode):
                result.base_offset = appended
                return result
            code = appended
        result.error.CopyFrom(self._error(tp, code))
        return result

    def _refusal(self, tp: TopicPartition, planned: list[ErrorCode]) -> ErrorCode | None:
        log = self.cluster.logs.get(tp)
        if log is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if log.leader != self.node_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return planned.pop(0) if planned else None

    def _error(self, tp: TopicPartition, code: ErrorCode) -> PartitionError:
        log = self.cluster.logs.get(tp)
        error = PartitionError(code=code, message=f"{code.name} on purpose")
        moved = code in {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH}
        if moved and log is not None and log.leader is not None and not self.cluster.hide_leader_changes:
            leader = self.cluster.brokers[log.leader]
            error.current_leader.CopyFrom(
                LeaderHint(leader_id=log.leader, leader_epoch=log.epoch, host="127.0.0.1", port=leader.port)
            )
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and log is not None:
            error.log_start_offset, error.high_watermark = log.start, log.end
        return error

    # Reading -----------------------------------------------------------------------------------------------------

    def ListOffsets(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = pb.ListOffsetsResponse()
        with self.cluster.lock:
            for query in request.partitions:
                tp = TopicPartition(query.topic, query.partition)
                result = answer.partitions.add(topic=tp.topic, partition=tp.partition)
                code = self._refusal(tp, [])
                if code is not None:
                    result.error.CopyFrom(self._error(tp, code))
                    continue
                log = self.cluster.logs[tp]
                result.leader_epoch = log.epoch
                if query.spec == pb.OFFSET_SPEC_EARLIEST:
                    result.offset = log.start
                elif query.spec == pb.OFFSET_SPEC_TIMESTAMP:
                    for batch in log.batches:
                        header = parse_header(batch)
                        if header.max_timestamp >= query.timestamp_ms:
                            result.offset, result.timestamp_ms = header.base_offset, header.max_timestamp
                            break
                else:
                    result.offset = log.end
        return answer

    def Fetch(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._count("Fetch", context)
        deadline = time.monotonic() + request.max_wait_ms / 1000
        if self.cluster.faults.fetch_abort is not None:
            context.abort_with_status(to_status(to_rpc_status(self.cluster.faults.fetch_abort)))
        with self.cluster.lock:
            self.cluster.fetched_partitions.append(len(request.partitions))
            try:
                session_id, wanted = self._session(request)
            except PacelineError as error:
                context.abort_with_status(to_status(to_rpc_status(error)))
            while True:
                answer = pb.FetchResponse(session_id=session_id)
                for tp, partition in wanted.items():
                    result = self._fetch_one(tp, partition, request.session_epoch > 0, request.rack_id)
                    if result is not None:
                        if result.batches and request.format != pb.FETCH_FORMAT_BATCHES:
                            records, _ = decode(result.batches, partition.fetch_offset, 1 << 20)
                            result.records.CopyFrom(records)
                        answer.partitions.append(result)
                left = deadline - time.monotonic()
                news = any(
                    r.batches
                    or r.records.records
                    or r.HasField("error")
                    or r.HasField("diverging_epoch")
                    or r.HasField("preferred_read_replica")
                    for r in answer.partitions
                )
                if news or left <= 0 or not self.alive or not context.is_active():
                    return answer
                self.cluster.lock.wait(min(left, 0.05))

    def _session(self, request: Any) -> tuple[int, dict[TopicPartition, Any]]:
        named = {TopicPartition(p.topic, p.partition): p for p in request.partitions}
        if request.session_epoch <= 0:
            session_id = len(self.sessions) + 1 + 1_000 * self.node_id if request.open_session else 0
            if session_id:
                self.sessions[session_id] = (1, named)
            return session_id, named
        if self.cluster.faults.forget_sessions > 0:
            self.cluster.faults.forget_sessions -= 1
            self.sessions.clear()
        if request.session_id not in self.sessions:
            raise FetchSessionIdNotFoundError("no such session")
        epoch, known = self.sessions[request.session_id]
        if epoch != request.session_epoch:
            raise InvalidFetchSessionEpochError(f"expected {epoch}")
        known.update(named)
        for dropped in request.forgotten:
            known.pop(TopicPartition(dropped.topic, dropped.partition), None)
        self.sessions[request.session_id] = (epoch + 1, known)
        return request.session_id, known

    def _fetch_one(self, tp: TopicPartition, wanted: Any, incremental: bool, rack: str) -> Any:
        log = self.cluster.logs.get(tp)
        result = pb.FetchPartitionResult(topic=tp.topic, partition=tp.partition)
        faults = self.cluster.faults
        if rack and log is not None and log.leader != self.node_id:
            code = faults.follower_refuse.pop(0) if faults.follower_refuse else None
        else:
            code = self._refusal(tp, faults.fetch_refuse)
            if code is None and rack and faults.read_replica not in (None, self.node_id):
                result.preferred_read_replica = faults.read_replica
                return result
        if code is None and wanted.topic_id not in ("", self.cluster.topic_id(tp.topic)):
            code = ErrorCode.INCONSISTENT_TOPIC_ID
        if code is None and wanted.HasField("current_leader_epoch") and log is not None:
            if wanted.current_leader_epoch < log.epoch:
                code = ErrorCode.FENCED_LEADER_EPOCH
            elif wanted.current_leader_epoch > log.epoch:
                code = ErrorCode.UNKNOWN_LEADER_EPOCH
        if code is not None or log is None:
            result.error.CopyFrom(self._error(tp, code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return result
        if wanted.HasField("last_fetched_epoch"):
            epoch, end = log.end_of_epoch(wanted.last_fetched_epoch)
            if epoch < wanted.last_fetched_epoch or end < wanted.fetch_offset:
                result.diverging_epoch.CopyFrom(pb.EpochEndOffset(epoch=epoch, end_offset=end))
                return result
        if not log.start <= wanted.fetch_offset <= log.end:
            result.error.CopyFrom(self._error(tp, ErrorCode.OFFSET_OUT_OF_RANGE))
            return result
        result.batches = log.read(wanted.fetch_offset, wanted.max_bytes or 1 << 20)
        if result.batches:
            self.cluster.served[self.node_id] += 1
        result.high_watermark = result.last_stable_offset = log.end
        result.log_start_offset = log.start
        return result if result.batches or not incremental else None


def _unknown(topic: str) -> Any:
    error = TopicError(code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message="no such topic")
    return meta.TopicDescription(name=topic, error=error)
