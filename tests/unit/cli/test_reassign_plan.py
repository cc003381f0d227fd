"""Reassignment plans: even placement with few copies, racks, and the plan file."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.cli.reassign_plan import copies, differences, encode_plan, plan_moves, read_plan

NO_RACKS = dict.fromkeys((1, 2, 3), "")


def test_an_even_placement_is_not_changed() -> None:
    current = {("t", 0): (1, 2), ("t", 1): (2, 3), ("t", 2): (3, 1)}
    assert plan_moves(current, NO_RACKS) == current
    assert differences(current, plan_moves(current, NO_RACKS)) == {}


def test_an_excluded_broker_is_emptied_and_no_other_replica_moves() -> None:
    current = {("t", 0): (1, 2), ("t", 1): (2, 3), ("t", 2): (3, 1)}
    planned = plan_moves(current, {2: "", 3: "", 4: ""})
    assert copies(current, planned) == 2
    assert planned["t", 1] == (2, 3)
    assert all(1 not in replicas for replicas in planned.values())


def test_a_new_broker_gets_its_share_and_no_more_is_copied() -> None:
    current = {("t", index): (index % 3 + 1, (index + 1) % 3 + 1) for index in range(6)}
    planned = plan_moves(current, dict.fromkeys((1, 2, 3, 4), ""))
    load = Counter(broker for replicas in planned.values() for broker in replicas)
    assert load == {1: 3, 2: 3, 3: 3, 4: 3}
    assert copies(current, planned) == 3


def test_the_number_of_replicas_can_be_raised_and_lowered() -> None:
    current = {("t", 0): (1, 2), ("t", 1): (2, 3)}
    grown = plan_moves(current, NO_RACKS, 3)
    assert all(sorted(replicas) == [1, 2, 3] for replicas in grown.values())
    shrunk = plan_moves(current, NO_RACKS, 1)
    assert [len(replicas) for replicas in shrunk.values()] == [1, 1]
    assert copies(current, shrunk) == 0


def test_leaders_are_balanced_without_copies() -> None:
    current = {("t", index): (1, 2, 3) for index in range(6)}
    planned = plan_moves(current, NO_RACKS)
    assert Counter(replicas[0] for replicas in planned.values()) == {1: 2, 2: 2, 3: 2}
    assert copies(current, planned) == 0


def test_leaders_are_balanced_over_a_chain_of_brokers() -> None:
    """Broker 1 has one leader too many and 4 none, but they share no partition: the change passes through 2 or 3."""
    current = {("t", 0): (1, 2), ("t", 1): (1, 3), ("t", 2): (2, 4), ("t", 3): (3, 4)}
    planned = plan_moves(current, dict.fromkeys((1, 2, 3, 4), ""))
    assert sorted(replicas[0] for replicas in planned.values()) == [1, 2, 3, 4]
    assert copies(current, planned) == 0
    assert len(differences(current, planned)) == 2


def test_the_replicas_of_a_partition_are_spread_over_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    current = {("t", 0): (1, 2), ("t", 1): (3, 4)}
    planned = plan_moves(current, racks)
    for replicas in planned.values():
        assert {racks[broker] for broker in replicas} == {"a", "b"}
    assert copies(current, planned) == 2


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(ValueError, match="3 replicas do not fit on 2 brokers"):
        plan_moves({("t", 0): (1, 2, 3)}, {1: "", 2: ""})


@given(st.data())
def test_every_plan_is_a_valid_placement_without_an_overloaded_broker(data: st.DataObject) -> None:
    brokers = data.draw(st.sets(st.integers(1, 8), min_size=2, max_size=6))
    factor = data.draw(st.integers(1, len(brokers)))
    rows = data.draw(
        st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=4, unique=True), min_size=1, max_size=12)
    )
    current = {("t", index): tuple(row) for index, row in enumerate(rows)}
    planned = plan_moves(current, dict.fromkeys(brokers, ""), factor)
    assert planned.keys() == current.keys()
    for replicas in planned.values():
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= brokers
    load = Counter(broker for replicas in planned.values() for broker in replicas)
    assert max(load.values()) <= -(-factor * len(rows) // len(brokers))
    leads = Counter(replicas[0] for replicas in planned.values())
    if factor == len(brokers):
        assert max(leads.values()) <= -(-len(rows) // len(brokers))
    assert plan_moves(planned, dict.fromkeys(sorted(brokers), "")) == planned, "a completed plan leaves nothing to do"


def test_a_plan_survives_writing_and_reading_its_file(tmp_path: Path) -> None:
    moves = {("t", 0): (1, 2), ("u", 11): (3,)}
    path = tmp_path / "plan.json"
    for plan in (moves, {}):
        path.write_text(encode_plan(plan))
        assert read_plan(path) == plan


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a plan"),
        ('{"version": 2, "partitions": []}', "is not a plan"),
        ('{"partitions": [{"topic": "t", "partition": 0}]}', "entry 0"),
        ('{"partitions": [{"topic": "t", "partition": -1, "replicas": [1]}]}', "entry 0"),
        ('{"partitions": [{"topic": "t", "partition": true, "replicas": [1]}]}', "entry 0"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}', "entry 0"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": ["1"]}]}', "entry 0"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]},'
            '{"topic": "t", "partition": 0, "replicas": [2]}]}',
            "t/0 is listed twice",
        ),
    ],
)
def test_a_malformed_plan_file_is_refused_with_the_position(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_plan(path)
