"""Elect the controller: ``/controller``, ``/controller_epoch`` and the addresses under ``/controllers/ids``.

A single multi creates ``/controller`` and raises the epoch, so that both happen or none. After a lost answer the nodes
are read to find out whether the multi was applied.

Source: docs/protocol/controller.md#electing-the-controller; docs/protocol/zookeeper.md#lost-replies.
"""

import logging
from dataclasses import dataclass

from paceline.controller.errors import UnexpectedResponseError, UnreadableEpochError
from paceline.controller.zk_store import first_failure, send
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.flow import Flow
from paceline.coordination.interface import (
    Check,
    Create,
    Delete,
    Exists,
    GetData,
    Multi,
    Response,
    SetData,
    Stat,
    ZkCode,
    ZooKeeper,
)
from paceline.coordination.znodes.journal import EPOCH_SHIFT, decode_journal
from paceline.model.control import Endpoint
from paceline.model.scheduler import Scheduler

LOG = logging.getLogger(__name__)

ATTEMPTS = 10
"""Attempts of an election when nodes change concurrently; after that the caller tries again later."""

UNRECORDED_TERMS = 100
"""Margin added to the highest known epoch when ``/controller_epoch`` was lost: epochs may have passed unseen."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner of ``/controller``."""

    controller_id: int
    is_this_session: bool
    """Whether the node belongs to this process's session; after a restart the id alone is no proof."""


@dataclass(frozen=True, slots=True)
class Term:
    """Result of a won election."""

    controller_epoch: int
    epoch_zk_version: int


@dataclass(frozen=True, slots=True)
class ActiveController:
    """The active controller in the knowledge of this process."""

    controller_id: int
    endpoints: tuple[Endpoint, ...] = ()
    """Empty until the active controller publishes its address."""


class ControllerElection:
    """Reads and writes ``/controller`` and its address for one process."""

    def __init__(
        self, controller_id: int, endpoints: tuple[Endpoint, ...], zookeeper: ZooKeeper, scheduler: Scheduler
    ) -> None:
        self.this_controller = ActiveController(controller_id, endpoints)
        self._controller_id = controller_id
        self._zookeeper = zookeeper
        self._scheduler = scheduler
        self._newest_epoch = 0

    def read_owner(self) -> Flow[Owner | None]:
        """Read the owner of ``/controller``, with a watch for creation, change and deletion.

        The stat names the owning session also when ZooKeeper refuses to read the data.
        """
        exists, response = yield from send([Exists(znodes.CONTROLLER, watch=True), GetData(znodes.CONTROLLER)])
        stat = response.stat or exists.stat
        if response.code is ZkCode.NO_NODE or stat is None:
            return None
        return self._owner(response, stat)

    def _owner(self, response: Response, stat: Stat) -> Owner:
        try:
            controller_id = znodes.decode_active_controller(znodes.CONTROLLER, response.data).controller_id
        except MalformedZnodeError as error:
            LOG.warning("/controller is malformed, waiting for its deletion: error=%s", error)
            controller_id = -1
        return Owner(controller_id, stat.ephemeral_owner == self._zookeeper.session_id != 0)

    def elect(self) -> Flow[Term | Owner]:
        """Try to become controller; return the term or the present owner.

        Raises:
            UnreadableEpochError: the epoch node is malformed; a watch on it is set.
            UnexpectedResponseError: ZooKeeper refused every attempt. No watch reports when an attempt would succeed.
        """
        response = Response(ZkCode.OTHER)
        for _ in range(ATTEMPTS):
            owner = yield from self.read_owner()
            if owner is not None:
                return owner
            epoch, version = yield from self._read_epoch()
            (response,) = yield from send([self._election(epoch, version)])
            if response.ok:
                stat = response.results[-1].stat
                return Term(epoch + 1, version + 1 if stat is None else stat.version)
            won = yield from self._read_back(epoch + 1)
            if won is not None:
                return won
        raise UnexpectedResponseError(first_failure(response)[1], f"create {znodes.CONTROLLER}")

    def _election(self, epoch: int, version: int, *before: Delete) -> Multi:
        active = znodes.ActiveController(self._controller_id, self._scheduler.wall_ms())
        return Multi(
            (
                *before,
                Create(znodes.CONTROLLER, znodes.encode_active_controller(active), ephemeral=True),
                SetData(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch + 1), version),
            )
        )

    def replace_dead(self, controller_id: int, controller_epoch: int) -> Flow[Term | None]:
        """Replace a controller whose process is dead; return None when another controller is already active.

        The version of ``/controller_epoch`` is the fence: it changes with every election, while the version of
        ``/controller`` is always 0. One multi raises the epoch, deletes the dead controller's node and creates the new
        node.
        """
        epoch, version = yield from self._read_epoch()
        owner = yield from self.read_owner()
        if epoch != controller_epoch or owner is None or owner.controller_id != controller_id:
            return None
        (response,) = yield from send([self._election(epoch, version, Delete(znodes.CONTROLLER))])
        if response.ok:
            stat = response.results[-1].stat
            return Term(epoch + 1, version + 1 if stat is None else stat.version)
        return (yield from self._read_back(epoch + 1))

    def _read_back(self, wanted_epoch: int) -> Flow[Term | None]:
        """Return whether the multi was applied and only its answer was lost."""
        owner = yield from self.read_owner()
        if owner is None or not owner.is_this_session or owner.controller_id != self._controller_id:
            return None
        epoch, version = yield from self._read_epoch()
        return Term(epoch, version) if epoch == wanted_epoch else None

    def _read_epoch(self) -> Flow[tuple[int, int]]:
        """Return epoch and node version; creates a missing node."""
        data, version = yield from self._epoch_node()
        try:
            epoch = znodes.decode_controller_epoch(znodes.CONTROLLER_EPOCH, data)
        except MalformedZnodeError as error:
            yield from send([Exists(znodes.CONTROLLER_EPOCH, watch=True)])
            newest = yield from self._newest_known_epoch()
            raise UnreadableEpochError(f"{error}; it must hold a number, at least {newest}") from None
        self._newest_epoch = max(self._newest_epoch, epoch)
        return epoch, version

    def _epoch_node(self) -> Flow[tuple[bytes | None, int]]:
        """Return data and version of the epoch node; creates the node when it is missing.

        Brokers refuse a controller with a lower epoch than the highest they know. Therefore, when there were
        controllers before, the new node does not start at 0, as in Kafka, but above the highest known epoch.
        """
        for _ in range(ATTEMPTS):
            (response,) = yield from send([GetData(znodes.CONTROLLER_EPOCH)])
            if response.ok and response.stat is not None:
                return response.data, response.stat.version
            newest = yield from self._newest_known_epoch()
            first = newest + UNRECORDED_TERMS if newest else 0
            if newest:
                LOG.error("epoch node was deleted, creating it: path=%s epoch=%d", znodes.CONTROLLER_EPOCH, first)
            yield from send([Create(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(first))])
        raise UnexpectedResponseError(ZkCode.NO_NODE, f"create {znodes.CONTROLLER_EPOCH}")

    def _newest_known_epoch(self) -> Flow[int]:
        """Return the highest epoch that this process has seen or the journal contains; 0 without either."""
        (response,) = yield from send([GetData(znodes.CONTROLLER_JOURNAL)])
        journaled = 0
        if response.ok:
            try:
                journaled = decode_journal(znodes.CONTROLLER_JOURNAL, response.data).sequence >> EPOCH_SHIFT
            except MalformedZnodeError as error:
                LOG.warning("journal has no readable epoch: error=%s", error)
        return max(self._newest_epoch, journaled)

    def withdraw(self) -> Flow[None]:
        """Delete ``/controller`` only if it still belongs to this ZooKeeper session.

        The epoch's version is read before the owner and checked in the same multi as the deletion, so that the node of
        a successor elected in between is never deleted. The version suffices: this also works when the epoch is
        unreadable.

        Raises:
            UnexpectedResponseError: the node may still belong to this controller; no ZooKeeper watch reports when to
                try again.
        """
        _, version = yield from self._epoch_node()
        owner = yield from self.read_owner()
        if owner is None or not owner.is_this_session:
            return
        multi = Multi((Check(znodes.CONTROLLER_EPOCH, version), Delete(znodes.CONTROLLER)))
        (response,) = yield from send([multi])
        if not response.ok and first_failure(response)[1] is not ZkCode.NO_NODE:
            raise UnexpectedResponseError(first_failure(response)[1], f"delete {znodes.CONTROLLER}")

    # addresses

    def publish_address(self) -> Flow[bool]:
        """Publish this controller's endpoints.

        Return False while an earlier session's node exists, which is watched.
        """
        path = znodes.controller_path(self._controller_id)
        registration = znodes.ControllerRegistration(
            self._controller_id, self.this_controller.endpoints, self._scheduler.wall_ms()
        )
        data = znodes.encode_controller_registration(registration)
        for _ in range(ATTEMPTS):
            (created,) = yield from send([Create(path, data, ephemeral=True)])
            if not created.ok and created.code is not ZkCode.NODE_EXISTS:
                raise UnexpectedResponseError(created.code, f"create {path}")
            (found,) = yield from send([Exists(path, watch=True)])
            if found.stat is not None:
                return found.stat.ephemeral_owner == self._zookeeper.session_id
            # The node was deleted in between: retry, because a watch on a missing node fires only on its creation.
        raise UnexpectedResponseError(ZkCode.NO_NODE, f"create {path}")

    def read_address(self, controller_id: int) -> Flow[ActiveController]:
        """Return the endpoints that a controller has published, with a watch."""
        path = znodes.controller_path(controller_id)
        exists, response = yield from send([Exists(path, watch=True), GetData(path)])
        del exists
        if not response.ok:
            return ActiveController(controller_id)
        try:
            registration = znodes.decode_controller_registration(path, response.data, controller_id)
        except MalformedZnodeError as error:
            LOG.warning("controller address is malformed: controller=%d error=%s", controller_id, error)
            return ActiveController(controller_id)
        return ActiveController(controller_id, registration.endpoints)
