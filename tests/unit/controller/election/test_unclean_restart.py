"""Brokers that restart without records that they had acknowledged: docs/protocol/controller.md#unclean-restart."""

from typing import Any

import pytest

from paceline.controller.state.leader_election import elect_offline
from paceline.coordination import znodes
from paceline.coordination.interface import Create, GetData, SetData
from paceline.model.admin import NewTopic
from paceline.model.control import LiveBroker
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.settings import ControllerConfig
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp


def started(
    *topics: tuple[str, tuple[int, ...]], min_isr: int | str | None = 2, config: ControllerConfig | None = None
) -> Cluster:
    cluster = Cluster(config)
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    configs = {} if min_isr is None else {"min.insync.replicas": str(min_isr)}
    cluster.create(*(NewTopic(name, assignments=(replicas,), configs=configs) for name, replicas in topics))
    cluster.told()
    return cluster


def configure(cluster: Cluster, topic: str, key: str, value: str) -> None:
    cluster.zk(SetData(znodes.topic_config_path(topic), znodes.encode_config({key: value})))
    cluster.zk(Create(znodes.CONFIG_CHANGE_PREFIX, znodes.encode_config_change(f"topics/{topic}"), sequential=True))
    cluster.settle()


def kill(cluster: Cluster, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        cluster.kill_broker(broker_id)
        cluster.settle()


def lists(cluster: Cluster, partition: str) -> tuple[object, object]:
    state = cluster.data(znodes.partition_state_path(tp(partition)))
    return state.get("former_members"), state.get("unclean_members")


def test_a_complete_former_member_leads_instead_of_the_last_member_that_lost_records() -> None:
    cluster = started(("a", (1, 2)))
    kill(cluster, 2, 1)
    assert cluster.state("a-0") == "-1/2 isr [1] ce 1 v2"
    cluster.start_broker(2)
    cluster.settle()
    assert cluster.state("a-0") == "-1/2 isr [1] ce 1 v2", "the last member may still return with all its records"
    cluster.start_broker(1, unclean=True)
    cluster.settle()
    assert cluster.state("a-0") == "2/4 isr [2] ce 1 v4"
    assert lists(cluster, "a-0") == (None, None), "the log of broker 1 is not complete, and broker 1 is not in the ISR"
    assert "LAI a-0 2/4 [2]" in cluster.told()[1]


def test_a_former_member_is_not_complete_when_min_insync_replicas_was_raised_later() -> None:
    """A leader alone in the ISR may have committed records before the change."""
    cluster = started(("a", (1, 2)), min_isr=1)
    kill(cluster, 2)
    configure(cluster, "a", "min.insync.replicas", "2")
    kill(cluster, 1)
    cluster.start_broker(2)
    cluster.start_broker(1, unclean=True)
    cluster.settle()
    assert cluster.state("a-0").startswith("-1/")


def test_the_partition_stays_offline_without_a_complete_former_member() -> None:
    cluster = started(("a", (1, 2)), min_isr=1)
    kill(cluster, 2, 1)
    cluster.start_broker(2)
    cluster.start_broker(1, unclean=True)
    cluster.settle()
    assert cluster.state("a-0") == "-1/3 isr [1] ce 1 v3"
    assert lists(cluster, "a-0") == ([2], [1])
    kill(cluster, 1)
    cluster.start_broker(1)
    cluster.settle()
    assert cluster.state("a-0").startswith("-1/"), "a later clean restart restores no record"
    configure(cluster, "a", "unclean.leader.election.enable", "true")
    assert cluster.state("a-0").startswith("1/"), "the last member lacks the fewest records"
    assert lists(cluster, "a-0") == (None, None)


def test_the_brokers_default_of_min_insync_replicas_makes_a_former_member_complete() -> None:
    settings = ControllerConfig(CONTROLLER_ID, auto_leader_rebalance_enable=False, min_insync_replicas=2)
    cluster = started(("a", (1, 2)), min_isr=None, config=settings)
    kill(cluster, 2, 1)
    cluster.start_broker(2)
    cluster.start_broker(1, unclean=True)
    cluster.settle()
    assert cluster.state("a-0") == "2/4 isr [2] ce 1 v4"


def test_a_former_member_is_not_complete_by_a_default_in_zookeeper_that_brokers_do_not_read() -> None:
    """Brokers read only throttles from there: the leader alone in the ISR commits under its own setting, which is 1."""
    cluster = started(("a", (1, 2)), min_isr=None)
    default = znodes.broker_config_path(None)
    cluster.zk(Create(default, znodes.encode_config({"min.insync.replicas": "2"})))
    kill(cluster, 2, 1)
    cluster.start_broker(2)
    cluster.start_broker(1, unclean=True)
    cluster.settle()
    assert cluster.state("a-0").startswith("-1/")


def test_a_former_member_is_not_complete_by_a_value_that_brokers_ignore() -> None:
    cluster = started()
    config = znodes.encode_config({"min.insync.replicas": "3000000000"})
    cluster.zk(Create(znodes.topic_config_path("a"), config))
    cluster.create_topic_node("a", [(1, 2)])
    cluster.settle()
    kill(cluster, 2, 1)
    cluster.start_broker(2)
    cluster.start_broker(1, unclean=True)
    cluster.settle()
    assert cluster.state("a-0").startswith("-1/")


def test_a_former_member_after_an_unclean_restart_is_no_longer_complete() -> None:
    cluster = started(("a", (1, 2, 3)))
    kill(cluster, 3, 2)
    assert lists(cluster, "a-0") == ([2], None), "3 left while two members remained, which committed without it"
    cluster.start_broker(2, unclean=True)
    cluster.settle()
    assert cluster.state("a-0") == "1/3 isr [1] ce 1 v3"
    assert lists(cluster, "a-0") == (None, None)
    kill(cluster, 1)
    cluster.start_broker(1, unclean=True)
    cluster.settle()
    assert cluster.state("a-0").startswith("-1/")


def test_a_single_replica_leads_again_after_a_process_crash_but_not_after_an_unclean_restart() -> None:
    cluster = started(("a", (1,)))
    kill(cluster, 1)
    cluster.start_broker(1)
    cluster.settle()
    assert cluster.state("a-0") == "1/2 isr [1] ce 1 v2"
    kill(cluster, 1)
    cluster.start_broker(1, unclean=True)
    cluster.settle()
    assert cluster.state("a-0") == "-1/4 isr [1] ce 1 v4"
    assert cluster.told()[1][-1].startswith("UM") and cluster.controller.gauges()["offline_partitions"] == 1


def bounce_uncleanly(cluster: Cluster, broker_id: int) -> None:
    """Register again, as unclean, before the controller reads the registrations."""
    client = cluster.broker_sessions.pop(broker_id)
    path = znodes.broker_path(broker_id)
    found = znodes.decode_broker(path, cluster.zk(GetData(path)).data, broker_id)
    registration = znodes.BrokerRegistration(broker_id, found.endpoints, 0, unclean_restart=True)
    session_id = client.session_id
    client.crash()
    cluster.server.expire(session_id)
    cluster.zk(Create(path, znodes.encode_broker(registration), ephemeral=True))


def test_a_broker_after_an_unclean_restart_is_removed_from_every_isr_with_another_member() -> None:
    cluster = started(("a", (1, 2)), ("b", (2, 1)))
    bounce_uncleanly(cluster, 1)
    cluster.settle()
    assert cluster.state("a-0").startswith("2/") and "isr [2]" in cluster.state("a-0")
    assert cluster.state("b-0").startswith("2/") and "isr [2]" in cluster.state("b-0")
    assert lists(cluster, "a-0")[0] in (None, [])


def test_a_broker_after_an_unclean_restart_gets_no_request_before_its_removal_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = started(("a", (2, 1)), ("u", (1,)))
    kill(cluster, 3)
    cluster.told()
    heard: list[tuple[object, object]] = []
    send = cluster.brokers.send

    def sent(broker: LiveBroker, *rest: Any) -> None:
        if broker.broker_id == 1:
            heard.append((cluster.state("a-0"), lists(cluster, "u-0")))
        send(broker, *rest)

    monkeypatch.setattr(cluster.brokers, "send", sent)
    link = cluster.controller_clients[CONTROLLER_ID].link
    link.cut(requests=False, replies=True)
    cluster.start_broker(3)
    bounce_uncleanly(cluster, 1)
    link.heal()
    cluster.settle()
    assert heard
    for state, marks in heard:
        assert "isr [2]" in str(state)
        assert marks == (None, [1])


def test_an_unclean_restart_is_recorded_for_topics_whose_deletion_is_halted() -> None:
    """Its deletion marker may be removed."""
    cluster = started(("u", (1, 2)))
    kill(cluster, 2, 1)
    cluster.zk(Create(znodes.delete_topic_path("u")))
    cluster.start_broker(2)
    cluster.settle()
    cluster.told()
    cluster.brokers.silent.add(1)
    cluster.start_broker(1, unclean=True)
    cluster.time.run_until(lambda: lists(cluster, "u-0") == ([2], [1]), max_ms=5_000)
    assert lists(cluster, "u-0") == ([2], [1])
    assert not any("LAI" in line for line in cluster.told()[2]), "its replica is deleted"


@pytest.mark.parametrize("alive", [True, False])
def test_a_new_controller_handles_unclean_restarts_before_its_first_leader_and_isr(alive: bool) -> None:
    cluster = started(("a", (1, 2)), ("b", (2, 1)), ("u", (1,)))
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.kill_broker(1)
    if not alive:
        cluster.kill_broker(2)
    cluster.start_broker(1, unclean=True)
    cluster.told()
    cluster.start_controller(CONTROLLER_ID + 1)
    wanted = "2/" if alive else "-1/"
    for partition in ("a-0", "b-0"):
        assert cluster.state(partition).startswith(wanted), "a dead broker may still return with all its records"
        assert "isr [2]" in cluster.state(partition)
    assert cluster.state("u-0").startswith("-1/") and lists(cluster, "u-0") == (None, [1])
    first = cluster.told()[1][1]
    assert "1/0" not in first, "the first LeaderAndIsr already has the new decision"


def test_an_unassigned_isr_member_is_not_elected_after_unclean_restarts() -> None:
    """A controller cancelled a reassignment to 1 and died; then both remaining replicas lose power."""
    cluster = started(("a", (2, 3)))
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.change_isr("a-0", [2, 3, 1], notify=False)
    cluster.kill_broker(2, 3)
    cluster.start_broker(2, 3, unclean=True)
    cluster.start_controller(CONTROLLER_ID + 1)
    assert cluster.state("a-0").startswith("-1/")
    assert cluster.data(znodes.partition_state_path(tp("a-0")))["isr"] == [2, 3]
    assert lists(cluster, "a-0") == (None, [2, 3])
    configure(cluster, "a", "unclean.leader.election.enable", "true")
    assert cluster.state("a-0").startswith("2/")


def test_a_broker_removed_after_an_unclean_restart_joins_the_isr_again() -> None:
    cluster = started(("a", (1, 2)))
    kill(cluster, 1)
    cluster.start_broker(1, unclean=True)
    cluster.settle()
    cluster.change_isr("a-0", [2, 1])
    cluster.settle()
    kill(cluster, 2)
    assert cluster.state("a-0").startswith("1/")


def test_a_replica_on_a_failed_directory_is_not_a_complete_former_member() -> None:
    cluster = started(("a", (1, 2)))
    kill(cluster, 2)
    assert lists(cluster, "a-0") == ([2], None)
    cluster.start_broker(2)
    cluster.brokers.failed_dirs[2].add(tp("a-0"))
    cluster.settle()
    assert lists(cluster, "a-0") == (None, None)


def test_a_replica_removed_from_the_assignment_leaves_the_former_members() -> None:
    cluster = started(("a", (1, 2)))
    kill(cluster, 2)
    assert lists(cluster, "a-0") == ([2], None)
    cluster.reassign({tp("a-0"): (1,)})
    cluster.settle()
    assert lists(cluster, "a-0") == (None, None)


TABLE = [
    # AR, ISR, unclean members, complete, online, unclean allowed -> leader, ISR, counts as unclean
    ("1 2", "1", "", "", "1 2", False, (1, (1,), False)),
    ("1 2", "1", "1", "", "1 2", False, None),
    ("1 2", "1", "1", "2", "1 2", False, (2, (2,), False)),
    ("1 2", "1", "1", "2", "1", False, None),
    ("1 2 3", "1", "1", "3", "1 2 3", True, (3, (3,), False)),
    ("2 1", "1", "1", "", "1 2", True, (1, (1,), True)),
    ("2 1", "1", "1", "", "2", True, (2, (2,), True)),
    ("1", "1", "1", "", "1", False, None),
    ("1 2", "1 2", "1 2", "", "1 2", False, None),
]


@pytest.mark.parametrize(("assigned", "isr", "unclean", "complete", "online", "allowed", "expected"), TABLE)
def test_the_table_of_decision_0005(
    assigned: str,
    isr: str,
    unclean: str,
    complete: str,
    online: str,
    allowed: bool,
    expected: tuple[int, tuple[int, ...], bool] | None,
) -> None:
    def ids(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split()))

    state = LeaderAndIsr(-1, 5, ids(isr), 7, 1)
    election = elect_offline(state, ids(assigned), ids(online), allowed, 1, ids(unclean), ids(complete))
    elected = election.leader_and_isr
    assert (None if elected is None else (elected.leader, elected.isr, election.unclean)) == expected
