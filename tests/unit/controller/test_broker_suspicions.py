"""Suspicion: refused connects stand for a dead process until the broker is heard from again."""

from paceline.controller.brokers.broker_suspicions import FIRST_DAMPING_MS
from paceline.controller.topics.topic_validation import NewTopic
from tests.unit.controller.cluster import Cluster


def started(*topics: tuple[str, tuple[int, ...]], brokers: int = 3, **config: str) -> Cluster:
    cluster = Cluster()
    cluster.lease_ms = 9_000
    cluster.start_broker(*range(1, brokers + 1))
    cluster.start_controller()
    cluster.create(*(NewTopic(name, assignments=(replicas,), configs=config) for name, replicas in topics))
    cluster.told()
    return cluster


def refuse(cluster: Cluster, broker_id: int) -> None:
    cluster.controller.broker_connection_refused(broker_id, cluster.broker_epoch(broker_id))
    cluster.settle()


def test_leaders_move_off_a_suspected_broker_at_once() -> None:
    cluster = started(("a", (1, 2, 3)), ("u", (1,)))
    refuse(cluster, 1)
    assert cluster.state("a-0") == "2/1 isr [2, 3] ce 1 v1"
    assert cluster.state("u-0") == "1/0 isr [1] ce 1 v0", "no in-sync alternative: nothing moves"
    assert not any(line.startswith("SR") for lines in cluster.told().values() for line in lines), "no StopReplica"


def test_a_suspected_follower_leaves_isrs_that_keep_two_members() -> None:
    cluster = started(("a", (2, 1, 3)), ("b", (2, 1)))
    refuse(cluster, 1)
    assert cluster.state("a-0").startswith("2/1 isr [2, 3]")
    assert cluster.state("b-0") == "2/0 isr [2, 1] ce 1 v0", "one copy left is too few"


def test_a_suspected_follower_stays_in_isrs_at_min_insync_replicas() -> None:
    cluster = started(("a", (2, 1, 3)), **{"min.insync.replicas": "3"})
    refuse(cluster, 1)
    assert cluster.state("a-0") == "2/0 isr [2, 1, 3] ce 1 v0"


def test_a_heartbeat_ends_a_suspicion_and_damps_the_next_one() -> None:
    cluster = started(("a", (1, 2, 3)))
    refuse(cluster, 1)
    cluster.heartbeat(1)
    cluster.settle()
    cluster.change_isr("a-0", [2, 3, 1])
    cluster.settle()
    cluster.told()
    refuse(cluster, 1)
    assert cluster.told() == {}, "the last suspicion of this broker was false"
    for _ in range(FIRST_DAMPING_MS // 3_000 + 1):
        cluster.heartbeat(1)
        cluster.heartbeat(2)
        cluster.heartbeat(3)
        cluster.time.run_for(3_000)
    refuse(cluster, 2)
    assert cluster.state("a-0").startswith("1/2 isr [3, 1]"), "another broker is suspected as before"


def test_evidence_about_an_earlier_registration_is_ignored() -> None:
    cluster = started(("a", (1, 2, 3)))
    cluster.controller.broker_connection_refused(1, cluster.broker_epoch(1) - 1)
    cluster.settle()
    assert cluster.state("a-0") == "1/0 isr [1, 2, 3] ce 1 v0"


def test_a_controller_that_finds_most_brokers_dead_suspects_itself() -> None:
    cluster = started(("a", (1, 2, 3)), ("b", (2, 3, 1)))
    refuse(cluster, 1)
    refuse(cluster, 2)
    assert cluster.state("b-0").startswith("2/"), "one of three brokers is the limit"


def test_a_confirmed_death_makes_room_for_the_next_suspicion() -> None:
    cluster = started(("a", (1, 2, 3)), ("b", (2, 3, 1)))
    refuse(cluster, 1)
    cluster.kill_broker(1)
    cluster.settle()
    refuse(cluster, 2)
    assert cluster.state("b-0").startswith("3/")


def test_no_suspicion_when_it_is_switched_off() -> None:
    cluster = Cluster()
    cluster.lease_ms = 9_000
    cluster.suspect_ms = 0
    cluster.start_broker(1, 2)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    refuse(cluster, 1)
    assert cluster.state("a-0") == "1/0 isr [1, 2] ce 1 v0"


def test_no_suspicion_without_leases_because_no_heartbeat_could_refute_it() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    refuse(cluster, 1)
    assert cluster.state("a-0") == "1/0 isr [1, 2] ce 1 v0"
