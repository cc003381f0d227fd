"""Followers get the small appends of many producers in one fetch response (broker/requests/append_coalescing.py)."""

import pytest

from paceline.broker.requests import append_coalescing
from paceline.model.client_io import ProduceResult
from tests.support.broker_cluster import BrokerCluster

ROUND_MS = 2
"""From an append to its commit: the answer to the waiting fetch and the follower's next fetch take 1 ms each."""


@pytest.fixture
def cluster() -> BrokerCluster:
    found = BrokerCluster()
    found.decide(1, 0, (1, 2, 3), is_new=True)
    found.time.run_for(50)
    return found


def commit_ms(cluster: BrokerCluster, value: bytes = b"a") -> float:
    begin_ms = cluster.time.now_ms()
    answer = cluster[1].produce(value)
    cluster.time.run_until(lambda: bool(answer), 1_000)
    return cluster.time.now_ms() - begin_ms


def send_together(cluster: BrokerCluster, count: int) -> None:
    """Let the requests of ``producers`` producers be answered at the same moment."""
    answers = [cluster[1].produce(b"a") for _ in range(count)]
    cluster.time.run_until(lambda: all(answers), 1_000)


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
        poll(cluster[1].produce(b"a"), number)

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
    send_together(cluster, 1)
    assert [commit_ms(cluster) for _ in range(5)] == [ROUND_MS] * 5


def test_producers_that_send_no_more_records_delay_an_append_only_briefly(cluster: BrokerCluster) -> None:
    send_together(cluster, 10)  # takes two rounds: the first append is fetched alone
    assert ROUND_MS < commit_ms(cluster) <= ROUND_MS + (2 * ROUND_MS // 2 + 1) + 1
    cluster.time.run_for(100)
    assert commit_ms(cluster) <= ROUND_MS


def test_large_append_is_not_delayed(cluster: BrokerCluster) -> None:
    send_together(cluster, 10)
    assert commit_ms(cluster, bytes(append_coalescing.LARGE_APPEND_BYTES)) <= ROUND_MS
