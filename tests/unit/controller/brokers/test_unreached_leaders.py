"""A broker that most of its followers cannot fetch from leads only as a last resort."""

import pytest

from paceline.controller.admin.admin_values import ElectionType
from paceline.controller.brokers.unreached_leaders import HOLD_MS, unreached_brokers
from paceline.model.admin import NewTopic
from paceline.model.control import BrokerHeartbeatRequest
from paceline.model.errors import PreferredLeaderNotAvailableError
from paceline.model.settings import ControllerConfig
from paceline.model.state_change import StateChangeKind
from tests.unit.controller.admin_calls import elect
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp

LEASE_MS = 9_000
BEAT_MS = 3_000

Reports = dict[int, tuple[tuple[int, ...], tuple[int, ...]]]
"""By follower: leaders that do not answer it, and leaders that answer it."""

OTHERS_FAIL: Reports = {2: ((1,), ()), 3: ((1,), ())}


@pytest.mark.parametrize(
    ("rule", "reports", "unreached"),
    [
        ("every follower fails", {2: ((1,), (3,)), 3: ((1,), (2,))}, {1}),
        ("the only leader is reached by none", OTHERS_FAIL, {1}),
        ("one follower fails, no other fetches", {2: ((1,), (3,)), 3: ((), (2,))}, {1}),
        ("one cut-off follower of two is no majority", {2: ((1,), ()), 3: ((), (1,))}, set()),
        ("two of three followers are a majority", {2: ((1,), ()), 3: ((1,), ()), 4: ((), (1,))}, {1}),
        (
            "a follower that reaches none of several is cut off itself",
            {2: ((1, 3), ()), 1: ((), ()), 3: ((), ())},
            set(),
        ),
        ("two of three brokers are unreached", {2: ((1, 3), ()), 1: ((3,), (2,)), 3: ((1,), (2,))}, {1, 3}),
        ("both of two brokers fail", {1: ((2,), ()), 2: ((1,), ())}, {1, 2}),
        ("no follower reports a failure", {1: ((), (2,)), 2: ((), ())}, set()),
    ],
)
def test_a_broker_is_unreached_when_more_followers_fail_than_reach_it(
    rule: str, reports: Reports, unreached: set[int]
) -> None:
    heartbeats = [BrokerHeartbeatRequest(one, 0, (), *report) for one, report in reports.items()]
    assert unreached_brokers(heartbeats) == unreached, rule


def started(*topics: tuple[str, tuple[int, ...]], config: ControllerConfig | None = None) -> Cluster:
    cluster = Cluster(config)
    cluster.lease_ms = LEASE_MS
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    create(cluster, *topics)
    return cluster


def create(cluster: Cluster, *topics: tuple[str, tuple[int, ...]]) -> None:
    cluster.create(*(NewTopic(name, assignments=(replicas,)) for name, replicas in topics))


def beat(cluster: Cluster, reports: Reports | None = None, for_ms: int = 0) -> None:
    """Let all brokers send heartbeats with these reports, once or for a time."""
    for _ in range(0, for_ms + 1, BEAT_MS):
        for broker_id in sorted(cluster.controller._components.context.brokers):
            unreachable, reached = (reports or {}).get(broker_id, ((), ()))
            cluster.heartbeat(broker_id, unreachable=unreachable, reached=reached)
        cluster.settle()
        if for_ms:
            cluster.time.run_for(BEAT_MS)


def test_leaders_move_off_an_unreached_broker_which_stays_in_the_isr() -> None:
    cluster = started(("a", (1, 2, 3)), ("b", (2, 1)))
    beat(cluster, {2: ((1,), ())})
    assert cluster.state("a-0") == "2/1 isr [1, 2, 3] ce 1 v1"
    assert cluster.state("b-0").startswith("2/0"), "broker 1 does not lead this partition"
    counted = {labels: count for labels, count in cluster.controller.elections.items() if count}
    assert counted == {("controlled_shutdown", "unreachable"): 1}
    (noted,) = [one for one in cluster.state_changes if one.kind is StateChangeKind.LEADER_UNREACHABLE]
    assert noted.replica == 1


def test_an_isr_of_the_unreached_broker_alone_keeps_its_leader() -> None:
    cluster = started(("a", (1, 2, 3)), ("u", (1,)))
    cluster.change_isr("a-0", [1])
    cluster.settle()
    beat(cluster, OTHERS_FAIL)
    assert cluster.state("a-0").startswith("1/0 isr [1]")
    assert cluster.state("u-0").startswith("1/0 isr [1]")


def test_a_leader_moves_when_a_reached_replica_joins_the_isr_later() -> None:
    cluster = started(("a", (1, 2, 3)))
    cluster.change_isr("a-0", [1])
    cluster.settle()
    beat(cluster, OTHERS_FAIL)
    cluster.change_isr("a-0", [1, 3])
    cluster.settle()
    assert cluster.state("a-0").startswith("3/1 isr [1, 3]")


def test_one_follower_that_is_cut_off_moves_no_leader() -> None:
    cluster = started(("a", (1, 2, 3)))
    beat(cluster, {2: ((1,), ()), 3: ((), (1,))})
    assert cluster.state("a-0").startswith("1/0")


def test_a_new_controller_decides_when_all_live_brokers_have_sent_a_heartbeat() -> None:
    cluster = started(("a", (1, 2, 3)))
    cluster.heartbeat(2, unreachable=(1,))
    cluster.heartbeat(1)
    cluster.settle()
    assert cluster.state("a-0").startswith("1/0"), "broker 3 may reach broker 1"
    cluster.heartbeat(3)
    cluster.settle()
    assert cluster.state("a-0").startswith("2/1")


def test_reports_of_a_broker_without_a_lease_do_not_count() -> None:
    cluster = started(("a", (1, 2, 3)))
    cluster.heartbeat(2, unreachable=(1,))
    cluster.controller._components.liveness.leases.expire(2)
    cluster.settle()
    cluster.heartbeat(1, 3)
    cluster.settle()
    assert cluster.state("a-0").startswith("1/0")


def test_new_partitions_are_led_by_the_first_reached_replica() -> None:
    cluster = started(("a", (1, 2, 3)))
    beat(cluster, OTHERS_FAIL)
    create(cluster, ("b", (1, 3, 2)), ("c", (1,)))
    assert cluster.state("b-0") == "3/0 isr [1, 3, 2] ce 1 v0", "the ISR keeps the order of the assignment"
    assert cluster.state("c-0") == "1/0 isr [1] ce 1 v0", "the only replica leads"


def test_a_dead_leader_is_replaced_by_a_reached_replica_first() -> None:
    cluster = started(("a", (2, 1, 3)), ("b", (2, 1)))
    beat(cluster, {3: ((1,), (2,))})
    cluster.kill_broker(2)
    cluster.settle()
    assert cluster.state("a-0").startswith("3/1 isr [1, 3]")
    assert cluster.state("b-0").startswith("1/1 isr [1]"), "an unreached broker is better than no leader"


def test_a_controlled_shutdown_moves_leaders_to_reached_replicas_first() -> None:
    cluster = started(("a", (2, 1, 3)), ("b", (2, 1)))
    beat(cluster, {3: ((1,), (2,))})
    assert cluster.controlled_shutdown(2).remaining == ()
    assert cluster.state("a-0").startswith("3/1") and cluster.state("b-0").startswith("1/1")


def test_a_reassignment_moves_the_leader_to_a_reached_replica_first() -> None:
    cluster = started(("a", (2, 1, 3)))
    beat(cluster, {3: ((1,), (2,))})
    cluster.reassign({tp("a-0"): (1, 3)})
    cluster.settle()
    assert cluster.state("a-0").startswith("3/")


def test_a_preferred_election_moves_no_leader_to_an_unreached_broker() -> None:
    cluster = started(("a", (1, 2, 3)))
    beat(cluster, OTHERS_FAIL)
    (result,) = elect(cluster, ElectionType.PREFERRED, "a-0")
    assert isinstance(result.error, PreferredLeaderNotAvailableError) and "cannot fetch from broker 1" in str(
        result.error
    )
    assert cluster.state("a-0").startswith("2/1")


def test_the_periodic_check_gives_leaders_back_only_after_the_hold_time() -> None:
    config = ControllerConfig(CONTROLLER_ID, leader_imbalance_check_interval_ms=BEAT_MS)
    cluster = started(("a", (1, 2, 3)), config=config)
    beat(cluster, OTHERS_FAIL, for_ms=60_000)
    assert cluster.state("a-0").startswith("2/1"), "one change, however long the reports last"
    beat(cluster, for_ms=HOLD_MS - 2 * BEAT_MS)
    assert cluster.state("a-0").startswith("2/1")
    beat(cluster, for_ms=4 * BEAT_MS)
    assert cluster.state("a-0").startswith("1/2")


def test_reports_that_come_and_go_move_a_leader_once() -> None:
    config = ControllerConfig(CONTROLLER_ID, leader_imbalance_check_interval_ms=BEAT_MS)
    cluster = started(("a", (1, 2, 3)), config=config)
    for _ in range(10):
        beat(cluster, OTHERS_FAIL)
        beat(cluster, for_ms=HOLD_MS // 2)
    assert cluster.state("a-0").startswith("2/1")


def test_a_new_registration_may_lead_at_once() -> None:
    cluster = started(("a", (1, 2, 3)))
    beat(cluster, OTHERS_FAIL)
    cluster.kill_broker(1)
    cluster.settle()
    beat(cluster)
    cluster.start_broker(1)
    cluster.settle()
    create(cluster, ("b", (1, 2, 3)))
    assert cluster.state("b-0").startswith("1/0")


def test_a_new_controller_learns_from_the_next_heartbeats() -> None:
    cluster = started(("a", (1, 2, 3)))
    beat(cluster, OTHERS_FAIL)
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.start_controller(CONTROLLER_ID + 1)
    create(cluster, ("b", (1, 2, 3)))
    assert cluster.state("b-0").startswith("1/0")
    beat(cluster, OTHERS_FAIL)
    assert cluster.state("b-0").startswith("2/1")
