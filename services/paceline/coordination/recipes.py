"""Conversations with ZooKeeper that controllers and brokers share, as flows (`paceline.runtime.flow`).

Run them on a `PatientZooKeeper`. A write whose reply was lost is resolved by reading back, never by sending it twice
(design 3.8; KAFKA-14845, KAFKA-4229). All raise `SessionLostError` when the session ends, `ZooKeeperRequestError` when
ZooKeeper refuses something for a reason a retry cannot mend, and `MalformedZnodeError` for foreign data.
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
from paceline.coordination.interface import (
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
from paceline.coordination.znode_json import MAX_INT64
from paceline.coordination.znodes import BrokerRegistration, ControllerRegistration, ProducerIdBlock
from paceline.model.identifiers import TopicPartition, new_id
from paceline.runtime.flow import Flow, Zk

MAX_ATTEMPTS = 20
"""Rounds of a read-decide-write loop; each lost round means that somebody else made progress."""

_PARTITIONS_PER_NOTIFICATION = 3_000


@dataclass(frozen=True, slots=True)
class Registered:
    """A registration node stands, owned by the session that asked."""

    czxid: int
    """Of a broker: its broker epoch."""
    adopted: bool = False
    """The node was there already: an earlier reply of this session had been lost."""


@dataclass(frozen=True, slots=True)
class Won:
    """This process is the active controller."""

    controller_epoch: int
    epoch_zk_version: int
    """Version of ``/controller_epoch`` that fences every write of this controller."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Another process is the active controller."""

    controller_id: int | None
    """None when what stands in ``/controller`` cannot be read."""


Election = Won | Lost


def expect(response: Response, path: str, *codes: ZkCode) -> None:
    """Raise unless the response is OK or carries one of ``codes``."""
    if response.code is ZkCode.SESSION_EXPIRED:
        raise SessionLostError(f"the session ended before the answer for {path}")
    if response.code is not ZkCode.OK and response.code not in codes:
        raise ZooKeeperRequestError(response.code, path)


def ensure_paths(paths: Iterable[str]) -> Flow[None]:
    """Create nodes with null data, and their parents; what exists is left alone."""
    wanted = {ancestor for path in paths for ancestor in (*znodes.parent_paths(path), path)}
    top_first = sorted(wanted, key=lambda path: (path.count("/"), path))
    responses = yield Zk([Create(path, None) for path in top_first])
    for path, response in zip(top_first, responses, strict=True):
        expect(response, path, ZkCode.NODE_EXISTS)


def register_broker(
    registration: BrokerRegistration, session_id: int, earlier_session_ids: Collection[int] = ()
) -> Flow[Registered]:
    """Register a broker and bump its ``/broker_epochs`` node in the same transaction (design 3.5).

    Args:
        registration: what to publish.
        session_id: the session this flow runs under.
        earlier_session_ids: sessions of this same process that have ended; a node they left behind is removed.

    Raises:
        DuplicateBrokerIdError: another process's session holds the id.

    Source: spec/zookeeper.md section 5.1.
    """
    broker_id = registration.broker_id
    bump = SetData(znodes.broker_epoch_path(broker_id), str(session_id).encode("ascii"))
    data = znodes.encode_broker(registration)
    return (yield from _register(znodes.broker_path(broker_id), data, session_id, earlier_session_ids, (bump,)))


def register_controller(
    registration: ControllerRegistration, session_id: int, earlier_session_ids: Collection[int] = ()
) -> Flow[Registered]:
    """Publish a controller's endpoints in ``/controllers/ids``; otherwise like `register_broker`."""
    path = znodes.controller_path(registration.controller_id)
    data = znodes.encode_controller_registration(registration)
    return (yield from _register(path, data, session_id, earlier_session_ids, ()))


def _register(
    path: str, data: bytes, session_id: int, earlier_session_ids: Collection[int], also: tuple[SetData, ...]
) -> Flow[Registered]:
    # The set_data is there for its stat: the answer to a create has no czxid.
    operations: tuple[Operation, ...] = (Create(path, None, ephemeral=True), SetData(path, data, 0), *also)
    response = Response(ZkCode.OTHER)
    for _ in range(MAX_ATTEMPTS):
        (response,) = yield Zk([Multi(operations)])
        if response.ok:
            stat = response.results[1].stat
            assert stat is not None
            return Registered(stat.czxid)
        expect(response, path, ZkCode.NODE_EXISTS, ZkCode.NO_NODE)
        if response.code is ZkCode.NO_NODE:
            parents = [znodes.parent_paths(path)[-1], *(operation.path for operation in also)]
            yield from ensure_paths(parents)
            continue
        (found,) = yield Zk([Exists(path)])
        expect(found, path, ZkCode.NO_NODE)
        if found.stat is None:
            continue
        owner = found.stat.ephemeral_owner
        if owner == session_id:
            return Registered(found.stat.czxid, adopted=True)
        if owner not in earlier_session_ids:
            raise DuplicateBrokerIdError(path, owner)
        (deleted,) = yield Zk([Delete(path, found.stat.version)])
        expect(deleted, path, ZkCode.NO_NODE, ZkCode.BAD_VERSION)
    raise ZooKeeperRequestError(response.code, path)


def get_or_create_cluster_id(rng: random.Random) -> Flow[str]:
    """Return the cluster id; the first broker of a cluster makes it up."""
    path = znodes.CLUSTER_ID
    yield from ensure_paths(znodes.parent_paths(path))
    created, read = yield Zk([Create(path, znodes.encode_cluster_id(new_id(rng))), GetData(path)])
    expect(created, path, ZkCode.NODE_EXISTS)
    expect(read, path)
    return znodes.decode_cluster_id(path, read.data)


def claim_producer_id_block(broker_id: int) -> Flow[ProducerIdBlock]:
    """Claim the next thousand producer ids (spec/zookeeper.md section 2.13).

    A block whose claim is in doubt is given up rather than used twice: ids are plenty.
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
            raise MalformedZnodeError(path, "there are no producer ids left")
        (response,) = yield Zk([SetData(path, znodes.encode_producer_id_block(block), read.stat.version)])
        expect(response, path, ZkCode.BAD_VERSION)
        if response.ok:
            return block
    raise ZooKeeperRequestError(response.code, path)


def generate_broker_id(reserved_max: int = 1_000) -> Flow[int]:
    """Return a broker id above ``reserved_max`` that nobody got before (``/brokers/seqid``)."""
    path = znodes.BROKER_SEQUENCE
    (response,) = yield Zk([SetData(path, b"")])
    if response.code is ZkCode.NO_NODE:
        yield from ensure_paths([path])
        (response,) = yield Zk([SetData(path, b"")])
    expect(response, path)
    stat: Stat = response.stat
    return reserved_max + stat.version


def elect_controller(controller_id: int, session_id: int, wall_ms: int) -> Flow[Election]:
    """Become the active controller, or learn who is (spec/zookeeper.md section 5.2).

    Leaves an exists watch on ``/controller``; the winner's own creation fires it, so it reads again to watch further.
    Whether an election with a lost reply was won is told by the session that owns ``/controller`` and by both nodes
    having been written in the same transaction.
    """
    path, epoch_path = znodes.CONTROLLER, znodes.CONTROLLER_EPOCH
    data = znodes.encode_active_controller(znodes.ActiveController(controller_id, wall_ms))
    for _ in range(MAX_ATTEMPTS):
        watched, controller, epoch = yield Zk([Exists(path, watch=True), GetData(path), GetData(epoch_path)])
        for response, asked in ((watched, path), (controller, path), (epoch, epoch_path)):
            expect(response, asked, ZkCode.NO_NODE)
        if epoch.stat is None:
            (created,) = yield Zk([Create(epoch_path, znodes.encode_controller_epoch(0))])
            expect(created, epoch_path, ZkCode.NODE_EXISTS)
            continue
        controller_epoch = znodes.decode_controller_epoch(epoch_path, epoch.data)
        if controller.stat is not None:
            mine = controller.stat.ephemeral_owner == session_id and controller.stat.czxid == epoch.stat.mzxid
            if mine:
                return Won(controller_epoch, epoch.stat.version)
            return Lost(_controller_id(path, controller.data))
        raised = SetData(epoch_path, znodes.encode_controller_epoch(controller_epoch + 1), epoch.stat.version)
        (response,) = yield Zk([Multi((Create(path, data, ephemeral=True), raised))])
        expect(response, path, ZkCode.NODE_EXISTS, ZkCode.BAD_VERSION, ZkCode.NO_NODE)
        if response.ok:
            stat = response.results[1].stat
            assert stat is not None
            return Won(controller_epoch + 1, stat.version)
    raise ZooKeeperRequestError(ZkCode.BAD_VERSION, path)


def _controller_id(path: str, data: bytes | None) -> int | None:
    try:
        return znodes.decode_active_controller(path, data).controller_id
    except MalformedZnodeError:
        return None


def propagate_isr_change(partitions: Iterable[TopicPartition]) -> Flow[None]:
    """Tell the controller that the ISR of these partitions has changed (spec/zookeeper.md section 2.9)."""
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
