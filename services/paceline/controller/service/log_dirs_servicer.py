"""Log directories for AdminService: the active controller calls the brokers on their CONTROL listeners.

Clients call the controller instead of every broker, and the controller forwards the requests.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc

from paceline.internal.v1 import replica_manager_service_pb2 as control_pb
from paceline.internal.v1.replica_manager_service_pb2_grpc import ReplicaManagerServiceStub
from paceline.model.control import LiveBroker
from paceline.model.errors import BrokerNotAvailableError, InvalidRequestError, PacelineError, RequestTimedOutError
from paceline.rpc.channels import CONTROL_MAX_MESSAGE_BYTES, open_aio_channel
from paceline.rpc.convert import log_dirs
from paceline.rpc.convert.common import error_to_proto
from paceline.rpc.errors import from_rpc_error
from paceline.rpc.pages import PageLimit, decode_token, encode_token
from paceline.rpc.security.credentials import TlsCredentials
from paceline.v1 import admin_service_pb2 as pb

CONTROL: Final = "CONTROL"
BROKERS_AT_ONCE: Final = 32
_RETRY_POLL_S: Final = 0.1
"""Pause between two questions whether a log directory has been loaded."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AskingController:
    """The stamp and the certificate with which this controller calls brokers."""

    stamp: control_pb.ControllerStamp
    tls: TlsCredentials | None = None


async def describe_log_dirs(
    brokers: Mapping[int, LiveBroker],
    named: Sequence[int],
    partitions: Sequence[pb.TopicPartition],
    timeout_s: float,
    page_size: int,
    token: str,
    asking: AskingController,
) -> tuple[list[pb.BrokerLogDirs], str]:
    """Return a page with an entry per broker in ``named`` (empty: per live broker), and the token of the next page.

    The entry of a broker that is not live, or does not answer in time, has an error. The page ends when
    it is full, or when half of ``timeout_s`` has passed: the next request then has its full time for the other brokers.

    Raises:
        InvalidRequestError: the page size or the token is not valid.
    """
    limit = PageLimit(page_size)
    after = decode_token(token, int, str, str, int)
    order = list(dict.fromkeys(named)) if named else sorted(brokers)
    start = 0
    if after:
        start = next((index for index, broker_id in enumerate(order) if broker_id == after[0]), -1)
        if start < 0:
            if named:
                raise InvalidRequestError("the page token belongs to another request")
            start, after = bisect_right(order, after[0]), ()
    page: list[pb.BrokerLogDirs] = []
    now_s = asyncio.get_running_loop().time
    deadline_s = now_s() + timeout_s
    for first in range(start, len(order), BROKERS_AT_ONCE):
        left_s = deadline_s - now_s()
        if page and left_s < timeout_s / 2:
            return page, encode_token(order[first], "", "", 0)
        for answer in await _described(brokers, order[first : first + BROKERS_AT_ONCE], partitions, left_s, asking):
            position = after[1:] if after and answer.broker_id == after[0] else ()
            entry, reached = _part(answer, position, limit)
            page.append(entry)
            if reached:
                return page, encode_token(*reached)
    return page, ""


def _part(
    answer: pb.BrokerLogDirs, after: tuple[Any, ...], limit: PageLimit
) -> tuple[pb.BrokerLogDirs, tuple[Any, ...]]:
    """Return the part of a broker's response that follows the position ``after`` and fits the page.

    Also return the last position in the part if the rest does not fit, otherwise an empty position.
    """
    part = pb.BrokerLogDirs(broker_id=answer.broker_id)
    if answer.HasField("error"):
        part.error.CopyFrom(answer.error)
    paths = [log_dir.path for log_dir in answer.log_dirs]
    first = paths.index(after[0]) if after and after[0] in paths else 0
    reached = (answer.broker_id, *(after or ("", "", 0)))
    for log_dir in answer.log_dirs[first:]:
        target = part.log_dirs.add(path=log_dir.path)
        if log_dir.HasField("error"):
            target.error.CopyFrom(log_dir.error)
        if log_dir.HasField("space"):
            target.space.CopyFrom(log_dir.space)
        for replica in log_dir.replicas:
            if after and log_dir.path == after[0] and (replica.topic, replica.partition) <= after[1:]:
                continue
            if not limit.admit(replica.ByteSize()):
                return part, reached
            target.replicas.append(replica)
            reached = (answer.broker_id, log_dir.path, replica.topic, replica.partition)
    return part, ()


async def _described(
    brokers: Mapping[int, LiveBroker],
    wanted: Sequence[int],
    partitions: Sequence[pb.TopicPartition],
    timeout_s: float,
    asking: AskingController,
) -> list[pb.BrokerLogDirs]:
    request = control_pb.DescribeLogDirsRequest(partitions=partitions, stamp=asking.stamp)

    async def ask(broker_id: int) -> pb.BrokerLogDirs:
        answer = await _asked(
            brokers.get(broker_id), broker_id, lambda stub: stub.DescribeLogDirs(request, timeout=timeout_s), asking.tls
        )
        if isinstance(answer, PacelineError):
            return pb.BrokerLogDirs(broker_id=broker_id, error=error_to_proto(pb.LogDirError, answer))
        return pb.BrokerLogDirs(broker_id=broker_id, log_dirs=answer.log_dirs)

    return await _all([ask(broker_id) for broker_id in wanted])


async def alter_replica_log_dirs(
    brokers: Mapping[int, LiveBroker],
    requested: Sequence[pb.ReplicaLogDir],
    timeout_s: float,
    asking: AskingController,
) -> list[pb.AlterReplicaLogDirResult]:
    """Return one result per replica, in the order of the request."""
    now_s = asyncio.get_running_loop().time
    deadline_s = now_s() + timeout_s
    by_broker: dict[int, list[int]] = {}
    for index, replica in enumerate(requested):
        by_broker.setdefault(replica.broker_id, []).append(index)

    async def ask(broker_id: int, indexes: list[int]) -> list[tuple[int, pb.AlterReplicaLogDirResult]]:
        mine = [requested[index] for index in indexes]
        request = control_pb.AlterReplicaLogDirsRequest(replicas=mine, stamp=asking.stamp)
        answer = await _asked(
            brokers.get(broker_id),
            broker_id,
            lambda stub: stub.AlterReplicaLogDirs(request, timeout=max(0.0, deadline_s - now_s())),
            asking.tls,
        )
        if isinstance(answer, PacelineError):
            results = log_dirs.log_dir_results_to_proto(mine, [answer] * len(mine))
        else:
            results = list(answer.results)
        return list(zip(indexes, results, strict=True))

    found = await _all([ask(broker_id, indexes) for broker_id, indexes in by_broker.items()])
    return [result for _, result in sorted((pair for pairs in found for pair in pairs), key=lambda pair: pair[0])]


async def retry_log_dir(
    broker: LiveBroker | None, request: pb.RetryLogDirRequest, timeout_s: float, asking: AskingController
) -> PacelineError | None:
    """Let a broker take a failed log directory back; return the broker's error, None when the directory is online."""
    now_s = asyncio.get_running_loop().time
    deadline_s = now_s() + timeout_s

    async def retried(stub: Any) -> PacelineError | None:
        wanted = control_pb.RetryLogDirRequest(path=request.path, stamp=asking.stamp)
        while (await stub.RetryLogDir(wanted, timeout=max(0.0, deadline_s - now_s()))).loading:
            if now_s() + _RETRY_POLL_S > deadline_s:
                return RequestTimedOutError(f"broker {request.broker_id}: {request.path} is still being loaded")
            wanted.is_repeated = True
            await asyncio.sleep(_RETRY_POLL_S)
        return None

    return await _asked(broker, request.broker_id, retried, asking.tls)


async def _asked(
    broker: LiveBroker | None, broker_id: int, call: Callable[[Any], Awaitable[T]], tls: TlsCredentials | None
) -> T | PacelineError:
    endpoint = None if broker is None else broker.endpoint(CONTROL)
    if endpoint is None:
        return BrokerNotAvailableError(f"broker {broker_id} is not live")
    async with open_aio_channel(endpoint.address, CONTROL_MAX_MESSAGE_BYTES, tls) as channel:
        try:
            return await call(ReplicaManagerServiceStub(channel))
        except grpc.RpcError as failure:
            error = from_rpc_error(failure)
            return type(error)(f"broker {broker_id}: {error}")


async def _all(asked: Sequence[Awaitable[T]]) -> list[T]:
    """Return the results of all calls, at most `BROKERS_AT_ONCE` of which run at a time."""
    limit = asyncio.Semaphore(BROKERS_AT_ONCE)

    async def one(call: Awaitable[T]) -> T:
        async with limit:
            return await call

    return list(await asyncio.gather(*(one(call) for call in asked)))
