"""When ISR changes are notified to the controller, and which."""

import itertools
from collections.abc import Callable

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import GetData
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import TP
from tests.unit.broker.isr_cluster import lag, leader, make, notifications


@pytest.mark.origin("S2-10")
def test_a_single_change_is_sent_to_the_controller_at_the_next_tick() -> None:
    cluster = make()
    lag(cluster, 3)
    cluster.time.run_until(lambda: 3 not in leader(cluster).isr, 10_000)
    assert notifications(cluster) == []
    cluster.time.run_for(2_500)
    (path,) = notifications(cluster)
    assert znodes.decode_partition_set(path, cluster.zk(GetData(path)).data) == (TP,)  # type: ignore[attr-defined]


@pytest.mark.origin("S2-10")
def test_the_three_timings_at_a_broker() -> None:
    cluster = make()
    told_ms: list[int] = []
    changed_ms: list[int] = []
    known: set[str] = set()

    def passing(until: Callable[[], bool]) -> None:
        """Let time pass in small steps, and record when the controller was notified of which change."""
        deadline_ms = cluster.time.now_ms() + 200_000
        while not until():
            assert cluster.time.now_ms() < deadline_ms
            cluster.time.run_for(20)
            new = set(notifications(cluster)) - known
            known.update(new)
            told_ms.extend(cluster.time.now_ms() for _ in new)

    def change() -> None:
        """Let the ISR shrink, or expand again."""
        before = leader(cluster).isr
        if 3 in before:
            lag(cluster, 3)
        else:
            cluster.cuts.clear()
        passing(lambda: leader(cluster).isr != before)
        changed_ms.append(cluster.time.now_ms())

    change()
    passing(lambda: len(told_ms) == 1)
    assert told_ms[0] - changed_ms[0] <= 2_520, "the first change is sent at the next tick"
    passing(lambda: cluster.time.now_ms() >= told_ms[0] + 10_000)
    change()
    passing(lambda: len(told_ms) == 2)
    assert 5_000 < told_ms[1] - changed_ms[1] <= 7_520, "within a minute it waits for five seconds without changes"
    while len(told_ms) == 2:
        change()
        assert cluster.time.now_ms() < told_ms[1] + 70_000
    gaps = [late - early for early, late in itertools.pairwise(changed_ms[2:])]
    assert max(gaps) <= 5_000 and len(gaps) > 10, "changes continued"
    assert 60_000 < told_ms[2] - told_ms[1] <= 62_540, "constant changes are sent once a minute"
    passing(lambda: cluster.time.now_ms() >= told_ms[-1] + 75_000)
    told = len(told_ms)
    change()
    passing(lambda: len(told_ms) == told + 1)
    assert told_ms[-1] - changed_ms[-1] <= 2_520, "after a minute without changes it is sent at the next tick"


@pytest.mark.origin("S2-11")
def test_a_refused_write_is_not_notified() -> None:
    cluster = make()
    lag(cluster, 3)
    cluster.decide(2, 1, (2, 3), to=[])
    cluster.time.run_for(10_000)
    assert cluster[1].node.replica_manager.hosted.isr_updates.propagation.pending == ()
    assert notifications(cluster) == []


@pytest.mark.origin("S2-11")
def test_a_write_with_a_version_conflict_is_not_notified_and_the_next_write_is() -> None:
    cluster = make()
    pending = cluster[1].node.replica_manager.hosted.isr_updates.propagation
    cluster.write_state(LeaderAndIsr(1, 0, (1, 2, 3), 0, cluster.state().controller_epoch))
    lag(cluster, 3)
    told: list[tuple[TopicPartition, ...]] = []

    def refused() -> bool:
        if not cluster[1].said(StateChangeKind.ISR_SHRUNK):
            told.append(pending.pending)
        return bool(cluster[1].said(StateChangeKind.ISR_REFUSED))

    cluster.time.run_until(refused, 10_000)
    assert set(told) == {()} and not cluster[1].said(StateChangeKind.ISR_SHRUNK)
    cluster.time.run_until(lambda: leader(cluster).isr == (1, 2), 1_000)
    assert pending.pending == (TP,)


@pytest.mark.origin("S2-11")
def test_a_refused_joiner_is_not_notified() -> None:
    cluster = make()
    cluster.decide(1, 1, (1, 2))
    # Its registration was deleted, but the leader was not notified.
    cluster[3].zookeeper.link.cut()
    cluster.server.expire(cluster[3].zookeeper.session_id)
    cluster.time.run_for(20_000)
    assert cluster[1].said(StateChangeKind.ISR_REFUSED) and leader(cluster).isr == (1, 2)
    assert cluster[1].node.replica_manager.hosted.isr_updates.propagation.pending == () and notifications(cluster) == []


def test_a_notification_that_could_not_be_written_is_written_later() -> None:
    cluster = make()
    lag(cluster, 3)
    cluster.time.run_until(lambda: 3 not in leader(cluster).isr, 10_000)
    cluster[1].zookeeper.link.cut()
    cluster.server.expire(cluster[1].zookeeper.session_id)
    cluster.time.run_for(4_000)
    cluster[1].zookeeper.link.heal()
    cluster.time.run_until(lambda: bool(notifications(cluster)), 90_000)
