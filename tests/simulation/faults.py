"""The faults of a run: a list drawn from the seed, each entry with its own random stream, and their execution.

The target of a fault is chosen at its time (``kill-leader`` needs a leader), from numbers drawn in advance, so that the
removal of one fault does not change the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from paceline.controller.brokers.broker_suspicions import Evidence
from paceline.log.checkpoint import LOG_START_CHECKPOINT
from tests.simulation.machines import BrokerMachine, ControllerMachine
from tests.simulation.network import LinkQuality
from tests.simulation.operations import Operations
from tests.simulation.operator import Operator
from tests.simulation.partition_record import PartitionRecord
from tests.simulation.places import AMBUSHES
from tests.simulation.profile import Profile
from tests.simulation.world import MILLISECOND, World

if TYPE_CHECKING:
    from tests.simulation.admin import Admin
    from tests.simulation.cluster import SimulatedCluster

SEGMENT_SUFFIX = ".log"
INDEX_SUFFIXES = (".index", ".timeindex", ".snapshot", ".earlier-batches")
DERIVED_SUFFIXES = (*INDEX_SUFFIXES, "leader-epoch-checkpoint", "offset-checkpoint")


FALSE_SUSPICIONS = ("suspect-broker", "flap-broker", "suspect-controller", "cut-controllers")
STRIKES = (
    "crash-broker",
    "bounce-broker",
    "stop-broker",
    "power-loss",
    "pause-broker",
    "zk-expire",
    "zk-cut",
    "zk-lost-reply",
    "cut-control",
    "cut-replication",
    "isolate-broker",
    "kill-active-controller",
)
"""Faults of ambushes; all but the last strike a broker of the place."""
_EVIDENCE = (Evidence.REFUSED, Evidence.REFUSED, Evidence.UNREACHABLE, Evidence.REFUSED_UNCONNECTED)
_FLAPS = 8
_FLAP_MS = 400


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the schedule."""

    at_ms: int
    """Time after the warm-up."""
    kind: str
    pick: int
    """Chooses the target among the possible targets."""
    duration_ms: int
    other: int = 0
    """Chooses a second target or a variant."""

    def __str__(self) -> str:
        return f"{self.at_ms:>6} ms  {self.kind} pick {self.pick} for {self.duration_ms} ms, other {self.other}"


def draw_faults(world: World, profile: Profile) -> list[Fault]:
    """Return the schedule for the world's seed, in order of time."""
    faults = _draw(world, profile, "fault", profile.fault_kinds, profile.fault_count)
    faults += _draw(world, profile, "operation", profile.operation_kinds, profile.operation_count)
    faults += _draw(world, profile, "eviction", ("evict-controller",), profile.evictions)
    faults += _draw(world, profile, "slow disk", ("slow-disk",), profile.slow_disks)
    faults += _draw(world, profile, "lost segment", ("lose-segment",), profile.lost_segments)
    faults += _draw(world, profile, "death in compaction", ("die-in-compaction",), profile.deaths_in_compaction)
    faults += _draw(world, profile, "ambush", ("ambush",), profile.ambushes)
    faults += _draw(world, profile, "false suspicion", FALSE_SUSPICIONS, profile.false_suspicions)
    faults += _draw(world, profile, "hidden listener", ("hide-replication",), profile.hidden_listeners)
    return sorted(faults, key=lambda fault: fault.at_ms)


def _draw(world: World, profile: Profile, label: str, kinds: Sequence[str], count: int) -> list[Fault]:
    return [
        _draw_one(world.chance(f"{label}/{index}"), profile, kinds, profile.fault_ms)
        for index in range(count if kinds else 0)
    ]


def _draw_one(chance: Random, profile: Profile, kinds: Sequence[str], within_ms: int) -> Fault:
    session_ms = profile.session_timeout_ms
    durations = (50, 300, 1_000, session_ms // 2, session_ms + 1_500, 2 * session_ms, 3 * session_ms)
    return Fault(
        at_ms=chance.randint(0, within_ms),
        kind=chance.choice(kinds),
        pick=chance.randrange(1 << 16),
        duration_ms=chance.choice(durations) + chance.randint(0, 200),
        other=chance.randrange(1 << 16),
    )


class FaultInjector(Operations):
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
        kinds = profile.strikes or (
            chance.choice(AMBUSHES[place]),
            *chance.sample(STRIKES, chance.choice((0, 0, 1, 2))),
        )
        within_ms = chance.choice((0, 0, 5, 300))
        strikes = [_draw_one(chance, profile, (kind,), within_ms) for kind in kinds]
        # The first outlasts a session: a shorter cut changes no leader.
        strikes[0] = replace(strikes[0], duration_ms=max(strikes[0].duration_ms, profile.session_timeout_ms + 1_500))
        at_other = [number > 0 and not profile.strikes and chance.random() < 0.5 for number in range(len(kinds))]

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

        machine.die_in_compaction(fault.pick // 8 % 40, die)

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
            life.scheduler.pause()
            self._after(fault, lambda: self._resume(machine))

    def _resume(self, machine: BrokerMachine | ControllerMachine) -> None:
        life = machine.life
        if life is not None and life.scheduler.paused:
            self._cluster.note(machine.name, "continues")
            life.scheduler.resume()

    def _failed_sync(self, fault: Fault) -> None:
        """Make the next fsync fail: the log directory goes offline; if it is the only directory, the broker stops."""
        self._broker(fault).disk.fail_next_sync = True

    def _failed_write(self, fault: Fault) -> None:
        """Make the next write fail after a part of its bytes."""
        self._broker(fault).disk.fail_next_write = True

    def _flipped_byte(self, fault: Fault) -> None:
        """Flip a byte of a replica's records, if another in-sync replica is intact."""
        whole = [
            record
            for record in self._cluster.checks.records.living()
            if record.zk is not None and len(record.zk.isr) > 1 and not record.damaged and not record.voided
        ]
        if not whole:
            return
        record = whole[fault.pick % len(whole)]
        assert record.zk is not None
        machine = self._cluster.brokers[record.zk.isr[fault.other % len(record.zk.isr)]]
        segments = self._expendable_segments(record, machine)
        if segments:
            path = segments[fault.other // 7 % len(segments)]
            size = machine.disk.size(path)
            if size:
                self._cluster.note(machine.name, f"has a flipped byte in {path}")
                record.flip(machine.broker_id)
                machine.files_damaged()
                machine.disk.flip_byte(path, fault.pick * 31 % size, 1 << fault.other % 8)

    def _expendable_segments(self, record: PartitionRecord, machine: BrokerMachine) -> list[str]:
        """Return the segment files of a replica, none unless an ISR member on another broker has all its records."""
        log = record.logs.get(machine.broker_id)
        isr = () if record.zk is None else record.zk.isr
        others = [record.logs[one] for one in isr if one in record.logs and one != machine.broker_id]
        if log is None or all(other.log_end_offset < log.log_end_offset for other in others):
            return []
        return [
            path for path in machine.disk.paths() if path.startswith(log.path + "/") and path.endswith(SEGMENT_SUFFIX)
        ]

    def _lose_segment(self, fault: Fault) -> None:
        """Stop a broker orderly; meanwhile a segment before the last vanishes, if another in-sync replica is intact."""
        machine = self._broker(fault)

        def lose() -> None:
            for record in self._cluster.checks.records.living():
                found = [] if record.damaged or record.voided else self._expendable_segments(record, machine)
                with_batches = [path for path in found if machine.disk.size(path)]
                if len(with_batches) < 2 or not machine.has_stopped_cleanly:
                    continue
                path = with_batches[fault.other % (len(with_batches) - 1)]
                self._cluster.note(machine.name, f"loses {path}")
                record.lose_segment(machine.broker_id)
                machine.files_damaged()
                for suffix in (SEGMENT_SUFFIX, *INDEX_SUFFIXES)[: 1 if fault.other % 2 else None]:
                    if machine.disk.exists(path.replace(SEGMENT_SUFFIX, suffix)):
                        machine.disk.vanish(path.replace(SEGMENT_SUFFIX, suffix))

        machine.stop(restart_after_ms=fault.duration_ms, then=lose)

    def _damaged_file(self, fault: Fault) -> None:
        """Kill a broker, and write invalid bytes into a file that can be rebuilt: an index or a checkpoint."""
        machine = self._broker(fault)
        machine.crash()
        derived = [path for path in machine.disk.paths() if path.endswith(DERIVED_SUFFIXES)]
        for number in range(1 + fault.other % 3):
            if derived:
                path = derived[(fault.other // 5 + number * 101) % len(derived)]
                self._cluster.note(machine.name, f"has foreign bytes in {path}")
                if path.endswith(LOG_START_CHECKPOINT):
                    self._cluster.checks.replicas.log_starts_lost(machine.broker_id)
                machine.disk.garble(path)
        self._after(fault, machine.start)

    def _stop_and_lose_power(self, fault: Fault) -> None:
        """Lose power directly after an orderly stop, which must have made all data durable."""
        machine = self._broker(fault)
        machine.stop(restart_after_ms=fault.duration_ms, then=machine.lose_power)

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
            self._cluster.server.expire(life.zookeeper.session_id)

    def _zk_cut(self, fault: Fault) -> None:
        link = self._anybody(fault).link
        variant = fault.other // 6 % 4
        link.cut(requests=variant != 1, replies=variant != 2)
        self._after(fault, link.heal)

    def _zk_lost_reply(self, fault: Fault) -> None:
        self._anybody(fault).link.lose_next_reply()

    def _zk_lost_handshake(self, fault: Fault) -> None:
        machine = self._anybody(fault)
        machine.link.lose_next_handshake()
        if machine.life is not None:
            machine.life.zookeeper.disconnect()

    def _zk_down(self, fault: Fault) -> None:
        server = self._cluster.server
        server.stop()
        self._after(fault, server.start)

    # Links

    def _names(self) -> list[str]:
        return [machine.name for machine in self._cluster.machines]

    def _cut(self, pairs: Sequence[tuple[str, str]], fault: Fault) -> None:
        network = self._cluster.network
        for source, target in pairs:
            network.cut(source, target)

        def mend() -> None:
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
