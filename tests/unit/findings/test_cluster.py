"""The findings about a cluster: the first one names the cause, and a healthy cluster has none."""

from dataclasses import replace
from typing import Any

import pytest

from paceline.findings.cluster import ClusterFacts, NodeFacts, is_wrong, judge
from paceline.findings.explain import Finding, FindingKind, Severity
from paceline.findings.facts import BrokerFacts, PartitionFacts, ReplicaFacts
from paceline.model.identifiers import TopicPartition
from paceline.model.node_description import (
    NodeActiveController,
    NodeBroker,
    NodeCertificate,
    NodeDescription,
    NodeDirectory,
    NodePeer,
    NodeRemoval,
    NodeStuckMove,
    NodeUndecidedPartition,
)
from paceline.model.state_change import StateChange, StateChangeKind

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
REFUSED = "UNAVAILABLE: connection refused"
OFFICE = NodeActiveController(brokers=tuple(NodeBroker(one, silent_ms=300) for one in (1, 2, 3)), standbys=(1_000_001,))


def broker(broker_id: int, **fields: Any) -> NodeFacts:
    node = NodeDescription(node_id=broker_id, role="broker", controller_epoch=3, up_ms=DAY_MS, **fields)
    return NodeFacts(role="broker", node_id=broker_id, address=f"b{broker_id}:9092", node=node, clock_ahead_ms=0)


def controller(office: NodeActiveController | None = OFFICE, **fields: Any) -> NodeFacts:
    given: dict[str, Any] = {"controller_epoch": 3, **fields}
    node = NodeDescription(node_id=1_000_000, role="controller", active_controller=office, **given)
    return NodeFacts(role="controller", node_id=1_000_000, address="c:9082", node=node, clock_ahead_ms=0)


def silent(broker_id: int, **fields: Any) -> NodeFacts:
    return NodeFacts(role="broker", node_id=broker_id, address=f"b{broker_id}:9092", **fields)


def cluster(*nodes: NodeFacts, **fields: Any) -> ClusterFacts:
    """Return a healthy cluster of three brokers in which ``nodes`` replace the processes with the same role and id."""
    usual = {(one.role, one.node_id): one for one in (broker(1), broker(2), broker(3), controller())}
    usual |= {(one.role, one.node_id): one for one in nodes}
    given: dict[str, Any] = {"registered": frozenset({1, 2, 3}), "expected": frozenset({1, 2, 3}), **fields}
    return ClusterFacts(nodes=tuple(usual.values()), partition_count=7, **given)


def worst(facts: ClusterFacts) -> Finding:
    return judge(facts, NOW_MS)[0]


def partition(**fields: Any) -> PartitionFacts:
    given: dict[str, Any] = {
        "topic": "t", "partition": 0, "leader": 1, "leader_epoch": 5, "controller": 1_000_000, "controller_epoch": 3,
        "isr": (1, 2), "replicas": tuple(ReplicaFacts(broker_id=one, online=one != 3) for one in (1, 2, 3)),
        "brokers": tuple(BrokerFacts(broker_id=one, alive=one != 3) for one in (1, 2, 3)), **fields,
    }  # fmt: skip
    return PartitionFacts(**given)


def shrunk(t_s: int, left: int = 3, partition: int = 0) -> StateChange:
    isr = tuple(one for one in (1, 2, 3) if one != left)
    wall_ms = NOW_MS - t_s * 1000
    return StateChange(
        who="broker-1",
        wall_ms=wall_ms,
        kind=StateChangeKind.ISR_SHRUNK,
        old_isr=(1, 2, 3),
        isr=isr,
        topic_partition=TopicPartition("t", partition),
    )


def came(t_s: int, broker_id: int = 3) -> StateChange:
    wall_ms = NOW_MS - t_s * 1000
    return StateChange(who="broker-3", wall_ms=wall_ms, kind=StateChangeKind.BROKER_REGISTERED, replica=broker_id)


def test_a_healthy_cluster_has_one_finding_and_nothing_wrong() -> None:
    found = judge(cluster(), NOW_MS)
    assert [one.kind for one in found] == [FindingKind.HEALTHY]
    assert found[0].severity is Severity.OK and not is_wrong(found)


LOST = {"zookeeper_state": "in_doubt", "zookeeper_state_ms": 30_000}
DOWN_BROKER = {"registered": frozenset({1, 2}), "partitions": (partition(),)}
CASES: list[tuple[str, ClusterFacts, FindingKind, Severity, str]] = [
    (
        "lost quorum",
        cluster(broker(1, **LOST), broker(2, **LOST), broker(3, **LOST), controller(None, **LOST)),
        FindingKind.ZOOKEEPER, Severity.CRITICAL, "ZooKeeper has not been reached for 30.0 s by any process",
    ),
    ("one without ZooKeeper", cluster(broker(2, **LOST)), FindingKind.ZOOKEEPER, Severity.WARNING, "broker 2 has had"),
    (
        "dead broker", cluster(silent(3, error=REFUSED), **DOWN_BROKER),
        FindingKind.NODE_SILENT, Severity.CRITICAL, "broker 3 cannot be reached at b3:9092",
    ),
    (
        "wrong advertised address", cluster(silent(2, error=REFUSED)),
        FindingKind.NODE_SILENT, Severity.CRITICAL, "broker 2 cannot be reached at b2:9092, the address that",
    ),
    (
        "hanging broker", cluster(silent(2, error="late", timed_out=True)),
        FindingKind.NODE_SILENT, Severity.CRITICAL, "broker 2 accepts connections at b2:9092 but does not answer",
    ),
    (
        "wrong replication address",
        cluster(
            broker(1, peers=(NodePeer("leader", 2, "b2:1", 9_000, error=REFUSED),)),
            broker(3, peers=(NodePeer("leader", 2, "b2:1", 8_000, error=REFUSED),)),
        ),
        FindingKind.PEER_UNREACHED, Severity.WARNING, "broker 2 has not answered broker 1 and broker 3 at b2:1",
    ),
    (
        "full disk", cluster(broker(3, directories=(NodeDirectory("/d", False, 50, 900, 100, 50, 2),))),
        FindingKind.DISK, Severity.CRITICAL, "broker 3 refuses produce requests for /d",
    ),
    ("failed disk", cluster(broker(3, directories=(NodeDirectory("/d", True),))),
     FindingKind.DISK, Severity.CRITICAL, "broker 3 has lost its log directory /d"),
    ("slow follower", cluster(events=(shrunk(500), shrunk(300), shrunk(60))),
     FindingKind.FLAPPING, Severity.WARNING, "broker 3 has left ISRs 3 times"),
    ("restarting broker",
     replace(cluster(), events=tuple(came(one) for one in (500, 300, 100, 20))),
     FindingKind.FLAPPING, Severity.WARNING, "broker 3 has registered 4 times"),
    (
        "stuck move",
        cluster(controller(replace(OFFICE, stuck_moves=(NodeStuckMove(TopicPartition("t", 0), "broker 4 is dead"),)))),
        FindingKind.REASSIGNMENT_STUCK, Severity.WARNING, "t/0 is being reassigned and does not get on",
    ),
    (
        "decision",
        cluster(controller(replace(OFFICE, undecided=(NodeUndecidedPartition(TopicPartition("t", 0), (2,)),)))),
        FindingKind.UNDECIDED, Severity.CRITICAL, "t/0 has no leader and waits for a decision",
    ),
    ("certificate", cluster(broker(1, certificates=(NodeCertificate("/c", NOW_MS + 3 * DAY_MS),))),
     FindingKind.CERTIFICATE, Severity.WARNING, "broker 1 uses /c, which ends in 3 days"),
    ("expired", cluster(broker(1, certificates=(NodeCertificate("/c", NOW_MS - 1),))),
     FindingKind.CERTIFICATE, Severity.CRITICAL, "broker 1 uses /c, which has expired"),
    ("clock", cluster(replace(broker(2), clock_ahead_ms=-9_000)),
     FindingKind.CLOCK, Severity.WARNING, "broker 2 has a clock 9.0 s behind"),
    ("no controller", cluster(controller(None)), FindingKind.NO_CONTROLLER, Severity.CRITICAL, "the cluster has no"),
    ("fallen epoch", cluster(controller(controller_epoch=2)),
     FindingKind.CONTROLLER_EPOCH, Severity.CRITICAL, "controller 1000000 is active in controller epoch 2, but"),
    ("expired lease", cluster(controller(replace(OFFICE, brokers=(NodeBroker(2, 20_000, lease_expired=True),)))),
     FindingKind.LEASE, Severity.WARNING, "broker 2 has no lease"),
    ("suspected", cluster(controller(replace(OFFICE, brokers=(NodeBroker(2, 900, suspected="refused"),)))),
     FindingKind.SUSPECTED, Severity.WARNING, "broker 2 is suspected"),
    ("nothing answers", ClusterFacts(nodes=(silent(1, error=REFUSED),)),
     FindingKind.NODE_SILENT, Severity.CRITICAL, "broker 1 cannot be reached"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "kind", "severity", "begin"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_the_first_finding_names_the_fault(
    facts: ClusterFacts, kind: FindingKind, severity: Severity, begin: str
) -> None:
    found = judge(facts, NOW_MS)
    assert (found[0].kind, found[0].severity) == (kind, severity)
    assert found[0].sentence.startswith(begin)
    assert is_wrong(found)


def test_a_removed_broker_is_a_note_and_its_absence_is_not_wrong() -> None:
    idle = broker(3, state="removed", zookeeper_state="disconnected", zookeeper_state_ms=DAY_MS)
    office = replace(OFFICE, removals=(NodeRemoval(3, "removed"),))
    found = judge(cluster(idle, controller(office), registered=frozenset({1, 2})), NOW_MS)
    assert not is_wrong(found)
    assert [one.subject for one in found if one.kind is FindingKind.REMOVAL] == ["broker 3"]


def test_the_partitions_of_a_dead_broker_are_counted_and_not_listed() -> None:
    facts = cluster(partitions=(partition(), partition(partition=1)), registered=frozenset({1, 2}))
    found = judge(replace(facts, nodes=tuple(one for one in facts.nodes if one.node_id != 3)), NOW_MS)
    assert [one.kind for one in found] == [FindingKind.BROKER_DEAD]
    assert found[0].symptom == "is not registered; 2 partitions lack its replica"


def test_a_short_disturbance_is_no_finding() -> None:
    moved = broker(1, zookeeper_state="disconnected", zookeeper_state_ms=500)
    waiting = broker(2, peers=(NodePeer("leader", 1, "b1:1", 400),))
    assert not is_wrong(
        judge(cluster(moved, waiting, events=tuple(shrunk(9, partition=one) for one in range(9))), NOW_MS)
    )
