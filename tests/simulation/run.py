"""One run from seed to verdicts: warm-up, faults under load, healing, recovery in time, final comparison."""

import logging
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from paceline.broker.groups.offsets_topic import OFFSETS_TOPIC
from paceline.console.recording import RecordingWriter
from paceline.model.client_io import RequiredAcks
from paceline.model.identifiers import INTERNAL_TOPICS, TopicPartition
from tests.simulation.admin import Admin
from tests.simulation.clients import Producer
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.fault_schedule import Fault, draw_faults
from tests.simulation.faults import FaultInjector
from tests.simulation.health import (
    leftovers,
    stays_below_min_isr,
    strays,
    unfinished_moves,
    why_not_quiet,
    why_not_whole,
)
from tests.simulation.members import Groups
from tests.simulation.observed_log import ObservedLog
from tests.simulation.profile import Profile, draw_profile, draw_wild_profile
from tests.simulation.readers import EpochReader, Reader
from tests.simulation.recorder import Recorder
from tests.simulation.verdicts import Verdict
from tests.simulation.world import MILLISECOND, World

TOPIC = "t"
_WARM_UP_MS = 30_000
_STEP_MS = 100
_DRAIN_MS = 15_000
_MAX_EVENTS = 2_000_000


@dataclass(slots=True)
class RunResult:
    """The results of a run."""

    seed: int
    profile: Profile
    faults: list[Fault]
    verdicts: dict[str, Verdict]
    events: int
    virtual_ms: int
    digest: str
    acknowledged: int
    places: dict[str, int]
    """How often each of `places.PLACES` was reached."""
    failures: dict[str, list[str]] = field(default_factory=dict)
    """Evidence by violated invariant."""
    recovered_after_ms: int | None = None

    @property
    def failure_class(self) -> tuple[str, ...]:
        """The failure class that a shrunk run must show as well."""
        return tuple(sorted(self.failures))


class _SwallowedErrors(logging.Handler):
    """Records exceptions that the services log and survive: they fail a run."""

    def __init__(self, run: "Run") -> None:
        super().__init__(logging.ERROR)
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self._run.cluster.checks.unexpected(record.name, record.exc_info[1])
        elif self._run.cluster.is_told:
            self._run.cluster.note(record.name, record.getMessage())


class Run:
    """One simulated cluster, from its start to the verdicts."""

    def __init__(
        self,
        seed: int,
        faults: Sequence[Fault] | None = None,
        profile: Profile | None = None,
        tell: Callable[[str], None] | None = None,
        recording: RecordingWriter | None = None,
    ) -> None:
        self.seed = seed
        self.world = World(seed)
        self.profile = draw_profile(self.world) if profile is None else profile
        self.faults = draw_faults(self.world, self.profile) if faults is None else list(faults)
        self.cluster = SimulatedCluster(self.world, self.profile, tell)
        self._recorder = self.cluster.recorder = None if recording is None else Recorder(self.cluster, recording)
        self.admin = Admin(self.cluster)
        self.injector = FaultInjector(self.cluster, self.admin)
        self.groups = Groups(self.cluster)
        self.producers: list[Producer] = []
        self.readers: list[Reader] = []
        self.recovered_after_ms: int | None = None
        self.strays = 0
        """Number of logs of replicas reassigned while their broker was down; as in Kafka, no request deletes them."""

    def run(self) -> RunResult:
        """Run all phases."""
        handler = _SwallowedErrors(self)
        logger = logging.getLogger("paceline")
        logger.addHandler(handler)
        level, propagate = logger.level, logger.propagate
        logger.setLevel(logging.ERROR)
        logger.propagate = False
        try:
            checks = self.cluster.checks
            probes = (checks.control, checks.suspicion, checks.reachability, checks.deposed, checks.places)
            with ExitStack() as stack:
                for one in probes:
                    stack.enter_context(one.probes())
                self._phases()
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
        if self._recorder is not None:
            self._recorder.end()
        return self._result()

    def _phases(self) -> None:
        checks = self.cluster.checks
        self.cluster.start()
        self.admin.create(TOPIC, self.profile.partitions)
        if not self._until(lambda: why_not_whole(self.cluster) is None and self.admin.is_done, _WARM_UP_MS):
            checks.verdicts.fail("C13", f"warm-up: {why_not_whole(self.cluster)}")
            return
        self._start_clients()
        self.injector.schedule(self.faults)
        self.groups.schedule_faults()
        self._for(self.profile.fault_ms + 500)
        self.injector.heal()
        self.groups.heal()
        if self._recover():
            self._finish()

    def _start_clients(self) -> None:
        chance = self.world.chance("clients")
        for index in range(self.profile.producers):
            acks = RequiredAcks.ALL
            if index and chance.random() >= self.profile.acks_all:
                acks = chance.choice((RequiredAcks.LEADER, RequiredAcks.LEADER, RequiredAcks.NONE))
            self.producers.append(Producer(self.cluster, f"producer-{index}", acks))
        for index in range(self.profile.readers):
            kind = EpochReader if index == 0 and self.profile.epoch_lookups else Reader
            self.readers.append(kind(self.cluster, f"reader-{index}", self.profile.rack(index)))
        for producer in self.producers:
            producer.start()
        for reader in self.readers:
            reader.start()
        self.groups.start()

    def _recover(self) -> bool:
        """Wait until the cluster is complete and accepts new records; return False when that takes too long."""
        checks, bound_ms = self.cluster.checks, self.profile.recovery_bound_ms
        begun_us = self.world.now_us
        prober = Producer(self.cluster, "prober", RequiredAcks.ALL)
        prober.start()
        self.producers.append(prober)

        def why_not() -> str | None:
            if not self.admin.is_done:
                return "topics are not as wanted"
            reason = why_not_whole(self.cluster)
            if reason is not None:
                return reason
            dead = [tp for tp in self._writable_partitions() if tp not in prober.succeeded]
            return f"no fresh send has succeeded in {dead}" if dead else self.groups.why_not_settled()

        recovered = self._until(lambda: why_not() is None, bound_ms)
        checks.verdicts.check("C13", recovered, f"{bound_ms} ms after healing: {why_not()}" if not recovered else "")
        if recovered:
            self.recovered_after_ms = (self.world.now_us - begun_us) // MILLISECOND
        for client in (*self.producers, *self.readers):
            client.stop()
        self.groups.stop()
        self._until(lambda: not any(producer.open for producer in self.producers), _DRAIN_MS)

        def unsettled() -> str | None:
            found = (*leftovers(self.cluster), *unfinished_moves(self.cluster))
            return why_not_quiet(self.cluster) or next(iter(found), None)

        quiet = self._until(lambda: unsettled() is None, _DRAIN_MS)
        if recovered:
            checks.verdicts.check("C13", quiet, f"{_DRAIN_MS} ms after the last send: {unsettled()}")
            for evidence in leftovers(self.cluster):
                checks.verdicts.fail("R17", evidence)
            for evidence in unfinished_moves(self.cluster):
                checks.verdicts.fail("R24", evidence)
            for name in ("K10", "K12"):
                checks.verdicts.exercise(name)
        return recovered and quiet

    def _finish(self) -> None:
        checks = self.cluster.checks
        if checks.dead_topic_ids:
            checks.verdicts.exercise("R17")
        for record in checks.records.living():
            assert record.zk is not None
            if not record.zk.has_leader:
                continue
            logs: dict[int, ObservedLog] = {}
            for life in self.cluster.running_brokers():
                checks.control.fetchers(life)
                log = life.logs.get(record.topic_partition)
                if isinstance(log, ObservedLog) and life.broker_id in record.zk.isr:
                    logs[life.broker_id] = log
                    if life.broker_id not in record.flipped:
                        checks.replicas.epochs_agree(life.name, record, log)
                self.strays += strays(life, record)
            if record.flipped:
                continue  # The mirror of a damaged log is not comparable; its reads are checked during the run.
            leader = logs[record.zk.leader]
            for broker_id, log in logs.items():
                agree = record.is_unknowable or log.mirror.same_history(leader.mirror)
                checks.verdicts.check(
                    "R3", agree, f"{record}: broker {broker_id} differs from leader {record.zk.leader}"
                )
            if record.topic_partition.topic == OFFSETS_TOPIC:
                for life in self.cluster.running_brokers():
                    if life.broker_id in logs:
                        checks.compaction.contents(life, record, logs[life.broker_id])
            else:
                checks.clients.finish(record, leader, list(logs.values()))
        checks.groups.finish()

    def _writable_partitions(self) -> list[TopicPartition]:
        """Return the led partitions that must accept records with acks=all.

        The producers' records have no keys: brokers that compact by default refuse them while a topic's settings do not
        parse.
        """
        records = self.cluster.checks.records
        left_out = INTERNAL_TOPICS | (records.spoiled_configs if self.profile.compacts_by_default else set())
        led = [record for record in records.living() if record.zk is not None and record.zk.has_leader]
        return [
            record.topic_partition
            for record in led
            if record.topic_partition.topic not in left_out and not stays_below_min_isr(self.cluster, record)
        ]

    # Time

    def _for(self, duration_ms: int) -> None:
        until_us = self.world.now_us + duration_ms * MILLISECOND
        if self._recorder is None:
            self.world.run_until(until_us)
        else:
            self.world.run_until(until_us, after_each=self._recorder.tick)

    def _until(self, condition: Callable[[], bool], limit_ms: int) -> bool:
        deadline_us = self.world.now_us + limit_ms * MILLISECOND
        while self.world.now_us < deadline_us:
            if condition():
                return True
            if self.world.events > _MAX_EVENTS:
                return False
            self._for(_STEP_MS)
        return condition()

    def _result(self) -> RunResult:
        verdicts = self.cluster.checks.verdicts
        return RunResult(
            seed=self.seed,
            profile=self.profile,
            faults=self.faults,
            verdicts=verdicts.all,
            events=self.world.events,
            virtual_ms=self.world.now_ms,
            digest=f"{self.world.digest}-{self.world.events}",
            acknowledged=sum(send.offset is not None for send in self.cluster.checks.history.sends),
            places=self.cluster.checks.places.reached,
            failures={name: verdicts.all[name].evidence for name in verdicts.violated},
            recovered_after_ms=self.recovered_after_ms,
        )


class SimulatorError(Exception):
    """An error of the simulator itself; contains only text, so that it can be passed between processes."""


def profile_of(seed: int, wild: bool) -> Profile:
    """Return the profile of a seed for an ordinary or a wild run."""
    world = World(seed)
    return draw_wild_profile(world) if wild else draw_profile(world)


def run_seed(seed: int, wild: bool = False) -> RunResult:
    """Run one seed as it is.

    Raises:
        SimulatorError: with the traceback of whatever went wrong outside the processes that are simulated.
    """
    try:
        return Run(seed, profile=profile_of(seed, wild)).run()
    except Exception:
        raise SimulatorError(f"seed {seed}:\n{traceback.format_exc()}") from None
