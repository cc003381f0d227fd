"""Machines and their processes, connected like the services' own processes.

A machine keeps its disk. Each process starts with an empty memory and a new scheduler, and ends with an orderly stop, a
crash, a loss of power, or a fatal error.
"""

from functools import partial
from typing import TYPE_CHECKING

from paceline.broker.node import BrokerNode
from paceline.controller.brokers.broker_suspicions import Evidence
from paceline.controller.node import ControllerNode
from paceline.controller.standby.takeover import Takeover
from paceline.coordination.interface import Request, SessionEvent, SessionState
from paceline.coordination.patient_zookeeper import PatientZooKeeper
from paceline.log.checkpoint import CLEAN_SHUTDOWN_MARKER
from paceline.log.directory_names import directory_name
from paceline.log.segment_names import CLEANED_SUFFIX
from paceline.model.control import Endpoint
from paceline.model.errors import KafkaStorageError
from paceline.model.state_change import StateChange
from tests.simulation.disk import ProcessKilled, SimulatedDisk
from tests.simulation.network import Peer
from tests.simulation.observed_log import ObservedLogManager
from tests.simulation.transports import (
    SimulatedBrokerTransport,
    SimulatedControlTransport,
    SimulatedStandbyTransport,
)
from tests.simulation.world import MILLISECOND, NodeScheduler, Skew, World
from tests.support.broker_cluster import settings_in
from tests.support.inline_work import InlineWork
from tests.support.zookeeper.client import Link, MemoryZooKeeper, MemoryZooKeeperServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.coordination.interface import Response
    from tests.simulation.cluster import SimulatedCluster

LOG_DIRS = ("/data", "/data2")
_MIN_FREE_BYTES = 5_000


class SeededLink(Link):
    """The link of one client to ZooKeeper, with delays from its own random stream."""

    def __init__(self, world: World, name: str, mean_ms: float, requests_per_message: int) -> None:
        super().__init__(requests_per_message)
        self._chance = world.chance(f"zookeeper-link/{name}")
        self._mean_ms = mean_ms

    def request_delay_ms(self) -> float:
        return 0.1 + self._chance.random() * 2 * self._mean_ms

    def reply_delay_ms(self) -> float:
        return 0.1 + self._chance.random() * 2 * self._mean_ms


class AuditedZooKeeper(MemoryZooKeeper):
    """The in-memory client; records its requests and sessions for the checks."""

    def __init__(
        self,
        server: MemoryZooKeeperServer,
        scheduler: NodeScheduler,
        link: Link,
        session_timeout_ms: int,
        life: "Life",
    ) -> None:
        super().__init__(server, scheduler, session_timeout_ms=session_timeout_ms, link=link, reconnect_delay_ms=50)
        self._life = life

    def start(self, on_session: "Callable[[SessionEvent], None]", on_watch: "Callable[..., None]") -> None:
        def session_changed(event: SessionEvent) -> None:
            if event.state is SessionState.CONNECTED:
                self._life.session_began(event.session_id)
            on_session(event)

        super().start(session_changed, on_watch)

    def submit(self, requests: "Sequence[Request]", on_done: "Callable[[list[Response]], None]") -> None:
        self._life.cluster.checks.zookeeper_asked(self._life, requests)
        super().submit(requests, on_done)


class Life:
    """One process: its scheduler, its connections and its name in the timeline."""

    zookeeper: AuditedZooKeeper

    def __init__(self, cluster: "SimulatedCluster", name: str, number: int, skew: Skew, link: Link) -> None:
        self.cluster = cluster
        self.name = name
        self.number = number
        self.link = link
        self.ended = False
        self.stopping = False
        self.scheduler = NodeScheduler(cluster.world, skew, self._failed, name, self._killed)
        self.peer = Peer(name, self.scheduler)
        self._session_id = 0
        self.session_us = 0
        """When the process began its present ZooKeeper session."""

    def session_began(self, session_id: int) -> None:
        """Record a connection to ZooKeeper, in a new session or again in the same."""
        if session_id != self._session_id:
            self._session_id, self.session_us = session_id, self.cluster.world.now_us
        self.cluster.checks.session_opened(self, session_id)

    def _open_zookeeper(self) -> AuditedZooKeeper:
        self.zookeeper = AuditedZooKeeper(
            self.cluster.server, self.scheduler, self.link, self.cluster.profile.session_timeout_ms, self
        )
        return self.zookeeper

    def _failed(self, error: Exception) -> None:
        self.cluster.checks.unexpected(self.name, error)

    def _killed(self) -> None:
        """React to a process that died during a change of its files."""

    def end(self) -> None:
        """End the process: none of its callbacks runs any more, and its connections break."""
        if self.ended:
            return
        self.ended = True
        self.zookeeper.crash()
        self.scheduler.kill()
        if self.cluster.network.peers.get(self.name) is self.peer:
            self.cluster.network.detach(self.name)


class ControllerLife(Life):
    """One process of a controller."""

    def __init__(self, machine: "ControllerMachine", number: int) -> None:
        cluster = machine.cluster
        super().__init__(cluster, machine.name, number, machine.skew, machine.link)
        self.controller_id = machine.controller_id
        self.standby_transport = SimulatedStandbyTransport(self)
        self.node = ControllerNode(
            cluster.profile.controller_config(machine.controller_id),
            (Endpoint("CLIENT", machine.name, 9082), Endpoint("CONTROL", machine.name, 9084)),
            self.scheduler,
            PatientZooKeeper(self._open_zookeeper()),
            SimulatedControlTransport(self),
            cluster.world.chance(f"{machine.name}/{number}"),
            self._changed,
            on_event_handled=lambda event, _queued, _handled: cluster.checks.event_handled(self, event.name),
            standby_transport=self.standby_transport,
            on_takeover=self._taken_over,
        )

    def _changed(self, change: StateChange) -> None:
        self.cluster.checks.controller_changed(self, change)

    def _taken_over(self, takeover: Takeover) -> None:
        states = takeover.states
        read = f"{states.states_read} of {states.partitions} states read"
        self.cluster.note(self.name, f"takes over {states.kind.value}, {read} {states.reason}")


class ControllerMachine:
    """A machine that runs a controller."""

    def __init__(self, cluster: "SimulatedCluster", controller_id: int) -> None:
        self.cluster = cluster
        self.controller_id = controller_id
        self.name = f"controller-{controller_id}"
        self.skew = Skew()
        profile = cluster.profile
        self.link = SeededLink(cluster.world, self.name, profile.zk_delay_ms, profile.zk_requests_per_message)
        self._noticed_after_ms = cluster.world.chance(f"refused connects/{self.name}").randint(100, 400)
        self.life: ControllerLife | None = None
        self._lives = 0

    def start(self) -> None:
        """Start the process, unless it is running."""
        if self.life is not None:
            return
        self._lives += 1
        life = self.life = ControllerLife(self, self._lives)
        self.cluster.note(self.name, f"starts, life {self._lives}")
        self.cluster.network.attach(life.peer)
        life.node.start()

    def crash(self) -> None:
        """Kill the process."""
        life, self.life = self.life, None
        if life is not None:
            self.cluster.note(self.name, "crashes")
            life.end()
            if self.cluster.profile.refused_connects:
                self.cluster.world.after(self._noticed_after_ms * MILLISECOND, self._show_death)
                for broker in self.cluster.running_brokers():
                    broker.scheduler.call_later(self._noticed_after_ms % 7, broker.node.controller_connection_closed)

    def look_dead(self) -> None:
        """Give standbys evidence that the running process is dead."""
        if self.life is not None:
            self._tell_standbys()

    def _show_death(self) -> None:
        if self.life is None:
            self._tell_standbys()

    def _tell_standbys(self) -> None:
        network = self.cluster.network
        for other in self.cluster.controllers.values():
            life = other.life
            if life is None or other is self:
                continue
            if not network.is_cut(other.name, self.name) and not network.is_cut(self.name, other.name):
                life.scheduler.call_soon(partial(life.standby_transport.refused_by, self.name))

    def stop(self) -> None:
        """Stop the process orderly."""
        life, self.life = self.life, None
        if life is not None:
            self.cluster.note(self.name, "stops")
            life.node.stop()
            life.scheduler.call_later(5, life.end)


class DiskThread:
    """Background work that takes time, while the broker continues."""

    def __init__(self, life: "BrokerLife", name: str = "disk thread") -> None:
        self._life = life
        self._chance = life.cluster.world.chance(f"{life.name}/{life.number}/{name}")

    def run(self, work: "Callable[[], None]", on_done: "Callable[[Exception | None], None]") -> None:
        """Run ``work`` after a random delay, and call ``on_done`` after another delay."""
        scheduler = self._life.scheduler

        def do() -> None:
            failure: Exception | None = None
            try:
                work()
            except Exception as error:
                failure = error
            scheduler.call_later(self._wait_ms(), lambda: on_done(failure))

        scheduler.call_later(self._wait_ms(), do)

    def _wait_ms(self) -> float:
        return self._chance.uniform(0, 1_500 if self._life.machine.disk_is_slow else 3)


class BrokerLife(Life):
    """One process of a broker."""

    def __init__(self, machine: "BrokerMachine", number: int) -> None:
        cluster = machine.cluster
        super().__init__(cluster, machine.name, number, machine.skew, machine.link)
        self.machine = machine
        self.broker_id = machine.broker_id
        boot_id = f"boot-{machine.boot}"
        machine.disk.watcher = cluster.checks.log_watcher(self)
        self.logs = ObservedLogManager(
            machine.disk,
            list(LOG_DIRS[: cluster.profile.log_dirs]),
            cluster.profile.log_config(),
            on_dir_failure=self._dir_failed,
            boot_id=boot_id,
            min_free_bytes=_MIN_FREE_BYTES,
        )
        self.logs.on_directory_returned = lambda: cluster.checks.broker_started(self)
        settings = settings_in(cluster.server.tree, self.logs.default_config)
        report = self.logs.load(self.scheduler.wall_ms(), settings)
        for log in self.logs.observed_logs():
            log.rebuild_mirror()
        self.unclean = report.is_unclean_restart(boot_id)
        background = DiskThread(self) if cluster.profile.slow_disks else InlineWork(self.scheduler)
        self.node = BrokerNode(
            cluster.profile.broker_config(machine.broker_id),
            tuple(
                Endpoint(listener, machine.name, port)
                for listener, port in (("CLIENT", 9092), ("REPLICATION", 9093), ("CONTROL", 9094))
            ),
            self.scheduler,
            self._open_zookeeper(),
            self.logs,
            SimulatedBrokerTransport(self),
            cluster.world.chance(f"{machine.name}/{number}"),
            self._changed,
            self._fatal,
            background,
            DiskThread(self, "cleaner thread") if cluster.profile.compacts else background,
            DiskThread(self, "directory thread") if cluster.profile.log_dirs > 1 else background,
            unclean_restart=self.unclean,
        )

    def _killed(self) -> None:
        self.machine.died()

    def _changed(self, change: StateChange) -> None:
        self.cluster.checks.broker_changed(self, change)

    def _dir_failed(self, path: str, error: Exception) -> None:
        self.machine.directory_lost()
        self.cluster.note(self.name, f"loses {path}: {error}")
        self.cluster.checks.replicas.directory_failed(self, path, error)

    def _fatal(self, error: Exception) -> None:
        """Stop the process after a fatal error; its supervisor starts it again."""
        self.cluster.note(self.name, f"stops after a fatal error: {error!r}")
        self.scheduler.call_soon(lambda: self.machine.stop(restart_after_ms=1_000))


class BrokerMachine:
    """A machine that runs a broker; its disk survives the process."""

    def __init__(self, cluster: "SimulatedCluster", broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.name = f"broker-{broker_id}"
        self.skew = Skew()
        self.boot = 1
        profile = cluster.profile
        self.link = SeededLink(cluster.world, self.name, profile.zk_delay_ms, profile.zk_requests_per_message)
        self.disk = SimulatedDisk(self._wall_ms, cluster.world.chance(f"disk/{self.name}"))
        self.disk_is_slow = False
        self._noticed_after_ms = cluster.world.chance(f"refused connects/{self.name}").randint(100, 400)
        self._dead_life: BrokerLife
        self._how_to_die: Callable[[], None]
        self.has_died_at_work = False
        """Whether the last process died during a change of its files."""
        self.life: BrokerLife | None = None
        self._lives = 0
        self._directories_lost = False
        self._files_damaged = False
        self._is_clean = False
        """Whether the last process ended orderly, so that all its data is durable."""

    @property
    def has_lost_a_directory(self) -> bool:
        """Whether the running process has a log directory that is offline."""
        logs = None if self.life is None else self.life.logs
        return logs is not None and len(logs.live_log_dirs) < len(logs.log_dirs)

    @property
    def has_stopped_cleanly(self) -> bool:
        """Whether the last process ended orderly, with all its log directories."""
        return self._is_clean

    @property
    def may_have_lost_data(self) -> bool:
        """Whether power or a log directory has ever failed here, or a file was changed from outside."""
        return self.boot > 1 or self._directories_lost or self._files_damaged

    @property
    def has_damaged_files(self) -> bool:
        """Whether a fault has ever changed the broker's files from outside."""
        return self._files_damaged

    def files_damaged(self) -> None:
        """Record that a fault changed the broker's files from outside."""
        self._files_damaged = True

    def retry_directories(self) -> None:
        """Let the running process take its failed log directories back, as an operator does after a repair."""
        life = self.life
        if life is None or not self.has_lost_a_directory:
            return

        def retry() -> None:
            for path in life.logs.log_dirs:
                try:
                    life.node.retry_log_dir(path, is_repeated=False)
                except KafkaStorageError as error:
                    self.cluster.note(self.name, f"does not take {path} back: {error}")

        life.scheduler.call_soon(retry)

    def directory_lost(self) -> None:
        """Record the failure of a log directory."""
        self._directories_lost = True

    def _wall_ms(self) -> int:
        return 1_700_000_000_000 + self.cluster.world.now_ms + self.skew.offset_ms

    def start(self) -> None:
        """Start the process, unless it is running."""
        if self.life is not None:
            return
        self._lives += 1
        self._is_clean = False
        self.disk.disarm()
        try:
            life = self.life = BrokerLife(self, self._lives)
        except KafkaStorageError as error:
            # As in Kafka, only an operator can decide which of two logs of a partition is outdated.
            self.cluster.checks.verdicts.check("R24", self._directories_lost, f"{self.name}: {error}")
            self.cluster.note(self.name, f"does not start: {error}")
            self.disk.crash_process()
            self._remove_abandoned_logs()
            life = self.life = BrokerLife(self, self._lives)
        self.cluster.note(self.name, f"starts, life {self._lives}{', unclean' if life.unclean else ''}")
        self.cluster.checks.broker_started(life)
        self.has_died_at_work = False
        self.cluster.network.attach(life.peer)
        life.node.start(lambda: None)

    def _remove_abandoned_logs(self) -> None:
        """Act as the operator: remove each log whose directory was offline when the replica was re-created."""
        current = {}
        for record in self.cluster.checks.records.by_id.values():  # later topics come last
            if self.broker_id in record.logs:
                current[record.topic_partition] = record.logs[self.broker_id]
        for tp, log in current.items():
            for directory in LOG_DIRS:
                path = f"{directory}/{directory_name(tp)}"
                if path != log.path and self.disk.exists(path) and self.disk.exists(log.path):
                    self.disk.remove_tree(path)
                    self.cluster.note("operator", f"removes {path} of {self.name}")

    def crash(self) -> None:
        """Kill the process; the page cache keeps what it wrote."""
        life, self.life = self.life, None
        if life is not None:
            self.cluster.note(self.name, "crashes")
            life.end()
            self.disk.crash_process()
            if self.cluster.profile.refused_connects:
                self._dead_life = life
                self.cluster.world.after(self._noticed_after_ms * MILLISECOND, self._show_death)

    def look_dead(self, evidence: Evidence, resets: bool) -> None:
        """Give controllers evidence that the running process is dead; ``resets`` also breaks connections to it."""
        life = self.life
        if life is None:
            return
        if resets:
            self.cluster.network.reset(self.name)
            life.scheduler.call_later(5, life.node.controller_connection_closed)
        self._tell_controllers(life.node.broker_epoch, evidence)

    def _show_death(self) -> None:
        epoch = self._dead_life.node.broker_epoch
        if self.life is None:
            self._tell_controllers(epoch, Evidence.REFUSED if self._noticed_after_ms % 3 else Evidence.UNREACHABLE)
            return
        for life in self._controllers_in_reach():
            life.scheduler.call_soon(partial(life.node.broker_connection_closed, self.broker_id, epoch))

    def _controllers_in_reach(self) -> "list[ControllerLife]":
        network = self.cluster.network
        return [
            machine.life
            for machine in self.cluster.controllers.values()
            if machine.life is not None
            and not network.is_cut(machine.name, self.name)
            and not network.is_cut(self.name, machine.name)
        ]

    def _tell_controllers(self, broker_epoch: int, evidence: Evidence) -> None:
        for life in self._controllers_in_reach():
            self.cluster.note(life.name, f"finds {self.name} {evidence.name}, broker epoch {broker_epoch}")
            life.scheduler.call_soon(partial(life.node.evidence_of_death, self.broker_id, broker_epoch, evidence))

    def die_at_work(self, steps: int, first: str, how: "Callable[[], None]") -> None:
        """Let the process die after ``steps`` changes of files, from the next change with ``first`` in its path on."""
        if self.life is not None:
            self._how_to_die = how
            self.disk.steps_until_death = steps
            self.disk.counts_from = first

    def died(self) -> None:
        """Handle the death that `die_at_work` has scheduled."""
        self.cluster.note(
            self.name, "dies in a compaction" if self.disk.counts_from == CLEANED_SUFFIX else "dies in a move"
        )
        self.has_died_at_work = True
        self._how_to_die()

    def lose_power(self) -> None:
        """Cut the machine's power; data that was not synced may be lost."""
        life, self.life = self.life, None
        if life is not None:
            life.end()
        if not self._is_clean:
            self.cluster.checks.power_lost(self)
        self.disk.lose_power()
        self.boot += 1
        self.cluster.note(self.name, f"loses power, {self.disk.lost_bytes} bytes so far")

    def stop(self, restart_after_ms: int | None = None, then: "Callable[[], None] | None" = None) -> None:
        """Stop the process orderly; it ends after it has handed over its leadership."""
        life = self.life
        if life is None or life.stopping:
            return
        life.stopping = True
        self.cluster.note(self.name, "is told to stop")

        def done() -> None:
            if self.life is not life:
                return
            self.cluster.note(self.name, "has stopped")
            markers = (f"{path}/{CLEAN_SHUTDOWN_MARKER}" for path in life.logs.log_dirs)
            has_room = self.disk.capacity_bytes is None or all(map(self.disk.exists, markers))
            self._is_clean = has_room and not self.has_lost_a_directory
            self.life = None
            # The request that ends the ZooKeeper session is in flight; end the process a moment later.
            life.scheduler.call_later(20, life.end)
            self.cluster.network.detach(life.name)
            self.disk.crash_process()
            if restart_after_ms is not None:
                self.cluster.world.after(restart_after_ms * 1_000, self.start)
            if then is not None:
                then()

        try:
            life.node.stop(done)
        except ProcessKilled:
            self.died()
