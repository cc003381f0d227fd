"""Operations on ZooKeeper with more than one request, as flows (`paceline.coordination.flow`).

Run them on a `PatientZooKeeper`. A write whose reply was lost is resolved by reading back, never by sending it twice
(docs/protocol/zookeeper.md#lost-replies; KAFKA-14845, KAFKA-4229). All raise `SessionLostError` when the session ends,
`ZooKeeperRequestError` when ZooKeeper refuses a request and a retry cannot help, and `MalformedZnodeError` for invalid
data.
"""

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from paceline.coordination import znodes
from paceline.coordination.errors import (
    DuplicateBrokerIdError,
    MalformedZnodeError,
    SessionLostError,
    ZooKeeperRequestError,
)
from paceline.coordination.flow import Flow, Zk
from paceline.coordination.interface import (
    ANY_VERSION,
    Create,
    Delete,
    Exists,
    GetData,
    Multi,
    Operation,
    Response,
    SetData,
    Stat,
    ZkCode,
)
from paceline.coordination.znodes import BrokerRegistration, ProducerIdBlock
from paceline.coordination.znodes.json_codec import MAX_INT64
from paceline.model.identifiers import TopicPartition, new_id

MAX_ATTEMPTS = 20
"""Rounds of a read-decide-write loop; in each failed round another client made progress."""

_PARTITIONS_PER_NOTIFICATION = 3_000


@dataclass(frozen=True, slots=True)
class Registered:
    """A registration node that the calling session owns."""

    czxid: int
    """The broker epoch."""
    adopted: bool = False
    """Whether the node already existed, because an earlier response in this ZooKeeper session was lost."""


def expect(response: Response, path: str, *codes: ZkCode) -> None:
    """Raise unless the response is OK or carries one of ``codes``."""
    if response.code is ZkCode.SESSION_EXPIRED:
        raise SessionLostError(f"the session ended before the answer for {path}")
    if response.code is not ZkCode.OK and response.code not in codes:
        raise ZooKeeperRequestError(response.code, path)


def ensure_paths(paths: Iterable[str]) -> Flow[None]:
    """Create nodes with null data, and their parents; existing nodes are unchanged."""
    wanted = {ancestor for path in paths for ancestor in (*znodes.parent_paths(path), path)}
    top_first = sorted(wanted, key=lambda path: (path.count("/"), path))
    responses = yield Zk([Create(path, None) for path in top_first])
    for path, response in zip(top_first, responses, strict=True):
        expect(response, path, ZkCode.NODE_EXISTS)


def register_broker(
    registration: BrokerRegistration, session_id: int, earlier_session_ids: Collection[int] = ()
) -> Flow[Registered]:
    """Register a broker and bump its ``/broker_epochs`` node in the same transaction.

    A node of an earlier session of this broker is replaced in one transaction. Every registration changes the version
    of ``/broker_epochs/<id>``, and a replacement checks it, so the deleted node is the node whose owner was read.

    Args:
        registration: data to publish.
        session_id: the session of this flow.
        earlier_session_ids: ended sessions of this process, and of predecessors that are certainly dead.

    Raises:
        DuplicateBrokerIdError: another process's session holds the id.

    Source: docs/protocol/zookeeper.md#registering-a-broker; KIP-380.
    """
    path, epoch_path = znodes.broker_path(registration.broker_id), znodes.broker_epoch_path(registration.broker_id)
    operations: tuple[Operation, ...] = (
        Create(path, None, ephemeral=True),
        # Write the data separately: the response to a create has no stat, and the stat has the czxid.
        SetData(path, znodes.encode_broker(registration), 0),
    )
    session = str(session_id).encode("ascii")
    response = Response(ZkCode.OTHER)
    replacing: tuple[Operation, ...] = ()
    epoch_version = ANY_VERSION
    for _ in range(MAX_ATTEMPTS):
        (response,) = yield Zk([Multi((*replacing, *operations, SetData(epoch_path, session, epoch_version)))])
        if response.ok:
            stat = response.results[len(replacing) + 1].stat
            assert stat is not None
            return Registered(stat.czxid)
        expect(response, path, ZkCode.NODE_EXISTS, ZkCode.NO_NODE, ZkCode.BAD_VERSION)
        replacing, epoch_version = (), ANY_VERSION
        epoch_node, found = yield Zk([Exists(epoch_path), Exists(path)])
        expect(epoch_node, epoch_path, ZkCode.NO_NODE)
        expect(found, path, ZkCode.NO_NODE)
        if epoch_node.stat is None:
            yield from ensure_paths([znodes.parent_paths(path)[-1], epoch_path])
            continue
        if found.stat is None:
            if response.code is ZkCode.NO_NODE:
                yield from ensure_paths([znodes.parent_paths(path)[-1]])
            continue
        owner = found.stat.ephemeral_owner
        if owner == session_id:
            return Registered(found.stat.czxid, adopted=True)
        if owner not in earlier_session_ids:
            raise DuplicateBrokerIdError(path, owner)
        replacing, epoch_version = (Delete(path, found.stat.version),), epoch_node.stat.version
    raise ZooKeeperRequestError(response.code, path)


def get_or_create_cluster_id(new: random.Random | str) -> Flow[str]:
    """Return the cluster id of ZooKeeper; the first process of a cluster writes it.

    Args:
        new: the id to write, or the random source for a new id.
    """
    path = znodes.CLUSTER_ID
    yield from ensure_paths(znodes.parent_paths(path))
    created, read = yield Zk(
        [Create(path, znodes.encode_cluster_id(new if isinstance(new, str) else new_id(new))), GetData(path)]
    )
    expect(created, path, ZkCode.NODE_EXISTS)
    expect(read, path)
    return znodes.decode_cluster_id(path, read.data)


def claim_producer_id_block(broker_id: int) -> Flow[ProducerIdBlock]:
    """Claim the next thousand producer ids; docs/protocol/zookeeper.md#producer-id-blocks.

    A block is abandoned when its claim is in doubt, so that no id is used twice.
    """
    path = znodes.LATEST_PRODUCER_ID_BLOCK
    response = Response(ZkCode.OTHER)
    for _ in range(MAX_ATTEMPTS):
        (read,) = yield Zk([GetData(path)])
        expect(read, path, ZkCode.NO_NODE)
        if read.stat is None:
            yield from ensure_paths([path])
            continue
        first = znodes.decode_producer_id_block(path, read.data).last + 1 if read.data else 0
        block = ProducerIdBlock(broker_id, first, first + znodes.PRODUCER_ID_BLOCK_SIZE - 1)
        if block.last > MAX_INT64:
            raise MalformedZnodeError(path, "no producer ids are left")
        (response,) = yield Zk([SetData(path, znodes.encode_producer_id_block(block), read.stat.version)])
        expect(response, path, ZkCode.BAD_VERSION)
        if response.ok:
            return block
    raise ZooKeeperRequestError(response.code, path)


def generate_broker_id(reserved_max: int = 1_000) -> Flow[int]:
    """Return a broker id above ``reserved_max`` that was never used before (``/brokers/seqid``)."""
    path = znodes.BROKER_SEQUENCE
    (response,) = yield Zk([SetData(path, b"")])
    if response.code is ZkCode.NO_NODE:
        yield from ensure_paths([path])
        (response,) = yield Zk([SetData(path, b"")])
    expect(response, path)
    stat: Stat = response.stat
    return reserved_max + stat.version


def propagate_isr_change(partitions: Iterable[TopicPartition]) -> Flow[None]:
    """Notify the controller of ISR changes; docs/protocol/zookeeper.md#notices-from-brokers."""
    ordered = list(partitions)
    step = _PARTITIONS_PER_NOTIFICATION
    path = znodes.ISR_CHANGE_PREFIX
    creates = [
        Create(path, znodes.encode_partition_set(ordered[first : first + step]), sequential=True)
        for first in range(0, len(ordered), step)
    ]
    responses = yield Zk(creates)
    for response in responses:
        expect(response, path)
