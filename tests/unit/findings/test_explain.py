"""Each rule says exactly its sentence about the facts, and says nothing about facts that are not known."""

from dataclasses import replace
from typing import Any

import pytest

from paceline.findings.explain import Finding, FindingKind, Severity, explain
from paceline.findings.facts import (
    AwaitedFacts,
    BrokerFacts,
    PartitionFacts,
    ReassignmentFacts,
    ReplicaFacts,
)

NOW_MS = 1_795_343_479_400
"""2026-11-22 10:31:19.400 UTC."""
SINCE_MS = 1_795_343_467_000
"""10:31:07 of that day."""


def replica(broker_id: int, end: int | None = 100, **more: Any) -> ReplicaFacts:
    given = {"log_start_offset": 0, "high_watermark": 100, "last_fetch_ago_ms": 100, "caught_up_ago_ms": 100}
    return ReplicaFacts(broker_id=broker_id, log_end_offset=end, **{**given, **more})


def broker(broker_id: int, **more: Any) -> BrokerFacts:
    return BrokerFacts(broker_id=broker_id, **more)


def partition(*changed: ReplicaFacts | BrokerFacts, **more: Any) -> PartitionFacts:
    """Partition orders/3 with healthy replicas 1, 2 and 3, apart from those that are given."""
    replicas = {each: replica(each) for each in (1, 2, 3)}
    brokers = {each: broker(each) for each in (1, 2, 3)}
    for one in changed:
        if isinstance(one, ReplicaFacts):
            replicas[one.broker_id] = one
        else:
            brokers[one.broker_id] = one
    given: dict[str, Any] = {
        "topic": "orders",
        "partition": 3,
        "leader": 1,
        "leader_epoch": 5,
        "controller": 1_000_000,
        "controller_epoch": 2,
        "isr": (1, 2, 3),
        "replicas": tuple(replicas.values()),
        "brokers": tuple(brokers.values()),
        "min_insync_replicas": 2,
        "unclean_election": False,
    }
    return PartitionFacts(**{**given, **more})


def first(facts: PartitionFacts) -> Finding:
    return explain(facts, NOW_MS)[0]


def of_kind(facts: PartitionFacts, kind: FindingKind) -> Finding:
    (found,) = [finding for finding in explain(facts, NOW_MS) if finding.kind is kind]
    return found


SENTENCES: list[tuple[str, FindingKind, PartitionFacts, str]] = [
    (
        "healthy",
        FindingKind.HEALTHY,
        partition(),
        "orders/3 is healthy: broker 1 leads in epoch 5, all 3 replicas are in sync, "
        "and all records up to offset 100 are committed",
    ),
    (
        "a single replica",
        FindingKind.HEALTHY,
        partition(replicas=(replica(1),), isr=(1,), min_insync_replicas=1),
        "orders/3 is healthy: broker 1 leads in epoch 5, its only replica is in sync, "
        "and all records up to offset 100 are committed",
    ),
    (
        "the ISR is too small",
        FindingKind.UNDER_MIN_ISR,
        partition(
            leader=2,
            isr=(2,),
            under_min_isr_since_ms=SINCE_MS,
            replicas=(replica(1, 80, last_fetch_ago_ms=12_400), replica(2)),
        ),
        "orders/3 takes no acks=all writes since 10:31:07 UTC, because its ISR is 2 alone and min.insync.replicas is "
        "2: broker 1 has not fetched for 12.4 s",
    ),
    (
        "the ISR of two is too small, since yesterday",
        FindingKind.UNDER_MIN_ISR,
        partition(
            broker(3, alive=False), isr=(1, 2), under_min_isr_since_ms=SINCE_MS - 86_400_000, min_insync_replicas=3
        ),
        "orders/3 takes no acks=all writes since 2026-11-21 10:31:07 UTC, because its ISR is 1 and 2 and "
        "min.insync.replicas is 3: broker 3 is not alive",
    ),
    (
        "fewer replicas than the minimum",
        FindingKind.UNDER_MIN_ISR,
        partition(replicas=(replica(1),), isr=(1,)),
        "orders/3 takes no acks=all writes, because it has 1 replica and min.insync.replicas is 2",
    ),
    (
        "all replicas are offline",
        FindingKind.NO_LEADER,
        partition(
            broker(1, alive=False),
            replica(2, directory_offline=True),
            replica(3, online=False),
            leader=None,
            isr=(1,),
            leader_since_ms=SINCE_MS,
        ),
        "orders/3 has no leader since 10:31:07 UTC, because all its replicas are offline: broker 1 is not alive; "
        "the log directory of broker 2 has failed; the replica on broker 3 is offline",
    ),
    (
        "no ISR member is online",
        FindingKind.NO_LEADER,
        partition(broker(1, alive=False), leader=None, isr=(1,)),
        "orders/3 has no leader, because no member of its ISR (1) is online and unclean.leader.election.enable is "
        "false: broker 1 is not alive",
    ),
    (
        "no controller",
        FindingKind.NO_LEADER,
        partition(leader=None, controller=None),
        "orders/3 has no leader, because there is no active controller to elect one",
    ),
    (
        "an election is due",
        FindingKind.NO_LEADER,
        partition(leader=None),
        "orders/3 has no leader, because controller 1000000 has not elected one yet",
    ),
    (
        "the leader is dead and no other is elected yet",
        FindingKind.LEADER_SILENT,
        partition(broker(1, alive=False)),
        "orders/3 waits for another leader, because broker 1 is not alive",
    ),
    (
        "the leader does not answer",
        FindingKind.LEADER_SILENT,
        partition(broker(1, answers=False)),
        "orders/3 may take no reads and writes, because its leader, broker 1, has not answered",
    ),
    (
        "the leader has no lease",
        FindingKind.LEADER_WITHOUT_LEASE,
        partition(broker(1, has_lease=False)),
        "orders/3 is served only while all its ISR fetches, because its leader, broker 1, has no lease, or is stopping",
    ),
    (
        "a dead broker",
        FindingKind.UNDER_REPLICATED,
        partition(broker(3, alive=False), isr=(1, 2), isr_since_ms=SINCE_MS),
        "orders/3 has 2 of 3 replicas in sync since 10:31:07 UTC, because broker 3 is not alive",
    ),
    (
        "a follower that catches up, and a follower that does not fetch",
        FindingKind.UNDER_REPLICATED,
        partition(
            replica(2, 40, last_fetch_ago_ms=7_300_000),
            replica(3, 99),
            isr=(1,),
            min_insync_replicas=1,
        ),
        "orders/3 has 1 of 3 replicas in sync, because broker 2 has not fetched for 2 h 1 min; broker 3 lags 1 record "
        "behind",
    ),
    (
        "a follower whose fetches are refused, and a follower that never fetched",
        FindingKind.UNDER_REPLICATED,
        partition(
            replica(2, 40, fetch_refused="the leader refused the fetch of broker 2: its epoch is 4"),
            replica(3, None, last_fetch_ago_ms=None),
            isr=(1,),
            min_insync_replicas=1,
        ),
        "orders/3 has 1 of 3 replicas in sync, because the leader refused the fetch of broker 2: its epoch is 4; "
        "broker 3 has not fetched in leader epoch 5",
    ),
    (
        "a follower that is about to join",
        FindingKind.UNDER_REPLICATED,
        partition(isr=(1, 2)),
        "orders/3 has 2 of 3 replicas in sync, because broker 3 has caught up and is about to join the ISR",
    ),
    (
        "a missing replica, with no answer of the leader",
        FindingKind.UNDER_REPLICATED,
        partition(ReplicaFacts(broker_id=1), ReplicaFacts(broker_id=3), broker(1, answers=False), isr=(1, 2)),
        "orders/3 has 2 of 3 replicas in sync, because broker 3 is not in sync",
    ),
    (
        "the high watermark stands still by its age",
        FindingKind.HIGH_WATERMARK_HELD,
        partition(
            replica(1, 150),
            replica(2, 150),
            replica(3, 100, last_fetch_ago_ms=65_000),
            high_watermark_since_ms=SINCE_MS,
        ),
        "orders/3 has not committed 50 records after offset 100 for 12.4 s, because ISR member broker 3 has not "
        "fetched for 1 min 5 s",
    ),
    (
        "the high watermark stands still, as the caught-up age of a member shows",
        FindingKind.HIGH_WATERMARK_HELD,
        partition(replica(1, 101), replica(2, 101), replica(3, 100, caught_up_ago_ms=1_500)),
        "orders/3 has not committed 1 record after offset 100 for 1.5 s, because ISR member broker 3 lags 1 record "
        "behind",
    ),
    (
        "a member of the ISR does not fetch, and no record waits for it",
        FindingKind.HIGH_WATERMARK_HELD,
        partition(replica(3, last_fetch_ago_ms=4_000)),
        "orders/3 would not commit a new record now, because ISR member broker 3 has not fetched for 4.0 s",
    ),
    (
        "a reassignment",
        FindingKind.REASSIGNMENT,
        partition(
            reassignment=ReassignmentFacts(
                adding=(3,), removing=(2,), waits_for=(AwaitedFacts(broker_id=3, reason="broker 3 lags 7 records"),)
            ),
        ),
        "orders/3 is being reassigned (adds 3, removes 2) and waits: broker 3 lags 7 records",
    ),
    (
        "a reassignment that is about to be done",
        FindingKind.REASSIGNMENT,
        partition(reassignment=ReassignmentFacts(removing=(2, 3))),
        "orders/3 is being reassigned (removes 2 and 3) and is about to be done",
    ),
    (
        "a reassignment that is stuck",
        FindingKind.REASSIGNMENT_STUCK,
        partition(
            isr=(1, 2),
            reassignment=ReassignmentFacts(
                adding=(3,), waits_for=(AwaitedFacts(broker_id=3, reason="broker 3 is not alive", stuck=True),)
            ),
        ),
        "orders/3 is being reassigned (adds 3) and does not get on, because broker 3 is not alive",
    ),
    (
        "a broker that does not answer",
        FindingKind.BROKER_SILENT,
        partition(broker(2, answers=False)),
        "orders/3 is known in part: broker 2 has not answered",
    ),
    (
        "a broker that has not applied the leader epoch",
        FindingKind.CONTROL_PENDING,
        partition(replica(3, applied_leader_epoch=4)),
        "orders/3 is in leader epoch 5, but broker 3 has applied only 4",
    ),
    (
        "another replica should lead",
        FindingKind.NOT_PREFERRED,
        partition(leader=2),
        "orders/3 is led by broker 2 instead of its preferred replica 1, which is in sync",
    ),
    (
        "the preferred replica is not in sync",
        FindingKind.NOT_PREFERRED,
        partition(leader=2, isr=(2, 3)),
        "orders/3 is led by broker 2 until its preferred replica 1 is in sync",
    ),
    (
        "records that the next leader lacks",
        FindingKind.TAIL,
        partition(replica(1, 107), acknowledged_offset=100),
        "orders/3 would lose 7 records, none of them acknowledged to acks=all, if broker 1 died now: the log of "
        "broker 2, which would lead next, ends at 100",
    ),
    (
        "acknowledged records that the next leader lacks",
        FindingKind.TAIL,
        partition(replica(1, 107), broker(2, alive=False), acknowledged_offset=105, acknowledged_by_leader_offset=107),
        "orders/3 would lose 7 records (5 of them acknowledged to acks=all), if broker 1 died now: the log of "
        "broker 3, which would lead next, ends at 100",
    ),
    (
        "records acknowledged by the leader alone",
        FindingKind.TAIL,
        partition(replica(1, 107), acknowledged_offset=90, acknowledged_by_leader_offset=104),
        "orders/3 would lose 7 records (4 of them acknowledged to acks=1, none to acks=all), if broker 1 died now: "
        "the log of broker 2, which would lead next, ends at 100",
    ),
    (
        "records that only a sole member has",
        FindingKind.TAIL,
        partition(replica(1, 107), isr=(1,), min_insync_replicas=1),
        "orders/3 has its last 7 records on broker 1 alone, the only member of its ISR that can lead",
    ),
]


@pytest.mark.parametrize(
    ("kind", "facts", "sentence"), [row[1:] for row in SENTENCES], ids=[row[0] for row in SENTENCES]
)
def test_the_sentence(kind: FindingKind, facts: PartitionFacts, sentence: str) -> None:
    assert of_kind(facts, kind).sentence == sentence


def test_an_answer_that_is_older_than_the_leaders_high_watermark_says_nothing_of_lost_records() -> None:
    facts = partition(replica(1, 107, high_watermark=106))
    assert FindingKind.TAIL not in [found.kind for found in explain(facts, NOW_MS)]


def test_a_healthy_partition_has_one_finding() -> None:
    (found,) = explain(partition(), NOW_MS)
    assert found.severity is Severity.OK
    assert found.next_command is None


def test_a_healthy_partition_keeps_its_notes_and_a_problem_stands_before_its_notes() -> None:
    notes = explain(partition(leader=2), NOW_MS)
    assert [found.kind for found in notes] == [FindingKind.HEALTHY, FindingKind.NOT_PREFERRED]
    troubles = explain(partition(broker(1, alive=False), leader=2, isr=(2,)), NOW_MS)
    assert [found.severity for found in troubles] == sorted((found.severity for found in troubles), reverse=True)
    assert troubles[0].kind is FindingKind.UNDER_MIN_ISR


def test_missing_replicas_are_named_once() -> None:
    kinds = [found.kind for found in explain(partition(broker(1, alive=False), leader=2, isr=(2,)), NOW_MS)]
    assert FindingKind.UNDER_MIN_ISR in kinds and FindingKind.UNDER_REPLICATED not in kinds


def test_a_dead_broker_is_not_called_silent() -> None:
    kinds = [found.kind for found in explain(partition(broker(2, alive=False, answers=False), isr=(1, 3)), NOW_MS)]
    assert kinds == [FindingKind.UNDER_REPLICATED]


def test_an_added_replica_is_not_missing() -> None:
    moved = partition(isr=(1, 2), reassignment=ReassignmentFacts(adding=(3,)))
    assert moved.replication_factor == 2
    assert first(moved).kind is FindingKind.HEALTHY


def test_values_that_are_not_known_make_no_finding() -> None:
    bare = tuple(ReplicaFacts(broker_id=each) for each in (1, 2, 3))
    facts = partition(replicas=bare, brokers=(), min_insync_replicas=None, unclean_election=None)
    assert [found.sentence for found in explain(facts, NOW_MS)] == [
        "orders/3 is healthy: broker 1 leads in epoch 5, all 3 replicas are in sync"
    ]


def test_a_follower_that_waits_for_the_next_record_does_not_hold_the_high_watermark() -> None:
    busy = partition(replica(1, 150), replica(2, 150), replica(3, 120))
    assert FindingKind.HIGH_WATERMARK_HELD not in [found.kind for found in explain(busy, NOW_MS)]
    late = partition(replica(1, 150), replica(2, 150), replica(3, 100, caught_up_ago_ms=999))
    assert FindingKind.HIGH_WATERMARK_HELD not in [found.kind for found in explain(late, NOW_MS)]
    small = replace(busy, isr=(1,), high_watermark_since_ms=SINCE_MS)
    assert FindingKind.HIGH_WATERMARK_HELD not in [found.kind for found in explain(small, NOW_MS)]


@pytest.mark.parametrize(
    ("facts", "command"),
    [
        (
            partition(broker(1, alive=False), leader=None, isr=(1,)),
            "paceline partition elect --unclean --dry-run orders/3",
        ),
        (partition(leader=2), "paceline partition elect --preferred orders/3"),
        (partition(replicas=(replica(1),), isr=(1,)), "paceline topic alter orders --set min.insync.replicas=1"),
        (partition(broker(3, alive=False), isr=(1, 2)), "paceline watch orders/3"),
        (partition(reassignment=ReassignmentFacts(adding=(3,))), "paceline reassign status"),
    ],
)
def test_the_next_command(facts: PartitionFacts, command: str) -> None:
    assert command in [found.next_command for found in explain(facts, NOW_MS)]


# Broken promises


def test_a_record_that_was_acknowledged_and_is_missing_is_lost() -> None:
    found = first(partition(replica(1, 90, high_watermark=90), replica(2, 90), replica(3, 90), acknowledged_offset=100))
    assert (found.severity, found.kind) == (Severity.BROKEN, FindingKind.LOST)
    assert found.sentence == (
        "orders/3 has lost 10 records acknowledged to acks=all up to offset 100, because the log of its leader, "
        "broker 1, ends at 90"
    )


def test_an_isr_member_without_an_acknowledged_record_is_named() -> None:
    found = first(partition(replica(2, 95), acknowledged_offset=100))
    assert found.sentence == "orders/3 has records acknowledged to acks=all up to offset 100 that ISR members lack: 2"
    assert first(partition(replica(2, 95), acknowledged_offset=95)).kind is FindingKind.HEALTHY


@pytest.mark.parametrize(
    ("ago_ms", "severity"), [(None, Severity.BROKEN), (5_000, Severity.BROKEN), (200, Severity.NOTE)]
)
def test_an_acknowledged_record_above_the_high_watermark_is_told(ago_ms: int | None, severity: Severity) -> None:
    since = None if ago_ms is None else NOW_MS - ago_ms
    facts = partition(replica(1, high_watermark=90), acknowledged_offset=95, leader_since_ms=since)
    (found,) = [one for one in explain(facts, NOW_MS) if one.kind is FindingKind.NOT_COMMITTED]
    assert found.severity is severity
    assert (
        found.symptom
        == "has records acknowledged to acks=all up to offset 95 above the high watermark 90 of its leader"
    )


@pytest.mark.parametrize("ago_ms", [100, None])
def test_a_restarted_leader_whose_followers_have_not_fetched_yet_breaks_no_promise(ago_ms: int | None) -> None:
    """It begins with the high watermark of its checkpoint, or with 0, until every ISR member has fetched."""
    follower = replica(2, last_fetch_ago_ms=ago_ms, caught_up_ago_ms=None)
    facts = partition(replica(1, high_watermark=0), follower, acknowledged_offset=95, leader_since_ms=SINCE_MS)
    expected = Severity.BROKEN if ago_ms else Severity.NOTE
    assert of_kind(facts, FindingKind.NOT_COMMITTED).severity is expected


def test_a_request_of_a_deposed_controller_is_named() -> None:
    found = first(partition(controller_epoch_falls=((2, 4, 3),)))
    assert found.sentence == (
        "orders/3 was changed by a deposed controller: broker 2 applied controller epoch 3 after 4"
    )


def test_a_read_record_above_the_high_watermark_is_told() -> None:
    found = first(partition(replica(1, high_watermark=90), read_offset=95))
    assert found.symptom == "has records read by a consumer up to offset 95 above the high watermark 90 of its leader"


def test_offsets_of_a_leader_that_does_not_answer_break_no_promise() -> None:
    facts = partition(replica(1, 90), broker(1, answers=False), acknowledged_offset=100)
    assert all(one.kind is not FindingKind.LOST for one in explain(facts, NOW_MS))
    facts = partition(replica(1, 90, is_earlier=True), replica(2, 90, is_earlier=True), acknowledged_offset=100)
    assert first(facts).kind is FindingKind.HEALTHY


def test_a_leader_from_outside_the_isr_is_named() -> None:
    found = first(partition(isr_before_election=(3,), leader_since_ms=SINCE_MS))
    assert found.sentence == (
        "orders/3 is led by broker 1, which may lack records, because the ISR before its election was 3"
    )
    assert first(partition(isr_before_election=(1, 3))).kind is FindingKind.HEALTHY


def test_a_commit_with_too_small_an_isr_is_named() -> None:
    found = next(
        one
        for one in explain(partition(isr=(1,), committed_under_min_isr=(90, 95)), NOW_MS)
        if one.kind is FindingKind.NOT_COMMITTED
    )
    assert found.sentence == (
        "orders/3 has moved its high watermark from 90 to 95, although its ISR is 1, because min.insync.replicas, 2, "
        "was not obeyed"
    )
