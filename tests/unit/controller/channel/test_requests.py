"""The requests that brokers receive, in order, for each kind of event.

Order counts per broker; between brokers there is none. LAI is LeaderAndIsr, UM UpdateMetadata, SR StopReplica.
"""

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Create, Delete
from paceline.model.admin import NewTopic
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp


def cluster_with(*topics: tuple[str, tuple[int, ...]], brokers: tuple[int, ...] = (1, 2, 3)) -> Cluster:
    cluster = Cluster()
    cluster.start_broker(*brokers)
    cluster.start_controller()
    if topics:
        results = cluster.create(*(NewTopic(name, assignments=(replicas,)) for name, replicas in topics))
        assert all(result.error is None for result in results), results
    cluster.told()
    return cluster


def test_a_new_topic_is_sent_to_its_replicas_and_to_all_brokers_as_metadata() -> None:
    cluster = cluster_with()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    assert cluster.told() == {
        1: ["LAI a-0 1/0 [1, 2] new", "UM {a-0 1/0 [1, 2]}"],
        2: ["LAI a-0 1/0 [1, 2] new", "UM {a-0 1/0 [1, 2]}"],
        3: ["UM {a-0 1/0 [1, 2]}"],
    }


@pytest.mark.origin("S3-3")
def test_when_a_broker_dies_leaders_are_elected_before_isrs_shrink() -> None:
    cluster = cluster_with(("a", (1, 2)), ("b", (2, 1)))
    cluster.kill_broker(1)
    cluster.settle()
    metadata = [
        "UM {a-0 2/1 [2] offline [1]}",
        "UM {a-0 2/1 [2] offline [1], b-0 2/1 [2] offline [1]}",
    ]
    assert cluster.told() == {
        2: ["LAI a-0 2/1 [2]", metadata[0], "LAI a-0 2/1 [2], b-0 2/1 [2]", metadata[1]],
        3: metadata,
    }
    # One write each: the election of a has taken broker 1 out of its ISR already.
    assert (cluster.state("a-0"), cluster.state("b-0")) == ("2/1 isr [2] ce 1 v1", "2/1 isr [2] ce 1 v1")


@pytest.mark.origin("S1-6")
def test_a_broker_that_starts_gets_all_metadata_and_then_its_partitions() -> None:
    cluster = cluster_with(("a", (1, 2)), ("b", (2, 1)), ("c", (2, 3)))
    cluster.kill_broker(1)
    cluster.settle()
    cluster.told()
    cluster.start_broker(1)
    cluster.settle()
    hosted = "UM {a-0 2/1 [2], b-0 2/1 [2]}"
    assert cluster.told() == {
        1: ["UM {a-0 2/1 [2], b-0 2/1 [2], c-0 2/0 [2, 3]}", "LAI a-0 2/1 [2], b-0 2/1 [2]", hosted],
        2: ["UM {}", hosted],
        3: ["UM {}", hosted],
    }


def test_a_preferred_election_sends_the_preferred_leader_to_all_replicas() -> None:
    cluster = cluster_with(("a", (1, 2)))
    cluster.kill_broker(1)
    cluster.settle()
    cluster.start_broker(1)
    cluster.settle()
    cluster.change_isr("a-0", [2, 1])
    cluster.settle()
    cluster.told()
    cluster.zk(Create(znodes.PREFERRED_REPLICA_ELECTION, znodes.encode_partition_set([tp("a-0")])))
    cluster.settle()
    assert cluster.told() == {
        1: ["LAI a-0 1/2 [2, 1]", "UM {a-0 1/2 [2, 1]}"],
        2: ["LAI a-0 1/2 [2, 1]", "UM {a-0 1/2 [2, 1]}"],
        3: ["UM {a-0 1/2 [2, 1]}"],
    }


def test_the_death_of_a_broker_that_leads_no_partition_is_sent_as_empty_update_metadata() -> None:
    cluster = cluster_with(("a", (1, 2)), ("b", (2, 1)))
    cluster.controlled_shutdown(1)
    cluster.settle()
    cluster.told()
    cluster.kill_broker(1)
    cluster.settle()
    gone = "UM {a-0 2/1 [2] offline [1], b-0 2/1 [2] offline [1]}"
    assert cluster.told() == {2: ["LAI a-0 2/1 [2], b-0 2/1 [2]", gone, "UM {}"], 3: [gone, "UM {}"]}


def test_a_reassignment_passes_its_phases_in_order() -> None:
    cluster = cluster_with(("a", (1, 2)))
    cluster.reassign({tp("a-0"): (3, 2)})
    cluster.settle()
    started = "UM {a-0 1/1 [1, 2]}"
    assert cluster.told() == {
        1: ["LAI a-0 1/1 [1, 2]", started, started],
        2: ["LAI a-0 1/1 [1, 2]", started, started],
        3: ["LAI a-0 1/1 [1, 2] new", started, "LAI a-0 1/1 [1, 2] new", started],
    }
    cluster.change_isr("a-0", [1, 2, 3], notify=False)
    cluster.settle()
    moved, shrunk = "UM {a-0 3/2 [1, 2, 3]}", "UM {a-0 3/3 [2, 3]}"
    assert cluster.told() == {
        1: [moved, shrunk, "SR a-0 2", "SR a-0 3 delete", shrunk],
        2: ["LAI a-0 3/2 [1, 2, 3]", moved, "LAI a-0 3/3 [2, 3]", shrunk, shrunk],
        3: ["LAI a-0 3/2 [1, 2, 3]", moved, "LAI a-0 3/3 [2, 3]", shrunk, shrunk],
    }


def test_a_cancelled_reassignment_stops_and_deletes_the_added_replicas() -> None:
    cluster = cluster_with(("a", (1, 2)))
    cluster.reassign({tp("a-0"): (3, 2)})
    cluster.settle()
    cluster.told()
    cluster.reassign({tp("a-0"): None})
    cluster.settle()
    picture = "UM {a-0 1/2 [1, 2]}"
    # Kafka stops the replica in the old epoch; ours raises the epoch first, so that the leader cannot add the replica.
    assert cluster.told() == {
        1: ["LAI a-0 1/2 [1, 2]", picture, "LAI a-0 1/2 [1, 2]", picture, picture],
        2: ["LAI a-0 1/2 [1, 2]", picture, "LAI a-0 1/2 [1, 2]", picture, picture],
        3: [picture, "SR a-0 2", "SR a-0 2 delete", picture, picture],
    }
    assert cluster.data(znodes.topic_path("a"))["partitions"] == {"0": [2, 1]}, "the order is not restored"


def test_a_deleted_topic_leaves_the_metadata_then_is_stopped_and_deleted() -> None:
    cluster = cluster_with(("a", (1, 2)))
    (result,) = cluster.delete("a")
    assert result.error is None
    forgotten = "UM {a-0 -2/0 [1, 2]}"
    assert cluster.told() == {
        1: [forgotten, "SR a-0 -2", "SR a-0 -2 delete"],
        2: [forgotten, "SR a-0 -2", "SR a-0 -2 delete"],
        3: [forgotten],
    }


@pytest.mark.origin("S1-5")
def test_a_new_controller_sends_everything_again_and_changes_nothing() -> None:
    cluster = cluster_with(("a", (1, 2)), ("b", (2, 3)))
    standby = cluster.start_controller(CONTROLLER_ID + 1)
    states = [cluster.state("a-0"), cluster.state("b-0")]
    cluster.told()
    cluster.controllers[CONTROLLER_ID].stop()
    cluster.settle()
    assert standby.is_active
    assert standby.controller_epoch == 2
    everything = "UM {a-0 1/0 [1, 2], b-0 2/0 [2, 3]}"
    assert cluster.told() == {
        1: ["UM {}", "LAI a-0 1/0 [1, 2]", everything],
        2: ["UM {}", "LAI a-0 1/0 [1, 2], b-0 2/0 [2, 3]", everything],
        3: ["UM {}", "LAI b-0 2/0 [2, 3]", everything],
    }
    assert [cluster.state("a-0"), cluster.state("b-0")] == states


@pytest.mark.origin("S4-10")
def test_a_failed_log_directory_takes_only_its_replicas_offline() -> None:
    cluster = cluster_with(("a", (1, 2)), ("b", (1, 2)))
    cluster.brokers.failed_dirs[1].add(tp("a-0"))
    cluster.zk(Create(znodes.LOG_DIR_EVENT_PREFIX, znodes.encode_log_dir_event(1), sequential=True))
    cluster.settle()
    probe = "UM {a-0 1/0 [1, 2], b-0 1/0 [1, 2]}"
    offline = "UM {a-0 2/1 [2] offline [1]}"
    assert cluster.told() == {
        1: ["LAI a-0 1/0 [1, 2], b-0 1/0 [1, 2]", probe, offline, offline, "SR a-0 1"],
        2: [probe, "LAI a-0 2/1 [2]", offline, "LAI a-0 2/1 [2]", offline],
        3: [probe, offline, offline],
    }
    assert cluster.children(znodes.LOG_DIR_EVENT_NOTIFICATION) == ()


def test_a_failed_replica_outside_the_isr_is_fenced_from_a_leader_that_is_shutting_down() -> None:
    """The leader could add it to the ISR and then stop; the replica's disk may be replaced by an empty one."""
    cluster = cluster_with(("a", (1, 2)))
    cluster.change_isr("a-0", [1])
    cluster.settle()
    assert cluster.controlled_shutdown(1).remaining == (tp("a-0"),), "it leads until it stops"
    cluster.brokers.failed_dirs[2].add(tp("a-0"))
    cluster.zk(Create(znodes.LOG_DIR_EVENT_PREFIX, znodes.encode_log_dir_event(2), sequential=True))
    cluster.told()
    cluster.settle()
    assert cluster.state("a-0") == "1/1 isr [1] ce 1 v2"
    assert "LAI a-0 1/1 [1]" in cluster.told()[1]


def test_a_replica_online_again_receives_elections_held_while_it_counted_as_failed() -> None:
    cluster = cluster_with(("a", (1, 2)))
    cluster.change_isr("a-0", [1])
    cluster.brokers.failed_dirs[2].add(tp("a-0"))
    cluster.zk(Create(znodes.LOG_DIR_EVENT_PREFIX, znodes.encode_log_dir_event(2), sequential=True))
    cluster.settle()
    cluster.kill_broker(1)
    cluster.settle()
    cluster.brokers.failed_dirs[2].clear()
    cluster.brokers.silent.add(2)
    cluster.zk(Create(znodes.LOG_DIR_EVENT_PREFIX, znodes.encode_log_dir_event(2), sequential=True))
    cluster.settle()
    cluster.start_broker(1)
    cluster.settle()
    cluster.told()
    assert cluster.state("a-0").startswith("1/3 isr [1]"), "elected while 2 still counted as failed"
    cluster.brokers.release(2)
    cluster.settle()
    assert [line for line in cluster.told()[2] if line.startswith("LAI")] == ["LAI a-0 1/3 [1]"]


@pytest.mark.parametrize("when", ["after the answer", "before the answer"])
def test_a_deleted_topic_leaves_no_entry_among_failed_directories(when: str) -> None:
    cluster = cluster_with(("a", (1, 2)), ("b", (1, 2)))
    context = cluster.controller._components.context
    assert context.on_offline_dirs == {}, "brokers without failed directories are not listed"
    cluster.brokers.failed_dirs[1].add(tp("a-0"))
    if when == "before the answer":
        cluster.brokers.silent.add(1)
    cluster.zk(Create(znodes.LOG_DIR_EVENT_PREFIX, znodes.encode_log_dir_event(1), sequential=True))
    cluster.settle()
    if when == "after the answer":
        assert context.on_offline_dirs == {1: {tp("a-0")}}
    topic = znodes.topic_path("a")
    for path in (f"{topic}/partitions/0/state", f"{topic}/partitions/0", f"{topic}/partitions", topic):
        cluster.zk(Delete(path))
    cluster.settle()
    cluster.brokers.release(1)
    cluster.settle()
    assert context.on_offline_dirs == {}
    assert not [replica for replica in context.replica_states if replica.topic_partition == tp("a-0")]


def test_a_deletion_continues_when_the_disk_of_a_replica_that_was_never_created_has_room_again() -> None:
    """The broker has deleted its other replica of the topic, and refuses the topic id from then on."""
    cluster = cluster_with()
    cluster.create(NewTopic("a", assignments=((1, 2), (1, 2))))
    cluster.brokers.failed_dirs[2].add(tp("a-1"))
    cluster.zk(Create(znodes.LOG_DIR_EVENT_PREFIX, znodes.encode_log_dir_event(2), sequential=True))
    cluster.settle()
    cluster.zk(Create(znodes.delete_topic_path("a"), None))
    cluster.settle()
    assert cluster.exists(znodes.topic_path("a")), "the deletion waits"
    cluster.brokers.failed_dirs[2].clear()
    cluster.brokers.foreign[2].add(tp("a-1"))
    cluster.zk(Create(znodes.LOG_DIR_EVENT_PREFIX, znodes.encode_log_dir_event(2), sequential=True))
    cluster.settle()
    assert not cluster.exists(znodes.topic_path("a"))


def test_a_controller_and_a_broker_that_die_together_are_handled_at_the_failover() -> None:
    cluster = cluster_with(("a", (1, 2)), ("b", (2, 1)), ("u", (1,)))
    cluster.start_controller(CONTROLLER_ID + 1)
    cluster.told()
    sessions = [cluster.controller_clients[CONTROLLER_ID].session_id, cluster.broker_sessions[1].session_id]
    cluster.controller_clients[CONTROLLER_ID].crash()
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.broker_sessions.pop(1).crash()
    for session_id in sessions:
        cluster.server.expire(session_id)
    cluster.settle()
    hosted = "UM {a-0 1/0 [1, 2] offline [1], b-0 2/0 [2, 1] offline [1]}"
    taken_out = "UM {a-0 -1/1 [2] offline [1], b-0 2/1 [2] offline [1], u-0 -1/1 [1] offline [1]}"
    elected = "UM {a-0 2/2 [2] offline [1]}"
    assert cluster.told() == {
        2: [
            "UM {}",
            "LAI a-0 1/0 [1, 2], b-0 2/0 [2, 1]",
            hosted,
            "LAI a-0 -1/1 [2], b-0 2/1 [2]",
            taken_out,
            "LAI a-0 2/2 [2]",
            elected,
        ],
        3: ["UM {}", hosted, taken_out, elected],
    }
    assert cluster.state("a-0") == "2/2 isr [2] ce 2 v2"
    assert cluster.state("u-0") == "-1/1 isr [1] ce 2 v1"


def test_a_reassignment_is_resumed_by_the_next_controller() -> None:
    cluster = cluster_with(("a", (1, 2)))
    cluster.start_controller(CONTROLLER_ID + 1)
    cluster.reassign({tp("a-0"): (3, 2)})
    cluster.settle()
    cluster.told()
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.settle()
    before, after = "UM {a-0 1/1 [1, 2]}", "UM {a-0 1/2 [1, 2]}"
    assert cluster.told() == {
        1: ["UM {}", "LAI a-0 1/1 [1, 2]", before, "LAI a-0 1/2 [1, 2]", after],
        2: ["UM {}", "LAI a-0 1/1 [1, 2]", before, "LAI a-0 1/2 [1, 2]", after],
        3: ["UM {}", "LAI a-0 1/1 [1, 2]", before, "LAI a-0 1/2 [1, 2] new", after],
    }
    cluster.change_isr("a-0", [1, 2, 3], notify=False)
    cluster.settle()
    assert cluster.told()[3][:2] == ["LAI a-0 1/2 [1, 2]", after], "the state cached before is sent again"
    assert cluster.state("a-0") == "3/4 isr [2, 3] ce 2 v5"
    assert cluster.data(znodes.topic_path("a"))["partitions"] == {"0": [3, 2]}


def test_requests_carry_the_broker_epoch_of_the_registration_they_are_meant_for() -> None:
    cluster = cluster_with(("a", (1, 2)))
    cluster.brokers.received.clear()
    cluster.bounce_broker(2)
    cluster.settle()
    epoch = cluster.server.tree.get("/brokers/ids/2")
    assert epoch is not None
    stamps = {request.stamp.broker_epoch for broker_id, request in cluster.brokers.received if broker_id == 2}
    assert stamps == {epoch.stat().czxid}


def test_metadata_names_the_active_controllers_address() -> None:
    cluster = cluster_with()
    cluster.brokers.received.clear()
    cluster.start_broker(4)
    cluster.settle()
    addresses = {request.controller_endpoints[0].host for _, request in cluster.brokers.received}  # type: ignore[union-attr]
    assert addresses == {f"c{CONTROLLER_ID}"}
