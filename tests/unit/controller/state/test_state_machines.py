"""Every transition of the partition and replica state machines, allowed and refused, and its requests and writes."""

import pytest

from paceline.controller.components import ControllerComponents
from paceline.controller.context import PartitionState as P
from paceline.controller.context import Replica
from paceline.controller.context import ReplicaState as R
from paceline.controller.state.leader_election import ElectionStrategy
from paceline.coordination import znodes
from paceline.coordination.flow import Flow, FlowRun
from paceline.coordination.interface import Delete, SetData
from paceline.model.admin import NewTopic
from paceline.model.leader_and_isr import LeaderAndIsr
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp

PARTITION_TRANSITIONS = {
    P.NEW: {P.NON_EXISTENT},
    P.ONLINE: {P.NEW, P.ONLINE, P.OFFLINE},
    P.OFFLINE: {P.NEW, P.ONLINE, P.OFFLINE},
    P.NON_EXISTENT: {P.OFFLINE},
}

REPLICA_TRANSITIONS = {
    R.NEW: {R.NON_EXISTENT},
    R.ONLINE: {R.NEW, R.ONLINE, R.OFFLINE, R.DELETION_INELIGIBLE},
    R.OFFLINE: {R.NEW, R.ONLINE, R.OFFLINE, R.DELETION_INELIGIBLE},
    R.DELETION_STARTED: {R.OFFLINE},
    R.DELETION_SUCCESSFUL: {R.DELETION_STARTED},
    R.DELETION_INELIGIBLE: {R.OFFLINE, R.DELETION_STARTED},
    R.NON_EXISTENT: {R.DELETION_SUCCESSFUL},
}


class Machines:
    """A settled cluster whose state machines the test drives."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.cluster.start_broker(1, 2, 3)
        self.cluster.start_controller()
        self.cluster.create(NewTopic("a", assignments=((1, 2),)))
        self.components: ControllerComponents = self.cluster.controller._components
        self.cluster.told()

    def run(self, flow: Flow[object]) -> object:
        results: list[object] = []
        errors: list[Exception] = []
        client = self.cluster.controller_clients[CONTROLLER_ID]
        FlowRun(flow, client, self.cluster.time, results.append, errors.append).start()
        self.cluster.settle()
        if errors:
            raise errors[0]
        return results[0]


@pytest.fixture
def machines() -> Machines:
    return Machines()


@pytest.mark.origin("S3-4")
@pytest.mark.parametrize("target", list(P))
@pytest.mark.parametrize("before", list(P))
def test_a_partition_makes_only_the_transitions_of_the_table(before: P, target: P) -> None:
    machines = Machines()
    context = machines.components.context
    partition = tp("a-0")
    if before is P.NON_EXISTENT:
        context.partition_states.pop(partition)
    else:
        context.partition_states[partition] = before
    if before is P.NEW and target is P.ONLINE:
        # Entering Online from New creates the state node, so there must be none.
        context.leadership.pop(partition)
        for path in (znodes.partition_state_path(partition), znodes.partition_path(partition)):
            machines.cluster.zk(Delete(path))
    machines.run(machines.components.partitions.handle_state_changes([partition], target, ElectionStrategy.OFFLINE))
    allowed = before in PARTITION_TRANSITIONS[target]
    assert context.partition_state(partition) is (target if allowed else before)


@pytest.mark.parametrize("target", list(R))
@pytest.mark.parametrize("before", list(R))
def test_a_replica_makes_only_the_transitions_of_the_table(before: R, target: R) -> None:
    machines = Machines()
    context = machines.components.context
    replica = Replica(tp("a-0"), 2)
    if before is R.NON_EXISTENT:
        context.replica_states.pop(replica)
    else:
        context.replica_states[replica] = before
    machines.run(machines.components.replicas.handle_state_changes([replica], target))
    allowed = before in REPLICA_TRANSITIONS[target]
    assert context.replica_state(replica) is (target if allowed else before)
    if not allowed:
        # A refused transition sends nothing and writes nothing.
        assert machines.cluster.told() == {}
        assert machines.cluster.state("a-0") == "1/0 isr [1, 2] ce 1 v0"


def test_a_leader_cannot_become_a_new_replica(machines: Machines) -> None:
    replica = Replica(tp("a-0"), 1)
    del machines.components.context.replica_states[replica]
    machines.run(machines.components.replicas.handle_state_changes([replica], R.NEW))
    assert machines.components.context.replica_state(replica) is R.NON_EXISTENT
    assert machines.cluster.told() == {}


def test_a_new_partition_without_a_live_replica_stays_new() -> None:
    machines = Machines()
    machines.cluster.create_topic_node("z", [[9], [9, 3]])
    machines.cluster.settle()
    context = machines.components.context
    assert context.partition_state(tp("z-0")) is P.NEW
    assert context.partition_state(tp("z-1")) is P.ONLINE
    assert machines.cluster.state("z-1") == "3/0 isr [3] ce 1 v0"


@pytest.mark.origin("S1-4")
def test_the_first_live_replica_leads_a_new_partition_and_the_isr_is_all_live_replicas(machines: Machines) -> None:
    machines.cluster.create_topic_node("z", [[9, 3, 8, 1]])
    machines.cluster.settle()
    assert machines.cluster.state("z-0") == "3/0 isr [3, 1] ce 1 v0"


def test_the_last_member_stays_in_the_isr_and_every_further_removal_raises_the_epoch(machines: Machines) -> None:
    cluster = machines.cluster
    cluster.create(NewTopic("u", assignments=((1,),)))
    replica = Replica(tp("u-0"), 1)
    for epoch in (1, 2):
        machines.run(machines.components.replicas.handle_state_changes([replica], R.OFFLINE))
        assert cluster.state("u-0") == f"-1/{epoch} isr [1] ce 1 v{epoch}"


def test_removing_a_replica_outside_the_isr_writes_nothing_and_sends_the_unchanged_epoch(machines: Machines) -> None:
    cluster = machines.cluster
    cluster.change_isr("a-0", [1])
    cluster.settle()
    cluster.told()
    machines.run(machines.components.replicas.handle_state_changes([Replica(tp("a-0"), 2)], R.OFFLINE))
    assert cluster.state("a-0") == "1/0 isr [1] ce 1 v1"
    assert cluster.told()[1] == ["LAI a-0 1/0 [1]", "UM {a-0 1/0 [1]}"]


def test_removal_from_the_isr_finds_a_member_that_is_not_cached_yet(machines: Machines) -> None:
    cluster = machines.cluster
    cluster.change_isr("a-0", [1])
    cluster.settle()
    # The leader adds 2 to the ISR again; its notification is missing, so the cache still has [1].
    cluster.change_isr("a-0", [1, 2], notify=False)
    machines.run(machines.components.replicas.handle_state_changes([Replica(tp("a-0"), 2)], R.OFFLINE))
    assert cluster.state("a-0") == "1/1 isr [1] ce 1 v3"


@pytest.mark.origin("S1-2")
def test_change_leaders_keeps_a_concurrent_isr_change(machines: Machines) -> None:
    cluster = machines.cluster
    # The leader has shrunk the ISR to itself; the controller has not been notified when it elects.
    cluster.change_isr("a-0", [1], notify=False)
    cluster.kill_broker(1)
    cluster.settle()
    assert cluster.state("a-0") == "-1/1 isr [1] ce 1 v2", "2 was not in sync and must not lead"


def test_an_election_finds_an_isr_member_that_is_not_cached_yet(machines: Machines) -> None:
    cluster = machines.cluster
    cluster.change_isr("a-0", [1])
    cluster.settle()
    cluster.change_isr("a-0", [1, 2], notify=False)
    cluster.kill_broker(1)
    cluster.settle()
    assert cluster.state("a-0") == "2/1 isr [2] ce 1 v3"


@pytest.mark.origin("S3-5")
def test_a_state_of_a_newer_controller_fails_the_partition_and_not_the_controller(machines: Machines) -> None:
    cluster = machines.cluster
    cluster.write_state("a-0", LeaderAndIsr(1, 4, (1, 2), 0, 7))
    cluster.kill_broker(1)
    cluster.settle()
    assert cluster.state("a-0") == "1/4 isr [1, 2] ce 7 v1"
    assert cluster.controller.is_active


def test_keys_outside_kafkas_schema_survive_an_election(machines: Machines) -> None:
    cluster = machines.cluster
    path = znodes.partition_state_path(tp("a-0"))
    state = LeaderAndIsr(1, 0, (1, 2), 0, 1)
    cluster.zk(SetData(path, znodes.encode_partition_state(state, {"former": [3]})))
    cluster.kill_broker(1)
    cluster.settle()
    assert cluster.data(path)["former"] == [3]
    assert cluster.state("a-0") == "2/1 isr [2] ce 1 v2"


@pytest.mark.origin("S1-9")
def test_a_leaderless_partition_is_elected_again_when_a_broker_starts(machines: Machines) -> None:
    cluster = machines.cluster
    cluster.kill_broker(1, 2)
    cluster.settle()
    assert cluster.state("a-0") == "-1/2 isr [2] ce 1 v2", "the last member stays listed"
    cluster.start_broker(1)
    cluster.settle()
    assert cluster.state("a-0") == "-1/2 isr [2] ce 1 v2"
    cluster.start_broker(2)
    cluster.settle()
    assert cluster.state("a-0") == "2/3 isr [2] ce 1 v3"


@pytest.mark.parametrize(
    ("configs", "expected"),
    [({}, "-1/2 isr [1] ce 1 v2"), ({"unclean.leader.election.enable": "true"}, "2/3 isr [2] ce 1 v3")],
)
def test_unclean_election_is_refused_by_default_and_allowed_by_the_topics_configuration(
    configs: dict[str, str], expected: str
) -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),), configs=configs))
    for broker_id in (2, 1):
        cluster.kill_broker(broker_id)
        cluster.settle()
    cluster.start_broker(2)
    cluster.settle()
    assert cluster.state("a-0") == expected
