"""Every checker reports a small bad history and accepts a good one (docs/protocol/simulator.md#tested-checkers)."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Check, Create, Multi, SetData, WatchType
from paceline.log.compaction.batch_rewrite import empty_batch
from paceline.log.leader_epoch_cache import EpochEntry
from paceline.log.record_batch import NewRecord, encode_batch, parse_header
from paceline.model.assignment import ReplicaAssignment
from paceline.model.client_io import FetchResult, OffsetAnswer, ProduceResult, RequiredAcks
from paceline.model.control import ControllerStamp, LeaderAndIsrPartition, LeaderAndIsrRequest, LiveBroker
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.state_change import StateChange, StateChangeKind
from tests.simulation.admin import Admin
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.health import moves_only_wait
from tests.simulation.history import Outcome, Poll, Reading, Send
from tests.simulation.machines import BrokerMachine, ControllerLife
from tests.simulation.observed_log import Mirror, ObservedLog
from tests.simulation.partition_record import PartitionRecord
from tests.simulation.profile import draw_profile
from tests.simulation.world import World
from tests.support.zookeeper.client import AppliedWrite
from tests.support.zookeeper.data_tree import Change

TP = TopicPartition("t", 0)
OTHER = TopicPartition("nowhere", 0)
TOPIC_ID = "id-of-t-22-characters-"
STATE = znodes.partition_state_path(TP)


@pytest.fixture
def cluster() -> SimulatedCluster:
    world = World(1)
    return SimulatedCluster(world, draw_profile(world))


def violated(cluster: SimulatedCluster) -> tuple[str, ...]:
    return cluster.checks.verdicts.violated


# ZooKeeper


def write(
    cluster: SimulatedCluster,
    path: str,
    data: bytes | None,
    version: int | None,
    zxid: int,
    session: int = 1,
    kind: WatchType | None = None,
) -> None:
    old = None if version in (0, None) else version - 1
    type_ = kind or (WatchType.CREATED if version == 0 else WatchType.DATA_CHANGED)
    cluster.checks.zookeeper_written(AppliedWrite(zxid, session, Change(type_, path, old, version, None, data)))


def elect(cluster: SimulatedCluster, epoch: int, zxid: int, session: int = 1) -> None:
    write(cluster, znodes.CONTROLLER, b"{}", 0, zxid, session)
    write(cluster, znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch), epoch, zxid, session)


def state(cluster: SimulatedCluster, leader: int, epoch: int, isr: tuple[int, ...], version: int, **more: int) -> None:
    new = LeaderAndIsr(leader, epoch, isr, version, more.get("controller_epoch", 1))
    write(cluster, STATE, znodes.encode_partition_state(new), version, 100 + version, more.get("session", 1))


def prepared(cluster: SimulatedCluster) -> PartitionRecord:
    write(cluster, znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(0), 0, 1)
    elect(cluster, 1, 2)
    assignment = znodes.TopicAssignment({0: ReplicaAssignment((1, 2, 3))}, TOPIC_ID)
    write(cluster, znodes.topic_path("t"), znodes.encode_topic_assignment(assignment), 0, 3)
    state(cluster, 1, 0, (1, 2, 3), 0)
    record = cluster.checks.records.current(TP)
    assert record is not None
    assert violated(cluster) == ()
    return record


def test_a_good_history_of_states_is_not_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    state(cluster, 2, 1, (2, 3), 1)
    assert violated(cluster) == ()


def test_a_controller_epoch_that_skips_or_comes_alone_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    write(cluster, znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(3), 2, 9)
    assert "K1" in violated(cluster)


def test_deleting_the_controller_node_of_another_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    write(cluster, znodes.CONTROLLER, None, None, 9, session=2, kind=WatchType.DELETED)
    write(cluster, "/brokers/ids/9", None, None, 10, session=2, kind=WatchType.DELETED)
    assert violated(cluster) == ("K8",)


@pytest.mark.parametrize(
    ("leader", "epoch", "isr", "expected"),
    [
        (2, 2, (2, 3), "R2"),
        (2, 0, (2, 3), "R2"),
        (1, 1, (2, 3), "R11"),
        (1, 1, (1, 9), "R11"),
    ],
)
def test_an_impossible_state_is_reported(
    cluster: SimulatedCluster, leader: int, epoch: int, isr: tuple[int, ...], expected: str
) -> None:
    prepared(cluster)
    state(cluster, leader, epoch, isr, 1)
    assert expected in violated(cluster)


def test_a_leader_from_outside_the_isr_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    state(cluster, 1, 1, (1,), 1)
    state(cluster, 2, 2, (2,), 2)
    assert "R5" in violated(cluster)


def test_a_write_of_a_deposed_controller_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    write(cluster, znodes.CONTROLLER, None, None, 8, kind=WatchType.DELETED)
    elect(cluster, 2, 9, session=2)
    state(cluster, 2, 1, (2, 3), 1, controller_epoch=1, session=1)
    assert violated(cluster) == ("K2",)


def test_dropping_a_replica_before_the_targets_are_in_sync_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    for version, assignment in ((1, ReplicaAssignment((4, 1, 2, 3), (4,), (1,))), (2, ReplicaAssignment((4, 2, 3)))):
        node = znodes.TopicAssignment({0: assignment}, TOPIC_ID)
        write(cluster, znodes.topic_path("t"), znodes.encode_topic_assignment(node), version, 10 + version)
    assert violated(cluster) == ("K9",)


def test_a_node_that_does_not_parse_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    write(cluster, STATE, b'{"version":1,"leader":1,"leader_epoch":1,"controller_epoch":1,"isr":[]}', 1, 9)
    assert violated(cluster) == ("R11",)


def test_a_write_without_its_guard_is_reported_before_it_is_sent(cluster: SimulatedCluster) -> None:
    life = ControllerLife(next(iter(cluster.controllers.values())), 1)
    good = Multi((Check(znodes.CONTROLLER_EPOCH, 3), SetData(STATE, b"", 4)))
    cluster.checks.zookeeper_asked(life, [good])
    assert violated(cluster) == ()
    cluster.checks.zookeeper_asked(life, [SetData(STATE, b"", 4)])
    assert violated(cluster) == ("K2",)
    cluster.checks.zookeeper_asked(life, [Multi((Check(znodes.CONTROLLER_EPOCH, 3), SetData(STATE, b"", -1)))])
    assert violated(cluster) == ("R12", "K2")


# Replicas


def broker(broker_id: int, hosted: Any = None, broker_epoch: int = 0) -> Any:
    """A broker process, with the attributes that the checks of replicas read."""
    manager = SimpleNamespace(partitions={} if hosted is None else {TP: hosted})
    node = SimpleNamespace(replica_manager=manager, broker_epoch=broker_epoch)
    return SimpleNamespace(broker_id=broker_id, name=f"broker-{broker_id}", node=node, logs={})


def log(*batches: tuple[int, int, int, int], high_watermark: int = 0) -> ObservedLog:
    """A log with the attributes that the checks read: batches of (base, end, epoch, checksum)."""
    mirror = Mirror()
    for one in batches:
        mirror.add(*one)
    entries: dict[int, int] = {}
    for base, _, epoch, _ in batches:
        entries.setdefault(epoch, base)
    return cast(
        ObservedLog,
        SimpleNamespace(
            mirror=mirror,
            topic_id=TOPIC_ID,
            topic_partition=TP,
            log_start_offset=0,
            log_end_offset=mirror.end,
            high_watermark=high_watermark,
            path="/data/t-0",
            directory=SimpleNamespace(is_offline=False),
            config=SimpleNamespace(min_insync_replicas=1),
            epochs=SimpleNamespace(entries=[SimpleNamespace(epoch=e, start_offset=s) for e, s in entries.items()]),
        ),
    )


def test_a_batch_without_its_records_is_reported(cluster: SimulatedCluster) -> None:
    emptied = empty_batch(parse_header(encode_batch([NewRecord(0, b"k", b"v")])))
    one: Any = SimpleNamespace(
        log_start_offset=0, log_end_offset=1, path="/data/t-0", read=lambda _position, _size, _end: emptied
    )
    cluster.checks.clients._readable(prepared(cluster), one)
    assert violated(cluster) == ("C5",)


def test_two_prefixes_of_one_offset_and_epoch_are_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    cluster.checks.replicas.appended(broker(1), log((0, 2, 0, 5)), 0, False)
    cluster.checks.replicas.appended(broker(2), log((0, 2, 0, 5)), 0, False)
    assert violated(cluster) == ()
    cluster.checks.replicas.appended(broker(3), log((0, 2, 0, 6)), 0, False)
    assert violated(cluster) == ("R3b",)


@pytest.mark.parametrize("crc", [5, 6])
def test_a_follower_may_lack_records_committed_before_an_unclean_election(cluster: SimulatedCluster, crc: int) -> None:
    record = prepared(cluster)
    record.voided = "an unclean election"
    record.committed.add(0, 2, 0, 9)
    leader, follower = log((0, 2, 0, 5), (2, 3, 0, 7)), log((0, 2, 0, crc))
    record.logs = {1: leader, 2: follower}
    cluster.checks.replicas.appended(broker(1), leader, 0, False)
    cast(Any, leader).log_start_offset = 2
    follower.mirror.add(2, 3, 0, 7)
    cluster.checks.replicas.appended(broker(2), follower, 1, False)
    assert violated(cluster) == ()


def test_epochs_that_fall_and_gaps_are_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    cluster.checks.replicas.appended(broker(1), log((0, 2, 1, 5), (3, 4, 0, 6)), 0, False)
    assert violated(cluster) == ("C5", "R4")


def test_a_batch_of_another_topic_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    cluster.checks.replicas.batch_topics[5] = "another topic"
    cluster.checks.replicas.appended(broker(1), log((0, 2, 0, 5)), 0, False)
    assert violated(cluster) == ("R16",)


def test_appending_without_leading_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    one = log((0, 2, 0, 5))
    hosted = SimpleNamespace(log=one, is_leader=True, leader_epoch=3)
    cluster.checks.replicas.appended(broker(1, hosted), one, 0, True)
    assert violated(cluster) == ("R1",)


def test_truncating_committed_records_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    record.committed.add(0, 2, 0, 5)
    record.thw = 2
    cut = log((0, 2, 0, 5))
    removed = cut.mirror.cut(0)
    cut.log_end_offset = 0  # type: ignore[misc]
    cluster.checks.replicas.truncated(broker(2), cut, 2, removed)
    assert violated(cluster) == ("R9",)


def test_truncating_uncommitted_records_is_not_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    record.committed.add(0, 2, 1, 7)
    record.thw = 2
    cut = log((0, 2, 0, 5))
    removed = cut.mirror.cut(0)
    cluster.checks.replicas.truncated(broker(2), cut, 2, removed)
    assert violated(cluster) == ()


def leading(one: ObservedLog, isr: tuple[int, ...], ends: dict[int, int | None], epoch: int = 0) -> Any:
    followers = {broker_id: SimpleNamespace(log_end_offset=end) for broker_id, end in ends.items()}
    return SimpleNamespace(log=one, is_leader=True, leader_epoch=epoch, isr=isr, followers=followers)


def test_a_commit_that_skips_an_isr_member_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    record.min_insync_replicas = 1
    one = log((0, 2, 0, 5), high_watermark=2)
    record.logs = {1: one, 2: log((0, 2, 0, 5)), 3: log()}
    cluster.checks.replicas.high_watermark_moved(broker(1, leading(one, (1, 2, 3), {2: 2, 3: None})), one, 0)
    assert violated(cluster) == ("R5b", "R6")


def test_a_commit_below_min_isr_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    record.min_insync_replicas = 2
    state(cluster, 1, 1, (1,), 1)
    one = log((0, 2, 1, 5), high_watermark=2)
    record.logs = {1: one}
    cluster.checks.replicas.high_watermark_moved(broker(1, leading(one, (1,), {}, 1)), one, 0)
    assert violated(cluster) == ("R7",)


def test_a_high_watermark_that_falls_or_leaves_the_log_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    record.min_insync_replicas = 1
    one = log((0, 2, 0, 5), high_watermark=0)
    record.logs = {1: one}
    life = broker(1, leading(one, (1, 2, 3), {2: 2, 3: 2}))
    cluster.checks.replicas.high_watermark_moved(life, one, 2)
    assert violated(cluster) == ("R8",)


def test_a_different_record_below_the_commit_point_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    record.min_insync_replicas = 1
    record.committed.add(0, 2, 0, 5)
    record.thw = 2
    one = log((0, 2, 0, 6), (2, 3, 0, 8), high_watermark=3)
    record.logs = dict.fromkeys((1, 2, 3), one)
    cluster.checks.replicas.high_watermark_moved(broker(1, leading(one, (1, 2, 3), {2: 3, 3: 3})), one, 2)
    assert "C3" in violated(cluster)


def test_an_incomplete_leader_and_a_second_one_in_the_epoch_are_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    record.committed.add(0, 2, 0, 5)
    record.thw = 2
    whole, empty = log((0, 2, 0, 5)), log()
    for one in (whole, empty):
        one.epochs.entries.append(EpochEntry(0, one.log_end_offset))
    cluster.checks.replicas._became_leader(broker(1), whole, record, 0)
    assert violated(cluster) == ()
    cluster.checks.replicas._became_leader(broker(1), empty, record, 0)
    assert violated(cluster) == ("R5",)
    cluster.checks.replicas._became_leader(broker(2), whole, record, 0)
    assert violated(cluster) == ("R1", "R5")


@pytest.mark.parametrize("start", [2, 1])
def test_an_empty_leader_that_begins_at_the_deleted_end_is_complete(cluster: SimulatedCluster, start: int) -> None:
    record = prepared(cluster)
    record.committed.add(0, 1, 0, 5)
    record.committed.add(1, 2, 0, 6)
    record.thw = 2
    one = log()
    one.mirror.begin_at(start)
    cast(Any, one).log_end_offset = start
    one.epochs.entries.append(EpochEntry(0, start))
    cluster.checks.replicas._became_leader(broker(1), one, record, 0)
    assert violated(cluster) == (() if start == 2 else ("R5",))


@pytest.mark.parametrize("entries", [[], [(0, 1)], [(1, 2)]])
def test_a_leader_whose_epoch_does_not_begin_at_its_log_end_is_reported(
    cluster: SimulatedCluster, entries: list[tuple[int, int]]
) -> None:
    record = prepared(cluster)
    one = log((0, 2, 0, 5))
    one.epochs.entries[:] = [EpochEntry(epoch, start) for epoch, start in entries]
    cluster.checks.replicas._became_leader(broker(1), one, record, 0)
    assert violated(cluster) == ("R4",)


def test_a_joiner_that_lacks_committed_records_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    state(cluster, 1, 1, (1,), 1)
    record.committed.add(0, 2, 0, 5)
    record.thw = 2
    record.logs = {2: log()}
    state(cluster, 1, 2, (1, 2), 2)
    assert violated(cluster) == ("R5b",)


def test_an_epoch_cache_that_does_not_fit_its_log_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    one = log((0, 2, 0, 5), (2, 4, 3, 6))
    cluster.checks.replicas.epochs_agree("somebody", record, one)
    assert violated(cluster) == ()
    one.epochs.entries.pop()
    cluster.checks.replicas.epochs_agree("somebody", record, one)
    assert violated(cluster) == ("R4",)


def test_power_losses_suspend_the_data_invariants_only_when_too_many_replicas_lose_power(
    cluster: SimulatedCluster,
) -> None:
    record = prepared(cluster)
    record.min_insync_replicas = 2
    record.damage(1)
    assert not record.voided
    record.damage(2)
    assert record.voided


@pytest.mark.parametrize(("broker_epoch", "excused"), [(-1, True), (7, False)], ids=["starting", "registered"])
def test_a_loss_is_excused_until_a_broker_with_every_record_has_registered(
    cluster: SimulatedCluster, broker_epoch: int, excused: bool
) -> None:
    """Until then a leader may count a delayed fetch of the earlier process, which had more records."""
    record = prepared(cluster)
    record.min_insync_replicas = 2
    state(cluster, 1, 1, (1, 3), 1)
    record.committed.add(0, 2, 0, 5)
    record.thw = 2
    record.logs = {1: log((0, 2, 0, 5)), 2: log((0, 2, 0, 5))}
    record.damage(2)
    machine = SimpleNamespace(life=broker(2, broker_epoch=broker_epoch))
    cluster.brokers[2] = cast(BrokerMachine, machine)
    state(cluster, 1, 1, (1, 2, 3), 2)
    machine.life = None
    record.logs[2] = log()
    state(cluster, 1, 1, (1,), 3)
    state(cluster, 1, 1, (1, 2), 4)
    assert ("R5b" in violated(cluster)) is not excused


@pytest.mark.parametrize("loses_power", [True, False], ids=["loses power", "crashes"])
def test_a_broker_that_loses_power_in_a_compaction_may_lack_records(
    cluster: SimulatedCluster, loses_power: bool
) -> None:
    """Only after a crash, which keeps the page cache, is the interrupted append the only uncertain batch."""
    record = prepared(cluster)
    record.min_insync_replicas = 2
    before, after = log((0, 2, 0, 5), (2, 4, 0, 6)), log((0, 2, 0, 5))
    if loses_power:
        record.damage(1)
    life = broker(1, broker_epoch=-1)
    life.machine = SimpleNamespace(has_died_at_work=True)
    life.logs = SimpleNamespace(unexplained_gaps={})
    cluster.checks.replicas._compare(life, record, after, before)
    assert violated(cluster) == ()
    assert (1 in record.damaged, 1 in record.incomplete) == (loses_power, loses_power)


# Control


def test_sending_a_state_that_was_not_written_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    life = cast(Any, SimpleNamespace(name="c", node=SimpleNamespace(is_active=True, controller_epoch=1)))

    def send(zk_version: int, isr: tuple[int, ...]) -> None:
        partition = LeaderAndIsrPartition(TP, TOPIC_ID, 1, 1, 0, isr, zk_version, (1, 2, 3))
        request = LeaderAndIsrRequest(ControllerStamp(1_000_000, 1, 7), (), (partition,))
        cluster.checks.control_sent(life, LiveBroker(1, ()), request)

    send(0, (1, 2, 3))
    assert violated(cluster) == ()
    send(1, (1, 2))
    assert violated(cluster) == ("K3",)
    life.node.is_active = False
    send(0, (1, 2, 3))
    assert violated(cluster) == ("K3", "K7")


# Clients


def sent(cluster: SimulatedCluster, value: bytes, **more: Any) -> Send:
    batch = encode_batch([NewRecord(0, None, value)])
    fields: dict[str, Any] = {
        "client": "p",
        "topic_partition": TP,
        "topic_id": TOPIC_ID,
        "acks": RequiredAcks.ALL,
        "batch": batch,
        "crc": parse_header(batch).crc,
        "timestamp_ms": 0,
        "count": 1,
        "producer_id": 1,
        "sequence": 0,
        "invoked_us": 0,
        "completed_us": 1,
        "outcome": Outcome.OK,
        "offset": 0,
        "tries": 1,
    } | more
    send = Send(**fields)
    cluster.checks.history.add(send)
    return send


def finish(cluster: SimulatedCluster, record: PartitionRecord, one: ObservedLog) -> None:
    cluster.checks.clients._readable = lambda *_: None  # type: ignore[method-assign]
    cluster.checks.clients.finish(record, one, [one])


def test_a_lost_record_and_a_record_that_was_never_sent_are_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    send = sent(cluster, b"a")
    finish(cluster, record, log((0, 1, 0, send.crc)))
    assert violated(cluster) == ()
    finish(cluster, record, log((0, 1, 0, 99)))
    assert violated(cluster) == ("C1", "C2")


def test_a_refused_record_in_the_log_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    send = sent(cluster, b"a", outcome=Outcome.FAIL, offset=None)
    finish(cluster, record, log((0, 1, 0, send.crc)))
    assert violated(cluster) == ("C2",)


def test_a_repeated_record_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    send = sent(cluster, b"a")
    finish(cluster, record, log((0, 1, 0, send.crc), (1, 2, 0, send.crc)))
    assert violated(cluster) == ("C4", "C11")


def test_a_gap_in_a_producers_sequence_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    send = sent(cluster, b"a", sequence=3)
    finish(cluster, record, log((0, 1, 0, send.crc)))
    assert violated(cluster) == ("C11",)


def test_an_offset_below_one_that_was_answered_before_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    late = sent(cluster, b"late", invoked_us=10, completed_us=20, offset=0, producer_id=-1)
    early = sent(cluster, b"early", invoked_us=1, completed_us=5, offset=1, producer_id=-1)
    finish(cluster, record, log((0, 1, 0, late.crc), (1, 2, 0, early.crc)))
    assert violated(cluster) == ("C8",)


def test_reading_uncommitted_records_and_records_that_disappear_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    send = sent(cluster, b"a", outcome=Outcome.UNKNOWN, offset=None)
    reading = Reading("r", TP, TOPIC_ID)
    cluster.checks.fetch_answered(broker(1), reading, 0, FetchResult(TP, None, 0, 0, 0, None, send.batch))
    assert violated(cluster) == ("C9",)
    reading.polls.append(Poll(0, 0, 1, send.crc))
    cluster.checks.history.readings.append(reading)
    before = cluster.checks.verdicts.all["C9"].violations
    finish(cluster, record, log())
    assert cluster.checks.verdicts.all["C9"].violations == before + 1


def test_polls_with_a_gap_and_end_offsets_that_fall_are_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    reading = Reading("r", TP, TOPIC_ID)
    cluster.checks.polled(reading, 3, Poll(0, 4, 5, 1))
    assert violated(cluster) == ("C7",)
    cluster.checks.end_told(reading, 5)
    cluster.checks.end_told(reading, 4)
    assert violated(cluster) == ("C7", "C10")


def test_acknowledging_before_the_commit_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    send = sent(cluster, b"a")
    one = log((0, 1, 0, send.crc), high_watermark=0)
    hosted = SimpleNamespace(log=one, is_leader=True, has_enough_replicas=True, isr=(1, 2, 3), leader_epoch=0)
    cluster.checks.produce_answered(broker(1, hosted), send, ProduceResult(TP, None, 0))
    assert violated(cluster) == ("R7",)


def lost_by_election(cluster: SimulatedCluster, start: int, offset: int, epoch: int) -> tuple[str, ...]:
    """Return the verdicts when a record acknowledged at ``offset`` in ``epoch`` is missing; epoch 4 began uncleanly."""
    record = prepared(cluster)
    cluster.checks.unclean_allowed(record)
    record.unclean_starts[4] = start
    record.voided = "an unclean election"
    send = sent(cluster, b"a")
    send.outcome, send.offset, send.leader_epoch = Outcome.OK, offset, epoch
    one = SimpleNamespace(mirror=Mirror(), path="/data/t-0", log_start_offset=0, log_end_offset=0)
    cluster.checks.clients.finish(record, cast(ObservedLog, one), [])
    return violated(cluster)


@pytest.mark.parametrize(("start", "offset", "epoch"), [(2, 1, 3), (0, 1, 4), (-1, 1, 3)])
def test_more_loss_than_an_unclean_election_explains_is_reported(
    cluster: SimulatedCluster, start: int, offset: int, epoch: int
) -> None:
    assert lost_by_election(cluster, start, offset, epoch) == ("C1",)


def test_an_unclean_leader_keeps_its_committed_records(cluster: SimulatedCluster) -> None:
    record, other, shorter = prepared(cluster), Mirror(), Mirror()
    record.committed = Mirror()
    for base in range(4):
        record.committed.add(base, base + 1, 0, base)
    for base in range(6):
        other.add(base, base + 1, 0, base if base < 2 else 99)
    shorter.add(0, 1, 0, 0)
    longer = record.committed.copy()
    longer.add(4, 5, 0, 4)
    assert [record.kept_by(one) for one in (other, shorter, longer, Mirror())] == [2, 1, 5, 0]


def test_loss_above_the_end_of_an_unclean_leader_is_not_reported(cluster: SimulatedCluster) -> None:
    assert lost_by_election(cluster, 1, 1, 3) == ()


def test_deleting_data_because_a_node_cannot_be_read_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    cluster.checks.topic_harmed("t")
    deleted = StateChange(
        who="broker-1", wall_ms=0, kind=StateChangeKind.REPLICA_DELETED, topic_partition=TP, topic_id=TOPIC_ID
    )
    cluster.checks.replicas.broker_changed(broker(1), deleted)
    assert violated(cluster) == ("H26",)
    cluster.checks.verdicts.all["H26"].violations = 0
    cluster.checks.topic_doomed("t")
    cluster.checks.replicas.broker_changed(broker(1), deleted)
    assert violated(cluster) == ()


def test_a_late_copy_of_a_deletion_deletes_a_re_created_topic_and_another_is_created(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(cluster)
    admin = Admin(cluster)
    arrivals: list[Any] = []
    asked: list[str] = []
    controller = SimpleNamespace(node=SimpleNamespace(ask=lambda request: asked.append(request.name)))
    monkeypatch.setattr(cluster, "controller_named", lambda _: controller)
    monkeypatch.setattr(cluster.network, "call", lambda _caller, _target, handle, *_: arrivals.append(handle))
    admin.recreate("t")
    late = arrivals.pop()
    late(None)
    assert (asked, arrivals) == (["DeleteTopics"], [])
    cluster.checks.records.topic_ids["t"] = "the-next-topic-of-name"
    late(None)
    assert "the-next-topic-of-name" in cluster.checks.dead_topic_ids
    arrivals.pop()(None)
    assert (asked, arrivals) == (["DeleteTopics"] * 3, []), "deleted, and then re-created"


def test_an_exception_in_a_process_is_reported(cluster: SimulatedCluster) -> None:
    cluster.checks.unexpected("broker-1", ValueError("boom"))
    assert violated(cluster) == ("X1",)


# Deleted records


def test_a_log_start_that_was_not_requested_or_is_not_committed_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    one = cast(Any, log((0, 2, 0, 5), high_watermark=2))
    record.asked_start = one.log_start_offset = 2
    cluster.checks.replicas.log_start_moved(broker(1), one, 0, 2)
    assert violated(cluster) == ()
    cluster.checks.replicas.log_start_moved(broker(1), one, 0, 1)
    assert violated(cluster) == ("R18",)
    record.asked_start = 1
    cluster.checks.replicas.log_start_moved(broker(1), one, 0, 2)
    assert cluster.checks.verdicts.all["R18"].violations == 2


@pytest.mark.parametrize("leader_start", [2, 0])
def test_records_of_a_follower_below_its_leaders_log_start_are_not_compared(
    cluster: SimulatedCluster, leader_start: int
) -> None:
    """They are removed with the response that also contains the high watermark."""
    record = prepared(cluster)
    record.committed.add(0, 2, 1, 5)
    record.thw = record.asked_start = 2
    leader, follower = log((0, 2, 1, 5), high_watermark=2), log((0, 2, 0, 6), high_watermark=2)
    cast(Any, leader).log_start_offset = leader_start
    record.logs = {1: leader, 2: follower}
    following = SimpleNamespace(log=follower, is_leader=False)
    cluster.checks.replicas.high_watermark_moved(broker(2, following), follower, 0)
    assert violated(cluster) == (() if leader_start else ("R3",))


def test_a_deletion_that_a_restart_undoes_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    one = log((0, 2, 0, 5), high_watermark=2)
    record.promised_starts[1] = 1
    cluster.checks.replicas._starts_where_promised(broker(1), record, one)
    assert violated(cluster) == ("R18",)


def test_a_mirror_that_begins_later_is_compared_by_the_chain_of_earlier_batches() -> None:
    whole, late, other = Mirror(), Mirror(2), Mirror(2)
    whole.add(0, 2, 0, 5)
    whole.add(2, 3, 0, 6)
    for mirror, crc in ((late, 6), (other, 7)):
        mirror.add(2, 3, 0, crc)
        assert mirror.chain_at(3) is None and mirror.same_history(whole) is (crc == 6)
        mirror.root(whole.chain_at(2))
    assert late.chain_at(3) == whole.chain_at(3) != other.chain_at(3)
    assert late.same_history(whole) and not other.same_history(whole)


# Reads of controllers


@pytest.mark.parametrize(("crc", "expected"), [(6, True), (7, False)])
def test_a_log_that_begins_lower_than_before_is_compared_in_the_common_range(crc: int, expected: bool) -> None:
    before, after = Mirror(2), Mirror(1)
    for mirror, base, end, last in ((before, 2, 3, 6), (before, 3, 5, 8), (after, 1, 2, 5), (after, 2, 3, crc)):
        mirror.add(base, end, 0, last)
    assert after.begins(before) is expected
    assert not before.begins(after), "it reaches further"


def test_registrations_older_than_the_read_are_reported(cluster: SimulatedCluster) -> None:
    control, audit = cluster.checks.control, cluster.checks.zookeeper
    audit.registrations += [(1, 7), (2, 8), (1, None)]
    control.looked({1: 7}, 1, {})
    control.looked({1: 7}, 1, {1: LiveBroker(1, (), broker_epoch=7), 2: LiveBroker(2, (), broker_epoch=8)})
    assert violated(cluster) == ()
    control.looked({}, 3, {1: LiveBroker(1, (), broker_epoch=7)})
    assert violated(cluster) == ("K11",)


# Complete again


def test_only_reassignments_of_a_damaged_topic_or_that_wait_for_an_operator_may_stay_pending(
    cluster: SimulatedCluster,
) -> None:
    record, tree = prepared(cluster), cluster.server.tree
    for number, path in enumerate(("/admin", znodes.REASSIGN_PARTITIONS)):
        tree.apply(Create(path, b"{"), 1, 199 + number)
    assert not moves_only_wait(cluster)
    tree.apply(SetData(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({TP: (2, 3)}), -1), 1, 201)
    assert not moves_only_wait(cluster)
    record.assignment = ReplicaAssignment((2, 3, 1), (), (1,))
    assert not moves_only_wait(cluster)
    record.zk = LeaderAndIsr(1, 0, (1,), 1, 1)
    record.flip(1)
    assert moves_only_wait(cluster)
    tree.apply(SetData(znodes.REASSIGN_PARTITIONS, b"{", -1), 1, 202)
    assert moves_only_wait(cluster)
    tree.apply(SetData(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({TP: (2, 3)}), -1), 1, 203)
    record.flipped.clear()
    assert not moves_only_wait(cluster)
    record.harmed = True
    assert moves_only_wait(cluster)
    tree.apply(SetData(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({TP: (2,), OTHER: (2,)}), -1), 1, 204)
    assert not moves_only_wait(cluster)


def test_a_leader_that_answers_long_after_its_successor_was_elected_is_reported(cluster: SimulatedCluster) -> None:
    record = prepared(cluster)
    record.elected |= {0: (1, 0), 1: (2, 0)}
    record.leaders |= {0: 1, 1: 2}
    deposed = broker(1, SimpleNamespace(log=log(), is_leader=True, leader_epoch=0))
    reading = Reading("r", TP, TOPIC_ID, latest=5)
    answer = OffsetAnswer(TP, None, 4)
    cluster.world.now_us = 10 * cluster.profile.deposed_bound_ms * 1_000
    cluster.checks.end_answered(deposed, reading, answer)
    assert violated(cluster) == ()  # The successor got no request, so followers still prove the leadership.
    record.led_us[1] = 9 * cluster.profile.deposed_bound_ms * 1_000
    cluster.checks.end_answered(deposed, reading, answer)
    cluster.checks.end_told(reading, 4)
    assert violated(cluster) == ()  # The leader could not know its successor yet: no violation.
    cluster.world.now_us += 1_000
    cluster.checks.end_answered(deposed, reading, answer)
    assert violated(cluster) == ("C12",)
