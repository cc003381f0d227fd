"""Failover of a standby: the states that it reads from ZooKeeper, and that its memory equals a full read."""

import pytest

from paceline.controller.standby.takeover import TakeoverKind
from paceline.coordination import znodes
from paceline.coordination.interface import Create, Delete, GetData, Multi, Request, SetData
from paceline.coordination.znodes.journal import decode_journal, encode_journal
from paceline.model.admin import NewTopic
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.settings import ControllerConfig
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp
from tests.unit.controller.warm_standby import PARTITIONS, STANDBY, THIRD, context, die, knows_what_is_there, pair

BAD_NAME = b'{"version":1,"sequence":2,"since":1,"batches":[{"sequence":2,"partitions":{"/":[0]}}]}'


class Reads:
    """Records the partition states that a controller reads from ZooKeeper."""

    def __init__(self, cluster: Cluster, controller_id: int) -> None:
        self.partitions: list[str] = []
        client = cluster.controller_clients[controller_id]
        submit = client.submit

        def recorded(requests, on_done):  # type: ignore[no-untyped-def]
            for request in requests:
                if isinstance(request, GetData) and request.path.endswith("/state"):
                    _, _, _, topic, _, partition, _ = request.path.split("/")
                    self.partitions.append(f"{topic}-{partition}")
            submit(requests, on_done)

        client.submit = recorded  # type: ignore[method-assign]


def leave_behind(cluster: Cluster) -> None:
    """Keep all later updates from the standby."""
    cluster.streams.cut = True


def journal(cluster: Cluster) -> tuple[int, int, int]:
    """Return sequence, since, and the number of partitions listed."""
    entry = decode_journal(znodes.CONTROLLER_JOURNAL, cluster.zk(GetData(znodes.CONTROLLER_JOURNAL)).data)
    return entry.sequence, entry.since, len(list(entry.touched_after(entry.since)))


def test_a_warm_standby_reads_no_state() -> None:
    cluster, standby = pair()
    reads = Reads(cluster, STANDBY)
    die(cluster)
    assert standby.is_active
    takeover = cluster.takeovers[-1]
    assert takeover.states.kind is TakeoverKind.WARM
    assert (takeover.states.states_read, takeover.states.partitions) == (0, PARTITIONS + 1)
    assert reads.partitions == []
    assert knows_what_is_there(cluster, standby)
    assert cluster.told()[1][-1].startswith("UM {a-0 1/0 [1, 2]")


def test_a_warm_standby_has_the_decisions_of_its_predecessor() -> None:
    cluster, standby = pair()
    cluster.kill_broker(1)
    cluster.settle()
    reads = Reads(cluster, STANDBY)
    die(cluster)
    assert cluster.takeovers[-1].states.kind is TakeoverKind.WARM
    assert cluster.takeovers[-1].states.states_read == 0
    assert context(standby).leadership[tp("a-3")].leader == 2
    assert knows_what_is_there(cluster, standby)
    assert set(reads.partitions) == {f"a-{p}" for p in range(PARTITIONS)}, "whether the dead replica joined again"


def test_a_warm_standby_has_the_extra_keys_of_states() -> None:
    cluster, standby = pair()
    cluster.kill_broker(1)
    cluster.settle()
    before = dict(context(cluster.controllers[CONTROLLER_ID]).state_extras)
    assert before, "replicas that left an ISR with one member are recorded"
    mirror = standby._standby.mirror
    assert mirror is not None
    assert {TopicPartition("a", p): extra for p, extra in mirror.topics["a"].extras.items()} == before


def test_a_standby_that_is_behind_reads_what_the_journal_lists() -> None:
    cluster, standby = pair()
    leave_behind(cluster)
    cluster.create(NewTopic("c", assignments=((3, 1),) * 2))
    cluster.reassign({tp("b-0"): (2, 3, 1)})
    cluster.settle()
    reads = Reads(cluster, STANDBY)
    die(cluster)
    takeover = cluster.takeovers[-1]
    assert takeover.states.kind is TakeoverKind.BEHIND
    assert takeover.states.states_read == 3
    assert set(reads.partitions) == {"b-0", "c-0", "c-1"}
    assert knows_what_is_there(cluster, standby)


def test_a_standby_that_is_too_far_behind_reads_all(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, standby = pair()
    leave_behind(cluster)
    active = cluster.controllers[CONTROLLER_ID]
    active._components.journal._limit_bytes = 100
    cluster.kill_broker(1)
    cluster.settle()
    sequence, since, listed = journal(cluster)
    assert (sequence, listed) == (since, 0), "too many to list"
    die(cluster)
    takeover = cluster.takeovers[-1]
    assert takeover.states.kind is TakeoverKind.COLD
    assert takeover.states.states_read == PARTITIONS + 1
    assert "the journal " in takeover.states.reason
    assert knows_what_is_there(cluster, standby)


def test_a_first_controller_reads_all_states_and_creates_the_journal() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    assert not cluster.exists(znodes.CONTROLLER_JOURNAL)
    cluster.start_controller()
    assert cluster.takeovers[-1].states.kind is TakeoverKind.COLD
    sequence, since, listed = journal(cluster)
    assert (since, listed) == (sequence, 0)


def test_a_standby_without_a_journal_reads_all_states() -> None:
    cluster, standby = pair()
    cluster.zk(Delete(znodes.CONTROLLER_JOURNAL))
    reads = Reads(cluster, STANDBY)
    die(cluster)
    assert cluster.takeovers[-1].states.kind is TakeoverKind.COLD
    assert len(reads.partitions) == PARTITIONS + 1
    assert cluster.exists(znodes.CONTROLLER_JOURNAL)
    assert knows_what_is_there(cluster, standby)


@pytest.mark.parametrize(
    "data",
    [b"", b"nonsense", BAD_NAME, encode_journal(2**60, 0)],
    ids=["empty", "nonsense", "a name that is none", "of a later term"],
)
def test_an_unusable_journal_is_reported_and_replaced(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    cluster, standby = pair()
    cluster.zk(SetData(znodes.CONTROLLER_JOURNAL, data))
    die(cluster)
    assert cluster.takeovers[-1].states.kind is TakeoverKind.COLD
    assert znodes.CONTROLLER_JOURNAL in caplog.text
    assert journal(cluster)[0] >> 32 == standby.controller_epoch
    assert knows_what_is_there(cluster, standby)


def test_a_journal_deleted_under_a_controller_is_re_created() -> None:
    cluster, standby = pair()
    cluster.zk(Delete(znodes.CONTROLLER_JOURNAL))
    cluster.kill_broker(1)
    cluster.settle()
    assert cluster.state("a-0") == "2/1 isr [2] ce 1 v1"
    sequence = journal(cluster)[0]
    die(cluster)
    assert cluster.takeovers[-1].states.kind is TakeoverKind.WARM
    assert sequence < journal(cluster)[0] or cluster.takeovers[-1].states.states_read == 0
    assert knows_what_is_there(cluster, standby)


def test_every_multi_that_writes_states_carries_the_journal_and_stays_small() -> None:
    cluster = Cluster(ControllerConfig(CONTROLLER_ID, auto_leader_rebalance_enable=False))
    cluster.start_broker(1, 2)
    cluster.start_controller()
    sent: list[Request] = []
    client = cluster.controller_clients[CONTROLLER_ID]
    submit = client.submit

    def recorded(requests, on_done):  # type: ignore[no-untyped-def]
        sent.extend(requests)
        submit(requests, on_done)

    client.submit = recorded  # type: ignore[method-assign]
    cluster.create(NewTopic("a", assignments=((1, 2),) * 3_000))
    cluster.kill_broker(1)
    cluster.settle()
    multis = [one for one in sent if isinstance(one, Multi)]
    writing = [one for one in multis if any(operation.path.endswith("/state") for operation in one.operations)]
    assert len(writing) > 6
    for multi in writing:
        last = multi.operations[-1]
        assert last.path == znodes.CONTROLLER_JOURNAL
        size = sum(len(operation.path) + len(getattr(operation, "data", b"") or b"") for operation in multi.operations)
        assert size < 1_000_000, "jute.maxbuffer"


# ISR writes of leaders


def test_a_partition_named_in_a_pending_notification_is_read() -> None:
    cluster, standby = pair()
    client = cluster.controller_clients[CONTROLLER_ID]
    client.crash()  # The notification is written when no controller is active.
    cluster.change_isr("a-4", [1])
    cluster.controllers.pop(CONTROLLER_ID).stop()
    reads = Reads(cluster, STANDBY)
    cluster.server.expire(client.session_id)
    cluster.settle()
    assert cluster.takeovers[-1].states.kind is TakeoverKind.WARM
    assert reads.partitions == ["a-4"]
    assert cluster.children(znodes.ISR_CHANGE_NOTIFICATION) == ()
    assert context(standby).leadership[tp("a-4")].isr == (1,)


def test_partitions_of_a_notification_are_in_the_journal_before_it_is_deleted() -> None:
    cluster, standby = pair()
    leave_behind(cluster)
    cluster.change_isr("a-4", [1])
    cluster.settle()
    assert cluster.children(znodes.ISR_CHANGE_NOTIFICATION) == ()
    reads = Reads(cluster, STANDBY)
    die(cluster)
    assert cluster.takeovers[-1].states.kind is TakeoverKind.BEHIND
    assert reads.partitions == ["a-4"]
    assert knows_what_is_there(cluster, standby)


def test_partitions_of_a_notification_read_at_a_failover_are_in_the_journal() -> None:
    cluster, _ = pair()
    third = cluster.start_controller(THIRD)
    client = cluster.controller_clients[CONTROLLER_ID]
    client.crash()
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.change_isr("a-4", [1])
    leave_behind(cluster)
    cluster.server.expire(client.session_id)
    cluster.settle()
    (second,) = [controller_id for controller_id, node in cluster.controllers.items() if node.is_active]
    die(cluster, second)
    (last,) = cluster.controllers.values()
    assert last.is_active
    assert cluster.takeovers[-1].states.kind is TakeoverKind.BEHIND
    assert context(last).leadership[tp("a-4")].isr == (1,)
    assert third is not None


def test_partitions_of_a_leader_that_registered_again_are_read() -> None:
    cluster, standby = pair()
    client = cluster.controller_clients[CONTROLLER_ID]
    client.crash()
    # The leader shrinks an ISR, dies before it notifies the controller, and registers again before a controller reads.
    cluster.change_isr("a-4", [1], notify=False)
    cluster.kill_broker(1)
    cluster.start_broker(1)
    cluster.controllers.pop(CONTROLLER_ID).stop()
    reads = Reads(cluster, STANDBY)
    cluster.server.expire(client.session_id)
    cluster.settle()
    assert cluster.takeovers[-1].states.kind is TakeoverKind.WARM
    assert set(reads.partitions) == {f"a-{p}" for p in range(PARTITIONS)}, "not b-0, which 2 leads"
    assert "LAI" in cluster.told()[1][1]
    assert context(standby).leadership[tp("a-4")] == LeaderAndIsr(1, 0, (1,), 1, 1)


def test_an_isr_change_without_notification_costs_one_conflict() -> None:
    cluster, standby = pair()
    cluster.change_isr("a-4", [1], notify=False)
    die(cluster)
    assert cluster.takeovers[-1].states.states_read == 0
    assert context(standby).leadership[tp("a-4")].isr == (1, 2), "as in the memory of the old controller"
    cluster.kill_broker(1)
    cluster.settle()
    assert cluster.state("a-4") == "-1/1 isr [1] ce 2 v2", "2 was not in sync, although the cache had it"
    assert cluster.state("a-5") == "2/1 isr [2] ce 2 v1"


# topics


def test_states_of_a_topic_that_is_being_deleted_are_read() -> None:
    cluster, standby = pair()
    cluster.brokers.silent.add(1)
    cluster.zk(Create(znodes.delete_topic_path("a")))
    cluster.settle()
    reads = Reads(cluster, STANDBY)
    die(cluster)
    assert set(reads.partitions) >= {f"a-{p}" for p in range(PARTITIONS)}
    cluster.brokers.release(1)
    cluster.time.run_for(500)
    assert not cluster.exists(znodes.topic_path("a"))
    assert standby.is_active and knows_what_is_there(cluster, standby)


def test_a_re_created_topic_is_not_confused_with_the_deleted_one() -> None:
    cluster, standby = pair()
    leave_behind(cluster)
    cluster.delete("b")
    cluster.create(NewTopic("b", assignments=((3, 1),)))
    die(cluster)
    assert context(standby).leadership[tp("b-0")].leader == 3
    assert knows_what_is_there(cluster, standby)


def test_a_standby_removes_a_deleted_topic() -> None:
    cluster, standby = pair()
    cluster.delete("b")
    cluster.settle()
    mirror = standby._standby.mirror
    assert mirror is not None and set(mirror.topics) == {"a"}
    cluster.create(NewTopic("b", assignments=((3, 1),)))
    cluster.settle()
    assert set(mirror.topics) == {"a", "b"}
    die(cluster)
    assert cluster.takeovers[-1].states.kind is TakeoverKind.WARM
    assert knows_what_is_there(cluster, standby)


def test_a_notification_without_new_information_is_written_to_the_journal() -> None:
    """The controller had read the state for another reason, and sent it to standbys on their streams only."""
    cluster, standby = pair()
    cluster.create(NewTopic("c", assignments=((1, 2, 3),)))
    cluster.change_isr("c-0", [1, 2])
    cluster.settle()
    leave_behind(cluster)
    cluster.change_isr("c-0", [1], notify=False)
    cluster.kill_broker(3)
    cluster.settle()
    assert context(cluster.controller).leadership[tp("c-0")].isr == (1,), "read when 3 died"
    cluster.start_broker(3)
    cluster.zk(Create(znodes.ISR_CHANGE_PREFIX, znodes.encode_partition_set([tp("c-0")]), sequential=True))
    cluster.settle()
    assert cluster.children(znodes.ISR_CHANGE_NOTIFICATION) == ()
    die(cluster)
    assert context(standby).leadership[tp("c-0")].isr == (1,)
    assert knows_what_is_there(cluster, standby)
