"""Register the broker in ZooKeeper, once per session. Source: KIP-380; Kafka 2.8 KafkaZkClient.registerBroker."""

import logging
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from paceline.coordination import znodes
from paceline.coordination.errors import DuplicateBrokerIdError, MalformedZnodeError, SessionLostError
from paceline.coordination.flow import Flow, FlowRun, Zk
from paceline.coordination.interface import Exists, GetChildren, GetData, SetData, ZkCode, ZooKeeper
from paceline.coordination.recipes import ensure_paths, expect, get_or_create_cluster_id, register_broker
from paceline.coordination.znodes.registrations import BrokerRegistration
from paceline.model.backoff import Retries
from paceline.model.control import Endpoint
from paceline.model.errors import InvalidConfigError
from paceline.model.scheduler import Cancellable, Scheduler
from paceline.model.settings import BrokerConfig

LOG = logging.getLogger("paceline.broker.membership")

GRACE_MS: Final = 2_000
"""How long a dead session's node may outlive its timeout."""


@dataclass(frozen=True, slots=True)
class BrokerRegistered:
    """Result of a registration."""

    broker_epoch: int
    cluster_id: str
    controller_epoch: int
    """Value of ``/controller_epoch``, 0 when there was no controller yet."""


class EndpointTakenError(InvalidConfigError):
    """Another broker advertises one of this broker's addresses."""


class ForeignZooKeeperError(InvalidConfigError):
    """ZooKeeper has another cluster id than the broker's: it was wiped, or belongs to another cluster.

    The broker must not continue, because it would treat every topic as deleted.
    """


class Registration:
    """Registers the broker in each new session, with retries after errors, until it is stopped.

    ``cluster_id`` is the cluster id in the log directories, None when they are new; the broker never registers with
    another cluster.

    Every registration reports an unclean restart until a controller has handled it: `acknowledged`. A broker that has
    registered before and finds its log directories empty has lost all records, which also counts as an unclean restart.

    If another session has registered this broker id:

    * One of ``sessions_of_dead_processes``, the sessions of this broker's earlier processes: its node is replaced at
      once.
    * Any other session: it may belong to an earlier process whose death cannot be proved. ZooKeeper then deletes its
      node at its session timeout, so the broker waits that long. If the node still exists, the broker stops with an
      error. The same applies to a broker with another id that has registered one of this broker's addresses.

    ``remember_session`` receives each session before the broker registers in it.
    """

    def __init__(
        self,
        config: BrokerConfig,
        endpoints: tuple[Endpoint, ...],
        unclean_restart: bool,
        scheduler: Scheduler,
        zookeeper: ZooKeeper,
        rng: random.Random,
        cluster_id: str | None,
        highest_controller_epoch: Callable[[], int],
        on_registered: Callable[[BrokerRegistered], None],
        on_fatal: Callable[[Exception], None],
        sessions_of_dead_processes: Collection[int] = (),
        remember_session: Callable[[int], None] = lambda _session_id: None,
    ) -> None:
        self._config = config
        self._endpoints = endpoints
        self._unclean_restart = unclean_restart
        self._reported_unclean = False
        """Whether a registration of the present session reports an unclean restart, or is about to."""
        self._scheduler = scheduler
        self._zookeeper = zookeeper
        self._rng = rng
        self._on_registered = on_registered
        self._on_fatal = on_fatal
        self._start_ms = scheduler.wall_ms()
        self._session_id = 0
        self._earlier_session_ids: list[int] = list(sessions_of_dead_processes)
        self._remember_session = remember_session
        self._run: FlowRun[BrokerRegistered] | None = None
        self._retries = Retries(scheduler, rng)
        self._retry: Cancellable | None = None
        self._clearing: FlowRun[None] | None = None
        self._conflict_since_ms: int | None = None
        self._logged = ""
        """Reason in the last warning about a failed attempt."""
        self._cluster_id = cluster_id
        self._highest_controller_epoch = highest_controller_epoch
        self._stopped = False

    @property
    def unclean_restart(self) -> bool:
        """Whether the broker may have lost records and no controller has handled this yet."""
        return self._unclean_restart

    @property
    def session_id(self) -> int:
        """Session in which the broker is registered, or is registering; 0 before the first."""
        return self._session_id

    def connected(self, session_id: int) -> None:
        """Register in the connected session, unless that is done or in progress."""
        if self._stopped or session_id == self._session_id:
            return
        if self._session_id:
            self._earlier_session_ids.append(self._session_id)
        self._session_id = session_id
        self._reported_unclean = False
        self._cancel()
        self._remember_session(session_id)
        self._register()

    def acknowledged(self) -> None:
        """Stop reporting the unclean restart: a controller that has read the present registration has handled it.

        Otherwise a later controller would distrust records that the broker has replicated since.
        """
        if not self._unclean_restart or self._stopped:
            return
        self._unclean_restart = False
        self._clear()

    def _clear(self) -> None:
        self._clearing = FlowRun(
            self._cleared_flow(self._session_id),
            self._zookeeper,
            self._scheduler,
            lambda _none: None,
            self._not_cleared,
        ).start()

    def _cleared_flow(self, session_id: int) -> Flow[None]:
        path = znodes.broker_path(self._config.broker_id)
        (read,) = yield Zk([GetData(path)])
        expect(read, path, ZkCode.NO_NODE)
        if read.stat is None or read.stat.ephemeral_owner != session_id:
            return  # The next registration will not report it.
        registration = znodes.decode_broker(path, read.data, self._config.broker_id)
        if registration.unclean_restart:
            cleared = znodes.encode_broker(replace(registration, unclean_restart=False))
            (written,) = yield Zk([SetData(path, cleared, read.stat.version)])
            expect(written, path, ZkCode.NO_NODE)

    def _not_cleared(self, error: Exception) -> None:
        if not self._stopped and not isinstance(error, SessionLostError):
            self._retry = self._retries.schedule(self._clear)

    def stop(self) -> None:
        """Stop registering."""
        self._stopped = True
        self._cancel()

    def _cancel(self) -> None:
        if self._run is not None:
            self._run.cancel()
        if self._retry is not None:
            self._retry.cancel()
        if self._clearing is not None:
            self._clearing.cancel()

    def _register(self) -> None:
        self._run = FlowRun(
            self._flow(self._session_id), self._zookeeper, self._scheduler, self._succeeded, self._failed
        ).start()

    def _flow(self, session_id: int) -> Flow[BrokerRegistered]:
        # Read the known epoch before ZooKeeper's: an election in between can then only raise ZooKeeper's epoch.
        known_controller_epoch = self._highest_controller_epoch()
        if self._cluster_id is not None:
            yield from _check_cluster_id(self._cluster_id)
        yield from ensure_paths(znodes.PERSISTENT_NODES)
        if self._cluster_id is None:
            yield from self._check_earlier_registration()
            self._cluster_id = yield from get_or_create_cluster_id(self._rng)
        yield from self._check_endpoints()
        self._reported_unclean = self._reported_unclean or self._unclean_restart
        registration = BrokerRegistration(
            broker_id=self._config.broker_id,
            endpoints=self._endpoints,
            timestamp_ms=self._start_ms,
            rack=self._config.broker_rack,
            unclean_restart=self._unclean_restart,
            security_protocols=dict.fromkeys(self._config.ssl_listeners, "SSL"),
        )
        registered = yield from register_broker(registration, session_id, tuple(self._earlier_session_ids))
        (epoch,) = yield Zk([GetData(znodes.CONTROLLER_EPOCH)])
        expect(epoch, znodes.CONTROLLER_EPOCH, ZkCode.NO_NODE)
        controller_epoch = _controller_epoch(epoch.data)
        # An adopted registration needed no write. So the read may come from a ZooKeeper server that lags behind its
        # leader, and a low epoch proves nothing.
        if controller_epoch < known_controller_epoch and not registered.adopted:
            raise ForeignZooKeeperError(
                f"the controller epoch in ZooKeeper is {controller_epoch}, it was {known_controller_epoch} before"
            )
        return BrokerRegistered(registered.czxid, self._cluster_id, controller_epoch)

    def _check_earlier_registration(self) -> Flow[None]:
        """Report an unclean restart if this broker id has registered before: then its disks were replaced.

        Called when the log directories have no cluster id, as on a new broker.
        """
        path = znodes.broker_epoch_path(self._config.broker_id)
        (read,) = yield Zk([Exists(path)])
        expect(read, path, ZkCode.NO_NODE)
        if read.ok:
            self._unclean_restart = True

    def _check_endpoints(self) -> Flow[None]:
        """Refuse an address that another id has registered: clients would reach the wrong broker."""
        (children,) = yield Zk([GetChildren(znodes.BROKER_IDS)])
        expect(children, znodes.BROKER_IDS)
        others = [
            broker_id
            for child in children.children
            if (broker_id := znodes.parse_id(child)) is not None and broker_id != self._config.broker_id
        ]
        paths = [znodes.broker_path(broker_id) for broker_id in others]
        nodes = yield Zk([GetData(path) for path in paths])
        own = {endpoint.address for endpoint in self._endpoints}
        for broker_id, path, node in zip(others, paths, nodes, strict=True):
            expect(node, path, ZkCode.NO_NODE)
            if not node.ok:
                continue
            try:
                other = znodes.decode_broker(path, node.data, broker_id)
            except MalformedZnodeError:
                continue
            for endpoint in other.endpoints:
                if endpoint.address in own:
                    raise EndpointTakenError(f"{endpoint.address} is registered by broker {broker_id}")

    def _succeeded(self, registered: BrokerRegistered) -> None:
        self._conflict_since_ms = None
        self._logged = ""
        self._retries.reset()
        if self._reported_unclean and not self._unclean_restart:
            # A controller handled the previous registration while this registration was in progress.
            self._clear()
        LOG.info(
            "registered in ZooKeeper: broker=%d broker_epoch=%d session=0x%x",
            self._config.broker_id,
            registered.broker_epoch,
            self._session_id,
        )
        self._on_registered(registered)

    def _failed(self, error: Exception) -> None:
        if self._stopped or isinstance(error, SessionLostError):
            # The next session registers again.
            return
        if isinstance(error, ForeignZooKeeperError):
            self._on_fatal(error)
            return
        if isinstance(error, (DuplicateBrokerIdError, EndpointTakenError)):
            now_ms = self._scheduler.now_ms()
            if self._conflict_since_ms is None:
                self._conflict_since_ms = now_ms
            if now_ms - self._conflict_since_ms > self._config.zookeeper_session_timeout_ms + GRACE_MS:
                self._on_fatal(error)
                return
        if str(error) != self._logged:
            self._logged = str(error)
            LOG.warning("not registered, trying again: broker=%d error=%s", self._config.broker_id, error)
        self._retry = self._retries.schedule(self._register)


def _check_cluster_id(cluster_id: str) -> Flow[None]:
    (read,) = yield Zk([GetData(znodes.CLUSTER_ID)])
    expect(read, znodes.CLUSTER_ID, ZkCode.NO_NODE)
    found = znodes.decode_cluster_id(znodes.CLUSTER_ID, read.data) if read.ok else None
    if found != cluster_id:
        raise ForeignZooKeeperError(f"this broker belongs to cluster {cluster_id}, ZooKeeper to {found or 'none'}")


def _controller_epoch(data: bytes | None) -> int:
    if data is None:
        return 0
    return znodes.decode_controller_epoch(znodes.CONTROLLER_EPOCH, data)
