"""LogService of one listener, for clients.

A servicer makes no decisions. It checks and converts requests, calls the core on the node's event loop, and answers
with the addresses of its listener.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

import grpc

from paceline.broker.service.calls_in_progress import ByteBudget, FetchWaits
from paceline.broker.service.node_handle import Listener, NodeHandle
from paceline.broker.service.record_codec import Places, RecordCodec
from paceline.broker.service.response_memory import AnswerBudget
from paceline.log import record_batch
from paceline.model.acls import Operation, ResourceType
from paceline.model.client_io import (
    DeleteRecordsResult,
    EpochAnswer,
    FetchRequest,
    FetchResponse,
    FetchResult,
    OffsetAnswer,
    PartitionFailure,
    ProduceData,
    ProduceResult,
    RequiredAcks,
)
from paceline.model.errors import (
    InvalidRequestError,
    PacelineError,
    error_for,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.quotas import CONSUMER, PRODUCER
from paceline.model.scheduler import Scheduler
from paceline.replication.purgatory import Cancel
from paceline.rpc import wire
from paceline.rpc.admission.listener_limits import ListenerLimits
from paceline.rpc.admission.message_limits import parsed
from paceline.rpc.convert import common, digest, fetch, offsets, produce
from paceline.rpc.deadlines import wait_within_deadline
from paceline.rpc.interceptors import count_refusal
from paceline.rpc.security.authorizer import Call, current_call
from paceline.rpc.server import unary
from paceline.rpc.streams.stream_server import StreamRequest, Wait, stream_handler
from paceline.v1 import errors_pb2
from paceline.v1 import log_service_pb2 as pb

LOG_SERVICE: Final = "paceline.v1.LogService"

_ANSWER_GRACE_MS = 10_000
"""Extra wait beyond the request's timeout before giving up; the core normally answers at the timeout."""

T = TypeVar("T")


async def answer_of(start: Callable[[Callable[[T], None]], Cancel | None], timeout_ms: int) -> T:
    """Call ``start`` with a reply function and return the value of the reply.

    When the caller of the RPC disconnects, this coroutine is cancelled. It then cancels the wait in the core with the
    function that ``start`` returned; a late reply is dropped. On a stream the core's call of ``reply`` runs the rest of
    the coroutine.

    Raises:
        RequestTimedOutError: no reply within ``timeout_ms`` plus ten seconds.
    """
    wait = Wait((timeout_ms + _ANSWER_GRACE_MS) / 1000)
    cancel = start(wait.reply)
    try:
        value: T = await wait
        return value
    except BaseException:
        if cancel is not None:
            cancel()
        raise


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
        waits: FetchWaits,
        limits: ListenerLimits,
    ) -> None:
        self._core = core
        self._listener = Listener(listener, core)
        self._scheduler = scheduler
        self._budget = budget
        self._answers = answers
        self._places = Places()
        self._codec = codec
        self._waits = waits
        self._refuse = functools.partial(count_refusal, limits, listener)
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
        producer = context.peer()
        rules = current_call()
        rules.quota.charge(PRODUCER, len(request))
        call = wire.parse_produce(request)
        acks = produce.acks_from_proto(call.acks)
        timeout_ms = wait_within_deadline(produce.timeout_from_proto(call.timeout_ms), context)
        stream = context.context if isinstance(context, StreamRequest) else None
        refused = [] if rules.exempt is not None else _refuse_parts(rules, call)
        structured = any(part.batch is None for part in call.partitions)
        with self._budget.reserve(len(request)), self._places.place(stream, structured) as place:
            await place.wait_for_turn()
            data = await self._produce_data(call)
            del request, call  # a request that waits for replication must not keep its batches in memory
            if acks is RequiredAcks.NONE:
                core.produce(acks, timeout_ms, data, _drop)
                return pb.ProduceResponse(throttle_ms=rules.quota.pause_ms()).SerializeToString()

            def append(reply: Callable[[list[ProduceResult]], None]) -> Cancel | None:
                try:
                    return core.produce(acks, timeout_ms, data, reply, producer=producer)
                finally:
                    place.leave()

            results: list[ProduceResult] = [] if refused and not data else await answer_of(append, timeout_ms)
        for index, result in refused:
            results.insert(index, result)
        answer = pb.ProduceResponse(
            partitions=[produce.produce_result_to_proto(result, self._listener.address_of) for result in results],
            throttle_ms=rules.quota.pause_ms(),
        )
        return answer.SerializeToString()

    async def produce_on_stream(self, request: bytes, context: StreamRequest) -> bytes:
        """Append records; an error of the whole request is returned per partition, so that the stream continues.

        Raises:
            InvalidRequestError: the request cannot be parsed, or has too many elements.
        """
        try:
            return await self.produce(request, context)
        except PacelineError as error:
            parts = wire.parse_produce(request).partitions  # raises again, if that was the error
            context.reason = error.code.name
            self._refuse(error)
            results = [
                ProduceResult(common.partition_of(part.head), PartitionFailure(error.code, str(error)))
                for part in parts
            ]
            answer = pb.ProduceResponse(partitions=[produce.produce_result_to_proto(result) for result in results])
            return answer.SerializeToString()

    async def _produce_data(self, call: wire.ProduceCall) -> list[ProduceData]:
        data = []
        for part in common.bounded(call.partitions, common.MAX_CLIENT_PARTITIONS, "partitions"):
            topic_partition = common.partition_of(part.head)
            batch = part.batch
            if batch is None:
                if part.head.WhichOneof("data") != "records":
                    raise InvalidRequestError(f"the request has no records for {topic_partition}")
                batch = await self._codec.encode(part.head.records, self._scheduler.wall_ms())
            epoch = part.head.current_leader_epoch if part.head.HasField("current_leader_epoch") else None
            data.append(ProduceData(topic_partition, common.topic_id_of(part.head.topic_id), batch, epoch))
        common.refuse_duplicates([one.topic_partition for one in data])
        return data

    async def fetch(self, request: bytes, context: Any) -> bytes:
        """Read records."""
        rules = current_call()
        wanted, structured = self._checked_fetch(parsed(pb.FetchRequest, request))
        wanted.max_bytes = rules.quota.most_bytes(min(wanted.max_bytes, self._answers.room_bytes(context)))
        wanted.proof_timeout_ms = wait_within_deadline(max(wanted.max_wait_ms, produce.DEFAULT_TIMEOUT_MS), context)
        wanted.max_wait_ms = min(wanted.max_wait_ms, wanted.proof_timeout_ms)
        response = await self._read_allowed(wanted, context, rules)
        if structured:
            answer = (await self._structured(wanted, response, context)).SerializeToString()
        else:
            answer = wire.fetch_response(response.session_id, response.results, self._listener.address_of)
        rules.quota.charge(CONSUMER, len(answer))
        pause_ms = rules.quota.pause_ms()
        # The encoding of a message can be continued with further fields.
        return answer + pb.FetchResponse(throttle_ms=pause_ms).SerializeToString() if pause_ms else answer

    async def _read_allowed(self, wanted: FetchRequest, context: Any, rules: Call) -> FetchResponse:
        """Read the partitions whose topics the caller may read; the others have an error in the response.

        A fetch session has partitions that the request does not name, so the results are checked, too.
        """
        if rules.exempt is not None:
            return await self._read(wanted, context)
        refused = [
            FetchResult(one.topic_partition, _refusal(rules, Operation.READ, one.topic_partition))
            for one in wanted.partitions
            if not rules.may(Operation.READ, ResourceType.TOPIC, one.topic_partition.topic)
        ]
        response = FetchResponse([])
        if refused:
            unreadable = {result.topic_partition for result in refused}
            wanted.partitions = [one for one in wanted.partitions if one.topic_partition not in unreadable]
            wanted.max_wait_ms = 0
        if wanted.partitions or wanted.session_id or not refused:
            response = await self._read(wanted, context)
        for index, result in enumerate(response.results):
            if not rules.may(Operation.READ, ResourceType.TOPIC, result.topic_partition.topic):
                failure = _refusal(rules, Operation.READ, result.topic_partition)
                response.results[index] = FetchResult(result.topic_partition, failure)
        response.results += refused
        return response

    async def _read(self, wanted: FetchRequest, context: Any) -> FetchResponse:
        core = self._core.get()
        with self._waits.of(context.peer()):
            response: FetchResponse = await answer_of(lambda reply: core.fetch(wanted, reply), wanted.max_wait_ms)
        if response.failure is not None:
            raise error_for(response.failure.code, response.failure.message)
        self._answers.hold(sum(len(result.batches) for result in response.results), context)
        return response

    def _checked_fetch(self, request: pb.FetchRequest) -> tuple[FetchRequest, bool]:
        """Return the fetch, limited by the broker's settings, and whether it wants structured records.

        Raises:
            PacelineError: the request is not valid.
        """
        wanted = fetch.fetch_from_proto(request)
        if request.format not in (pb.FETCH_FORMAT_UNSPECIFIED, pb.FETCH_FORMAT_RECORDS, pb.FETCH_FORMAT_BATCHES):
            raise InvalidRequestError(f"fetch format {request.format} is not known")
        structured = request.format != pb.FETCH_FORMAT_BATCHES
        wanted.max_bytes = min(wanted.max_bytes, self._fetch_max_bytes)
        if structured and (wanted.session_id or wanted.session_epoch != fetch.CLOSING_EPOCH):
            raise InvalidRequestError("fetch sessions need FETCH_FORMAT_BATCHES")
        return wanted, structured

    async def _structured(self, wanted: FetchRequest, response: FetchResponse, context: Any) -> pb.FetchResponse:
        """Return the records of a response; continue reading after batches that have no record for the caller.

        Compaction leaves a batch without records at the end of a segment, and a read ends there. A caller that sees
        only records, not batches, would request the same offset for ever.
        """
        deadline_ms = self._scheduler.now_ms() + wanted.max_wait_ms
        while True:
            answer = await self._records(wanted, response)
            passed = _pass_batches_without_records(wanted, response, answer)
            if not passed:
                return answer
            has_news = any(len(one.records.records) or one.HasField("error") for one in answer.partitions)
            wanted.max_wait_ms = 0 if has_news else max(0, deadline_ms - self._scheduler.now_ms())
            response = await self._read(wanted, context)

    async def _records(self, wanted: FetchRequest, response: FetchResponse) -> pb.FetchResponse:
        offsets = {one.topic_partition: one.fetch_offset for one in wanted.partitions}
        budget = wanted.max_bytes
        answer = pb.FetchResponse()
        for result in response.results:
            message = fetch.fetch_result_to_proto(replace(result, batches=b""), self._listener.address_of)
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
        queries = offsets.list_offsets_from_proto(request)
        core = self._core.get()
        timeout_ms = wait_within_deadline(produce.DEFAULT_TIMEOUT_MS, context)
        answers: list[OffsetAnswer] = await answer_of(
            lambda reply: core.proved_calls.list_offsets(queries, timeout_ms, reply), timeout_ms
        )
        return pb.ListOffsetsResponse(
            partitions=[offsets.offset_answer_to_proto(answer, self._listener.address_of) for answer in answers]
        )

    async def offset_for_leader_epoch(
        self, request: pb.OffsetForLeaderEpochRequest, context: Any
    ) -> pb.OffsetForLeaderEpochResponse:
        """Return the end offsets of leader epochs."""
        core = self._core.get()
        queries = offsets.epoch_queries_from_proto(request.partitions)
        timeout_ms = wait_within_deadline(produce.DEFAULT_TIMEOUT_MS, context)
        answers: list[EpochAnswer] = await answer_of(
            lambda reply: core.proved_calls.offsets_for_leader_epoch(queries, timeout_ms, reply), timeout_ms
        )
        return pb.OffsetForLeaderEpochResponse(
            partitions=[offsets.epoch_answer_to_proto(answer, self._listener.address_of) for answer in answers]
        )

    async def digest_range(self, request: pb.DigestRangeRequest, context: Any) -> pb.DigestRangeResponse:
        """Return the digest of a range of this broker's replica."""
        answer = self._core.get().digest_range(digest.digest_query_from_proto(request))
        return digest.digest_answer_to_proto(answer, self._listener.address_of)

    async def delete_records(self, request: pb.DeleteRecordsRequest, context: Any) -> pb.DeleteRecordsResponse:
        """Delete records from the beginning of logs."""
        core = self._core.get()
        queries = offsets.delete_records_from_proto(request)
        timeout_ms = wait_within_deadline(produce.timeout_from_proto(request.timeout_ms), context)
        results: list[DeleteRecordsResult] = await answer_of(
            lambda reply: core.proved_calls.delete_records(queries, timeout_ms, reply), timeout_ms
        )
        for one in results:
            if one.old_log_start_offset is not None:
                current_call().note_old(str(one.topic_partition), {"log_start_offset": one.old_log_start_offset})
        return pb.DeleteRecordsResponse(
            partitions=[offsets.delete_records_result_to_proto(one, self._listener.address_of) for one in results]
        )

    async def init_producer_id(self, request: pb.InitProducerIdRequest, context: Any) -> pb.InitProducerIdResponse:
        """Assign a producer id."""
        core = self._core.get()
        answer = await answer_of(core.init_producer_id, produce.DEFAULT_TIMEOUT_MS)
        if isinstance(answer, Exception):
            raise answer
        producer_id, producer_epoch = answer
        return pb.InitProducerIdResponse(producer_id=producer_id, producer_epoch=producer_epoch)


def _refuse_parts(rules: Call, call: wire.ProduceCall) -> list[tuple[int, ProduceResult]]:
    """Remove the partitions whose topics the caller may not write to; return their positions and results."""
    refused, kept = [], []
    for index, part in enumerate(call.partitions):
        if rules.may(Operation.WRITE, ResourceType.TOPIC, part.head.topic):
            kept.append(part)
        else:
            topic_partition = TopicPartition(part.head.topic, part.head.partition)
            failure = _refusal(rules, Operation.WRITE, topic_partition)
            refused.append((index, ProduceResult(topic_partition, failure)))
    if refused:
        call.partitions = kept
    return refused


def _refusal(rules: Call, operation: Operation, topic_partition: TopicPartition) -> PartitionFailure:
    error = rules.error(operation, ResourceType.TOPIC, topic_partition.topic)
    return PartitionFailure(error.code, str(error))


def _drop(_results: list[ProduceResult]) -> None:
    """Ignore the results of ACKS_NONE."""


def _pass_batches_without_records(wanted: FetchRequest, response: FetchResponse, answer: pb.FetchResponse) -> bool:
    """Advance the positions of a fetch past batches that decode to no record; return whether a position changed."""
    positions = {one.topic_partition: one for one in wanted.partitions}
    passed = False
    for result, message in zip(response.results, answer.partitions, strict=True):
        if not message.HasField("records") or message.records.records:
            continue
        headers = [header for _, header in record_batch.iterate_headers(result.batches)]
        position = positions[result.topic_partition]
        if headers and headers[-1].last_offset >= position.fetch_offset:
            last = headers[-1]
            position.fetch_offset = last.last_offset + 1
            if position.last_fetched_epoch is not None:
                position.last_fetched_epoch = last.leader_epoch
            passed = True
    return passed
