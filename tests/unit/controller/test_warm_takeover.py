"""A standby that takes over: what it reads from ZooKeeper, and that it knows what a full read would have told it."""

from dataclasses import replace

import pytest

from paceline.controller.context import ControllerContext
from paceline.controller.node import ControllerNode
from paceline.controller.standby.standby import SILENCE_MS
from paceline.controller.standby.state_publisher import HEARTBEAT_MS
from paceline.controller.standby.takeover import TakeoverKind
from paceline.controller.topics.topic_validation import NewTopic
from paceline.coordination import znodes
from paceline.coordination.interface import Create, Delete, GetData, Multi, Request, SetData
from paceline.coordination.znodes.journal import decode_journal, encode_journal
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.settings import ControllerConfig
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp

STANDBY = CONTROLLER_ID + 1
THIRD = CONTROLLER_ID + 2
PARTITIONS = 30
BAD_NAME = b'{"version":1,"sequence":2,"since":1,"batches":[{"sequence":2,"partitions":{"/":[0]}}]}'


class Reads:
    """Partition states a controller asks ZooKeeper for."""

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


def pair(config: ControllerConfig | None = None) -> tuple[Cluster, ControllerNode]:
    """Three brokers, one topic, an active controller and one that stands by and is warm."""
    cluster = Cluster(config)
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),) * PARTITIONS), NewTopic("b", assignments=((2, 3),)))
    standby = cluster.start_controller(STANDBY)
    assert standby.is_warm
    return cluster, standby


def die(cluster: Cluster, controller_id: int = CONTROLLER_ID) -> None:
    """End a controller's process; its session ends at once, too."""
    client = cluster.controller_clients[controller_id]
    session_id = client.session_id
    node = cluster.controllers.pop(controller_id)
    client.crash()
    node.stop()
    cluster.server.expire(session_id)
    cluster.settle()


def leave_behind(cluster: Cluster) -> None:
    """Let nothing of what follows reach the standby."""
    cluster.streams.cut = True


def journal(cluster: Cluster) -> tuple[int, int, int]:
    """Sequence, since, and number of partitions listed."""
    entry = decode_journal(znodes.CONTROLLER_JOURNAL, cluster.zk(GetData(znodes.CONTROLLER_JOURNAL)).data)
    return entry.sequence, entry.since, len(list(entry.touched_after(entry.since)))


def context(node: ControllerNode) -> ControllerContext:
    return node._components.context


def in_zookeeper(cluster: Cluster) -> dict[TopicPartition, LeaderAndIsr]:
    found = {}
    for path in cluster.server.tree.paths():
        if path.endswith("/state"):
            _, _, _, topic, _, partition, _ = path.split("/")
            response = cluster.zk(GetData(path))
            assert response.stat is not None
            state = znodes.decode_partition_state(path, response.data, response.stat.version)
            found[TopicPartition(topic, int(partition))] = state.leader_and_isr
    return found


def knows_what_is_there(cluster: Cluster, node: ControllerNode) -> bool:
    """Whether leadership in memory is that in ZooKeeper; who decided may differ, where there was nothing to write."""
    epoch = node.controller_epoch
    known = {p: replace(state, controller_epoch=epoch) for p, state in context(node).leadership.items()}
    return known == {p: replace(state, controller_epoch=epoch) for p, state in in_zookeeper(cluster).items()}


def test_a_warm_standby_reads_no_state_at_all() -> None:
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


def test_a_warm_standby_knows_what_was_decided_before() -> None:
    cluster, standby = pair()
    cluster.kill_broker(1)
    cluster.settle()
    reads = Reads(cluster, STANDBY)
    die(cluster)
    assert cluster.takeovers[-1].states.kind is TakeoverKind.WARM
    assert cluster.takeovers[-1].states.states_read == 0
    assert context(standby).leadership[tp("a-3")].leader == 2
    assert knows_what_is_there(cluster, standby)
    assert set(reads.partitions) == {f"a-{p}" for p in range(PARTITIONS)}, "whether the dead one was let in again"


def test_keys_outside_kafkas_schema_are_known_too() -> None:
    cluster, standby = pair()
    cluster.kill_broker(1)
    cluster.settle()
    before = dict(context(cluster.controllers[CONTROLLER_ID]).state_extras)
    assert before, "who left an ISR that has one member is remembered"
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


def test_a_first_controller_reads_all_and_makes_the_journal() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    assert not cluster.exists(znodes.CONTROLLER_JOURNAL)
    cluster.start_controller()
    assert cluster.takeovers[-1].states.kind is TakeoverKind.COLD
    sequence, since, listed = journal(cluster)
    assert (since, listed) == (sequence, 0)


def test_a_journal_that_is_gone_means_reading_all() -> None:
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
def test_a_journal_nobody_can_go_on_from_is_reported_and_replaced(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, standby = pair()
    cluster.zk(SetData(znodes.CONTROLLER_JOURNAL, data))
    die(cluster)
    assert cluster.takeovers[-1].states.kind is TakeoverKind.COLD
    assert znodes.CONTROLLER_JOURNAL in caplog.text
    assert journal(cluster)[0] >> 32 == standby.controller_epoch
    assert knows_what_is_there(cluster, standby)


def test_a_journal_deleted_under_a_controller_is_made_anew_and_nothing_is_lost() -> None:
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


# what leaders wrote


def test_a_partition_named_in_a_pending_notice_is_read() -> None:
    cluster, standby = pair()
    client = cluster.controller_clients[CONTROLLER_ID]
    client.crash()  # The notice comes when nobody listens any more.
    cluster.change_isr("a-4", [1])
    cluster.controllers.pop(CONTROLLER_ID).stop()
    reads = Reads(cluster, STANDBY)
    cluster.server.expire(client.session_id)
    cluster.settle()
    assert cluster.takeovers[-1].states.kind is TakeoverKind.WARM
    assert reads.partitions == ["a-4"]
    assert cluster.children(znodes.ISR_CHANGE_NOTIFICATION) == ()
    assert context(standby).leadership[tp("a-4")].isr == (1,)


def test_what_an_earlier_notice_said_is_in_the_journal_before_the_notice_is_gone() -> None:
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


def test_a_notice_taken_by_a_controller_that_died_at_once_is_in_the_journal() -> None:
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


def test_the_partitions_of_a_leader_that_registered_again_are_read() -> None:
    cluster, standby = pair()
    client = cluster.controller_clients[CONTROLLER_ID]
    client.crash()
    # The leader shrinks an ISR, dies before it can tell anybody, and comes back before anybody looks.
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


def test_an_isr_nobody_has_told_of_yet_costs_one_conflict_and_nothing_more() -> None:
    cluster, standby = pair()
    cluster.change_isr("a-4", [1], notify=False)
    die(cluster)
    assert cluster.takeovers[-1].states.states_read == 0
    assert context(standby).leadership[tp("a-4")].isr == (1, 2), "as the old controller believed"
    cluster.kill_broker(1)
    cluster.settle()
    assert cluster.state("a-4") == "-1/1 isr [1] ce 2 v2", "2 was not in sync, whatever the cache said"
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


def test_a_topic_created_again_under_its_name_is_not_taken_for_the_old_one() -> None:
    cluster, standby = pair()
    leave_behind(cluster)
    cluster.delete("b")
    cluster.create(NewTopic("b", assignments=((3, 1),)))
    die(cluster)
    assert context(standby).leadership[tp("b-0")].leader == 3
    assert knows_what_is_there(cluster, standby)


def test_a_deleted_topic_is_forgotten_by_the_standby_as_well() -> None:
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


def test_a_standby_is_behind_when_a_notice_told_the_controller_nothing_new() -> None:
    """It had read the state for another reason, which reaches standbys by their streams alone."""
    cluster, standby = pair()
    cluster.create(NewTopic("c", assignments=((1, 2, 3),)))
    cluster.change_isr("c-0", [1, 2])
    cluster.settle()
    leave_behind(cluster)
    cluster.change_isr("c-0", [1], notify=False)
    cluster.kill_broker(3)
    cluster.settle()
    assert context(cluster.controller).leadership[tp("c-0")].isr == (1,), "looked at since 3 is gone"
    cluster.start_broker(3)
    cluster.zk(Create(znodes.ISR_CHANGE_PREFIX, znodes.encode_partition_set([tp("c-0")]), sequential=True))
    cluster.settle()
    assert cluster.children(znodes.ISR_CHANGE_NOTIFICATION) == ()
    die(cluster)
    assert context(standby).leadership[tp("c-0")].isr == (1,)
    assert knows_what_is_there(cluster, standby)


# streams


def test_a_stream_that_breaks_is_opened_again_and_the_copy_is_kept_meanwhile() -> None:
    cluster, standby = pair()
    cluster.streams.cut = True
    cluster.time.run_for(SILENCE_MS + 5_000)
    assert not standby.is_warm
    assert standby._standby.mirror is not None
    cluster.streams.cut = False
    cluster.time.run_for(2_000)
    assert standby.is_warm
    assert cluster.streams.opened == [STANDBY, STANDBY]


def test_a_copy_from_a_broken_stream_is_as_good_as_its_sequence() -> None:
    cluster, _ = pair()
    cluster.streams.cut = True
    cluster.time.run_for(SILENCE_MS + 5_000)
    die(cluster)
    assert cluster.takeovers[-1].states.kind is TakeoverKind.WARM


def test_attempts_to_follow_pause_longer_and_end_with_the_term() -> None:
    cluster, standby = pair()
    cluster.streams.cut = True
    cluster.time.run_for(SILENCE_MS + 10_000)
    attempts = 0
    follow = cluster.streams.follow

    def counted(*args):  # type: ignore[no-untyped-def]
        nonlocal attempts
        attempts += 1
        return follow(*args)

    cluster.streams.follow = counted  # type: ignore[method-assign]
    cluster.time.run_for(10_000)
    assert 7 <= attempts <= 14, "about one a second"
    die(cluster)
    attempts = 0
    cluster.time.run_for(10_000)
    assert attempts == 0 and standby.is_active


@pytest.mark.parametrize("what", ["a gap", "a repetition", "an old epoch"])
def test_a_message_that_does_not_fit_ends_the_stream(what: str) -> None:
    cluster, standby = pair()
    core = standby._standby
    stream = core._stream
    assert stream is not None and core.mirror is not None
    before = core.mirror
    update = {"a gap": 5, "a repetition": -1, "an old epoch": 0}[what]
    from paceline.model.standby import StateUpdate, TopicStates

    epoch = 0 if what == "an old epoch" else standby._standby.mirror.controller_epoch  # type: ignore[union-attr]
    lie = {"a": TopicStates(before.topics["a"].topic_id, {0: LeaderAndIsr(9, 9, (9,), 9, 9)})}
    core._on_update(stream, StateUpdate(stream.expected + update, epoch, sequence=99, topics=lie))
    assert not standby.is_warm
    assert before.topics["a"].states[0].leader == 1 and before.sequence != 99
    cluster.time.run_for(2_000)
    assert standby.is_warm


def test_a_standby_hears_from_an_idle_controller() -> None:
    cluster, standby = pair()
    stream = standby._standby._stream
    assert stream is not None
    heard = stream.expected
    cluster.time.run_for(5 * HEARTBEAT_MS)
    assert stream.expected >= heard + 4
    cluster.time.run_for(10 * SILENCE_MS)
    assert standby._standby._stream is stream, "it is never taken for dead"


def test_a_follower_that_does_not_keep_up_is_dropped() -> None:
    cluster, _ = pair()
    active = cluster.controllers[CONTROLLER_ID]

    class Full:
        ended = False

        def put(self, update: object) -> bool:
            return False

        def end(self) -> None:
            self.ended = True

    sink = Full()
    active.follow_state(THIRD, sink)
    assert sink.ended
    assert active._components.publisher.follower_count == 1


def test_a_controller_that_resigns_ends_its_streams() -> None:
    cluster, standby = pair()
    active = cluster.controllers[CONTROLLER_ID]
    active._machine.resign("a test wants it")
    cluster.settle()
    assert active._components.publisher.follower_count == 0
    assert not standby.is_warm


def test_a_controller_that_comes_back_follows_its_successor() -> None:
    cluster, standby = pair()
    old = cluster.controllers[CONTROLLER_ID]
    client = cluster.controller_clients[CONTROLLER_ID]
    cluster.server.expire(client.session_id)
    cluster.time.run_for(3_000)
    assert standby.is_active and not old.is_active
    assert old.is_warm and not standby.is_warm
    cluster.kill_broker(1)
    cluster.settle()
    die(cluster, STANDBY)
    assert old.is_active and cluster.takeovers[-1].states.kind is TakeoverKind.WARM
    assert knows_what_is_there(cluster, old)


def test_a_snapshot_asked_for_within_an_event_waits_for_its_end() -> None:
    cluster, _ = pair()
    active = cluster.controllers[CONTROLLER_ID]
    publisher = active._components.publisher
    publisher.event_begins()
    third = cluster.start_controller(THIRD)
    assert not third.is_warm
    publisher.event_ends()
    cluster.settle()
    assert third.is_warm
