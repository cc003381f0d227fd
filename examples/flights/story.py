"""Faults during the stream: pause a follower, then kill a leader."""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from examples.flights.observer import ClusterObserver, PartitionView
from paceline.dev.local_cluster import LocalCluster

POLL_SECONDS = 0.04
_PAUSE_AFTER_S = (4.0, 8.0)
_KILL_AFTER_S = (15.0, 19.0)
_DOWN_S = (1.0, 3.0)


class StoryFailedError(Exception):
    """The cluster did not do what the protocol promises within its bound."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An event of the run, in seconds since the stream began."""

    at_s: float
    label: str


@dataclass(frozen=True, slots=True)
class Band:
    """A span of time: ``kind`` is pause or down."""

    from_s: float
    to_s: float
    kind: str


@dataclass
class Facts:
    """Observations of the run; times are in seconds since the stream began."""

    marks: list[Mark] = field(default_factory=list)
    bands: list[Band] = field(default_factory=list)
    lag_time_max_ms: int = 0
    paused_broker: int = 0
    isr_shrink_after_ms: dict[int, int] = field(default_factory=dict)
    """By partition: time from the follower's last catch-up until the leader's first answer with an ISR without it."""
    isr_grown_after_resume_ms: int = 0
    killed_broker: int = 0
    killed_at_s: float = 0.0
    killed_leaders: int = 0
    leaderless_ms: dict[int, int] = field(default_factory=dict)
    """By partition of the killed leader: time from the kill to the first answer of a new leader."""
    resumed_at: dict[int, int] = field(default_factory=dict)
    """By partition of the killed leader: the new leader's log end offset in that answer."""
    full_isr_after_restart_ms: int = 0


class Story:
    """Pauses and kills brokers at random times, waits for the expected reactions, and records their times."""

    def __init__(
        self,
        cluster: LocalCluster,
        topic: str,
        partitions: int,
        rng: random.Random,
        lag_time_max_ms: int,
        say: Callable[[str], None],
        is_reading: Callable[[], bool],
        is_ending: Callable[[], bool],
        wait_limit_s: float = 60.0,
    ) -> None:
        """Create the story of one run.

        ``is_reading`` returns whether Spark's stream, which must survive the kill, has read its first records.
        ``is_ending`` returns whether so few records are left that the kill waits no longer for that.
        """
        self._cluster = cluster
        self._topic = topic
        self._partitions = partitions
        self._rng = rng
        self._lag_time_max_ms = lag_time_max_ms
        self._say = say
        self._is_reading = is_reading
        self._is_ending = is_ending
        self.waits_for_reader = False
        """Whether a leader would be killed now if Spark's stream had read its first records."""
        self._wait_limit_s = wait_limit_s
        self._started = time.monotonic()
        self._over = threading.Event()
        addresses = {node.node_id: node.client_address for node in cluster.nodes.values() if node.kind == "broker"}
        self._observer = ClusterObserver(addresses)
        self._brokers = sorted(addresses)
        self.facts = Facts(lag_time_max_ms=lag_time_max_ms)

    def tell(self, started: float) -> None:
        """Inject all faults; ``started`` is the monotonic time of the first record.

        Raises:
            StoryFailedError: an expected reaction of the cluster did not happen within its limit.
        """
        self._started = started
        pause_at, kill_at = self._rng.uniform(*_PAUSE_AFTER_S), self._rng.uniform(*_KILL_AFTER_S)
        self._sleep_until(pause_at)
        self._pause_a_follower()
        self._sleep_until(max(kill_at, self._now() + 1.0))
        self.await_reader()
        self._kill_the_leader_of_most()

    def abandon(self) -> None:
        """Make `tell` return at its next check, for an interrupted run."""
        self._over.set()

    def check_the_end(self) -> None:
        """Wait until every replica is in sync after the stream has ended.

        Raises:
            StoryFailedError: a replica is not in sync within the limit.
        """
        try:
            self._await_full_isr("after the stream")
        finally:
            self._observer.close()

    def _now(self) -> float:
        return time.monotonic() - self._started

    def _sleep_until(self, at_s: float) -> None:
        self._sleep(max(at_s - self._now(), 0.0))

    def _sleep(self, seconds: float) -> None:
        if self._over.wait(seconds):
            raise StoryFailedError("the run was interrupted")

    def _mark(self, label: str) -> None:
        self.facts.marks.append(Mark(self._now(), label))
        self._say(label)

    def _pause_a_follower(self) -> None:
        victim = self._rng.choice(self._brokers)
        self.facts.paused_broker = victim
        node = self._cluster.broker(victim)
        from_s = self._now()
        self._cluster.pause(node)
        self._mark(f"broker {victim} paused")
        try:
            shrunk = self._watch_the_shrink(victim, from_s)
        finally:
            self._cluster.resume(node)
        resumed = self._now()
        self.facts.bands.append(Band(from_s, resumed, "pause"))
        self._mark(f"broker {victim} resumed")
        if not shrunk:
            raise StoryFailedError(f"no leader dropped the paused broker {victim} from an ISR")
        self._await_full_isr(f"after broker {victim} was resumed")
        self.facts.isr_grown_after_resume_ms = round((self._now() - resumed) * 1000)
        self._mark("full ISR again")

    def _watch_the_shrink(self, victim: int, from_s: float) -> bool:
        """Poll the other leaders until each partition in which ``victim`` lags has removed it from its ISR."""
        caught_up: dict[int, float] = {}
        lagging: set[int] = set()
        after = self.facts.isr_shrink_after_ms
        # The session must not expire during the pause; its last heartbeat may be a third of the session time-out old.
        limit = from_s + 1.5 * self._lag_time_max_ms / 1000 + 0.6
        while self._now() < limit:
            views = self._observer.leaders(self._topic, without=frozenset({victim}))
            now = self._now()
            for partition, view in views.items():
                if victim in view.isr:
                    ago = view.last_caught_up_ago_ms.get(victim)
                    if ago is not None:
                        caught_up[partition] = max(caught_up.get(partition, float("-inf")), now - ago / 1000)
                    if _lags(view, victim):
                        lagging.add(partition)
                elif partition in caught_up and partition not in after:
                    after[partition] = round((now - caught_up[partition]) * 1000)
                    if len(after) == 1:
                        self._mark("leaders shrink the ISR")
            if lagging and lagging <= after.keys():
                return True
            self._sleep(POLL_SECONDS)
        return bool(after)

    def await_reader(self) -> None:
        """Wait until Spark's stream has read its first records, or few records are left."""
        if self._is_reading():
            return
        self._mark("producer slows down until Spark's first micro-batch")
        self.waits_for_reader = True
        while not (reading := self._is_reading()) and not self._is_ending():
            self._sleep(POLL_SECONDS)
        self.waits_for_reader = False
        if reading:
            self._mark("Spark's first micro-batch")
        else:
            self._say(f"Spark has read nothing after {self._now():.0f} s; killing a leader without it")

    def _kill_the_leader_of_most(self) -> None:
        led: dict[int, list[int]] = {}
        for partition, view in self._observer.leaders(self._topic).items():
            led.setdefault(view.leader, []).append(partition)
        most = max(len(partitions) for partitions in led.values())
        victim = self._rng.choice(sorted(broker for broker, partitions in led.items() if len(partitions) == most))
        self.facts.killed_broker, self.facts.killed_leaders = victim, most
        node = self._cluster.broker(victim)
        from_s = self.facts.killed_at_s = self._now()
        self._cluster.kill(node)
        self._mark(f"broker {victim} killed, leader of {most}")
        orphans = set(led[victim])
        while orphans:
            if self._now() - from_s > self._wait_limit_s:
                raise StoryFailedError(f"no new leader for partitions {sorted(orphans)} of {self._topic}")
            views = self._observer.leaders(self._topic, without=frozenset({victim}))
            now = self._now()
            for partition in sorted(orphans & views.keys()):
                self.facts.leaderless_ms[partition] = round((now - from_s) * 1000)
                self.facts.resumed_at[partition] = views[partition].log_end_offset.get(views[partition].leader, 0)
                orphans.discard(partition)
            self._sleep(POLL_SECONDS)
        self._mark("new leaders serve")
        self._sleep(self._rng.uniform(*_DOWN_S))
        self._cluster.restart(node, wait=False)
        restarted = self._now()
        self.facts.bands.append(Band(from_s, restarted, "down"))
        self._mark(f"broker {victim} restarted")
        self._cluster.wait_ready(node, self._wait_limit_s)
        self._await_full_isr(f"after broker {victim} was restarted")
        self.facts.full_isr_after_restart_ms = round((self._now() - restarted) * 1000)
        self._mark("full ISR again")

    def _await_full_isr(self, when: str) -> None:
        limit = self._now() + self._wait_limit_s
        everyone = frozenset(self._brokers)
        views: dict[int, PartitionView] = {}
        while self._now() < limit:
            views = self._observer.leaders(self._topic)
            if len(views) == self._partitions and all(view.isr == everyone for view in views.values()):
                return
            self._sleep(POLL_SECONDS)
        state = {partition: sorted(view.isr) for partition, view in sorted(views.items())}
        raise StoryFailedError(f"the ISR was not full within {self._wait_limit_s:g} s {when}: {state}")


def _lags(view: PartitionView, replica: int) -> bool:
    own = view.log_end_offset.get(view.leader)
    other = view.log_end_offset.get(replica)
    return own is not None and (other is None or other < own)
