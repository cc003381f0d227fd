"""The quota of throttled replication: the measured rate, which replicas wait, and the bound on every wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.model.broker_dynamic_config import UNLIMITED, BrokerDynamicConfig, broker_dynamic_config
from paceline.model.identifiers import TopicPartition
from paceline.model.throttled_replicas import checked_throttled_replicas, throttled_partitions
from paceline.replication.replication_quota import ReplicationQuota

TP = TopicPartition("orders", 0)


def limited(limit: int) -> ReplicationQuota:
    quota = ReplicationQuota()
    quota.limit = limit
    quota.throttle("orders", None)
    return quota


def test_a_rate_measured_for_less_than_ten_seconds_is_divided_by_ten_seconds() -> None:
    quota = limited(100)
    quota.record(1_000, 0)
    assert quota.rate(0) == 100
    assert not quota.is_exceeded(0)
    quota.record(1, 0)
    assert quota.is_exceeded(0)


def test_the_rate_falls_as_old_samples_expire() -> None:
    quota = limited(100)
    quota.record(11_000, 0)
    assert quota.rate(0) == 1_100
    assert quota.rate(10_999) == pytest.approx(11_000 * 1000 / 10_999)
    assert quota.rate(11_000) == 0


def test_traffic_within_one_second_is_one_sample() -> None:
    quota = limited(100)
    quota.record(500, 0)
    quota.record(500, 999)
    quota.record(500, 1_000)
    assert quota.rate(1_000) == 150
    assert quota.rate(11_000) == 500 * 1000 / 10_000


def test_without_a_limit_no_replica_waits_and_traffic_is_measured() -> None:
    quota = limited(UNLIMITED)
    quota.record(1 << 40, 0)
    assert not quota.holds_back(TP, 0)
    assert quota.rate(0) > 0


def test_only_listed_replicas_wait() -> None:
    quota = ReplicationQuota()
    quota.limit = 1
    quota.record(1_000_000, 0)
    quota.throttle("orders", frozenset({0}))
    assert quota.holds_back(TP, 0)
    assert not quota.holds_back(TopicPartition("orders", 1), 0)
    assert not quota.holds_back(TopicPartition("payments", 0), 0)
    quota.throttle("orders", frozenset())
    assert not quota.holds_back(TP, 0)
    assert not quota.lists_any


@given(
    limit=st.integers(0, 1_000_000),
    traffic=st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 50_000_000)), min_size=1, max_size=30),
)
def test_after_any_traffic_the_quota_is_free_within_eleven_seconds(limit: int, traffic: list[tuple[int, int]]) -> None:
    quota = limited(limit)
    now_ms = 0
    for pause_ms, byte_count in traffic:
        now_ms += pause_ms
        quota.record(byte_count, now_ms)
    assert not quota.is_exceeded(now_ms + 11_000)


@given(st.integers(1_000, 1_000_000), st.integers(1, 200_000))
def test_a_sender_that_obeys_the_quota_exceeds_it_by_at_most_one_response_per_window(limit: int, answer: int) -> None:
    quota = limited(limit)
    sent = 0
    for now_ms in range(0, 60_000, 50):
        if not quota.is_exceeded(now_ms):
            quota.record(answer, now_ms)
            sent += answer
    assert sent <= limit * 75 + answer * 60
    assert sent > 0


@pytest.mark.parametrize("text", ["", "*", "0:1", "0:1,0:2,13:1001", " 0:1 , 1:2 "])
def test_a_list_of_replicas_is_accepted(text: str) -> None:
    assert checked_throttled_replicas(text) == text.replace(" ", "")


@pytest.mark.parametrize("text", ["0", "0:", ":1", "a:1", "0:1,*", "*,*", "-1:2", "0:1:2", "**"])
def test_malformed_lists_of_replicas_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        checked_throttled_replicas(text)


def test_a_broker_takes_its_own_entries_from_the_list() -> None:
    assert throttled_partitions("0:1,3:1,3:2", 1) == {0, 3}
    assert throttled_partitions("0:1,3:1,3:2", 2) == {3}
    assert throttled_partitions("0:1", 2) == frozenset()
    assert throttled_partitions("*", 2) is None


def test_a_brokers_own_rate_overrides_the_default_and_an_invalid_rate_counts_as_unset() -> None:
    key = "leader.replication.throttled.rate"
    assert broker_dynamic_config({key: "5"}, {key: "7"}) == BrokerDynamicConfig(5, UNLIMITED)
    assert broker_dynamic_config({}, {key: "7"}) == BrokerDynamicConfig(7, UNLIMITED)
    assert broker_dynamic_config({key: "fast"}, {key: "7"}) == BrokerDynamicConfig(7, UNLIMITED)
    assert broker_dynamic_config({key: "-1"}, {}) == BrokerDynamicConfig()
