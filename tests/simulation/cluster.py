"""A whole cluster in one thread: machines, ZooKeeper, network, clients and checks."""

from collections.abc import Callable

from tests.simulation.checks import Checks
from tests.simulation.machines import BrokerLife, BrokerMachine, ControllerLife, ControllerMachine
from tests.simulation.network import LinkQuality, Network
from tests.simulation.profile import Profile
from tests.simulation.recorder import Recorder
from tests.simulation.world import NodeScheduler, Skew, World
from tests.support.zookeeper.client import MemoryZooKeeperServer

TICK_MS = 500


class SimulatedCluster:
    """The servers of one run."""

    def __init__(self, world: World, profile: Profile, tell: Callable[[str], None] | None = None) -> None:
        self.world = world
        self.profile = profile
        self._tell = tell
        self.network = Network(world, LinkQuality())
        self.recorder: Recorder | None = None
        self.checks = Checks(self)
        self.server = MemoryZooKeeperServer(
            NodeScheduler(world, Skew(), name="zookeeper"), tick_ms=TICK_MS, on_write=self.checks.zookeeper_written
        )
        self.controllers = {
            controller_id: ControllerMachine(self, controller_id) for controller_id in profile.controller_ids
        }
        self.brokers = {broker_id: BrokerMachine(self, broker_id) for broker_id in profile.broker_ids}
        self.machines: list[BrokerMachine | ControllerMachine] = [*self.controllers.values(), *self.brokers.values()]
        self._by_name = {machine.name: machine for machine in self.machines}

    def start(self) -> None:
        """Start every machine, with short pauses between them."""
        chance = self.world.chance("start")
        for machine in self._by_name.values():
            self.world.after(chance.randint(0, 300_000), machine.start)

    def note(self, who: str, what: str) -> None:
        """Add a line to the timeline; every line is part of the digest."""
        self.world.note(f"{who} {what}")
        if self.recorder is not None:
            self.recorder.noted(who, what)
        if self._tell is not None:
            self._tell(f"{self.world.now_us / 1_000_000:10.6f}  {who:<18} {what}")

    def record_fault(self, who: str, what: str) -> None:
        """Add a fault to the recording of the run, if there is one; it is neither printed nor part of the digest."""
        if self.recorder is not None:
            self.recorder.fault(who, what)

    @property
    def is_told(self) -> bool:
        """Whether the timeline is printed; otherwise callers need not build expensive lines."""
        return self._tell is not None

    def machine(self, name: str) -> BrokerMachine | ControllerMachine:
        """Return a machine by name."""
        return self._by_name[name]

    def broker_named(self, name: str) -> BrokerLife | None:
        """Return the running broker of this name."""
        machine = self._by_name.get(name)
        life = machine.life if machine is not None else None
        return life if isinstance(life, BrokerLife) else None

    def controller_named(self, name: str) -> ControllerLife | None:
        """Return the running controller of this name."""
        machine = self._by_name.get(name)
        life = machine.life if machine is not None else None
        return life if isinstance(life, ControllerLife) else None

    def running_brokers(self) -> list[BrokerLife]:
        """Return the brokers with a running process, including paused processes."""
        return [machine.life for machine in self.brokers.values() if machine.life is not None]

    def running_controllers(self) -> list[ControllerLife]:
        """Return the controllers with a running process, including paused processes."""
        return [machine.life for machine in self.controllers.values() if machine.life is not None]

    def active_controller(self) -> ControllerLife | None:
        """Return the running active controller with the highest controller epoch."""
        active = [life for life in self.running_controllers() if life.node.is_active]
        return max(active, key=lambda life: life.node.controller_epoch, default=None)
