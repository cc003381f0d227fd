"""Metrics of cluster events, on histories small enough to add up by hand."""

from dataclasses import asdict

from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChange, StateChangeKind
from paceline.pipeline.jobs.analyse.events import EventRow, from_dict, in_order, row_of
from paceline.pipeline.jobs.analyse.job import analyse
from paceline.pipeline.jobs.analyse.metrics import failovers, isr_churn, leader_imbalance, under_replicated
from paceline.rpc.convert.events import event_to_proto

WHERE = ("orders", 0)


def event(kind: str, time_ms: int, source: str = "b", **fields: object) -> EventRow:
    found = {"topic": "orders", "partition": 0, "controller_epoch": 1, **fields}
    return EventRow(f"{kind}-{time_ms}-{source}", kind, source, time_ms, time_ms, **found)  # type: ignore[arg-type]


def isr(
    kind: str, time_ms: int, version: int, after: tuple[int, ...], before: tuple[int, ...], who: str = "b"
) -> EventRow:
    return event(kind, time_ms, who, isr=after, old_isr=before, leader_epoch=0, zk_version=version, leader=1)


HISTORY = [
    isr("isr_shrunk", 1_000, 1, (1, 2), (1, 2, 3)),
    isr("isr_shrunk", 1_005, 1, (1, 2), (1, 2, 3), "controller"),
    isr("isr_expanded", 31_000, 2, (1, 2, 3), (1, 2)),
    isr("isr_shrunk", 100_000, 3, (1,), (1, 2, 3)),
    isr("isr_expanded", 200_000, 4, (1, 2), (1,)),
]


def test_a_change_that_leader_and_controller_report_counts_once_and_a_quick_return_is_a_flap() -> None:
    churn = isr_churn(HISTORY)[WHERE]
    assert (churn.shrinks, churn.expands, churn.flaps) == (2, 2, 1)


def test_time_with_a_small_isr_is_added_up_to_the_end() -> None:
    found = under_replicated(HISTORY, end_ms=260_000)[WHERE]
    assert (found.total_ms, found.longest_ms, found.replicas, found.still) == (30_000 + 160_000, 160_000, 3, True)


def test_versions_order_a_partition_and_clocks_do_not() -> None:
    late = isr("isr_expanded", 900, 2, (1, 2, 3), (1, 2))
    found = under_replicated([HISTORY[0], late], end_ms=5_000)
    assert found == {} or not found[WHERE].still


def test_leaders_are_counted_per_minute() -> None:
    events = [
        event("became_leader", 1_000, partition=n, broker_id=1, leader_epoch=0) for n in range(3)
    ] + [event("became_leader", 61_000, partition=2, broker_id=2, leader_epoch=1)]  # fmt: skip
    first, second = leader_imbalance(events)
    assert first.leaders == {1: 3} and second.leaders == {1: 2, 2: 1} and second.ratio == 4 / 3


def killed_leader() -> list[EventRow]:
    return [
        event("leader_elected", 500, leader=1, leader_epoch=0, cause="TopicChange", source="c"),
        event("became_leader", 520, broker_id=1, leader=1, leader_epoch=0),
        event("broker_down", 10_000, broker_id=1, silent_ms=6_400, topic="", partition=-1, source="c"),
        event("leader_elected", 10_008, leader=2, leader_epoch=1, cause="BrokerChange", source="c"),
        event("first_commit", 10_040, broker_id=2, leader=2, leader_epoch=1),
        event("became_leader", 10_015, broker_id=2, leader=2, leader_epoch=1),
    ]


def test_a_failover_is_split_into_its_spans() -> None:
    (found,) = failovers(killed_leader()).all
    assert (found.where, found.leader_epoch, found.cause) == (WHERE, 1, "broker failure")
    assert (found.detect_ms, found.elect_ms, found.propagate_ms, found.recover_ms) == (6_400, 8, 7, 25)


def test_a_suspected_broker_is_noticed_before_its_registration_ends() -> None:
    events = killed_leader()
    suspected = event("broker_suspected", 9_990, "c", broker_id=1, silent_ms=1_200, topic="", partition=-1)
    elected = event("leader_elected", 9_995, "c", leader=2, leader_epoch=1, cause="BrokerLeaseChange")
    (found,) = failovers([*events[:2], suspected, elected, events[2], *events[4:]]).all
    assert (found.cause, found.detect_ms, found.elect_ms) == ("broker failure", 1_200, 5)


def test_events_of_different_processes_may_arrive_the_wrong_way_round() -> None:
    events = killed_leader()
    late = [*events[:2], *events[4:], *events[2:4]]
    assert failovers(late).all == failovers(events).all


def test_an_election_without_a_dead_broker_has_its_own_cause_and_no_detection() -> None:
    election = event("leader_elected", 9_000, leader=2, leader_epoch=1, cause="ControlledShutdown")
    events = [*killed_leader()[:2], election]
    (found,) = failovers(events).all
    assert (found.cause, found.detect_ms, found.elect_ms, found.recover_ms) == ("ControlledShutdown", None, None, None)


def test_a_span_that_clocks_made_negative_is_counted_and_left_out() -> None:
    events = [*killed_leader()[:4], event("became_leader", 10_001, broker_id=2, leader=2, leader_epoch=1)]
    found = failovers(events)
    assert found.negative_spans == 1 and found.all[0].propagate_ms is None


def test_events_survive_the_wire_and_repeated_ones_count_once() -> None:
    change = StateChange(
        who="broker-1", wall_ms=5, kind=StateChangeKind.ISR_SHRUNK, topic_partition=TopicPartition("t", 3), replica=1,
        controller_epoch=2, leader=1, leader_epoch=4, isr=(1,), old_isr=(1, 2), zk_version=7, cause="why",
    )  # fmt: skip
    value = event_to_proto(change).SerializeToString()
    row = row_of(value, "x.1", 10)
    assert row is not None and from_dict(asdict(row)) == row
    assert (row.kind, row.where, row.isr, row.old_isr, row.zk_version) == ("isr_shrunk", ("t", 3), (1,), (1, 2), 7)
    again = row_of(value, "x.1", 12)
    assert again is not None and in_order([again, row]) == [row]
    assert row_of(b"\xff\xff", "x.2", 11) is None and row_of(b"", "x.3", 12) is None


def test_an_empty_topic_has_empty_metrics() -> None:
    found = analyse([])
    assert found["failovers"] == 0 and found["leader_imbalance"] is None
