"""A caller disconnects while its request waits: the wait ends and leaves no state behind."""

import asyncio

import pytest

from paceline.broker.service.log_servicer import answer_of
from paceline.model.client_io import (
    DeleteRecordsQuery,
    FetchRequest,
    ProduceData,
    RequiredAcks,
)
from paceline.model.errors import RequestTimedOutError
from paceline.model.fetch_position import FetchPosition
from tests.support.broker_cluster import TP, BrokerCluster, batch


@pytest.fixture
def cluster() -> BrokerCluster:
    """Broker 1 leads; broker 2 is in the ISR and unreachable."""
    found = BrokerCluster((1, 2))
    found.decide(1, 4, (1, 2), is_new=True)
    found.time.run_for(50)
    found.cuts.add((2, 1))
    found.time.run_for(2_000)
    return found


def fetch(cluster: BrokerCluster, session_epoch: int, session_id: int = 0, partitions: int = 1) -> tuple[object, list]:  # type: ignore[type-arg]
    answers: list[object] = []
    request = FetchRequest(
        60_000,
        1,
        1_000,
        [FetchPosition(TP, None, 0, 1_000)][:partitions],
        session_id=session_id,
        session_epoch=session_epoch,
    )
    return cluster[1].node.fetch(request, answers.append), answers


def waiting(cluster: BrokerCluster) -> int:
    manager = cluster[1].node.replica_manager
    purgatories = (manager.hosted.waiting_fetches, manager.hosted.waiting_produces, manager.hosted.waiting_deletes)
    return sum(purgatory.delayed_count + len(purgatory._watchers) for purgatory in purgatories)


@pytest.mark.parametrize("session_epoch", [-1, 0])
def test_a_fetch_of_a_disconnected_client_is_removed(cluster: BrokerCluster, session_epoch: int) -> None:
    before = waiting(cluster)
    cancel, answers = fetch(cluster, session_epoch)
    assert waiting(cluster) > before
    cancel()  # type: ignore[operator]
    assert waiting(cluster) == before
    cluster[1].produce(b"a")
    cluster.time.run_for(70_000)
    assert answers == [], "the caller has disconnected"


def test_the_session_of_a_cancelled_fetch_continues(cluster: BrokerCluster) -> None:
    cluster.decide(1, 5, (1,))
    _, answers = fetch(cluster, 0)
    cluster[1].produce(b"a")
    cluster.time.run_for(10)
    session_id = answers[0].session_id
    cancel, _ = fetch(cluster, 1, session_id, partitions=0)
    if cancel is not None:
        cancel()  # type: ignore[operator]
    _, answers = fetch(cluster, 2, session_id)
    cluster.time.run_for(10)
    assert [result.batches != b"" for result in answers[0].results] == [True]


def test_a_produce_of_a_disconnected_client_is_removed_and_its_record_stays(cluster: BrokerCluster) -> None:
    before = waiting(cluster)
    answers: list[object] = []
    cancel = cluster[1].node.produce(RequiredAcks.ALL, 60_000, [ProduceData(TP, None, batch(b"a"))], answers.extend)
    assert cancel is not None and waiting(cluster) > before
    cancel()
    cancel()
    assert waiting(cluster) == before
    cluster.time.run_for(70_000)
    assert answers == [] and cluster[1].values() == [b"a"]


def test_a_delete_records_of_a_disconnected_client_is_removed(cluster: BrokerCluster) -> None:
    before = waiting(cluster)
    answers: list[object] = []
    cluster[1].produce(b"a", acks=RequiredAcks.LEADER)
    cluster.decide(1, 5, (1,))
    cluster.time.run_until(lambda: cluster[1].log().high_watermark == 1, 60_000)
    cancel = cluster[1].node.proved_calls.delete_records([DeleteRecordsQuery(TP, None, 1)], 60_000, answers.extend)
    assert cancel is not None and waiting(cluster) > before
    cancel()
    assert waiting(cluster) == before and answers == []


def test_a_thousand_disconnected_callers_leave_no_waiting_operations(cluster: BrokerCluster) -> None:
    before = waiting(cluster)
    cancels = [fetch(cluster, -1)[0] for _ in range(1_000)]
    for cancel in cancels:
        cancel()  # type: ignore[operator]
    assert waiting(cluster) == before


def test_the_servicer_cancels_the_operation_when_its_call_is_cancelled_or_late() -> None:
    cancelled: list[str] = []

    async def scenario() -> None:
        waits = asyncio.create_task(answer_of(lambda _reply: lambda: cancelled.append("gone"), 60_000))
        await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        with pytest.raises(RequestTimedOutError):
            await answer_of(lambda _reply: lambda: cancelled.append("late"), -9_999)
        assert await answer_of(lambda reply: reply(7), 1_000) == 7

    asyncio.run(scenario())
    assert cancelled == ["gone", "late"]
