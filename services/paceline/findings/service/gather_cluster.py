"""Gather the facts about a whole cluster within five seconds, whatever does not answer; `findings.cluster` judges them.

All processes are asked at the same time. Only partitions that are not whole are asked about at their brokers.
"""

import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from paceline.findings.cluster import FLAPPING_MS, ClusterFacts, NodeFacts
from paceline.findings.facts import PartitionFacts
from paceline.findings.service.gather import Answers, facts_of, gather
from paceline.model.errors import PacelineError, RequestTimedOutError
from paceline.model.state_change import StateChange, StateChangeKind
from paceline_client import Admin
from paceline_client.addresses import parse_bootstrap

if TYPE_CHECKING:
    from paceline_client import ClusterDescription, TopicDescription

ANSWER_MS: Final = 1_500
"""Longest wait for a process; a healthy one answers in milliseconds."""
DEADLINE_S: Final = 4.5
_MOST_TOPICS: Final = 8
"""Topics with a problem that are asked about at their brokers; the others are judged by their metadata."""
_MOST_PARTITIONS: Final = 50
_KINDS: Final = (
    StateChangeKind.BROKER_UP,
    StateChangeKind.BROKER_REGISTERED,
    StateChangeKind.ISR_SHRUNK,
)
_NO_ANSWER: Final[dict[str, Any]] = {"error": f"no answer within {ANSWER_MS} ms", "timed_out": True}


def gather_cluster(bootstrap: str) -> ClusterFacts:
    """Return the facts about a cluster, after at most about five seconds; a process that does not answer is a fact.

    ``bootstrap`` has addresses of brokers or controllers.

    Raises:
        InvalidRequestError: the addresses cannot be parsed.
    """
    addresses = parse_bootstrap(bootstrap)
    deadline = time.monotonic() + DEADLINE_S
    threads = ThreadPoolExecutor(32, thread_name_prefix="health")
    admins: list[Admin] = []

    def asked(wanted: "Iterable[str]") -> "tuple[dict[str, NodeFacts], list[ClusterDescription]]":
        """Ask processes for their descriptions and for the cluster; those that fail have no cluster."""
        calls, views = {}, {}
        for address in wanted:
            admin = _open_admin(address)
            admins.append(admin)
            calls[address] = threads.submit(_node, admin, address)
            views[address] = threads.submit(admin.describe_cluster, ANSWER_MS)
        found = _results(calls, ANSWER_MS / 1000 + 0.3)
        silent = {one: NodeFacts(role="process", node_id=None, address=one, **_NO_ANSWER) for one in calls}
        return silent | found, list(_results(views, 0.3).values())

    try:
        given, views = asked(addresses)
        newest = max(views, key=lambda one: (one.controller_epoch, len(one.brokers)), default=None)
        nodes = {(one.role, address if one.node_id is None else one.node_id): one for address, one in given.items()}
        # A process must answer at the address that the cluster names, also if it answers at that of the operator.
        others = {} if newest is None else _named(newest)
        answers = given | asked(one for one in others if one not in given)[0]
        for address, (role, node_id) in others.items():
            nodes.pop(("process", address), None)
            nodes[role, node_id] = replace(answers[address], role=role, node_id=node_id)
        facts = ClusterFacts(
            nodes=tuple(nodes[who] for who in sorted(nodes, key=lambda who: (who[0], str(who[1])))),
            registered=frozenset(one.broker_id for one in newest.brokers) if newest else frozenset(),
        )
        answering = [one.address for one in facts.nodes if one.node is not None and one.node.state != "removed"]
        if not answering:
            return facts
        active = [one.address for one in facts.nodes if one.node is not None and one.node.active_controller]
        return _with_partitions(facts, newest, admins, threads, [*active, *answering], deadline)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for admin in admins:
            admin.close()


def _open_admin(addresses: str) -> Admin:
    return Admin(
        addresses, describe_timeout_ms=ANSWER_MS, connect_timeout_ms=ANSWER_MS, controller_timeout_ms=ANSWER_MS
    )


def _node(admin: Admin, address: str) -> NodeFacts:
    """Ask a process for its description."""
    began_s = time.time()
    try:
        node = admin.describe_node(address, ANSWER_MS)
    except PacelineError as error:
        text = str(error).removeprefix(f"{address}: ")
        found = NodeFacts(role="process", node_id=None, address=address, error=text)
        # The kernel accepts connections for a process that is suspended.
        hangs = isinstance(error, RequestTimedOutError) or "SETTINGS frame" in text
        return replace(found, **_NO_ANSWER) if hangs else found
    ahead_ms = node.clock_ms - int((began_s + time.time()) / 2 * 1000)
    return NodeFacts(role=node.role, node_id=node.node_id, address=address, node=node, clock_ahead_ms=ahead_ms)


def _named(view: "ClusterDescription") -> dict[str, tuple[str, int]]:
    """Return the addresses that an answer names, with role and id: live brokers and the active controller."""
    found = {broker.address: ("broker", broker.broker_id) for broker in view.brokers}
    if view.controller_address and view.controller_id is not None:
        found[view.controller_address] = ("controller", view.controller_id)
    return found


def _with_partitions(
    facts: ClusterFacts,
    cluster: "ClusterDescription | None",
    admins: list[Admin],
    threads: ThreadPoolExecutor,
    addresses: list[str],
    deadline: float,
) -> ClusterFacts:
    """Add the events, and the partitions that are not whole."""
    admin = _open_admin(",".join(dict.fromkeys(addresses)))
    admins.append(admin)
    since_ms = int(time.time() * 1000) - FLAPPING_MS
    events = {
        one.address: threads.submit(
            partial(admin.past_events, address=one.address, kinds=_KINDS, since_ms=since_ms, timeout_ms=ANSWER_MS)
        )
        for one in facts.nodes
        if one.node is not None and one.node.state != "removed"
    }
    try:
        topics = admin.describe_topics(timeout_ms=ANSWER_MS)
    except PacelineError as error:
        told = _told(_results(events, max(deadline - time.monotonic(), 0.1)).values())
        return replace(facts, events=told, troubles=(f"its topics could not be read: {error}",))
    expected = frozenset(broker for topic in topics for one in topic.partitions for broker in one.replicas)
    broken = [
        replace(topic, partitions=tuple(parts))
        for topic in topics
        if (parts := [one for one in topic.partitions if one.leader is None or len(one.isr) < len(one.replicas)])
    ]
    chosen = [replace(topic, partitions=topic.partitions[:_MOST_PARTITIONS]) for topic in broken[:_MOST_TOPICS]]
    silent = {one.node_id for one in facts.nodes if one.node is None}
    futures = {topic.name: threads.submit(gather, admin, topic) for topic in chosen}
    deep = _results(futures, max(deadline - time.monotonic(), 0.1))
    shallow = [one for topic in broken if topic.name not in deep for one in _from_metadata(topic, cluster, silent)]
    return replace(
        facts,
        expected=expected,
        partition_count=sum(len(topic.partitions) for topic in topics),
        partitions=(*(one for parts in deep.values() for one in parts), *shallow),
        events=_told(_results(events, max(deadline - time.monotonic(), 0.1)).values()),
    )


def _from_metadata(
    topic: "TopicDescription", cluster: "ClusterDescription | None", silent: set[int | None]
) -> list[PartitionFacts]:
    """Return the facts about partitions whose brokers could not be asked in time."""
    answers = Answers(
        topic=topic,
        alive=set() if cluster is None else {one.broker_id for one in cluster.brokers},
        controller=None if cluster is None else cluster.controller_id,
        controller_epoch=0 if cluster is None else cluster.controller_epoch,
        hosts={},
    )
    found = [facts_of(answers, one) for one in topic.partitions]
    asked = [[replace(b, answers=False if b.broker_id in silent else None) for b in one.brokers] for one in found]
    return [replace(one, brokers=tuple(brokers)) for one, brokers in zip(found, asked, strict=True)]


def _told(found: "Iterable[list[StateChange]]") -> tuple[StateChange, ...]:
    return tuple(sorted((event for events in found for event in events), key=lambda one: one.wall_ms))


def _results(futures: "dict[str, Future[Any]]", timeout_s: float) -> dict[str, Any]:
    """Return the results that are there in time; a call that failed has none."""
    wait(futures.values(), timeout_s)
    found = {}
    for name, future in futures.items():
        if future.done() and not future.cancelled() and future.exception() is None:
            found[name] = future.result()
    return found
