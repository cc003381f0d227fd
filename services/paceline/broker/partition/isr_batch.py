"""Write many ISRs in one transaction, for the thousands of expansions after a broker's return.

A write that cannot be applied in the batch is repeated alone by `coordination.isr_write`, which resolves conflicts and
lost responses. Source: docs/protocol/replication.md#isr-batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.coordination import znodes
from paceline.coordination.flow import Flow, Zk
from paceline.coordination.interface import Check, Exists, GetData, Multi, Operation, Request, Response, SetData
from paceline.coordination.isr_history import next_extra
from paceline.coordination.isr_write import Written, is_of_leadership
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr


@dataclass(frozen=True, slots=True)
class IsrWrite:
    """One ISR to write: see `coordination.isr_write.write_isr`."""

    topic_partition: TopicPartition
    desired: LeaderAndIsr
    joiners: tuple[tuple[int, int], ...]


def write_isrs(writes: Sequence[IsrWrite]) -> Flow[list[Written | None]]:
    """Write all ISRs whose state is as expected in one multi; return None for every ISR that must be written alone.

    The order of reads matters: the version of a joiner's ``/broker_epochs`` node is read before the czxid of its
    registration, so that a registration in between makes the multi fail.
    """
    brokers = sorted({broker_id for write in writes for broker_id, _ in write.joiners})
    reads: list[Request] = [GetData(znodes.partition_state_path(write.topic_partition)) for write in writes]
    for broker_id in brokers:
        reads += [Exists(znodes.broker_epoch_path(broker_id)), Exists(znodes.broker_path(broker_id))]
    responses: list[Response] = yield Zk(reads)
    registered: dict[int, int] = {}
    checks: dict[int, Check] = {}
    for index, broker_id in enumerate(brokers):
        epoch_node, registration = responses[len(writes) + 2 * index : len(writes) + 2 * index + 2]
        if epoch_node.stat is not None and registration.stat is not None:
            registered[broker_id] = registration.stat.czxid
            checks[broker_id] = Check(znodes.broker_epoch_path(broker_id), epoch_node.stat.version)
    chosen: list[int] = []
    sets: list[SetData] = []
    needed: dict[int, None] = {}
    for index, write in enumerate(writes):
        data = _expected(write, responses[index])
        if data is None or any(registered.get(broker_id) != epoch for broker_id, epoch in write.joiners):
            continue
        chosen.append(index)
        sets.append(SetData(znodes.partition_state_path(write.topic_partition), data, write.desired.zk_version))
        needed.update(dict.fromkeys(broker_id for broker_id, _ in write.joiners))
    results: list[Written | None] = [None] * len(writes)
    if not sets:
        return results
    operations: tuple[Operation, ...] = (*(checks[broker_id] for broker_id in sorted(needed)), *sets)
    (response,) = yield Zk([Multi(operations)])
    if response.ok:
        for index, result in zip(chosen, response.results[len(needed) :], strict=True):
            assert result.stat is not None
            results[index] = Written(result.stat.version)
    return results


def _expected(write: IsrWrite, read: Response) -> bytes | None:
    """Return the data to write, with unknown keys kept; None when the state differs from that of the proposal."""
    if read.stat is None or read.stat.version != write.desired.zk_version:
        return None
    path = znodes.partition_state_path(write.topic_partition)
    state = znodes.decode_partition_state(path, read.data, read.stat.version)
    if not is_of_leadership(state.leader_and_isr, write.desired):
        return None
    extra = next_extra(state.extra, state.leader_and_isr.isr, write.desired.isr)
    return znodes.encode_partition_state(write.desired, extra)
