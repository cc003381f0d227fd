"""A group member's partitions on the streams of a gateway: delivery, acknowledgement, revocation, moves, leases."""

from paceline.gateway.credits import Credits
from paceline.gateway.member import BUFFER_BATCHES, PULL, Member
from paceline.gateway.values import (
    Assigned,
    Batch,
    Committed,
    Deliver,
    Effect,
    Pause,
    Refusal,
    Refused,
    Revoked,
    Seek,
)
from paceline.model.identifiers import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def everything(_topic: str) -> bool:
    return True


def batch(first: int, count: int, size: int = 10) -> Batch:
    offsets = list(range(first, first + count))
    return Batch([f"r{one}" for one in offsets], offsets, [size] * count, first + count, 100, size * count)


def member_with(*partitions: TopicPartition, credit: Credits | None = None) -> Member:
    member = Member(revocation_ms=5_000)
    member.join(1, everything, credit or Credits(), 0)
    member.assigned(dict.fromkeys(partitions, 0), 0)
    member.drain()
    return member


def delivered(effects: list[Effect], stream: int = 1) -> list[int]:
    return [
        offset for one in effects if isinstance(one, Deliver) and one.stream == stream for offset in one.batch.offsets
    ]


def test_records_are_delivered_up_to_the_credit_and_an_acknowledgement_continues() -> None:
    member = member_with(T0, credit=Credits(3, 1_000))
    member.fetched(T0, batch(0, 5))
    assert delivered(member.drain()) == [0, 1, 2]
    assert member.acknowledge(1, T0, 2, 1)
    assert delivered(member.drain()) == [3, 4]


def test_a_record_above_the_credit_in_bytes_is_delivered_alone() -> None:
    member = member_with(T0, credit=Credits(10, 50))
    member.fetched(T0, batch(0, 2, size=200))
    assert delivered(member.drain()) == [0]
    member.acknowledge(1, T0, 1, 1)
    assert delivered(member.drain()) == [1]


def test_a_large_batch_is_delivered_in_messages_that_every_client_accepts() -> None:
    member = member_with(T0)
    member.fetched(T0, batch(0, 30, size=100_000))
    messages = [one.batch for one in member.drain() if isinstance(one, Deliver)]
    assert [offset for one in messages for offset in one.offsets] == list(range(30))
    assert all(one.size <= 1024 * 1024 for one in messages)


def test_only_acknowledged_positions_are_committed_and_the_stream_is_told() -> None:
    member = member_with(T0)
    member.fetched(T0, batch(0, 5))
    assert member.take_commits() == {}
    member.acknowledge(1, T0, 3, 1)
    assert member.take_commits() == {T0: 3}
    member.acknowledge(1, T0, 5, 1)
    assert member.take_commits() == {}  # one commit at a time
    member.drain()
    member.committed({T0: 3})
    assert member.drain() == [Committed(1, T0, 3)]
    assert member.take_commits() == {T0: 5}
    member.commit_failed({T0: 5})
    assert member.take_commits() == {T0: 5}


def test_an_acknowledgement_of_what_was_not_delivered_is_refused_and_changes_nothing() -> None:
    member = member_with(T0)
    member.fetched(T0, batch(0, 2))
    member.drain()
    for tp, position in ((T0, 3), (T0, -1), (T1, 0)):
        assert not member.acknowledge(1, tp, position, 1)
        (effect,) = member.drain()
        assert isinstance(effect, Refused) and effect.reason is Refusal.NOT_DELIVERED
    assert member.take_commits() == {}
    assert member.acknowledge(1, T0, 2, 1)


def test_a_lower_acknowledgement_than_before_changes_nothing() -> None:
    member = member_with(T0)
    member.fetched(T0, batch(0, 5))
    member.acknowledge(1, T0, 4, 1)
    member.acknowledge(1, T0, 1, 1)
    assert member.take_commits() == {T0: 4}


def test_a_revocation_stops_delivery_and_waits_for_acknowledgements() -> None:
    member = member_with(T0)
    member.fetched(T0, batch(0, 2))
    member.drain()
    member.revoke([T0], 1_000)
    assert member.drain() == [Revoked(1, T0, 0, 5_000)]
    member.fetched(T0, batch(2, 2))
    assert delivered(member.drain()) == []
    assert not member.is_settled([T0], 1_001)
    assert member.acknowledge(1, T0, 2, 1_002)
    assert member.is_settled([T0], 1_002)
    assert member.final_commits([T0]) == {T0: 2}
    member.drop([T0])
    assert not member.acknowledge(1, T0, 2, 1_003)
    (effect,) = [one for one in member.drain() if isinstance(one, Refused)]
    assert effect.reason is Refusal.REVOKED


def test_a_revocation_ends_after_its_time_and_returns_the_credit() -> None:
    member = member_with(T0, T1, credit=Credits(2, 1_000))
    member.fetched(T0, batch(0, 2))
    member.fetched(T1, batch(0, 2))
    assert delivered(member.drain()) == [0, 1]
    member.revoke([T0], 1_000)
    assert not member.is_settled([T0], 5_999)
    assert member.is_settled([T0], 6_000)
    assert member.final_commits([T0]) == {}
    member.drop([T0])
    assert delivered(member.drain()) == [0, 1]  # of the other partition


def test_a_new_stream_gets_a_partition_when_the_old_stream_has_acknowledged() -> None:
    member = member_with(T0, T1)
    member.fetched(T0, batch(0, 2))
    member.fetched(T1, batch(0, 2))
    member.drain()
    member.join(2, everything, Credits(), 1_000)
    (moving,) = [one for one in member.drain() if isinstance(one, Revoked)]
    tp = moving.topic_partition
    member.fetched(tp, batch(2, 2))
    assert delivered(member.drain(), 2) == []
    member.acknowledge(1, tp, 2, 1_500)
    effects = member.drain()
    assert Assigned(2, tp, 2) in effects
    assert delivered(effects, 2) == [2, 3]
    assert not any(isinstance(one, Seek) for one in effects)


def test_a_stream_that_does_not_acknowledge_loses_the_partition_after_the_time() -> None:
    member = member_with(T0, T1)
    for tp in (T0, T1):
        member.fetched(tp, batch(0, 2))
    member.join(2, everything, Credits(), 1_000)
    (moving,) = [one.topic_partition for one in member.drain() if isinstance(one, Revoked)]
    member.tick(5_999)
    assert member.drain() == []
    member.tick(6_000)
    effects = member.drain()
    assert Seek(moving, 0, 1) in effects
    assert Assigned(2, moving, 0) in effects
    member.fetched(moving, batch(2, 2), epoch=0)  # fetched before the seek
    assert delivered(member.drain(), 2) == []
    member.fetched(moving, batch(0, 2), epoch=1)
    assert delivered(member.drain(), 2) == [0, 1]


def test_another_stream_continues_at_the_acknowledged_position_of_a_stream_that_ends() -> None:
    member = member_with(T0)
    member.join(2, everything, Credits(), 0)
    member.fetched(T0, batch(0, 4))
    member.acknowledge(1, T0, 1, 1)
    member.drain()
    member.leave(1, 2)
    effects = member.drain()
    assert Seek(T0, 1, 1) in effects and Assigned(2, T0, 1) in effects


def test_lost_partitions_are_gone_at_once() -> None:
    member = member_with(T0)
    member.fetched(T0, batch(0, 2))
    member.acknowledge(1, T0, 2, 1)
    member.drain()
    member.drop([T0], lost=True)
    assert member.drain() == [Revoked(1, T0, 2, 0)]
    assert member.take_commits() == {}


def test_a_partition_whose_stream_has_no_credit_is_paused_and_resumed() -> None:
    member = member_with(T0, credit=Credits(1, 1_000))
    for first in range(BUFFER_BATCHES + 1):
        member.fetched(T0, batch(first, 1))
    assert Pause(T0, True) in member.drain()
    for position in range(1, BUFFER_BATCHES):
        member.acknowledge(1, T0, position, 1)
    assert Pause(T0, False) in member.drain()


def test_a_partition_without_a_stream_is_paused() -> None:
    member = Member()
    member.join(1, lambda topic: topic == "other", Credits(), 0)
    member.assigned({T0: 0}, 0)
    assert member.drain() == [Pause(T0, True)]


def test_pull_leases_a_partition_to_one_caller_at_a_time() -> None:
    member = Member()
    member.join(PULL, everything, Credits(), 0)
    member.assigned({T0: 0}, 0)
    member.fetched(T0, batch(0, 4))
    assert [(tp, list(one.offsets)) for tp, one in member.pull(2, 1_000, 1_000, 0)] == [(T0, [0, 1])]
    assert member.pull(2, 1_000, 1_000, 10) == []
    assert member.acknowledge(PULL, T0, 2, 20)
    assert [list(one.offsets) for _, one in member.pull(9, 1_000, 1_000, 30)] == [[2, 3]]


def test_an_expired_lease_is_delivered_again_from_the_committed_position() -> None:
    member = Member()
    member.join(PULL, everything, Credits(), 0)
    member.assigned({T0: 0}, 0)
    member.fetched(T0, batch(0, 4))
    member.pull(4, 1_000, 1_000, 0)
    member.drain()
    member.tick(1_000)
    assert Seek(T0, 0, 1, look_up_committed=True) in member.drain()
    member.sought(T0, 2, 1)  # another gateway has committed a part of the lease
    member.fetched(T0, batch(2, 2), epoch=1)
    assert [list(one.offsets) for _, one in member.pull(9, 1_000, 1_000, 1_100)] == [[2, 3]]
    assert member.take_commits() == {}
