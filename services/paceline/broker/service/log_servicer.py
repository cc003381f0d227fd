"""LogService and MetadataService of one listener, for clients.

A servicer makes no decisions. It checks and converts requests, calls the core on the node's event loop, and answers
with the addresses of its listener.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import grpc

from paceline import __version__
from paceline.broker.metadata_cache import MetadataCache
from paceline.broker.service.node_handle import NodeHandle
from paceline.broker.service.record_codec import Places, RecordCodec
from paceline.broker.service.response_memory import AnswerBudget
from paceline.model.client_io import (
    DeleteRecordsResult,
    FetchRequest,
    FetchResponse,
    PartitionFailure,
    ProduceData,
    ProduceResult,
    RequiredAcks,
)
from paceline.model.control import Endpoint, UpdateMetadataPartition
from paceline.model.errors import (
    BrokerNotAvailableError,
    InvalidRequestError,
    InvalidTopicError,
    NotControllerError,
    PacelineError,
    RequestTimedOutError,
    ThrottledError,
    UnknownTopicOrPartitionError,
    error_for,
)
from paceline.model.identifiers import validate_topic_name
from paceline.model.metadata_revisions import MetadataRevisions
from paceline.model.scheduler import Scheduler
from paceline.replication.purgatory import Cancel
from paceline.rpc import convert, wire
from paceline.rpc.admission.message_limits import parsed, refuse_too_many_elements
from paceline.rpc.deadlines import wait_within_deadline
from paceline.rpc.pages import topics_page
from paceline.rpc.security.guard import current_caller
from paceline.rpc.server import unary
from paceline.rpc.streams.stream_server import StreamServer, stream_handler
from paceline.rpc.watch.watch_hub import WatchHub
from paceline.rpc.watch.watch_servicer import WatchServicer
from paceline.v1 import errors_pb2
from paceline.v1 import log_service_pb2 as pb
from paceline.v1 import metadata_service_pb2 as metadata_pb

CLIENT: Final = "CLIENT"
LOG_SERVICE: Final = "paceline.v1.LogService"

_ANSWER_GRACE_MS = 10_000
"""Extra wait beyond the request's timeout before giving up; the core normally answers at the timeout."""

T = TypeVar("T")


class ByteBudget:
    """Bytes of produce requests in flight, for all listeners of a broker."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0

    @contextlib.contextmanager
    def reserve(self, size_bytes: int) -> Iterator[None]:
        """Reserve ``size_bytes`` while the request is handled; a single request always fits.

        Raises:
            ThrottledError: the limit of bytes in flight is reached; no batch was appended.
        """
        if self.used_bytes and self.used_bytes + size_bytes > self._limit_bytes:
            raise ThrottledError(f"{self.used_bytes} bytes of produce requests are in flight; try again")
        self.used_bytes += size_bytes
        try:
            yield
        finally:
            self.used_bytes -= size_bytes


async def answer_of(start: Callable[[Callable[[T], None]], Cancel | None], timeout_ms: int, context: Any = None) -> T:
    """Call ``start`` with a reply function and return the value of the reply.

    When the RPC's caller disconnects, this coroutine is cancelled, and with it the wait in the core, by the function
    that ``start`` returned; a late reply is dropped. On a stream, detected by its ``context``, the coroutine continues
    in the callback of the reply.

    Raises:
        RequestTimedOutError: no reply within ``timeout_ms`` plus ten seconds.
    """
    if isinstance(context, StreamServer):
        wait = context.wait((timeout_ms + _ANSWER_GRACE_MS) / 1000)
        cancel = start(wait.reply)
        try:
            value: T = await wait
        except BaseException:
            if cancel is not None:
                cancel()
            raise
        return value
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def reply(value: T) -> None:
        if not future.done():
            future.set_result(value)

    def expire() -> None:
        if not future.done():
            future.set_exception(RequestTimedOutError("the broker has not answered in time"))

    cancel = start(reply)
    if future.done():
        return future.result()
    timer = loop.call_later((timeout_ms + _ANSWER_GRACE_MS) / 1000, expire)
    try:
        return await future
    except BaseException:
        if cancel is not None:
            cancel()
        raise
    finally:
        timer.cancel()


class Listener:
    """The addresses of one listener, for hints and metadata."""

    def __init__(self, name: str, core: NodeHandle) -> None:
        self.name = name
        self._core = core

    def address_of(self, broker_id: int) -> Endpoint | None:
        """Return a live broker's address on this listener, or its CLIENT address if it lacks this listener."""
        broker = self._core.get().metadata.snapshot.brokers.get(broker_id)
        if broker is None:
            return None
        return broker.endpoint(self.name) or broker.endpoint(CLIENT)

    def controller_address(self) -> Endpoint | None:
        """Return the active controller's address on this listener, or its CLIENT address."""
        endpoints = {
            endpoint.listener: endpoint for endpoint in self._core.get().metadata.snapshot.controller_endpoints
        }
        return endpoints.get(self.name) or endpoints.get(CLIENT)


class LogServicer:
    """Writes and reads records.

    Produce and Fetch work on the bytes of their messages, so that payloads are not copied through the protobuf library
    (`rpc.wire`); the other calls use the generated messages.
    """

    def __init__(
        self,
        core: NodeHandle,
        listener: str,
        scheduler: Scheduler,
        budget: ByteBudget,
        answers: AnswerBudget,
        fetch_max_bytes: int,
        codec: RecordCodec,
    ) -> None:
        self._core = core
        self._listener = Listener(listener, core)
        self._scheduler = scheduler
        self._budget = budget
        self._answers = answers
        self._places = Places()
        self._codec = codec
        self._fetch_max_bytes = fetch_max_bytes

    def add_to(self, server: Any) -> None:
        """Register every method of LogService at a server."""
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(LOG_SERVICE, self.handlers()),))

    def handlers(self) -> dict[str, Any]:
        """Return the method handlers by name."""
        return {
            "Produce": grpc.unary_unary_rpc_method_handler(self.produce),
            "ProduceStream": stream_handler(self.produce_on_stream),
            "Fetch": grpc.unary_unary_rpc_method_handler(self.fetch),
            "FetchStream": stream_handler(self.fetch),
            "ListOffsets": unary(self.list_offsets, pb.ListOffsetsRequest),
            "OffsetForLeaderEpoch": unary(self.offset_for_leader_epoch, pb.OffsetForLeaderEpochRequest),
            "DigestRange": unary(self.digest_range, pb.DigestRangeRequest),
            "DeleteRecords": unary(self.delete_records, pb.DeleteRecordsRequest),
            "InitProducerId": unary(self.init_producer_id, pb.InitProducerIdRequest),
        }

    async def produce(self, request: bytes, context: Any) -> bytes:
        """Append records."""
        core = self._core.get()
        refuse_too_many_elements(request, pb.ProduceRequest)
        call = wire.parse_produce(request)
        acks = convert.acks_from_proto(call.acks)
        timeout_ms = wait_within_deadline(convert.timeout_from_proto(call.timeout_ms), context)
        stream = context.context if isinstance(context, StreamServer) else None
        structured = any(part.batch is None for part in call.partitions)
        with self._budget.reserve(len(request)), self._places.place(stream, structured) as place:
            await place.come()
            data = await self._produce_data(call)
            del request, call  # a request that waits for replication must not keep its batches in memory
            if acks is RequiredAcks.NONE:
                core.produce(acks, timeout_ms, data, _drop)
                return b""

            def append(reply: Callable[[list[ProduceResult]], None]) -> Cancel | None:
                try:
                    return core.produce(acks, timeout_ms, data, reply)
                finally:
                    place.leave()

            results: list[ProduceResult] = await answer_of(append, timeout_ms, context)
        answer = pb.ProduceResponse(
            partitions=[convert.produce_result_to_proto(result, self._listener.address_of) for result in results]
        )
        return answer.SerializeToString()

    async def produce_on_stream(self, request: bytes, context: StreamServer) -> bytes:
        """Append records; an error of the whole request is returned per partition, so that the stream continues."""
        try:
            return await self.produce(request, context)
        except PacelineError as error:
            refuse_too_many_elements(request, pb.ProduceRequest)  # again, because such a request must not be parsed
            context.reason = error.code.name
            results = [
                ProduceResult(convert.partition_of(part.head), PartitionFailure(error.code, str(error)))
                for part in wire.parse_produce(request).partitions
            ]
            answer = pb.ProduceResponse(partitions=[convert.produce_result_to_proto(result) for result in results])
            return answer.SerializeToString()

    async def _produce_data(self, call: wire.ProduceCall) -> list[ProduceData]:
        data = []
        for part in convert.bounded(call.partitions, convert.MAX_CLIENT_PARTITIONS, "partitions"):
            topic_partition = convert.partition_of(part.head)
            batch = part.batch
            if batch is None:
                if part.head.WhichOneof("data") != "records":
                    raise InvalidRequestError(f"the request has no records for {topic_partition}")
                batch = await self._codec.encode(part.head.records, self._scheduler.wall_ms())
            epoch = part.head.current_leader_epoch if part.head.HasField("current_leader_epoch") else None
            data.append(ProduceData(topic_partition, convert.topic_id_of(part.head.topic_id), batch, epoch))
        convert.refuse_duplicates([one.topic_partition for one in data])
        return data

    async def fetch(self, request: bytes, context: Any) -> bytes:
        """Read records."""
        core = self._core.get()
        wanted, structured = self._checked_fetch(parsed(pb.FetchRequest, request))
        wanted.max_bytes = min(wanted.max_bytes, self._answers.room_bytes(context))
        wanted.max_wait_ms = wait_within_deadline(wanted.max_wait_ms, context)
        response: FetchResponse = await answer_of(lambda reply: core.fetch(wanted, reply), wanted.max_wait_ms, context)
        if response.failure is not None:
            raise error_for(response.failure.code, response.failure.message)
        size = sum(len(result.batches) for result in response.results)
        self._answers.hold(size, context)
        if structured:
            return (await self._structured(wanted, response)).SerializeToString()
        return wire.fetch_response(response.session_id, response.results, self._listener.address_of)

    def _checked_fetch(self, request: pb.FetchRequest) -> tuple[FetchRequest, bool]:
        """Return the fetch, limited by the broker's settings, and whether it wants structured records.

        Raises:
            PacelineError: the request is not valid.
        """
        wanted = convert.fetch_from_proto(request)
        if request.format not in (pb.FETCH_FORMAT_UNSPECIFIED, pb.FETCH_FORMAT_RECORDS, pb.FETCH_FORMAT_BATCHES):
            raise InvalidRequestError(f"fetch format {request.format} is not known")
        structured = request.format != pb.FETCH_FORMAT_BATCHES
        wanted.max_bytes = min(wanted.max_bytes, self._fetch_max_bytes)
        if structured and (wanted.session_id or wanted.session_epoch != convert.CLOSING_EPOCH):
            raise InvalidRequestError("fetch sessions need FETCH_FORMAT_BATCHES")
        return wanted, structured

    async def _structured(self, wanted: FetchRequest, response: FetchResponse) -> pb.FetchResponse:
        offsets = {one.topic_partition: one.fetch_offset for one in wanted.partitions}
        budget = wanted.max_bytes
        answer = pb.FetchResponse()
        for result in response.results:
            message = convert.fetch_result_to_proto(replace(result, batches=b""), self._listener.address_of)
            if result.batches:
                # Return at least one record of the first partition with records, more only while space is left.
                budget -= await self._fill(message, result.batches, offsets[result.topic_partition], budget)
            answer.partitions.append(message)
        return answer

    async def _fill(self, message: pb.FetchPartitionResult, batches: bytes, offset: int, budget: int) -> int:
        if budget <= 0:
            return 0
        try:
            records, size = await self._codec.decode(batches, offset, budget)
        except PacelineError as failure:
            message.error.CopyFrom(
                errors_pb2.PartitionError(code=int(failure.code), message=str(failure))  # type: ignore[arg-type]
            )
            return 0
        message.records.CopyFrom(records)
        return size

    async def list_offsets(self, request: pb.ListOffsetsRequest, context: Any) -> pb.ListOffsetsResponse:
        """Find offsets."""
        queries, isolation = convert.list_offsets_from_proto(request)
        answers = self._core.get().list_offsets(queries, isolation)
        return pb.ListOffsetsResponse(
            partitions=[convert.offset_answer_to_proto(answer, self._listener.address_of) for answer in answers]
        )

    async def offset_for_leader_epoch(
        self, request: pb.OffsetForLeaderEpochRequest, context: Any
    ) -> pb.OffsetForLeaderEpochResponse:
        """Return the end offsets of leader epochs."""
        answers = self._core.get().offsets_for_leader_epoch(
            convert.epoch_queries_from_proto(request.partitions), from_client=True
        )
        return pb.OffsetForLeaderEpochResponse(
            partitions=[convert.epoch_answer_to_proto(answer, self._listener.address_of) for answer in answers]
        )

    async def digest_range(self, request: pb.DigestRangeRequest, context: Any) -> pb.DigestRangeResponse:
        """Return the digest of a range of this broker's replica."""
        answer = self._core.get().digest_range(convert.digest_query_from_proto(request))
        return convert.digest_answer_to_proto(answer, self._listener.address_of)

    async def delete_records(self, request: pb.DeleteRecordsRequest, context: Any) -> pb.DeleteRecordsResponse:
        """Delete records from the beginning of logs."""
        core = self._core.get()
        queries = convert.delete_records_from_proto(request)
        timeout_ms = wait_within_deadline(convert.timeout_from_proto(request.timeout_ms), context)
        results: list[DeleteRecordsResult] = await answer_of(
            lambda reply: core.delete_records(queries, timeout_ms, reply), timeout_ms
        )
        return pb.DeleteRecordsResponse(
            partitions=[convert.delete_records_result_to_proto(one, self._listener.address_of) for one in results]
        )

    async def init_producer_id(self, request: pb.InitProducerIdRequest, context: Any) -> pb.InitProducerIdResponse:
        """Assign a producer id."""
        core = self._core.get()
        answer = await answer_of(core.init_producer_id, convert.DEFAULT_TIMEOUT_MS)
        if isinstance(answer, Exception):
            raise answer
        producer_id, producer_epoch = answer
        return pb.InitProducerIdResponse(producer_id=producer_id, producer_epoch=producer_epoch)


class MetadataServicer(WatchServicer):
    """Describes the cluster from the broker's cache."""

    def __init__(self, core: NodeHandle, listener: str, node_id: Callable[[], int], hub: WatchHub) -> None:
        super().__init__(hub)
        self._core = core
        self._listener = Listener(listener, core)
        self._node_id = node_id

    async def DescribeCluster(  # noqa: N802
        self, request: metadata_pb.DescribeClusterRequest, context: Any
    ) -> metadata_pb.DescribeClusterResponse:
        """List live brokers and the controller."""
        return self._cluster()

    def _cluster(self) -> metadata_pb.DescribeClusterResponse:
        core = self._core.get()
        snapshot = core.metadata.snapshot
        brokers = []
        for broker_id in sorted(snapshot.brokers):
            endpoint = self._listener.address_of(broker_id)
            brokers.append(
                metadata_pb.BrokerInfo(
                    id=broker_id,
                    host=endpoint.host if endpoint else "",
                    port=endpoint.port if endpoint else 0,
                    rack=snapshot.brokers[broker_id].rack or "",
                )
            )
        controller = self._listener.controller_address()
        return metadata_pb.DescribeClusterResponse(
            cluster_id=core.cluster_id or "",
            brokers=brokers,
            controller_id=snapshot.controller_id,
            controller_epoch=snapshot.controller_epoch,
            controller_host=controller.host if controller else "",
            controller_port=controller.port if controller else 0,
            server_version=__version__,
            node_id=self._node_id(),
        )

    async def DescribeTopics(  # noqa: N802
        self, request: metadata_pb.DescribeTopicsRequest, context: Any
    ) -> metadata_pb.DescribeTopicsResponse:
        """Describe topics."""
        topics = self._told().snapshot.topics
        convert.bounded(request.topics, convert.MAX_CLIENT_PARTITIONS, "topics")
        return topics_page(request, lambda: sorted(topics), lambda name: self._topics([name])[0])

    def _topics(self, names: Sequence[str]) -> list[metadata_pb.TopicDescription]:
        topics = self._core.get().metadata.snapshot.topics
        return [_topic_description(name, topics.get(name)) for name in names]

    def _revisions(self) -> MetadataRevisions:
        return self._told().revisions

    def _told(self) -> MetadataCache:
        """Return the metadata; before the first UpdateMetadata every topic would look unknown.

        Raises:
            BrokerNotAvailableError: this broker has not received metadata yet.
        """
        metadata = self._core.get().metadata
        if not metadata.snapshot.version:
            raise BrokerNotAvailableError("this broker has not received metadata from a controller yet")
        return metadata

    def _check_active(self) -> None:
        snapshot, endpoint = self._core.get().metadata.snapshot, self._listener.controller_address()
        error = NotControllerError("a broker is not a controller")
        if snapshot.controller_id is not None:
            error = error.with_metadata(controller_id=snapshot.controller_id)
        if endpoint is not None:
            error = error.with_metadata(host=endpoint.host, port=endpoint.port, address=endpoint.address)
        raise error

    async def DescribeReplicas(  # noqa: N802
        self, request: metadata_pb.DescribeReplicasRequest, context: Any
    ) -> metadata_pb.DescribeReplicasResponse:
        """Show a leader's view of its followers."""
        validate_topic_name(request.topic)
        partitions = list(convert.bounded(request.partitions, convert.MAX_CLIENT_PARTITIONS, "partitions"))
        if any(partition < 0 for partition in partitions) or len(set(partitions)) != len(partitions):
            raise InvalidRequestError("partitions must be distinct and not negative")
        views = self._core.get().describe_replicas(request.topic, partitions)
        described = [convert.partition_replicas_to_proto(view, self._listener.address_of) for view in views]
        if not current_caller().is_super:
            for replica in (replica for partition in described for replica in partition.replicas):
                replica.ClearField("broker_epoch")
        return metadata_pb.DescribeReplicasResponse(partitions=described)


def _topic_description(name: str, partitions: Any) -> metadata_pb.TopicDescription:
    if partitions is None:
        error = _why_unknown(name)
        return metadata_pb.TopicDescription(
            name=name,
            error=errors_pb2.TopicError(code=int(error.code), message=str(error)),  # type: ignore[arg-type]
        )
    described = [_partition_description(partitions[index]) for index in sorted(partitions)]
    topic_id = next((state.topic_id for state in partitions.values() if state.topic_id), None)
    return metadata_pb.TopicDescription(name=name, topic_id=topic_id or "", partitions=described)


def _why_unknown(name: str) -> PacelineError:
    try:
        validate_topic_name(name)
    except InvalidTopicError as error:
        return error
    return UnknownTopicOrPartitionError("the topic does not exist in this broker's metadata")


def _partition_description(state: UpdateMetadataPartition) -> metadata_pb.PartitionDescription:
    return metadata_pb.PartitionDescription(
        partition=state.topic_partition.partition,
        leader=state.leader if state.leader >= 0 else None,
        leader_epoch=state.leader_epoch,
        replicas=state.replicas,
        isr=state.isr,
        offline_replicas=state.offline_replicas,
        error=None if state.leader >= 0 else convert.no_leader_to_proto(state.topic_partition),
    )


def _drop(_results: list[ProduceResult]) -> None:
    """Ignore the results of ACKS_NONE."""
