"""The decisions of a step become one request of each kind per broker."""

from typing import Any

import pytest

from paceline.controller.channel.request_batch import RequestBatch
from paceline.controller.context import ControllerContext
from paceline.controller.errors import IllegalStateError
from paceline.model.assignment import ReplicaAssignment
from paceline.model.control import Endpoint, LiveBroker, UpdateMetadataRequest
from paceline.model.leader_and_isr import LeaderAndIsr
from tests.unit.controller.cluster import describe, tp


class Channels:
    """Records the requests that a batch sends."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any]] = []

    def send(self, broker_id: int, request: Any) -> None:
        self.sent.append((broker_id, request))

    def texts(self) -> list[str]:
        return [f"{broker_id}: {describe(request)}" for broker_id, request in self.sent]


A = tp("a-0")
ASSIGNMENT = ReplicaAssignment((1, 2))


@pytest.fixture
def context() -> ControllerContext:
    context = ControllerContext(epoch=4)
    for broker_id in (1, 2, 3):
        context.brokers[broker_id] = LiveBroker(broker_id, (Endpoint("CONTROL", "h", broker_id),), None, broker_id)
    context.set_assignment(A, ASSIGNMENT)
    context.leadership[A] = LeaderAndIsr(1, 5, (1, 2), 9, 4)
    return context


def batch_of(context: ControllerContext) -> tuple[RequestBatch, Channels]:
    channels = Channels()
    batch = RequestBatch(1_000_000, (), context, channels)  # type: ignore[arg-type]
    batch.new_batch()
    return batch, channels


def test_leader_and_isr_is_sent_first_then_metadata_to_all_brokers_then_stop_replica(
    context: ControllerContext,
) -> None:
    batch, channels = batch_of(context)
    batch.add_stop_replica((3,), A, delete=False)
    batch.add_leader_and_isr((2, 1), A, context.leadership[A], ASSIGNMENT, is_new=False)
    batch.send()
    metadata = "UM {a-0 1/5 [1, 2]}"
    assert channels.texts() == [
        "1: LAI a-0 1/5 [1, 2]",
        "2: LAI a-0 1/5 [1, 2]",
        f"1: {metadata}",
        f"2: {metadata}",
        f"3: {metadata}",
        "3: SR a-0 5",
    ]


def test_replicas_of_one_decision_share_one_object_and_a_newer_decision_gets_its_own(
    context: ControllerContext,
) -> None:
    batch, channels = batch_of(context)
    for broker_id in (1, 2):
        batch.add_leader_and_isr((broker_id,), A, context.leadership[A], ASSIGNMENT, is_new=False)
    moved = ReplicaAssignment((1, 2, 3), adding=(3,))
    batch.add_leader_and_isr((3,), A, context.leadership[A], moved, is_new=True)
    batch.send()
    first, second, third = (request.partitions[0] for _, request in channels.sent[:3])
    assert first is second and (first.replicas, first.is_new) == ((1, 2), False)
    assert (third.replicas, third.adding_replicas, third.is_new) == ((1, 2, 3), (3,), True)


def test_the_last_decision_replaces_earlier_ones_and_is_new_stays_set(context: ControllerContext) -> None:
    batch, channels = batch_of(context)
    batch.add_leader_and_isr((1,), A, context.leadership[A], ASSIGNMENT, is_new=True)
    later = LeaderAndIsr(2, 6, (2,), 10, 4)
    context.leadership[A] = later
    batch.add_leader_and_isr((1, 2), A, later, ASSIGNMENT, is_new=False)
    batch.send()
    assert channels.texts()[:2] == ["1: LAI a-0 2/6 [2] new", "2: LAI a-0 2/6 [2]"]


def test_the_delete_flag_stays_set_and_the_last_epoch_is_sent(context: ControllerContext) -> None:
    batch, channels = batch_of(context)
    batch.add_stop_replica((1,), A, delete=True)
    context.leadership[A] = LeaderAndIsr(2, 6, (2,), 10, 4)
    batch.add_stop_replica((1,), A, delete=False)
    batch.send()
    assert channels.texts() == ["1: SR a-0 6 delete"]


def test_stop_replica_has_epoch_minus_2_for_a_deleted_topic_and_minus_1_for_an_unknown_one(
    context: ControllerContext,
) -> None:
    batch, channels = batch_of(context)
    batch.add_stop_replica((1,), tp("never-0"), delete=False)
    context.deletion_queued.add("a")
    batch.add_stop_replica((2,), A, delete=False)
    batch.send()
    assert channels.texts() == ["1: SR never-0 -1", "2: SR a-0 -2"]


def test_metadata_of_a_topic_being_deleted_has_leader_minus_2_and_unknown_topics_are_omitted(
    context: ControllerContext,
) -> None:
    context.deletion_queued.add("a")
    batch, channels = batch_of(context)
    batch.add_update_metadata((1,), (A, tp("never-0")))
    batch.send()
    assert channels.texts() == ["1: UM {a-0 -2/0 [1, 2]}"]
    assert channels.sent[0][1].partitions[0].zk_version == 0


def test_unregistered_and_negative_broker_ids_are_omitted(context: ControllerContext) -> None:
    batch, channels = batch_of(context)
    batch.add_leader_and_isr((-1, 9), A, context.leadership[A], ASSIGNMENT, is_new=False)
    batch.add_stop_replica((9,), A, delete=True)
    batch.send()
    assert channels.texts() == [f"{broker_id}: UM {{a-0 1/5 [1, 2]}}" for broker_id in (1, 2, 3)]


def test_live_leaders_are_the_registered_leaders_of_the_request(context: ControllerContext) -> None:
    batch, channels = batch_of(context)
    for partition, leader in (("a-0", 1), ("b-0", -1), ("c-0", 9), ("d-0", 2)):
        batch.add_leader_and_isr((3,), tp(partition), LeaderAndIsr(leader, 0, (1,), 0, 4), ASSIGNMENT, is_new=False)
    batch.send()
    assert [leader.broker_id for leader in channels.sent[0][1].live_leaders] == [1, 2]


def test_a_broker_shutting_down_is_offline_in_metadata_and_still_receives_requests(context: ControllerContext) -> None:
    context.shutting_down[2] = 0
    batch, channels = batch_of(context)
    batch.add_update_metadata(context.brokers, (A,))
    batch.send()
    assert channels.texts()[1] == "2: UM {a-0 1/5 [1, 2] offline [2]}"


def test_a_batch_that_was_never_sent_is_an_illegal_state(context: ControllerContext) -> None:
    batch, _ = batch_of(context)
    batch.add_update_metadata((1,), ())
    with pytest.raises(IllegalStateError):
        batch.new_batch()
    batch.send()
    batch.new_batch()


def test_each_update_metadata_has_a_higher_sequence_than_the_one_before(context: ControllerContext) -> None:
    numbers: list[int] = []
    for _ in range(3):
        batch, channels = batch_of(context)
        batch.add_update_metadata((1, 2), (A,))
        batch.send()
        sent = [one for _, one in channels.sent if isinstance(one, UpdateMetadataRequest)]
        assert len(sent) == 2 and sent[0].sequence == sent[1].sequence, "every broker gets the same metadata"
        numbers.append(sent[0].sequence)
    assert numbers == [1, 2, 3]
