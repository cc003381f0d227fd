"""The execution of a run's faults.

The target of a fault is chosen at its time (``kill-leader`` needs a leader), from numbers drawn in advance, so that the
removal of one fault does not change the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from paceline.controller.brokers.broker_suspicions import Evidence
from paceline.log.directory_names import FUTURE
from paceline.log.future_logs import MOVED_FROM
from paceline.log.segment_names import CLEANED_SUFFIX
from tests.simulation.disk_faults import DiskFaults
from tests.simulation.fault_schedule import STRIKES, Fault, draw_one
from tests.simulation.machines import BrokerMachine, ControllerMachine
from tests.simulation.network import LinkQuality
from tests.simulation.operations import Operations
from tests.simulation.operator import Operator
from tests.simulation.places import AMBUSHES
from tests.simulation.world import MILLISECOND

if TYPE_CHECKING:
    from tests.simulation.admin import Admin
    from tests.simulation.cluster import SimulatedCluster

_EVIDENCE = (Evidence.REFUSED, Evidence.REFUSED, Evidence.UNREACHABLE, Evidence.REFUSED_UNCONNECTED)
_FLAPS = 8
_FLAP_MS = 400


class FaultInjector(Operations, DiskFaults):
    """Executes a schedule; `heal` ends all faults."""

    def __init__(self, cluster: "SimulatedCluster", admin: "Admin") -> None:
        self._cluster = cluster
        self._admin = admin
        self._operator = Operator(cluster)
        self._healed = False
        self._faults: Sequence[Fault] = ()

    def schedule(self, faults: Sequence[Fault]) -> None:
        """Schedule the faults, relative to the present time."""
        self._faults = faults
        for fault in faults:
            self._cluster.world.after(fault.at_ms * MILLISECOND, self._doing(fault))

    def heal(self) -> None:
        """End every fault: links carry messages, clients reach ZooKeeper, processes run."""
        self._healed = True
        cluster = self._cluster
        cluster.note("faults", "all is put right")
        cluster.network.heal()
        cluster.server.start()
        for broker in cluster.brokers.values():
            broker.disk.heal()
            broker.disk.disarm()
            broker.disk_is_slow = False
        self._operator.lift_throttles()
        for machine in cluster.machines:
            machine.link.heal()
            self._resume(machine)
            if isinstance(machine, BrokerMachine) and machine.has_lost_a_directory:
                machine.crash()
            if machine.life is None:
                machine.start()

    def _doing(self, fault: Fault) -> Callable[[], None]:
        def do() -> None:
            if not self._healed:
                self._cluster.note("faults", f"{fault.kind} {fault.pick} {fault.duration_ms} ms")
                getattr(self, "_" + fault.kind.replace("-", "_"))(fault)

        return do

    def _after(self, fault: Fault, do: Callable[[], None]) -> None:
        self._cluster.world.after(fault.duration_ms * MILLISECOND, lambda: None if self._healed else do())

    # Targets

    def _broker(self, fault: Fault) -> BrokerMachine:
        brokers = list(self._cluster.brokers.values())
        return brokers[fault.pick % len(brokers)]

    def _other_broker(self, fault: Fault) -> BrokerMachine:
        brokers = list(self._cluster.brokers.values())
        return brokers[fault.other % len(brokers)]

    def _controller(self, fault: Fault) -> ControllerMachine:
        controllers = list(self._cluster.controllers.values())
        return controllers[fault.pick % len(controllers)]

    def _anybody(self, fault: Fault) -> BrokerMachine | ControllerMachine:
        """Return a broker or, less often, a controller, mostly the active controller."""
        if fault.other % 3:
            return self._broker(fault)
        active = self._cluster.active_controller()
        if active is not None and fault.other % 2:
            return self._cluster.controllers[active.controller_id]
        return self._controller(fault)

    def _leader(self, fault: Fault) -> BrokerMachine | None:
        living = self._cluster.checks.records.living()
        leaders = [record.zk.leader for record in living if record.zk is not None and record.zk.has_leader]
        return self._cluster.brokers[leaders[fault.pick % len(leaders)]] if leaders else None

    # Ambushes

    def _ambush(self, fault: Fault) -> None:
        """Wait until the run reaches a place, and let faults strike the brokers there, at once or a moment later."""
        cluster = self._cluster
        chance = cluster.world.chance(f"ambush/{fault.pick}/{fault.other}")
        profile = cluster.profile
        place = chance.choice(profile.ambushed or tuple(AMBUSHES))
        fitting = chance.choice(AMBUSHES[place]) if not profile.strikes else ()
        # Faults that fit the place only together strike at once, and alone.
        are_joined = len(fitting) > 1
        more = () if are_joined else chance.sample(STRIKES, chance.choice((0, 0, 1, 2)))
        kinds = profile.strikes or (*fitting, *more)
        within_ms = 0 if are_joined else chance.choice((0, 0, 5, 300))
        strikes = [draw_one(chance, profile, (kind,), within_ms) for kind in kinds]
        # The first outlasts a session: a shorter cut changes no leader.
        strikes[0] = replace(strikes[0], duration_ms=max(strikes[0].duration_ms, profile.session_timeout_ms + 1_500))
        at_other = [
            number >= max(len(fitting), 1) and not profile.strikes and chance.random() < 0.5
            for number in range(len(kinds))
        ]

        def strike(broker_id: int, other_id: int | None) -> None:
            for one, is_other in zip(strikes, at_other, strict=True):
                hit = other_id if is_other and other_id is not None else broker_id
                # `_anybody` chooses a broker for numbers that are no multiples of 3.
                aimed = replace(one, pick=hit - 1, other=3 * one.other + 1 + one.other % 2)
                cluster.world.after(one.at_ms * MILLISECOND, self._doing(aimed))

        cluster.checks.places.wait_at(place, strike)

    # Processes

    def _crash_broker(self, fault: Fault) -> None:
        machine = self._broker(fault)
        machine.crash()
        self._after(fault, machine.start)

    def _bounce_broker(self, fault: Fault) -> None:
        machine = self._broker(fault)
        machine.crash()
        self._cluster.world.after((20 + fault.other % 500) * MILLISECOND, machine.start)

    def _kill_leader(self, fault: Fault) -> None:
        machine = self._leader(fault)
        if machine is not None:
            machine.crash()
            self._after(fault, machine.start)

    def _restart_all_brokers(self, fault: Fault) -> None:
        """Kill all brokers, or stop them in an orderly way, and start them again."""
        for machine in self._cluster.brokers.values():
            if fault.other % 2:
                machine.stop(restart_after_ms=fault.duration_ms)
            else:
                machine.crash()
                self._after(fault, machine.start)

    def _power_loss(self, fault: Fault) -> None:
        machine = self._broker(fault)
        machine.lose_power()
        self._after(fault, machine.start)

    def _die_in_compaction(self, fault: Fault) -> None:
        machine = self._broker(fault)

        def die() -> None:
            if fault.other % 2:
                machine.crash()
            else:
                machine.lose_power()
            self._after(fault, machine.start)

        machine.die_at_work(fault.pick // 8 % 40, CLEANED_SUFFIX, die)

    def _die_in_move(self, fault: Fault) -> None:
        """Kill a broker while it copies a log to another directory, or between two steps of the swap."""
        machine = self._broker(fault)

        def die() -> None:
            if fault.other % 2:
                machine.crash()
            else:
                machine.lose_power()
            self._after(fault, machine.start)

        first = FUTURE if fault.other // 2 % 2 else MOVED_FROM
        machine.die_at_work(fault.pick // 8 % (40 if first == FUTURE else 12), first, die)

    def _stop_broker(self, fault: Fault) -> None:
        self._broker(fault).stop(restart_after_ms=fault.duration_ms)

    def _crash_controller(self, fault: Fault) -> None:
        machine = self._controller(fault)
        machine.crash()
        self._after(fault, machine.start)

    def _kill_active_controller(self, fault: Fault) -> None:
        active = self._cluster.active_controller()
        if active is not None:
            machine = self._cluster.controllers[active.controller_id]
            if fault.other % 3:
                machine.crash()
            else:
                machine.stop()
            self._after(fault, machine.start)

    def _slow_disk(self, fault: Fault) -> None:
        machine = self._broker(fault)
        machine.disk_is_slow = True

        def recover() -> None:
            machine.disk_is_slow = False

        self._after(fault, recover)

    def _evict_controller(self, fault: Fault) -> None:
        """Delete ``/controller`` while the session of the active controller continues."""
        self._operator.evict_controller()
        if fault.other % 2:
            self._after(fault, self._operator.evict_controller)

    def _suspect_broker(self, fault: Fault) -> None:
        """Give every controller evidence that a broker is dead; the broker may be alive."""
        self._broker(fault).look_dead(_EVIDENCE[fault.other % len(_EVIDENCE)], resets=bool(fault.other // 4 % 2))

    def _flap_broker(self, fault: Fault) -> None:
        """Reset the connections to a broker repeatedly, as a middlebox may do."""
        machine = self._broker(fault)
        for number in range(_FLAPS):
            evidence = _EVIDENCE[(fault.other + number) % len(_EVIDENCE)]
            self._cluster.world.after(
                number * _FLAP_MS * MILLISECOND,
                lambda evidence=evidence: None if self._healed else machine.look_dead(evidence, resets=True),  # type: ignore[misc]
            )

    def _suspect_controller(self, fault: Fault) -> None:
        """Give every standby evidence that the active controller is dead, although it lives."""
        active = self._cluster.active_controller()
        if active is not None:
            self._cluster.controllers[active.controller_id].look_dead()

    def _cut_controllers(self, fault: Fault) -> None:
        """Cut the links between controllers; in half of the cases the active controller also seems dead to the
        standbys.
        """
        if fault.other % 2:
            self._suspect_controller(fault)
        names = [machine.name for machine in self._cluster.controllers.values()]
        self._cut([(one, other) for one in names for other in names if one != other], fault)

    def _pause_broker(self, fault: Fault) -> None:
        self._pause(self._broker(fault), fault)

    def _pause_controller(self, fault: Fault) -> None:
        active = self._cluster.active_controller()
        if active is not None and fault.other % 4:
            self._pause(self._cluster.controllers[active.controller_id], fault)
        else:
            self._pause(self._controller(fault), fault)

    def _pause(self, machine: BrokerMachine | ControllerMachine, fault: Fault) -> None:
        life = machine.life
        if life is not None:
            self._cluster.record_fault(machine.name, "is paused")
            life.scheduler.pause()
            self._after(fault, lambda: self._resume(machine))

    def _resume(self, machine: BrokerMachine | ControllerMachine) -> None:
        life = machine.life
        if life is not None and life.scheduler.paused:
            self._cluster.note(machine.name, "continues")
            life.scheduler.resume()

    def _clock_jump(self, fault: Fault) -> None:
        self._anybody(fault).skew.offset_ms += (fault.other % 7_200_000) - 3_600_000

    # ZooKeeper

    def _zk_disconnect(self, fault: Fault) -> None:
        life = self._anybody(fault).life
        if life is not None:
            life.zookeeper.disconnect()

    def _zk_expire(self, fault: Fault) -> None:
        life = self._anybody(fault).life
        if life is not None and life.zookeeper.session_id:
            self._cluster.record_fault(life.name, "has its ZooKeeper session expired")
            self._cluster.server.expire(life.zookeeper.session_id)

    def _zk_cut(self, fault: Fault) -> None:
        machine = self._anybody(fault)
        variant = fault.other // 6 % 4
        self._cluster.record_fault(machine.name, "is cut off from ZooKeeper")
        machine.link.cut(requests=variant != 1, replies=variant != 2)
        self._after(fault, machine.link.heal)

    def _zk_lost_reply(self, fault: Fault) -> None:
        self._anybody(fault).link.lose_next_reply()

    def _zk_lost_handshake(self, fault: Fault) -> None:
        machine = self._anybody(fault)
        machine.link.lose_next_handshake()
        if machine.life is not None:
            machine.life.zookeeper.disconnect()

    def _zk_down(self, fault: Fault) -> None:
        server = self._cluster.server
        self._cluster.record_fault("ZooKeeper", "is down")
        server.stop()
        self._after(fault, server.start)

    # Links

    def _names(self) -> list[str]:
        return [machine.name for machine in self._cluster.machines]

    def _cut(self, pairs: Sequence[tuple[str, str]], fault: Fault) -> None:
        network = self._cluster.network
        for source, target in pairs:
            network.cut(source, target)
        links = ", ".join(f"{source} to {target}" for source, target in pairs if "-" in target)
        self._cluster.record_fault("network", f"is cut: {links}")

        def mend() -> None:
            self._cluster.record_fault("network", f"is mended: {links}")
            for source, target in pairs:
                network.mend(source, target)

        self._after(fault, mend)

    def _isolate_broker(self, fault: Fault) -> None:
        """Cut a broker off from all other processes and clients; in half of the cases also from ZooKeeper."""
        machine = self._broker(fault)
        others = [name for name in self._cluster.network.peers if name != machine.name]
        self._cut([pair for other in others for pair in ((machine.name, other), (other, machine.name))], fault)
        if fault.other % 2:
            machine.link.cut()
            self._after(fault, machine.link.heal)

    def _cut_from_cluster(self, fault: Fault) -> None:
        """Cut a broker off from every server, including ZooKeeper; clients still reach it."""
        machine = self._broker(fault)
        others = [one.name for one in self._cluster.machines if one.name != machine.name]
        self._cut([pair for other in others for pair in ((machine.name, other), (other, machine.name))], fault)
        machine.link.cut()
        self._after(fault, machine.link.heal)

    def _cut_link(self, fault: Fault) -> None:
        """Cut one or both directions of the link between two random servers."""
        names = self._names()
        one, other = names[fault.pick % len(names)], names[fault.other % len(names)]
        self._cut([(one, other)] if fault.other % 2 else [(one, other), (other, one)], fault)

    def _cut_control(self, fault: Fault) -> None:
        """Cut one or both directions of the links between a broker and all controllers."""
        broker = self._broker(fault).name
        controllers = [machine.name for machine in self._cluster.controllers.values()]
        pairs = [(controller, broker) for controller in controllers] if fault.other % 3 else []
        if fault.other % 2:
            pairs += [(broker, controller) for controller in controllers]
        self._cut(pairs, fault)

    def _lose_control_requests(self, fault: Fault) -> None:
        """Lose the controllers' messages to a broker for a moment; a lost request is repeated after its timeout."""
        broker = self._broker(fault).name
        pairs = [(machine.name, broker) for machine in self._cluster.controllers.values()]
        self._cut(pairs, replace(fault, duration_ms=20))

    def _cut_replication(self, fault: Fault) -> None:
        """Cut a broker off from all or some other brokers; clients still reach every broker."""
        broker = self._broker(fault).name
        others = [machine.name for machine in self._cluster.brokers.values() if machine.name != broker]
        if fault.other % 3 == 0:
            others = others[:1]
        pairs = []
        if fault.other % 4 != 1:
            pairs += [(other, broker) for other in others]
        if fault.other % 4 != 2:
            pairs += [(broker, other) for other in others]
        self._cut(pairs, fault)

    def _hide_replication(self, fault: Fault) -> None:
        """Let no broker reach the REPLICATION listener of a broker; everything else reaches the broker."""
        lasting = replace(fault, duration_ms=3 * fault.duration_ms)
        machine, network = self._broker(fault), self._cluster.network
        network.hide(machine.name, drops=bool(fault.other % 2))
        self._after(lasting, lambda: network.show(machine.name))
        bound_ms = self._cluster.profile.unreached_bound_ms
        if bound_ms is not None and bound_ms <= lasting.duration_ms and self._is_alone(fault, bound_ms):
            self._cluster.checks.reachability.hidden(machine.broker_id, bound_ms)

    def _is_alone(self, fault: Fault, duration_ms: int) -> bool:
        """Whether no other fault disturbs the cluster from some time before this fault until some time after it."""
        settled_ms = 10_000
        return all(
            other is fault or other.at_ms > fault.at_ms + duration_ms + settled_ms
            or other.at_ms + other.duration_ms + settled_ms < fault.at_ms
            for other in self._faults
        )  # fmt: skip

    def _bad_network(self, fault: Fault) -> None:
        chance = self._cluster.world.chance(f"quality/{fault.pick}/{fault.other}")
        self._cluster.network.quality = LinkQuality(
            delay_us=chance.choice(((200, 2_000), (2_000, 20_000), (20_000, 120_000))),
            loss=chance.choice((0.0, 0.02, 0.1, 0.3)),
            duplicate=chance.choice((0.0, 0.05, 0.2)),
            straggler=chance.choice((0.0, 0.02, 0.1)),
            straggler_us=chance.choice((300_000, 1_500_000, 5_000_000)),
        )

        def mend() -> None:
            self._cluster.network.quality = LinkQuality()

        self._after(fault, mend)
