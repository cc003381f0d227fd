"""Write a leader's ISR to ZooKeeper, as a flow.

Source: docs/protocol/zookeeper.md#isr-write-of-a-leader; KIP-903.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.coordination import znodes
from paceline.coordination.flow import Flow, Zk
from paceline.coordination.interface import (
    Check,
    Exists,
    GetData,
    Multi,
    Operation,
    Request,
    Response,
    SetData,
    ZkCode,
)
from paceline.coordination.isr_history import next_extra
from paceline.coordination.recipes import expect
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr


@dataclass(frozen=True, slots=True)
class Written:
    """The ISR was written."""

    zk_version: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another process has written the state since; this write was not applied."""

    current: LeaderAndIsr | None
    """The present state; None when the node was deleted."""


@dataclass(frozen=True, slots=True)
class JoinerEpochStale:
    """A joining replica has registered again, or is not registered; nothing was written."""

    broker_ids: tuple[int, ...]


IsrWriteResult = Written | Conflict | JoinerEpochStale


def write_isr(
    topic_partition: TopicPartition,
    desired: LeaderAndIsr,
    joiners: Mapping[int, int] | None = None,
) -> Flow[IsrWriteResult]:
    """Write a leader's ISR on condition of the state's version and the joiners' broker epochs.

    Keys of the state outside Kafka's schema are read first; those of the ISR's history (`isr_history`) are updated.

    Args:
        topic_partition: the partition led.
        desired: leader, leader epoch and controller epoch from the LeaderAndIsr request, the new ISR, and in
            ``zk_version`` the expected version.
        joiners: brokers that join the ISR, with the broker epoch of their fetch.

    A joiner that restarts between its fetch and this write is detected: every registration raises the version of the
    broker's ``/broker_epochs`` node. That version is read *before* the czxid of the registration is compared, and it is
    checked in the multi.
    """
    path = znodes.partition_state_path(topic_partition)
    expected = sorted((joiners or {}).items())
    reads: list[Request] = [GetData(path)]
    for broker_id, _ in expected:
        reads += [Exists(znodes.broker_epoch_path(broker_id)), Exists(znodes.broker_path(broker_id))]
    responses: list[Response] = yield Zk(reads)
    for request, response in zip(reads, responses, strict=True):
        expect(response, request.path, ZkCode.NO_NODE)  # type: ignore[union-attr]
    state, *responses = responses
    if state.stat is None or state.stat.version < desired.zk_version:
        state = yield from _read_caught_up(path, desired.zk_version)
    found = _read_back(path, state, desired)
    if not isinstance(found, znodes.PartitionState):
        return found
    extra = next_extra(found.extra, found.leader_and_isr.isr, desired.isr)
    checks, stale = _checks(expected, responses)
    if stale:
        return JoinerEpochStale(stale)
    write = SetData(path, znodes.encode_partition_state(desired, extra), desired.zk_version)
    operations: tuple[Operation, ...] = (*checks, write)
    (response,) = yield Zk([Multi(operations) if checks else write])
    if response.ok:
        stat = response.results[-1].stat if checks else response.stat
        assert stat is not None
        return Written(stat.version)
    expect(response, path, ZkCode.BAD_VERSION, ZkCode.NO_NODE)
    failed_joiner = _failed_joiner(expected, response)
    if failed_joiner is not None and not response.in_doubt_before:
        return JoinerEpochStale((failed_joiner,))
    (state,) = yield Zk([GetData(path)])
    expect(state, path, ZkCode.NO_NODE)
    found = _read_back(path, state, desired)
    if not isinstance(found, znodes.PartitionState):
        return found
    if failed_joiner is not None:
        return JoinerEpochStale((failed_joiner,))
    return Conflict(found.leader_and_isr)


def _read_caught_up(path: str, version: int) -> Flow[Response]:
    """Read the state again, from a server that has all earlier transactions.

    The first server may lag the server to which the controller wrote the leadership. Its old state would look like a
    conflict, and the leader would wait for a LeaderAndIsr request that it already has. ZooKeeper orders the check like
    a write, so its response proves that the server has caught up.
    """
    (checked,) = yield Zk([Multi((Check(path, version),))])
    expect(checked, path, ZkCode.BAD_VERSION, ZkCode.NO_NODE)
    responses: list[Response] = yield Zk([GetData(path)])
    expect(responses[0], path, ZkCode.NO_NODE)
    return responses[0]


def _read_back(path: str, read: Response, desired: LeaderAndIsr) -> Written | Conflict | znodes.PartitionState:
    """Return the state if it has the expected version, otherwise `Written` or `Conflict`.

    Only this leader writes within its leader epoch, so equal content means that an earlier attempt of this write was
    applied before its answer was lost (KAFKA-2729). A state with the expected version but another leadership belongs to
    a re-created topic.
    """
    if read.stat is None:
        return Conflict(None)
    state = znodes.decode_partition_state(path, read.data, read.stat.version)
    current = state.leader_and_isr
    if current.zk_version == desired.zk_version:
        return state if is_of_leadership(current, desired) else Conflict(current)
    if _content(current) == _content(desired):
        return Written(current.zk_version)
    return Conflict(current)


def is_of_leadership(state: LeaderAndIsr, desired: LeaderAndIsr) -> bool:
    """Whether a state was written by, or for, the leader of ``desired``."""
    return (state.leader, state.leader_epoch) == (desired.leader, desired.leader_epoch)


def _content(state: LeaderAndIsr) -> tuple[int, int, tuple[int, ...], int]:
    return state.leader, state.leader_epoch, state.isr, state.controller_epoch


def _checks(expected: list[tuple[int, int]], responses: list[Response]) -> tuple[list[Check], tuple[int, ...]]:
    checks, stale = [], []
    for index, (broker_id, broker_epoch) in enumerate(expected):
        epoch_node, registration = responses[2 * index], responses[2 * index + 1]
        if epoch_node.stat is None or registration.stat is None or registration.stat.czxid != broker_epoch:
            stale.append(broker_id)
        else:
            checks.append(Check(znodes.broker_epoch_path(broker_id), epoch_node.stat.version))
    return checks, tuple(stale)


def _failed_joiner(expected: list[tuple[int, int]], response: Response) -> int | None:
    for (broker_id, _), result in zip(expected, response.results, strict=False):
        if result.code not in (ZkCode.OK, ZkCode.ROLLED_BACK):
            return broker_id
    return None
