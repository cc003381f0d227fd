"""`GatewayServicer`: the RPCs of GatewayService."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any, Final

import grpc

from paceline.gateway.leases import Lease, TokenKeys
from paceline.gateway.service.clients import Client, Clients
from paceline.gateway.service.convert import REFUSALS, committed_notice, delivered_records, partition_error, position_of
from paceline.gateway.service.members import Members
from paceline.gateway.service.publisher import Answer, Publisher, PublishLane
from paceline.gateway.values import Refusal
from paceline.model.admin import NewTopic
from paceline.model.errors import InvalidRequestError, PacelineError, TopicAlreadyExistsError
from paceline.model.identifiers import TopicPartition
from paceline.rpc.errors import from_rpc_error
from paceline.rpc.retry import RetryPolicy, call_with_retry
from paceline.rpc.security.guard import current_caller
from paceline.v1.gateway_service_pb2 import (
    ACKNOWLEDGEMENT_ERROR_UNSPECIFIED,
    AcknowledgeRequest,
    AcknowledgeResponse,
    AcknowledgeResult,
    EnsureTopicRequest,
    EnsureTopicResponse,
    PartitionPositions,
    PublishRequest,
    PublishResponse,
    PublishStreamRequest,
    PublishStreamResponse,
    PulledBatch,
    PullRequest,
    PullResponse,
    QueryRequest,
    QueryResponse,
    SubscribeRequest,
    SubscribeResponse,
)
from paceline.v1.gateway_service_pb2_grpc import GatewayServiceServicer
from paceline.v1.log_service_pb2 import InitProducerIdRequest, InitProducerIdResponse
from paceline.v1.log_service_pb2_grpc import LogServiceStub
from paceline_client import CommitFailedError, Connections, OffsetAndMetadata
from paceline_client.groups.committed import commit, commit_request, fetch_committed
from paceline_client.groups.coordinator import GroupCoordinator
from paceline_client.offsets import OffsetLookup, query_end
from paceline_client.subscription import OffsetReset

STREAM_REQUESTS: Final = 10_000
STREAM_BYTES: Final = 8 * 1024 * 1024
_CALL_MS: Final = 10_000
_COMMIT_MS: Final = 5_000
_MAX_TOKENS: Final = 1_000
_DEFAULT_PULL_RECORDS: Final = 100
_DEFAULT_PULL_BYTES: Final = 1024 * 1024


class GatewayServicer(GatewayServiceServicer):  # type: ignore[misc, unused-ignore]
    """Serves publishers and subscribers."""

    def __init__(self, clients: Clients, members: Members, keys: TokenKeys) -> None:
        self._clients = clients
        self._members = members
        self.keys = keys
        """The keys of tokens; replaced when the file changes."""

    def _caller(self) -> AbstractContextManager[Client]:
        return self._clients.use(current_caller().principal)

    # Publishing --------------------------------------------------------------------------------------------------

    async def Publish(self, request: PublishRequest, context: Any) -> PublishResponse:  # noqa: N802
        """Append records and wait for the result."""
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        with self._caller() as client:
            await client.publisher.room.wait()
            lane = PublishLane(client.publisher)
            lane.publish(request, lambda answer: None if done.done() else done.set_result(answer))
            return (await done).response()

    async def PublishStream(  # noqa: N802
        self, requests: AsyncIterator[PublishStreamRequest], context: Any
    ) -> AsyncIterator[PublishStreamResponse]:
        """Append records; answers are sent as they arrive."""
        with self._caller() as client:
            stream = _PublishStream(client.publisher)
            reader = asyncio.get_running_loop().create_task(stream.read(requests))
            try:
                while (response := await stream.next_answer()) is not None:
                    yield response
                await reader
            finally:
                reader.cancel()

    # Subscribing -------------------------------------------------------------------------------------------------

    async def Subscribe(  # noqa: N802
        self, requests: AsyncIterator[SubscribeRequest], context: Any
    ) -> AsyncIterator[SubscribeResponse]:
        """Deliver records and take acknowledgements."""
        first = await anext(aiter(requests), None)
        if first is None or first.WhichOneof("request") != "subscribe":
            raise InvalidRequestError("the first request of a stream must be subscribe")
        driver, stream, outbox = await self._members.subscribe(current_caller().principal, first.subscribe)
        left = False
        ended = InvalidRequestError("the caller has closed its side")

        async def read() -> None:
            try:
                async for request in requests:
                    if request.WhichOneof("request") != "acknowledge":
                        raise InvalidRequestError("a stream has one subscription; later requests are acknowledgements")
                    positions = request.acknowledge.positions
                    driver.acknowledge(stream, [(TopicPartition(p.topic, p.partition), p.offset) for p in positions])
                outbox.end(ended)
            except PacelineError as error:
                outbox.end(error)

        reader = asyncio.get_running_loop().create_task(read())
        try:
            while outbox.error is not ended:
                try:
                    message = await outbox.get()
                except PacelineError:
                    break
                yield message
            owned = driver.member.owned_by(stream)
            committed = await driver.commit_now(owned)
            left = True
            self._members.leave(driver, stream)
            if committed:
                yield committed_notice(committed.items())
            if outbox.error is not None and outbox.error is not ended:
                raise outbox.error
        finally:
            reader.cancel()
            if not left:
                self._members.leave(driver, stream)

    async def Pull(self, request: PullRequest, context: Any) -> PullResponse:  # noqa: N802
        """Lease records."""
        wait_ms = request.wait_ms if request.HasField("wait_ms") else 1_000
        lease_ms = request.lease_ms if request.HasField("lease_ms") else 30_000
        if not 0 <= wait_ms <= 30_000:
            raise InvalidRequestError(f"wait_ms must be from 0 to 30000, not {wait_ms}")
        if not 1_000 <= lease_ms <= 600_000:
            raise InvalidRequestError(f"lease_ms must be from 1000 to 600000, not {lease_ms}")
        wanted = request.subscription
        principal = current_caller().principal
        driver = await self._members.pull(principal, wanted)
        records = wanted.credit_records if wanted.HasField("credit_records") else _DEFAULT_PULL_RECORDS
        size = wanted.credit_bytes if wanted.HasField("credit_bytes") else _DEFAULT_PULL_BYTES
        found = await driver.pull(records, size, lease_ms, wait_ms / 1000)
        deadline_ms = time.time_ns() // 1_000_000 + lease_ms
        member, generation = driver.member_id, driver.generation
        return PullResponse(
            batches=[
                PulledBatch(
                    records=delivered_records(tp, batch),
                    token=self.keys.sign(
                        Lease(principal, wanted.group, member, generation, *tp, batch.next_offset, deadline_ms)
                    ),
                )
                for tp, batch in found
            ]
        )

    async def Acknowledge(self, request: AcknowledgeRequest, context: Any) -> AcknowledgeResponse:  # noqa: N802
        """Commit leased batches."""
        if len(request.tokens) > _MAX_TOKENS:
            raise InvalidRequestError(f"tokens has {len(request.tokens)} tokens, the limit is {_MAX_TOKENS}")
        principal, now_ms = current_caller().principal, time.time_ns() // 1_000_000
        read = [self.keys.read(token, principal, now_ms) for token in request.tokens]
        by_member: dict[tuple[str, str, int], list[Lease]] = {}
        for one in read:
            if isinstance(one, Lease):
                by_member.setdefault((one.group, one.member, one.generation), []).append(one)
        outcomes: dict[tuple[str, str, int], tuple[Refusal | None, str]] = {}
        for key, leases in by_member.items():
            with self._caller() as client:
                outcomes[key] = await asyncio.to_thread(self._commit, client.connections, leases)
            driver = self._members.find(principal, key[0])
            if driver is not None and outcomes[key][0] is None and driver.member_id == key[1]:
                driver.leases_committed({lease.topic_partition: lease.position for lease in leases})
        results = []
        for one in read:
            if isinstance(one, Refusal):
                text = "the lease has ended" if one is Refusal.EXPIRED else "the token is not valid"
                results.append(AcknowledgeResult(error=REFUSALS[one], message=text))
                continue
            reason, message = outcomes[one.group, one.member, one.generation]
            results.append(
                AcknowledgeResult(
                    position=position_of(one.topic_partition, one.position),
                    error=REFUSALS[reason] if reason is not None else ACKNOWLEDGEMENT_ERROR_UNSPECIFIED,
                    message=message,
                )
            )
        return AcknowledgeResponse(results=results)

    def _commit(self, connections: Connections, leases: list[Lease]) -> tuple[Refusal | None, str]:
        first = leases[0]
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for one in leases:
            known = offsets.get(one.topic_partition)
            if known is None or known.offset < one.position:
                offsets[one.topic_partition] = OffsetAndMetadata(one.position)
        coordinator = GroupCoordinator(first.group, connections.metadata, connections.channels)
        try:
            commit(coordinator, commit_request(first.group, offsets, first.generation, first.member), _COMMIT_MS)
        except CommitFailedError:
            return Refusal.REVOKED, "the partition was revoked: the group has rebalanced since the batch was pulled"
        except PacelineError as error:
            return Refusal.UNAVAILABLE, str(error)
        return None, ""

    # Topics ------------------------------------------------------------------------------------------------------

    async def EnsureTopic(self, request: EnsureTopicRequest, context: Any) -> EnsureTopicResponse:  # noqa: N802
        """Create a topic unless it exists."""
        with self._caller() as client:
            return await asyncio.to_thread(self._ensure_topic, client, request)

    def _ensure_topic(self, client: Client, request: EnsureTopicRequest) -> EnsureTopicResponse:
        topic = NewTopic(
            request.topic,
            partitions=request.partitions if request.HasField("partitions") else None,
            replication_factor=request.replication_factor if request.HasField("replication_factor") else None,
            configs=dict(request.configs),
        )
        created = True
        try:
            client.admin.create_topics([topic], timeout_ms=3 * _CALL_MS)
        except TopicAlreadyExistsError:
            created = False
        return EnsureTopicResponse(
            created=created, partitions=client.connections.metadata.wait_for_topic(request.topic, _CALL_MS / 1000)
        )

    async def Query(self, request: QueryRequest, context: Any) -> QueryResponse:  # noqa: N802
        """Return positions and lag."""
        if not request.topic:
            raise InvalidRequestError("topic is empty")
        with self._caller() as client:
            return await asyncio.to_thread(self._query, client.connections, request)

    def _query(self, connections: Connections, request: QueryRequest) -> QueryResponse:
        count = connections.metadata.wait_for_topic(request.topic, _CALL_MS / 1000)
        partitions = [TopicPartition(request.topic, index) for index in range(count)]
        committed = {}
        if request.group:
            coordinator = GroupCoordinator(request.group, connections.metadata, connections.channels)
            committed = fetch_committed(coordinator, partitions, _CALL_MS)
        response = QueryResponse()
        for tp in partitions:
            one = PartitionPositions(partition=tp.partition)
            try:
                one.first_offset = _end_of(connections, tp, OffsetReset.EARLIEST)
                one.end_offset = _end_of(connections, tp, OffsetReset.LATEST)
            except PacelineError as error:
                one.error.CopyFrom(partition_error(error))
            found = committed.get(tp)
            if found is not None:
                one.committed_offset = found.offset
            if request.group and not one.HasField("error"):
                one.lag = max(0, one.end_offset - (one.first_offset if found is None else found.offset))
            response.partitions.append(one)
        return response


def _end_of(connections: Connections, tp: TopicPartition, reset: OffsetReset) -> int:
    place = OffsetLookup(connections.metadata, connections.channels).look_up([query_end(tp, reset)], 2_000)[tp]
    assert place is not None
    return place.offset


class ProducerIds:
    """Serves LogService.InitProducerId alone, so that a caller of the gateway needs no address of a broker."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def add_to(self, server: Any) -> None:
        """Add the method to a server."""
        method = grpc.unary_unary_rpc_method_handler(
            self._init_producer_id, InitProducerIdRequest.FromString, InitProducerIdResponse.SerializeToString
        )
        handler = grpc.method_handlers_generic_handler("paceline.v1.LogService", {"InitProducerId": method})
        server.add_generic_rpc_handlers((handler,))

    async def _init_producer_id(self, request: InitProducerIdRequest, context: Any) -> InitProducerIdResponse:
        with self._clients.use(current_caller().principal) as client:
            return await asyncio.to_thread(self._ask, client.connections, request)

    def _ask(self, connections: Connections, request: InitProducerIdRequest) -> InitProducerIdResponse:
        brokers = deque(connections.metadata.wait_for_brokers(_CALL_MS / 1000))

        def attempt(_left_s: float | None) -> InitProducerIdResponse:
            brokers.rotate()
            stub = LogServiceStub(connections.channels.get(brokers[0].address))
            try:
                return stub.InitProducerId(request, timeout=_CALL_MS / 2000)
            except grpc.RpcError as failure:
                raise from_rpc_error(failure) from failure

        return call_with_retry(RetryPolicy(deadline_ms=_CALL_MS), attempt)


class _PublishStream:
    """Requests and answers of one PublishStream."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._lane = PublishLane(publisher)
        self._answers: deque[PublishStreamResponse] = deque()
        self._open = 0
        self._open_bytes = 0
        self._is_read = False
        self._failure: Exception | None = None
        self._changed = asyncio.Event()
        self._drained = asyncio.Event()

    async def read(self, requests: AsyncIterator[PublishStreamRequest]) -> None:
        """Send the requests; pause while too many have no answer."""
        try:
            async for request in requests:
                size = request.ByteSize()
                self._open += 1
                self._open_bytes += size
                self._lane.publish(request.publish, self._answer_to(request.number, size))
                while self._open + len(self._answers) >= STREAM_REQUESTS or self._open_bytes >= STREAM_BYTES:
                    self._drained.clear()
                    await self._drained.wait()
                await self._publisher.room.wait()
        except Exception as failure:
            self._failure = failure
        finally:
            self._is_read = True
            self._changed.set()

    def _answer_to(self, number: int, size: int) -> Any:
        def done(answer: Answer) -> None:
            self._open -= 1
            self._open_bytes -= size
            try:
                response = PublishStreamResponse(number=number, published=answer.response())
            except PacelineError as error:
                response = PublishStreamResponse(number=number, error=partition_error(error))
            self._answers.append(response)
            self._changed.set()
            self._drained.set()

        return done

    async def next_answer(self) -> PublishStreamResponse | None:
        """Wait for an answer; return None after the last one."""
        while not self._answers:
            if self._failure is not None:
                raise self._failure
            if self._is_read and not self._open:
                return None
            self._changed.clear()
            await self._changed.wait()
        self._drained.set()
        return self._answers.popleft()
