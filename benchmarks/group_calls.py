"""Make the calls of a group member on Paceline (stubs) and on Kafka (aiokafka's requests) through one interface.

Both sides are Python on one event loop, so that the benchmark compares the coordinators and not the client libraries.
Kafka answers the calls of a connection in order, and a JoinGroup waits, so each of its members has a separate
connection. Up to 100 members of Paceline share a connection, which takes at most 256 calls at a time.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from aiokafka.conn import create_conn
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest

from paceline.model.addresses import address_of
from paceline.model.consumer_protocol import Subscription, encode_subscription
from paceline.rpc.errors import from_rpc_error
from paceline.v1 import group_service_pb2 as pb
from paceline.v1.group_service_pb2_grpc import GroupServiceStub

TOPIC = "t"
SESSION_MS, REBALANCE_MS = 30_000, 60_000
PAUSE_S = 0.05
MEMBERS_PER_CHANNEL = 100
CALL_S = 90
_MEMBER_ID_REQUIRED = 79


class Refused(Exception):  # noqa: N818 - an answer, not a failure of the benchmark
    """The coordinator refused; ``member_id`` is set when it requires another JoinGroup with this id."""

    def __init__(self, why: str, member_id: str = "") -> None:
        super().__init__(why)
        self.member_id = member_id


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to a JoinGroup."""

    member_id: str
    generation: int
    member_ids: tuple[str, ...]
    """Members of the group, for the leader only."""


class GroupCalls(Protocol):
    """The calls of a member to its coordinator."""

    broker_id: int

    async def join(self, group_id: str, member_id: str) -> Joined:
        """Join, and wait for the rebalance."""

    async def sync(self, group_id: str, joined: Joined) -> None:
        """Send empty assignments as the leader, and wait for the assignment of this member."""

    async def heartbeat(self, group_id: str, joined: Joined) -> None:
        """Send a heartbeat."""

    async def commit(self, group_id: str, partition: int, offset: int) -> None:
        """Commit an offset without being a member."""

    async def committed(self, group_id: str) -> int | None:
        """Return the committed offset of partition 0."""

    async def close(self) -> None:
        """Close the connection."""


class PacelineCalls:
    """A coordinator of Paceline."""

    _channels: dict[tuple[str, int], grpc.aio.Channel] = {}  # noqa: RUF012 - shared on purpose
    _members = 0
    """Members that have found their coordinator."""

    def __init__(self, broker_id: int, stub: Any) -> None:
        self.broker_id = broker_id
        self._stub = stub

    @classmethod
    async def find(cls, addresses: list[str], group_id: str, shared: bool = False) -> "PacelineCalls":
        """Return the coordinator of a group, as soon as a broker knows it; with ``shared``, on the first channel."""
        place = 0 if shared else PacelineCalls._members // MEMBERS_PER_CHANNEL
        PacelineCalls._members += not shared
        while True:
            for address in addresses:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    stub = GroupServiceStub(cls._channel(address))
                    found = await stub.FindCoordinator(pb.FindCoordinatorRequest(group_id=group_id), timeout=2)
                    return cls(
                        found.broker_id, GroupServiceStub(cls._channel(address_of(found.host, found.port), place))
                    )
            await asyncio.sleep(PAUSE_S)

    @classmethod
    def _channel(cls, address: str, place: int = 0) -> grpc.aio.Channel:
        channel = cls._channels.get((address, place))
        if channel is None:
            options = [
                ("grpc.max_reconnect_backoff_ms", 200),
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.use_local_subchannel_pool", 1),
            ]
            channel = cls._channels[address, place] = grpc.aio.insecure_channel(address, options=options)
        return channel

    async def join(self, group_id: str, member_id: str) -> Joined:
        protocol = pb.GroupProtocol(name="range", subscription=pb.ConsumerSubscription(topics=[TOPIC]))
        request = pb.JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=member_id,
            protocols=[protocol],
            client_id="bench",
        )
        answer = await self._call(self._stub.JoinGroup, request)
        return Joined(answer.member_id, answer.generation_id, tuple(one.member_id for one in answer.members))

    async def sync(self, group_id: str, joined: Joined) -> None:
        assignments = [pb.MemberAssignment(member_id=one) for one in joined.member_ids]
        request = pb.SyncGroupRequest(
            group_id=group_id, generation_id=joined.generation, member_id=joined.member_id, assignments=assignments
        )
        await self._call(self._stub.SyncGroup, request)

    async def heartbeat(self, group_id: str, joined: Joined) -> None:
        request = pb.HeartbeatRequest(group_id=group_id, generation_id=joined.generation, member_id=joined.member_id)
        await self._call(self._stub.Heartbeat, request)

    async def commit(self, group_id: str, partition: int, offset: int) -> None:
        offsets = [pb.OffsetToCommit(topic=TOPIC, partition=partition, offset=offset)]
        answer = await self._call(self._stub.CommitOffsets, pb.CommitOffsetsRequest(group_id=group_id, offsets=offsets))
        if answer.partitions[0].HasField("error"):
            raise Refused(str(answer.partitions[0].error))

    async def committed(self, group_id: str) -> int | None:
        answer = await self._call(self._stub.FetchOffsets, pb.FetchOffsetsRequest(group_id=group_id), 2)
        return answer.partitions[0].offset if answer.partitions else None

    async def close(self) -> None:
        """Do nothing, because the channel is shared."""

    @staticmethod
    async def _call(method: Any, request: Any, timeout_s: float = CALL_S) -> Any:
        try:
            return await method(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as failure:
            error = from_rpc_error(failure)
            raise Refused(str(error), error.metadata.get("member_id", "")) from None


class KafkaCalls:
    """A coordinator of Kafka, on its own connection."""

    _connections: dict[tuple[str, int], Any] = {}  # noqa: RUF012 - shared on purpose

    def __init__(self, broker_id: int, connection: Any, shared: bool) -> None:
        self.broker_id = broker_id
        self._connection = connection
        self._shared = shared

    @classmethod
    async def find(cls, addresses: list[str], group_id: str, shared: bool = False) -> "KafkaCalls":
        """Return the coordinator of a group, as soon as some broker knows it; on a new connection unless ``shared``."""
        while True:
            for address in addresses:
                with contextlib.suppress(Exception):
                    host, _, port = address.partition(":")
                    asked = await cls._connect(host, int(port), shared=True)
                    found = await asked.send(FindCoordinatorRequest(group_id, 0))
                    if not found.error_code:
                        connection = await cls._connect(found.host, found.port, shared)
                        return cls(found.coordinator_id, connection, shared)
            await asyncio.sleep(PAUSE_S)

    @classmethod
    async def _connect(cls, host: str, port: int, shared: bool) -> Any:
        known = cls._connections.get((host, port)) if shared else None
        if known is None or not known.connected():
            known = await create_conn(host, port, request_timeout_ms=CALL_S * 1_000)
            if shared:
                cls._connections[host, port] = known
        return known

    async def join(self, group_id: str, member_id: str) -> Joined:
        metadata = encode_subscription(Subscription((TOPIC,)))
        request = JoinGroupRequest(
            group_id,
            SESSION_MS,
            REBALANCE_MS,
            member_id,
            None,
            "consumer",
            [("range", metadata)],  # type: ignore[arg-type]
        )
        answer = await self._send(request)
        if answer.error_code:
            raise Refused(str(answer.error_code), answer.member_id if answer.error_code == _MEMBER_ID_REQUIRED else "")
        return Joined(answer.member_id, answer.generation_id, tuple(one[0] for one in answer.members))

    async def sync(self, group_id: str, joined: Joined) -> None:
        shares = [(one, b"") for one in joined.member_ids]
        request = SyncGroupRequest(group_id, joined.generation, joined.member_id, None, shares)  # type: ignore[arg-type]
        self._check((await self._send(request)).error_code)

    async def heartbeat(self, group_id: str, joined: Joined) -> None:
        self._check((await self._send(HeartbeatRequest(group_id, joined.generation, joined.member_id))).error_code)

    async def commit(self, group_id: str, partition: int, offset: int) -> None:
        request = OffsetCommitRequest(group_id, -1, "", -1, [(TOPIC, [(partition, offset, "")])])
        self._check((await self._send(request)).topics[0][1][0][1])

    async def committed(self, group_id: str) -> int | None:
        answer = await self._send(OffsetFetchRequest(group_id, [(TOPIC, [0])]))
        self._check(answer.error_code)
        _, offset, _, error = answer.topics[0][1][0]
        self._check(error)
        return None if offset < 0 else int(offset)

    async def close(self) -> None:
        if not self._shared:
            self._connection.close()

    async def _send(self, request: Any) -> Any:
        try:
            return await self._connection.send(request)
        except Exception as error:
            raise Refused(str(error)) from None

    @staticmethod
    def _check(error: int) -> None:
        if error:
            raise Refused(str(error))
