"""The rules about a whole cluster: its processes and the partitions that have a problem; facts in, findings out.

A finding about a process comes before findings about partitions of the same severity, since it is usually their cause.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Final

from paceline.findings.explain import Finding, FindingKind, Severity, age_text, explain, names_in
from paceline.findings.facts import PartitionFacts
from paceline.model.node_description import NodeActiveController, NodeDescription, NodePeer
from paceline.model.state_change import StateChange, StateChangeKind

DOUBT_MS: Final = 2_000
"""A ZooKeeper session that has been away for less may only be changing its server."""
SLOW_START_MS: Final = 60_000
UNANSWERED_MS: Final = 3_000
"""A request that has waited longer than this has not merely waited for new records."""
CLOCK_MS: Final = 2_000
"""Clocks that differ by more confuse retention, and the times in logs."""
CERTIFICATE_MS: Final = 14 * 86_400_000
FLAPPING_MS: Final = 600_000
"""Window in which departures and registrations are counted."""
FLAPS: Final = 3
"""Departures from ISRs from which on a broker flaps."""
REGISTRATIONS: Final = 4
"""The same for registrations: a start and an outage of ZooKeeper count, too."""
QUEUE: Final = 100
MOST_PARTITIONS: Final = 10
_GUIDE: Final = "docs/operations.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A process that the cluster names, or whose address the operator gave."""

    role: str
    node_id: int | None
    """None while an address has not answered."""
    address: str
    node: NodeDescription | None = None
    """Its answer; None when it has not answered."""
    error: str = ""
    """Why it has not answered."""
    timed_out: bool = False
    """Whether it accepts connections but did not answer in time."""
    clock_ahead_ms: int | None = None
    """Its clock minus the clock of the gatherer, when it answered; None when it has not."""

    @property
    def name(self) -> str:
        """The process in a sentence."""
        return self.address if self.node_id is None else f"{self.role} {self.node_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """A cluster at one time."""

    nodes: tuple[NodeFacts, ...]
    registered: frozenset[int] = frozenset()
    """Ids of the registered brokers, according to the newest metadata."""
    expected: frozenset[int] = frozenset()
    """Ids of the brokers that have replicas."""
    partitions: tuple[PartitionFacts, ...] = ()
    """Partitions that may have a problem."""
    partition_count: int = 0
    """Number of all partitions."""
    events: tuple[StateChange, ...] = ()
    """Events of the last ten minutes: brokers that came and left, and changes of ISRs."""
    troubles: tuple[str, ...] = ()
    """Clauses about facts that could not be gathered."""

    @property
    def answered(self) -> list[NodeDescription]:
        """The descriptions of the processes that answered."""
        return [one.node for one in self.nodes if one.node is not None]

    @property
    def active(self) -> NodeDescription | None:
        """The active controller of the highest epoch, None when none answered."""
        found = [one for one in self.answered if one.active_controller is not None]
        return max(found, key=lambda one: one.controller_epoch, default=None)

    @property
    def office(self) -> NodeActiveController:
        """Facts that only the active controller knows; empty when none answered."""
        return (self.active and self.active.active_controller) or NodeActiveController()

    @property
    def removed(self) -> set[int]:
        """Brokers that an operator has removed."""
        said = {one.broker_id for one in self.office.removals if one.state == "removed"}
        return said | {one.node_id for one in self.answered if one.state == "removed"}


_Found = Iterator[Finding]
_KINDS = StateChangeKind


def judge(facts: ClusterFacts, now_ms: int) -> list[Finding]:
    """Return the findings about a cluster, the worst first; a single one of severity OK when nothing is wrong.

    Args:
        facts: the cluster at ``now_ms``.
        now_ms: time of the facts, milliseconds since the epoch.
    """
    found = [finding for rule in _RULES for finding in rule(facts, now_ms)]
    found.sort(key=lambda finding: -finding.severity)
    if not found or found[0].severity <= Severity.NOTE:
        brokers = sum(one.role == "broker" for one in facts.answered)
        symptom = f"is healthy: brokers that answer: {brokers}, partitions that are in sync: {facts.partition_count}"
        found.insert(0, Finding("the cluster", Severity.OK, FindingKind.HEALTHY, symptom))
    return found


def is_wrong(findings: Iterable[Finding]) -> bool:
    """Whether an operator should act on one of the findings."""
    return any(finding.severity >= Severity.WARNING for finding in findings)


# Rules ------------------------------------------------------------------------------------------------------------


def _zookeeper(facts: ClusterFacts, _now_ms: int) -> _Found:
    known = [one for one in facts.answered if one.state != "removed"]
    lost = [one for one in known if one.zookeeper_state != "connected" and one.zookeeper_state_ms >= DOUBT_MS]
    if not lost:
        return
    longest = age_text(max(one.zookeeper_state_ms for one in lost))
    names = names_in([one.name for one in lost])
    reaching = [one.name for one in known if one.zookeeper_state == "connected"]
    if not reaching:
        yield Finding(
            "ZooKeeper",
            Severity.CRITICAL,
            FindingKind.ZOOKEEPER,
            f"has not been reached for {longest} by any process that answers ({names}); records still flow while all "
            "followers fetch, but no leader is elected and nothing can be changed",
            "its ensemble has lost its quorum, or the network to it is cut",
            f"paceline doctor broker FLAGS   # those of a broker's command line: each server; {_GUIDE}#lost-zookeeper",
        )
        return
    cause = f"{names_in(reaching)} still reach it: its network to ZooKeeper is cut, or its process stood still"
    yield Finding(
        names,
        Severity.WARNING,
        FindingKind.ZOOKEEPER,
        f"{'has' if len(lost) == 1 else 'have'} had no ZooKeeper session for {longest}",
        cause,
        "paceline doctor broker FLAGS   # those of its command line, on its machine",
    )


def _controllers(facts: ClusterFacts, _now_ms: int) -> _Found:
    active, command = facts.active, "paceline controller describe"
    if active is None:
        if not facts.answered:
            return
        lost = all(one.zookeeper_state != "connected" for one in facts.answered)
        silent = [one for one in facts.nodes if one.role == "controller" and one.node is None]
        cause = "none can be elected without ZooKeeper" if lost else "the controllers do not run, or cannot be reached"
        if silent and not lost:
            cause = f"{silent[0].name} at {silent[0].address} does not answer ({silent[0].error})"
        symptom = "has no active controller that answers: no leader is elected and nothing can be changed"
        yield Finding("the cluster", Severity.CRITICAL, FindingKind.NO_CONTROLLER, symptom, cause, command)
        return
    highest = max(facts.answered, key=lambda one: one.controller_epoch)
    if highest.controller_epoch > active.controller_epoch:
        yield Finding(
            active.name,
            Severity.CRITICAL,
            FindingKind.CONTROLLER_EPOCH,
            f"is active in controller epoch {active.controller_epoch}, but {highest.name} has seen epoch "
            f"{highest.controller_epoch}, so that brokers refuse its requests",
            "/controller_epoch in ZooKeeper was set back, or ZooKeeper's data is an old copy",
            f"paceline watch --since 10m   # {_GUIDE}#lost-zookeeper",
        )
    if facts.office.queue_size > QUEUE:
        symptom = f"has {facts.office.queue_size} events in its queue"
        yield Finding(active.name, Severity.WARNING, FindingKind.CONTROLLER_BUSY, symptom, None, command)
    if not facts.office.standbys:
        symptom = "has no standby: no process takes over when it fails"
        yield Finding(active.name, Severity.NOTE, FindingKind.NO_STANDBY, symptom)


def _dead_brokers(facts: ClusterFacts, now_ms: int) -> _Found:
    if not facts.registered and facts.active is None:
        return  # The metadata does not tell which brokers are registered.
    starting = {one.node_id: one for one in facts.answered if one.state == "starting"}
    for broker_id in sorted(facts.expected - facts.registered - facts.removed):
        node, cause = (
            starting.get(broker_id),
            "its process does not run, or it stands still and its ZooKeeper session has ended",
        )
        if node is not None:
            cause = f"its process has been starting for {age_text(node.up_ms)}"
        count = sum(broker_id in [one.broker_id for one in part.replicas] for part in facts.partitions)
        symptom = f"is not registered; {count} partitions lack its replica" if count else "is not registered"
        registrations = len(_moments(facts, broker_id, (_KINDS.BROKER_UP, _KINDS.BROKER_REGISTERED)))
        if registrations >= REGISTRATIONS:
            symptom += f" now, and it has registered {registrations} times in the last ten minutes"
            cause = "its process ends or stands still again and again: read its log"
        yield Finding(
            f"broker {broker_id}",
            Severity.CRITICAL if any(part.leader is None for part in facts.partitions) else Severity.WARNING,
            FindingKind.BROKER_DEAD,
            symptom,
            cause,
            f"start broker {broker_id}, or end its process first if it stands still; "
            f"if its machine is lost: paceline broker remove {broker_id}",
        )


def _silent_nodes(facts: ClusterFacts, _now_ms: int) -> _Found:
    seen = {one.broker_id: one for one in facts.office.brokers}
    for one in facts.nodes:
        if one.node is not None or (one.node_id is None and facts.answered):
            continue
        at_controller = seen.get(-1 if one.node_id is None else one.node_id) if one.role == "broker" else None
        is_heard = (
            at_controller is not None
            and not at_controller.lease_expired
            and at_controller.silent_ms is not None
            and at_controller.silent_ms < UNANSWERED_MS
        )
        command = f"paceline broker describe {one.node_id}" if one.role == "broker" else "paceline controller describe"
        if one.timed_out:
            symptom = f"accepts connections at {one.address} but does not answer"
            cause = "its process is suspended or overloaded"
            if is_heard:
                cause += ", although its heartbeats reach the controller"
        elif is_heard:
            symptom = f"cannot be reached at {one.address}, the address that it advertises to clients"
            cause = (
                f"{one.error}; its heartbeats reach the controller, so that its process runs: advertised.listeners is "
                "wrong, or the network between here and that address is cut"
            )
            command = "paceline doctor broker FLAGS   # those of its command line, on its machine"
        else:
            symptom, cause = f"cannot be reached at {one.address}", one.error
            if at_controller is not None and at_controller.silent_ms is not None:
                cause += f"; its last heartbeat reached the controller {age_text(at_controller.silent_ms)} ago"
        if one.role == "controller" and facts.active is not None:
            continue  # Another controller is active.
        yield Finding(one.name, Severity.CRITICAL, FindingKind.NODE_SILENT, symptom, cause, command)


def _unreached_peers(facts: ClusterFacts, _now_ms: int) -> _Found:
    """Processes that other processes cannot call, mostly because of a wrong advertised address."""
    silent = {one.node_id for one in facts.nodes if one.node is None and (one.timed_out or one.role == "controller")}
    by_peer: dict[tuple[str, int], list[tuple[str, NodePeer]]] = defaultdict(list)
    for node in facts.answered:
        for peer in node.peers:
            if peer.kind == "controller" and facts.active is None:
                continue  # `_controllers` says so.
            is_late = (peer.answered_ago_ms or 0) if peer.kind == "controller" else peer.unanswered_ms
            is_known = peer.kind == "controller" or peer.node_id in facts.registered
            if peer.error and is_late >= UNANSWERED_MS and is_known and peer.node_id not in silent:
                by_peer[peer.kind, peer.node_id].append((node.name, peer))
    listeners = {"leader": "REPLICATION", "broker": "CONTROL", "controller": "CONTROL"}
    for (kind, node_id), calls in sorted(by_peer.items()):
        role = "controller" if kind == "controller" else "broker"
        callers, peer = names_in([name for name, _ in calls]), calls[0][1]
        late_ms = max((one.answered_ago_ms or 0) if kind == "controller" else one.unanswered_ms for _, one in calls)
        yield Finding(
            f"{role} {node_id}",
            Severity.WARNING,
            FindingKind.PEER_UNREACHED,
            f"has not answered {callers} at {peer.address} for {age_text(late_ms)}",
            f"{peer.error}: its {listeners[kind]} address in advertised.listeners is wrong, its certificate is not "
            "accepted, or the network is cut",
            "paceline doctor broker FLAGS   # those of its command line, on its machine",
        )


def _states(facts: ClusterFacts, _now_ms: int) -> _Found:
    for one in facts.office.brokers:
        name = f"broker {one.broker_id}"
        if one.suspected:
            yield Finding(name, Severity.WARNING, FindingKind.SUSPECTED, "is suspected to be dead", one.suspected)
        elif one.lease_expired and not one.shutting_down:
            since = "" if one.silent_ms is None else f" for {age_text(one.silent_ms)}"
            symptom, cause = "has no lease and must not lead", f"no heartbeat has reached the controller{since}"
            yield Finding(name, Severity.WARNING, FindingKind.LEASE, symptom, cause, "paceline controller describe")
        elif one.unreached:
            symptom = "leads only as a last resort: most of its followers cannot fetch from it"
            yield Finding(
                name, Severity.WARNING, FindingKind.PEER_UNREACHED, symptom, None, "paceline watch --since 10m"
            )
    for node in facts.answered:
        if node.state == "not-serving" and (node.role == "broker" or facts.active is not None):
            symptom = "serves no requests: it is stopping, or cannot prove that it still leads its partitions"
            yield Finding(node.name, Severity.WARNING, FindingKind.NOT_SERVING, symptom)
        elif node.state == "starting" and node.up_ms >= SLOW_START_MS and node.node_id not in facts.expected:
            symptom = f"has been starting for {age_text(node.up_ms)}"
            yield Finding(node.name, Severity.WARNING, FindingKind.NOT_SERVING, symptom, "read its log")
        elif node.state == "removed":
            symptom, command = (
                "is idle: it was removed",
                f"paceline broker remove {node.node_id} --cancel   # takes it back",
            )
            yield Finding(node.name, Severity.NOTE, FindingKind.REMOVAL, symptom, None, command)
    for removal in facts.office.removals:
        if removal.state == "removing":
            command = f"paceline broker remove {removal.broker_id}   # continues; --cancel stops"
            symptom = "is being removed and gets no new replicas"
            yield Finding(f"broker {removal.broker_id}", Severity.NOTE, FindingKind.REMOVAL, symptom, None, command)


def _disks(facts: ClusterFacts, _now_ms: int) -> _Found:
    for node in facts.answered:
        for one in node.directories:
            free, limit, command = one.free_bytes, one.min_free_bytes, f"paceline broker logdirs {node.node_id}"
            if one.failed:
                severity, symptom = Severity.CRITICAL, f"has lost its log directory {one.path}"
                command += f" --retry {one.path}   # after the disk was repaired"
                cause: str | None = "its disk or file system failed: the error is in the broker's log"
            elif one.room > 1 and free is not None and limit is not None:
                pause = " and its follower replicas pause" if one.room > 2 else ""
                severity, symptom = Severity.CRITICAL, f"refuses produce requests for {one.path}{pause}"
                cause = f"its disk is full: {_size(free)} free, and log.dir.min.free.bytes is {_size(limit)}"
                command += f"   # make room: {_GUIDE}#full-disk"
            elif free is not None and limit is not None and free < 2 * limit:
                severity, symptom = Severity.WARNING, f"is about to refuse produce requests for {one.path}"
                cause = f"{_size(free)} are free, and log.dir.min.free.bytes is {_size(limit)}"
            else:
                continue
            yield Finding(node.name, severity, FindingKind.DISK, symptom, cause, command)


def _certificates(facts: ClusterFacts, now_ms: int) -> _Found:
    for node in facts.answered:
        for one in node.certificates:
            left_ms = one.not_after_ms - now_ms
            if left_ms >= CERTIFICATE_MS:
                continue
            is_over = left_ms <= 0
            symptom = f"uses {one.path}, which {'has expired' if is_over else f'ends in {left_ms // 86_400_000} days'}"
            severity = Severity.CRITICAL if is_over else Severity.WARNING
            command = f"paceline certs node DIRECTORY {node.role}/{node.node_id}   # {_GUIDE}#certificates"
            yield Finding(node.name, severity, FindingKind.CERTIFICATE, symptom, None, command)


def _clocks(facts: ClusterFacts, _now_ms: int) -> _Found:
    ahead = [one.clock_ahead_ms for one in facts.nodes if one.clock_ahead_ms is not None]
    if len(ahead) < 2:
        return
    usual = median_low(ahead)
    for one in facts.nodes:
        if one.clock_ahead_ms is not None and abs(one.clock_ahead_ms - usual) > CLOCK_MS:
            off_ms = one.clock_ahead_ms - usual
            symptom = f"has a clock {age_text(abs(off_ms))} {'ahead of' if off_ms > 0 else 'behind'} the others"
            command = f"chronyc tracking   # on that machine; {_GUIDE}#clock-trouble"
            yield Finding(
                one.name, Severity.WARNING, FindingKind.CLOCK, symptom, "its clock is not synchronised", command
            )


def _decisions(facts: ClusterFacts, _now_ms: int) -> _Found:
    for one in facts.office.undecided:
        name, members = "/".join(map(str, one.topic_partition)), names_in(one.unclean_members)
        yield Finding(
            name,
            Severity.CRITICAL,
            FindingKind.UNDECIDED,
            "has no leader and waits for a decision of an operator",
            f"broker {members}, the rest of its ISR, returned without some records that it may have acknowledged",
            f"start another ISR member, or accept the loss: paceline partition elect --unclean --dry-run {name}",
        )
    explained = {(part.topic, part.partition) for part in facts.partitions if part.reassignment}
    for move in facts.office.stuck_moves:
        if move.topic_partition not in explained:
            name = "/".join(map(str, move.topic_partition))
            command = f"paceline reassign status; paceline reassign cancel {name}"
            symptom = "is being reassigned and does not get on"
            yield Finding(name, Severity.WARNING, FindingKind.REASSIGNMENT_STUCK, symptom, move.reason, command)


def _flapping(facts: ClusterFacts, now_ms: int) -> _Found:
    """Brokers that come and go, or that leave ISRs and return, several times in ten minutes."""
    descriptions = {one.node_id: one for one in facts.answered if one.role == "broker"}
    members = {event.replica for event in facts.events} | {b for e in facts.events for b in e.old_isr or ()}
    for broker_id in sorted(one for one in members if one is not None and one not in facts.removed):
        node, name = descriptions.get(broker_id), f"broker {broker_id}"
        command = f"paceline watch --broker {broker_id} --since 10m"
        came = _moments(facts, broker_id, (_KINDS.BROKER_UP, _KINDS.BROKER_REGISTERED))
        left = _moments(facts, broker_id, (_KINDS.ISR_SHRUNK,))
        if len(came) >= REGISTRATIONS and broker_id in facts.registered:
            restarted = node is not None and node.up_ms < now_ms - came[0]
            cause = "its process stands still, or loses its ZooKeeper session, again and again"
            if restarted and node is not None:
                cause = f"its process restarts again and again, last {age_text(node.up_ms)} ago: read its log"
            symptom = f"has registered {len(came)} times in the last ten minutes"
            yield Finding(name, Severity.WARNING, FindingKind.FLAPPING, symptom, cause, command)
        elif len(left) >= FLAPS and len(came) < REGISTRATIONS:
            symptom = f"has left ISRs {len(left)} times in the last ten minutes, and came back"
            cause = "it is too slow, or its process stands still from time to time: look at its CPU, disk and network"
            yield Finding(name, Severity.WARNING, FindingKind.FLAPPING, symptom, cause, command)


def _partitions(facts: ClusterFacts, now_ms: int) -> _Found:
    dead = facts.expected - facts.registered if facts.registered else frozenset()
    found = []
    for part in facts.partitions:
        missing = {one.broker_id for one in part.replicas} - set(part.isr)
        for one in explain(part, now_ms):
            is_said = one.kind is FindingKind.UNDER_REPLICATED and missing <= dead  # `_dead_brokers` counts it.
            if one.severity >= Severity.WARNING and not is_said:
                found.append(one)
    found.sort(key=lambda one: -one.severity)
    yield from found[:MOST_PARTITIONS]
    if len(found) > MOST_PARTITIONS:
        symptom = f"has {len(found) - MOST_PARTITIONS} more findings about partitions"
        worst = found[MOST_PARTITIONS].severity
        command = "paceline topic describe --under-replicated"
        yield Finding("the cluster", worst, FindingKind.UNDER_REPLICATED, symptom, None, command)


def _troubles(facts: ClusterFacts, _now_ms: int) -> _Found:
    for trouble in facts.troubles:
        yield Finding("the cluster", Severity.WARNING, FindingKind.UNKNOWN, f"is known in part: {trouble}")
    if not facts.answered:
        tried = "; ".join(f"{one.address}: {one.error}" for one in facts.nodes)
        yield Finding(
            "the cluster", Severity.CRITICAL, FindingKind.UNKNOWN, "does not answer", tried, "paceline dev status"
        )


_RULES: Final[Sequence[Callable[[ClusterFacts, int], _Found]]] = (
    _zookeeper,
    _disks,
    _dead_brokers,
    _silent_nodes,
    _unreached_peers,
    _flapping,
    _controllers,
    _states,
    _decisions,
    _certificates,
    _clocks,
    _partitions,
    _troubles,
)


# Helpers ----------------------------------------------------------------------------------------------------------


def _moments(facts: ClusterFacts, broker_id: int, kinds: Sequence[StateChangeKind]) -> list[int]:
    """Return the times at which a broker came, or left an ISR: those that one process or one partition reports.

    Otherwise a departure from many ISRs, or a registration that broker and controller report, would count often.
    """
    times: dict[object, list[int]] = defaultdict(list)
    for event in facts.events:
        is_about, source = event.replica == broker_id, (event.kind, event.who)
        if event.kind is _KINDS.ISR_SHRUNK:
            is_about = broker_id in (event.old_isr or ()) and broker_id not in (event.isr or ())
            source = (event.kind, str(event.topic_partition))
        if event.kind in kinds and is_about:
            times[source].append(event.wall_ms)
    longest: list[int] = max(times.values(), key=len, default=[])
    return sorted(longest)


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
