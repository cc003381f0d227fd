"""Brokers that start, die, restart or change their address."""

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import GetData, SetData
from paceline.model.control import (
    Endpoint,
    UpdateMetadataRequest,
)
from paceline.model.state_change import StateChangeKind
from tests.unit.controller.cluster import CONTROLLER_ID, started, tp


def test_a_restart_between_two_reads_is_handled_as_a_failure_and_then_a_start() -> None:
    cluster = started(("a", (1, 2)))
    cluster.bounce_broker(1)
    cluster.settle()
    told = cluster.told()
    assert told[2][:2] == ["LAI a-0 2/1 [2]", "UM {a-0 2/1 [2] offline [1]}"]
    assert told[1] == ["UM {a-0 2/1 [2]}", "LAI a-0 2/1 [2]", "UM {a-0 2/1 [2]}"]
    assert 1 in cluster.brokers.closed, "the old connection is closed, its queued requests are dropped"


@pytest.mark.origin("S4-2")
def test_new_brokers_are_handled_before_bounced_and_bounced_before_dead_ones() -> None:
    cluster = started(("a", (1, 2)), ("c", (3, 1)))
    cluster.controller_clients[CONTROLLER_ID].link.cut(requests=False, replies=True)
    cluster.start_broker(4)
    cluster.bounce_broker(1)
    cluster.kill_broker(3)
    cluster.settle()
    cluster.state_changes.clear()
    cluster.told()
    cluster.controller_clients[CONTROLLER_ID].link.heal()
    cluster.settle()
    seen = [
        (change.kind, change.replica)
        for change in cluster.state_changes
        if change.kind in (StateChangeKind.BROKER_UP, StateChangeKind.BROKER_DOWN)
    ]
    assert seen == [
        (StateChangeKind.BROKER_UP, 4),
        (StateChangeKind.BROKER_UP, 1),
        (StateChangeKind.BROKER_DOWN, 3),
    ]
    told = cluster.told()
    assert told[4][0] == "UM {a-0 1/0 [1, 2], c-0 3/0 [3, 1]}", "4 was handled while 1 still counted as alive"
    assert told[1][1] == "UM {a-0 2/1 [2], c-0 3/1 [3]}", "1 was handled while 3 still counted as alive"
    assert told[1][-1] == "UM {c-0 -1/2 [3] offline [3]}"


@pytest.mark.origin("S3-1")
def test_the_end_of_a_session_is_the_end_of_the_broker() -> None:
    cluster = started(("a", (1, 2)))
    client = cluster.broker_sessions.pop(1)
    client.crash()
    cluster.time.run_until(lambda: cluster.state("a-0").startswith("2/"), max_ms=10_000)
    assert cluster.state("a-0") == "2/1 isr [2] ce 1 v1"


def test_all_brokers_receive_metadata_without_a_dead_broker_while_a_partition_has_no_leader() -> None:
    cluster = started(("u", (1,)))
    cluster.kill_broker(1)
    cluster.settle()
    cluster.told()
    cluster.kill_broker(3)
    cluster.settle()
    ((broker_id, request),) = cluster.brokers.received
    assert broker_id == 2 and isinstance(request, UpdateMetadataRequest)
    assert [broker.broker_id for broker in request.live_brokers] == [2]


def test_a_broker_that_changes_its_address_keeps_its_epoch_and_all_brokers_receive_the_address() -> None:
    cluster = started(("a", (1, 2)))
    path = znodes.broker_path(2)
    registration = znodes.BrokerRegistration(2, (Endpoint("CONTROL", "elsewhere", 1),), 0)
    cluster.zk(SetData(path, znodes.encode_broker(registration)))
    cluster.settle()
    assert {broker_id for broker_id, _ in cluster.brokers.received} == {1, 2, 3}
    hosts = {r.live_brokers[1].endpoints[0].host for _, r in cluster.brokers.received}  # type: ignore[union-attr]
    assert hosts == {"elsewhere"}
    assert cluster.told()[1] == ["UM {}"]
    cluster.zk(SetData(path, znodes.encode_broker(registration)))
    cluster.settle()
    assert cluster.told() == {}, "nothing has changed"


def test_an_unreadable_registration_counts_as_no_broker() -> None:
    cluster = started(("a", (1, 2)))
    cluster.zk(SetData(znodes.broker_path(2), b"nonsense"))
    cluster.start_broker(4)
    cluster.settle()
    assert [broker.broker_id for broker in cluster.controller.describe_cluster().brokers] == [1, 3, 4]


def test_a_repaired_registration_counts_as_a_started_broker() -> None:
    cluster = started(("a", (2, 1)))
    registration = cluster.zk(GetData(znodes.broker_path(2))).data
    cluster.zk(SetData(znodes.broker_path(2), b"nonsense"))
    cluster.start_broker(4)
    cluster.settle()
    assert cluster.state("a-0") == "1/1 isr [1] ce 1 v1"
    cluster.zk(SetData(znodes.broker_path(2), registration or b""))
    cluster.settle()
    assert [broker.broker_id for broker in cluster.controller.describe_cluster().brokers] == [1, 2, 3, 4]
    assert cluster.told()[2][-2:] == ["LAI a-0 1/1 [1]", "UM {a-0 1/1 [1]}"]


def test_gauges_count_partitions_without_leader_or_without_their_preferred_leader() -> None:
    cluster = started(("a", (1, 2)), ("u", (1,)))
    cluster.kill_broker(1)
    cluster.settle()
    gauges = cluster.controller.gauges()
    assert (gauges["active_controller"], gauges["topics"], gauges["partitions"]) == (1, 2, 2)
    assert (gauges["offline_partitions"], gauges["preferred_replica_imbalance"]) == (1, 2)
    assert cluster.zk(GetData(znodes.CONTROLLER)).ok


def test_every_transition_is_reported_with_its_cause() -> None:
    cluster = started(("a", (1, 2)))
    cluster.state_changes.clear()
    cluster.kill_broker(1)
    cluster.settle()
    elected = [change for change in cluster.state_changes if change.kind is StateChangeKind.LEADER_ELECTED]
    (change,) = elected
    assert (change.who, change.topic_partition, change.cause) == (
        f"controller-{CONTROLLER_ID}",
        tp("a-0"),
        "session: the broker's registration has ended",
    )
    assert (change.from_state, change.to_state) == ("OfflinePartition", "OnlinePartition")
    assert (change.leader, change.leader_epoch, change.isr, change.zk_version) == (2, 1, (2,), 1)
    assert change.topic_id
