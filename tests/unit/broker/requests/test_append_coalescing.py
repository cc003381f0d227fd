"""Followers get the small appends of many producers in one fetch response (broker/requests/append_coalescing.py)."""

import pytest

from paceline.broker.groups.offsets_topic import OFFSETS_TOPIC
from paceline.broker.groups.records import OffsetValue
from paceline.broker.groups.requests import CommitRequest
from paceline.broker.requests import append_coalescing
from paceline.broker.requests.append_coalescing import AppendCoalescer
from paceline.model.client_io import ProduceResult
from paceline.model.identifiers import TopicPartition
from tests.support.broker_cluster import TP, BrokerCluster

OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
ROUND_MS = 2
"""From an append to its commit: the answer to the waiting fetch and the follower's next fetch take 1 ms each."""


@pytest.fixture
def cluster() -> BrokerCluster:
    found = BrokerCluster()
    found.decide(1, 0, (1, 2, 3), is_new=True)
    found.time.run_for(50)
    return found


def commit_ms(cluster: BrokerCluster, value: bytes = b"a", producer: int = 99) -> float:
    begin_ms = cluster.time.now_ms()
    answer = cluster[1].produce(value, producer=producer)
    cluster.time.run_until(lambda: bool(answer), 1_000)
    return cluster.time.now_ms() - begin_ms


def send_together(cluster: BrokerCluster, rounds: int, producers: int = 10, pause_ms: int = 0) -> None:
    """Let each producer send a record ``rounds`` times, the next ``pause_ms`` after all have their responses."""
    for number in range(rounds):
        if number:
            cluster.time.run_for(pause_ms)
        answers = [cluster[1].produce(b"a", producer=producer) for producer in range(producers)]
        cluster.time.run_until(lambda: all(answers), 1_000)  # noqa: B023


def fetches_per_request(cluster: BrokerCluster, producers: int, requests: int) -> float:
    """Let producers send the next record soon after each answer; return fetches per produce request."""
    done: list[ProduceResult] = []
    fetches = cluster[1].node.replica_manager.fetches
    before = fetches.request_count

    def poll(answer: list[ProduceResult], number: int) -> None:
        if answer:
            done.append(answer[0])
            cluster.time.call_later(0.04 * number, lambda: send(number))
        else:
            cluster.time.call_later(0.1, lambda: poll(answer, number))

    def send(number: int) -> None:
        poll(cluster[1].produce(b"a", producer=number), number)

    for number in range(producers):
        send(number)
    cluster.time.run_until(lambda: len(done) >= requests, 60_000)
    return (fetches.request_count - before) / len(done)


def test_appends_of_many_producers_share_fetches(cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    together = fetches_per_request(cluster, producers=20, requests=400)
    monkeypatch.setattr(append_coalescing, "MAX_HOLD_MS", 0)
    apart = fetches_per_request(cluster, producers=20, requests=400)
    assert together < 0.15 < apart


def test_single_producer_is_never_delayed(cluster: BrokerCluster) -> None:
    assert [commit_ms(cluster) for _ in range(5)] == [ROUND_MS] * 5


def test_producers_that_stop_delay_an_append_only_once(cluster: BrokerCluster) -> None:
    send_together(cluster, rounds=3)
    assert ROUND_MS < commit_ms(cluster) <= ROUND_MS + 4 * ROUND_MS + 1
    assert commit_ms(cluster) == ROUND_MS


def test_producers_that_pause_between_their_records_delay_no_append(cluster: BrokerCluster) -> None:
    send_together(cluster, rounds=5, pause_ms=append_coalescing.MAX_HOLD_MS + 1)
    assert commit_ms(cluster) == ROUND_MS


def test_producers_that_share_a_connection_are_counted_separately(cluster: BrokerCluster) -> None:
    coalescer = AppendCoalescer(cluster.time)
    first = [coalescer.append_arrived("connection", 1) for _ in range(2)]
    for append in first:
        coalescer.append_answered(append)
    again = [coalescer.append_arrived("connection", 1) for _ in range(3)]
    assert [append.is_expected_again for append in first + again] == [False, False, True, True, False]


def test_waits_do_not_lengthen_each_other(cluster: BrokerCluster) -> None:
    """Each append waits as long as it may for producers that are expected; the limit must not grow with the waits."""
    longest_ms = 0.0
    for _ in range(10):
        send_together(cluster, rounds=2)
        longest_ms = max(longest_ms, commit_ms(cluster))
    assert longest_ms <= ROUND_MS + 4 * (2 * ROUND_MS) + 1  # the first append of a round is fetched alone


def test_commits_of_groups_delay_no_append(cluster: BrokerCluster) -> None:
    """A commit is the coordinator's append; as one producer, ten committing groups would always return in time."""
    cluster.decide(1, 0, (1, 2, 3), tp=OFFSETS, is_new=True)
    groups = cluster[1].node.groups
    groups._topic.partition_count = lambda: 1  # type: ignore[method-assign]
    cluster.time.run_for(1_000)
    answers: list[object] = []

    def commit(group: str, interval_ms: int) -> None:
        def committed(answer: object) -> None:
            answers.append(answer)
            cluster.time.call_later(interval_ms, lambda: commit(group, interval_ms))

        offset = OffsetValue(len(answers), -1, "", cluster.time.wall_ms())
        groups.commit(CommitRequest(group, -1, "", None, {TP: offset}), committed)

    for number in range(10):
        commit(f"g{number}", 1 + 2 * number)
    latencies_ms = [commit_ms(cluster) for _ in range(50)]
    assert len(answers) > 100 and set(map(str, answers)) == {str({TP: None})}
    assert max(latencies_ms) <= 2 * ROUND_MS, "an append waits at most for the fetch that is on its way"
    coalescer = cluster[1].node.replica_manager.produces._coalescer
    assert coalescer.unheld_ms() == cluster.time.now_ms(), "no fetch was held"


def test_large_append_is_not_delayed(cluster: BrokerCluster) -> None:
    send_together(cluster, rounds=3)
    assert commit_ms(cluster, bytes(append_coalescing.LARGE_APPEND_BYTES)) <= ROUND_MS
