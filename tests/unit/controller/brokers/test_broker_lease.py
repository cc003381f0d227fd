"""A broker without heartbeats loses its leaders when its lease expires, and keeps its registration."""

from collections.abc import Callable

import pytest

from paceline.controller.brokers.broker_leases import BrokerLeases
from paceline.model.admin import NewTopic
from paceline.model.control import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from paceline.model.errors import ErrorCode, NotControllerError
from tests.support.virtual_time import VirtualTime
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster

LEASE_MS = 9_000


def started(*topics: tuple[str, tuple[int, ...]]) -> Cluster:
    cluster = Cluster()
    cluster.lease_ms = LEASE_MS
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(*(NewTopic(name, assignments=(replicas,)) for name, replicas in topics))
    cluster.told()
    return cluster


def pass_ms(cluster: Cluster, ms: int, *alive: int) -> None:
    """Let time pass; brokers ``alive`` send heartbeats on time."""
    while ms > 0:
        for broker_id in alive:
            cluster.heartbeat(broker_id)
        step_ms = min(ms, LEASE_MS // 3)
        cluster.time.run_for(step_ms)
        ms -= step_ms
    cluster.settle()


def test_a_broker_without_heartbeats_for_a_lease_loses_leadership_but_not_its_registration() -> None:
    cluster = started(("a", (1, 2)), ("b", (2, 1)), ("u", (1,)))
    pass_ms(cluster, LEASE_MS - 1, 2, 3)
    assert cluster.state("a-0") == "1/0 isr [1, 2] ce 1 v0", "the lease has not expired yet"
    pass_ms(cluster, LEASE_MS, 2, 3)
    assert cluster.state("a-0") == "2/1 isr [2] ce 1 v1"
    assert cluster.state("b-0") == "2/0 isr [2, 1] ce 1 v0", "it continues to follow its other partitions"
    assert cluster.state("u-0") == "1/0 isr [1] ce 1 v0", "no other replica can lead this partition"
    told = cluster.told()
    assert "LAI a-0 2/1 [2]" in told[1], "it receives decisions"
    assert told[3][-1] == "UM {a-0 2/1 [2] offline [1], b-0 2/0 [2, 1] offline [1], u-0 1/0 [1] offline [1]}"


def test_a_heartbeat_lets_the_broker_lead_again() -> None:
    cluster = started(("a", (1, 2)), ("u", (1,)))
    pass_ms(cluster, 2 * LEASE_MS, 2, 3)
    cluster.told()
    assert cluster.heartbeat(1) == [BrokerHeartbeatResponse(ErrorCode.NONE, 1)]
    cluster.settle()
    assert cluster.told()[2][0] == "UM {a-0 2/1 [2], u-0 1/0 [1]}"
    cluster.change_isr("a-0", [2, 1])
    cluster.settle()
    cluster.kill_broker(2)
    cluster.settle()
    assert cluster.state("a-0").startswith("1/2"), "it may lead again"


def test_a_broker_without_a_lease_is_not_elected_and_gets_no_new_replicas() -> None:
    cluster = started(("a", (1, 2)))
    pass_ms(cluster, 2 * LEASE_MS, 1, 3)
    cluster.kill_broker(1)
    cluster.settle()
    assert cluster.state("a-0").startswith("-1/")
    (created,) = cluster.create(NewTopic("b", assignments=((2, 3),)), timeout_ms=500)
    assert cluster.state("b-0").startswith("3/0 isr [3]"), created
    cluster.heartbeat(2)
    cluster.settle()
    assert cluster.state("a-0").startswith("2/")


def test_a_broker_without_a_lease_receives_new_partitions_and_new_leaders() -> None:
    """The controller does not resend them later: without them the broker would follow a dead leader, or none."""
    cluster = started(("a", (1, 2, 3)))
    pass_ms(cluster, 2 * LEASE_MS, 1, 3)
    cluster.told()
    cluster.create(NewTopic("b", assignments=((3, 2),)), timeout_ms=500)
    assert "LAI b-0 3/0 [3] new" in cluster.told()[2]
    cluster.kill_broker(1)
    cluster.settle()
    assert "LAI a-0 3/1 [3]" in cluster.told()[2]


def test_a_leader_without_lease_is_replaced_when_an_isr_member_sends_heartbeats_again() -> None:
    cluster = started(("a", (1, 2)))
    pass_ms(cluster, 2 * LEASE_MS, 1, 3)
    pass_ms(cluster, 2 * LEASE_MS, 3)
    assert cluster.state("a-0") == "1/0 isr [1, 2] ce 1 v0", "no other replica can lead"
    pass_ms(cluster, LEASE_MS, 2, 3)
    assert cluster.state("a-0") == "2/1 isr [2] ce 1 v1"


def test_a_leader_without_lease_is_replaced_by_a_replica_that_joins_its_isr() -> None:
    cluster = started(("a", (1, 2)), ("b", (1, 2)))
    cluster.change_isr("a-0", [1])
    cluster.change_isr("b-0", [1])
    cluster.settle()
    pass_ms(cluster, 2 * LEASE_MS, 2, 3)
    assert cluster.state("a-0") == "1/0 isr [1] ce 1 v1", "no other replica can lead"
    cluster.change_isr("a-0", [1, 2])
    cluster.settle()
    assert cluster.state("a-0") == "2/1 isr [2] ce 1 v3"
    assert cluster.state("b-0") == "1/0 isr [1] ce 1 v1"


def test_a_broker_with_heartbeats_keeps_its_leaders() -> None:
    cluster = started(("a", (1, 2)))
    pass_ms(cluster, 10 * LEASE_MS, 1, 2, 3)
    assert cluster.state("a-0") == "1/0 isr [1, 2] ce 1 v0"
    assert cluster.told() == {}


def test_a_new_controller_grants_full_leases() -> None:
    cluster = started(("a", (1, 2)))
    pass_ms(cluster, LEASE_MS - 1_000)
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.start_controller(CONTROLLER_ID + 1)
    pass_ms(cluster, LEASE_MS - 1_000)
    assert cluster.state("a-0") == "1/0 isr [1, 2] ce 1 v0"
    pass_ms(cluster, 2_000, 2, 3)
    assert cluster.state("a-0").startswith("2/1"), "only 1 sent no heartbeat for a whole lease"


def test_a_broker_that_registers_again_begins_with_a_full_lease() -> None:
    cluster = started(("a", (1, 2)))
    pass_ms(cluster, 2 * LEASE_MS, 2, 3)
    assert cluster.state("a-0").startswith("2/1")
    cluster.kill_broker(1)
    cluster.settle()
    cluster.start_broker(1)
    cluster.settle()
    cluster.change_isr("a-0", [2, 1])
    cluster.settle()
    cluster.kill_broker(2)
    cluster.settle()
    assert cluster.state("a-0").startswith("1/")


def test_a_heartbeat_is_answered_with_epoch_and_error() -> None:
    cluster = started()
    (stale,) = cluster.heartbeat(1, broker_epoch=0)
    assert stale == BrokerHeartbeatResponse(ErrorCode.STALE_BROKER_EPOCH, 1)
    unknown = cluster.controller.broker_heartbeat(BrokerHeartbeatRequest(9, 1))
    assert unknown == BrokerHeartbeatResponse(ErrorCode.BROKER_NOT_AVAILABLE, 1)
    (unread,) = cluster.heartbeat(1, broker_epoch=1 << 40)
    assert unread == BrokerHeartbeatResponse(ErrorCode.BROKER_NOT_AVAILABLE, 1), "requests do not reach it yet"
    standby = cluster.start_controller(CONTROLLER_ID + 1)
    with pytest.raises(NotControllerError):
        standby.broker_heartbeat(BrokerHeartbeatRequest(1, 1 << 40))


def test_a_heartbeat_is_answered_with_the_age_of_a_request_that_has_not_arrived() -> None:
    cluster = started(("a", (1, 2)))
    assert [one.unanswered_ms for one in cluster.heartbeat(1, 2)] == [0, 0]
    cluster.brokers.silent.add(1)
    cluster.create(NewTopic("b", assignments=((2, 1),)), timeout_ms=500)
    began_ms = cluster.time.now_ms()
    before = cluster.heartbeat(1)[0].unanswered_ms
    cluster.time.run_for(LEASE_MS // 3)
    assert cluster.heartbeat(1)[0].unanswered_ms - before == cluster.time.now_ms() - began_ms
    assert cluster.heartbeat(2)[0].unanswered_ms == 0
    cluster.brokers.release(1)
    cluster.settle()
    assert cluster.heartbeat(1)[0].unanswered_ms == 0


def test_a_heartbeat_of_an_earlier_registration_renews_nothing() -> None:
    cluster = started(("a", (1, 2)))
    for _ in range(6):
        cluster.heartbeat(1, broker_epoch=0)
        pass_ms(cluster, LEASE_MS // 3, 2, 3)
    assert cluster.state("a-0").startswith("2/")


def test_a_lease_of_0_never_expires() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    pass_ms(cluster, 10 * LEASE_MS)
    assert cluster.state("a-0") == "1/0 isr [1, 2] ce 1 v0"


class _StoppableClock(VirtualTime):
    """Virtual time of a process that may be paused: its callbacks run late."""

    skipped_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.skipped_ms


@pytest.mark.parametrize(("paused_ms", "expected"), [(0, [1]), (LEASE_MS // 3, [1]), (LEASE_MS // 3 + 1, [])])
def test_a_controller_that_was_paused_itself_expires_no_lease(paused_ms: int, expected: list[int]) -> None:
    time = _StoppableClock()
    changes: list[int] = []
    on_change: Callable[[int], None] = changes.append
    leases = BrokerLeases(LEASE_MS, time, on_change)
    leases.grant([1])
    time.skipped_ms = paused_ms
    time.run_for(LEASE_MS)
    assert changes == expected
    assert leases.has_expired(1) is bool(expected)


def test_the_oldest_lease_expires_first_and_a_dropped_lease_never() -> None:
    time = VirtualTime()
    changes: list[int] = []
    leases = BrokerLeases(LEASE_MS, time, changes.append)
    leases.grant([1, 2, 3])
    time.call_later(1_000, lambda: leases.renew(1))
    time.call_later(2_000, lambda: leases.drop([3]))
    time.run_until(lambda: 1 in changes, max_ms=LEASE_MS + 1_000)
    assert changes == [2, 1]
    leases.renew(3)
    leases.renew(2)
    assert changes == [2, 1, 2] and not leases.has_expired(2)


def test_the_time_since_the_last_heartbeat_is_known_only_after_a_heartbeat() -> None:
    time = VirtualTime()
    leases = BrokerLeases(9_000, time, lambda _broker_id: None)
    leases.grant([1, 2])
    time.run_for(1_000)
    leases.renew(1)
    time.run_for(700)
    assert (leases.silent_ms(1), leases.silent_ms(2), leases.silent_ms(3)) == (700, None, None)
    leases.drop([1])
    assert leases.silent_ms(1) is None
