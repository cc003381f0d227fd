"""Client quotas: precedence of the eight levels, accounts, pauses. Time is a number that the test passes."""

import random

import pytest

from paceline.model.errors import InvalidRequestError
from paceline.model.quotas import (
    CONSUMER,
    DEFAULT,
    MAX_ACCOUNTS,
    MAX_USERS_MEASURED,
    MUTATION,
    OTHER,
    PRODUCER,
    REQUEST,
    ClientQuotas,
    QuotaEntity,
    check_change,
    levels,
)

LEVELS = """
level  user       client
1      alice      etl
2      alice      <default>
3      alice      -
4      <default>  etl
5      <default>  <default>
6      <default>  -
7      -          etl
8      -          <default>
"""
ENTITIES = [
    QuotaEntity(*(None if name == "-" else name for name in line.split()[1:]))
    for line in LEVELS.strip().splitlines()[1:]
]


def quotas(*set_: tuple[QuotaEntity, dict[str, float]], burst_s: float = 10.0) -> ClientQuotas:
    made = ClientQuotas(burst_s)
    made.use(dict(set_))
    return made


def test_the_levels_are_kafkas() -> None:
    assert list(levels("alice", "etl")) == ENTITIES


@pytest.mark.parametrize("first", range(8))
def test_the_first_level_with_a_value_applies(first: int) -> None:
    set_ = quotas(*((entity, {PRODUCER: 100.0 + index}) for index, entity in enumerate(ENTITIES) if index >= first))
    assert set_.rate_of("alice", "etl", PRODUCER) == (ENTITIES[first], 100.0 + first)


PRECEDENCE = """
caller       levels set   applies
alice etl    1 3 7        1
alice other  1 3 7        3
alice other  2 3          2
bob   etl    1 4 6        4
bob   other  1 4 6        6
bob   other  5 6 8        5
bob   etl    7 8          7
bob   other  7 8          8
bob   other  1 2 3 7      -
alice etl    -            -
"""


@pytest.mark.parametrize("line", PRECEDENCE.strip().splitlines()[1:])
def test_precedence_by_caller(line: str) -> None:
    user, client_id, *rest = line.split()
    chosen = [int(word) for word in rest[:-1] if word != "-"]
    set_ = quotas(*((ENTITIES[level - 1], {CONSUMER: float(level)}) for level in chosen))
    found = set_.rate_of(user, client_id, CONSUMER)
    assert ("-" if found is None else str(int(found[1]))) == rest[-1]


def test_each_key_is_looked_up_by_itself() -> None:
    set_ = quotas((QuotaEntity("alice", "etl"), {CONSUMER: 5.0}), (QuotaEntity("alice"), {PRODUCER: 7.0}))
    found = set_.rate_of("alice", "etl", PRODUCER)
    assert found is not None and found[1] == 7.0
    assert set_.rate_of("alice", "etl", REQUEST) is None
    assert set_.limits(PRODUCER) and not set_.limits(REQUEST)


def test_the_first_pause_is_that_of_kafkas_rate() -> None:
    """Kafka 2.8: (rate - quota) / quota * window, over at least 10 s: 15 s of the quota at once come 5 s early."""
    set_ = quotas((QuotaEntity("alice"), {PRODUCER: 1_000.0}))
    assert set_.charge("alice", "", PRODUCER, 10_000, 0) == 0
    assert set_.charge("alice", "", PRODUCER, 5_000, 0) == pytest.approx(5_000, abs=1)


def test_a_pause_ends_by_time_and_its_rest_can_be_asked() -> None:
    set_ = quotas((QuotaEntity("alice"), {PRODUCER: 1_000.0}))
    set_.charge("alice", "", PRODUCER, 12_000, 0)
    assert set_.pause_ms("alice", "", PRODUCER, 500) == pytest.approx(1_500, abs=1)
    assert set_.pause_ms("alice", "", PRODUCER, 2_001) == 0
    assert set_.pause_ms("alice", "", CONSUMER, 500) == 0, "another key has another account"


@pytest.mark.parametrize("seed", range(20))
def test_a_caller_that_waits_gets_its_rate_and_no_more(seed: int) -> None:
    rng = random.Random(seed)
    rate, now_ms, used = rng.uniform(10, 1e6), 0.0, 0.0
    set_ = quotas((QuotaEntity(None, DEFAULT), {PRODUCER: rate}))
    while now_ms < 600_000:
        amount = rng.uniform(0, 3 * rate)
        used += amount
        now_ms += set_.charge("u", "c", PRODUCER, amount, now_ms) + 1e-6
    assert used == pytest.approx(rate * (now_ms / 1_000 + 10), rel=0.01)


def test_one_account_for_a_user_and_one_for_each_pair() -> None:
    by_user = quotas((QuotaEntity(DEFAULT), {PRODUCER: 1_000.0}))
    by_user.charge("alice", "one", PRODUCER, 11_000, 0)
    assert by_user.pause_ms("alice", "two", PRODUCER, 0) > 0
    assert by_user.pause_ms("bob", "one", PRODUCER, 0) == 0
    by_pair = quotas((QuotaEntity(DEFAULT, DEFAULT), {PRODUCER: 1_000.0}))
    by_pair.charge("alice", "one", PRODUCER, 11_000, 0)
    assert by_pair.pause_ms("alice", "two", PRODUCER, 0) == 0
    by_client = quotas((QuotaEntity(None, DEFAULT), {PRODUCER: 1_000.0}))
    by_client.charge("alice", "one", PRODUCER, 11_000, 0)
    assert by_client.pause_ms("bob", "one", PRODUCER, 0) > 0


def test_a_change_frees_the_callers_whose_quota_it_changes() -> None:
    alice, bob = QuotaEntity("alice"), QuotaEntity("bob")
    set_ = quotas((alice, {PRODUCER: 1.0}), (bob, {PRODUCER: 1.0}))
    for user in ("alice", "bob"):
        set_.charge(user, "", PRODUCER, 100, 0)
    set_.use({alice: {PRODUCER: 1_000.0}, bob: {PRODUCER: 1.0}})
    assert set_.pause_ms("alice", "", PRODUCER, 0) == 0 and set_.pause_ms("bob", "", PRODUCER, 0) > 0
    set_.use({})
    assert set_.charge("bob", "", PRODUCER, 1e9, 0) == 0


def test_a_percentage_is_of_one_event_loop() -> None:
    set_ = quotas((QuotaEntity("alice"), {REQUEST: 50.0}), burst_s=1)
    assert set_.charge("alice", "", REQUEST, 500, 0) == 0
    assert set_.charge("alice", "", REQUEST, 100, 0) == pytest.approx(200, abs=1)


def test_a_quota_of_zero_lets_one_request_pass() -> None:
    set_ = quotas((QuotaEntity("alice"), {PRODUCER: 0.0}))
    assert set_.charge("alice", "", PRODUCER, 1, 0) > 1e6
    assert set_.burst("alice", "", PRODUCER) == 1


def test_what_was_charged_can_be_given_back() -> None:
    set_ = quotas((QuotaEntity("alice"), {MUTATION: 1.0}))
    assert set_.charge("alice", "", MUTATION, 15, 0) > 0
    assert set_.charge("alice", "", MUTATION, -15, 0) == 0
    assert set_.charge("alice", "", MUTATION, -100, 0) == 0
    assert set_.charge("alice", "", MUTATION, 10, 1) == 0
    assert set_.charge("alice", "", MUTATION, 1, 1) == pytest.approx(1_000, abs=2), "no more than a full account"


def test_throttle_time_is_counted_once_by_user_and_for_a_limited_number_of_users() -> None:
    set_ = quotas((QuotaEntity(DEFAULT), {PRODUCER: 1_000.0}))
    set_.charge("alice", "", PRODUCER, 12_000, 0)
    set_.charge("alice", "", PRODUCER, 1_000, 0)
    assert set_.throttled_ms["alice", PRODUCER] == pytest.approx(3_000, abs=2)
    for number in range(MAX_USERS_MEASURED + 5):
        set_.charge(f"user-{number}", "", PRODUCER, 11_000, 0)
    assert len(set_.throttled_ms) == MAX_USERS_MEASURED + 1
    assert set_.throttled_ms[OTHER, PRODUCER] == pytest.approx(6_000, rel=0.01)


def test_client_ids_without_end_take_a_limited_number_of_accounts() -> None:
    set_ = quotas((QuotaEntity(None, DEFAULT), {PRODUCER: 1.0}))
    for number in range(2 * MAX_ACCOUNTS + 10):
        set_.charge("alice", f"client-{number}", PRODUCER, 1, 0)
    assert len(set_._accounts) <= MAX_ACCOUNTS and len(set_._account_of) <= MAX_ACCOUNTS


@pytest.mark.parametrize(
    ("key", "value"),
    [("producer_byte_rat", 1.0), (PRODUCER, -1.0), (PRODUCER, 0.0), (PRODUCER, 1.5), (REQUEST, float("nan")),
     (MUTATION, float("inf")), ("", 1.0)],
)  # fmt: skip
def test_invalid_values_are_refused(key: str, value: float) -> None:
    with pytest.raises(InvalidRequestError):
        check_change(QuotaEntity("alice"), key, value)


def test_valid_values_and_removals_are_accepted() -> None:
    for key, value in ((PRODUCER, 1.0), (REQUEST, 0.5), (MUTATION, None)):
        check_change(QuotaEntity("gateway/1", "über * etl"), key, value)


@pytest.mark.parametrize(
    "entity",
    [QuotaEntity(), QuotaEntity(""), QuotaEntity("alice", ""), QuotaEntity("x" * 250), QuotaEntity(None, ".."),
     QuotaEntity("a\nb")],
)  # fmt: skip
def test_entities_without_a_usable_name_are_refused(entity: QuotaEntity) -> None:
    with pytest.raises(InvalidRequestError):
        check_change(entity, PRODUCER, 1.0)
