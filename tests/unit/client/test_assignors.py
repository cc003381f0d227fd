"""Assignors: Kafka's documented examples as data, and properties of the sticky assignors for any group."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.model.errors import InvalidRequestError
from paceline.model.identifiers import TopicPartition
from paceline_client.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    GroupMember,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    assignors_of,
)


def partitions(text: str) -> list[TopicPartition]:
    return [TopicPartition(one.split("-")[0], int(one.split("-")[1])) for one in text.split()]


def member(name: str, topics: str, owned: str = "", generation: int = 1, instance: str = "") -> GroupMember:
    return GroupMember(name, frozenset(topics.split()), tuple(partitions(owned)), generation, instance)


# assignor, topics, members with their topics, expected: from the class comments and tests of Kafka's assignors.
EXAMPLES = [
    ("range", {"t0": 3, "t1": 3}, {"c0": "t0 t1", "c1": "t0 t1"}, {"c0": "t0-0 t0-1 t1-0 t1-1", "c1": "t0-2 t1-2"}),
    ("range", {"t0": 1}, {"c0": "t0", "c1": "t0"}, {"c0": "t0-0", "c1": ""}),
    ("range", {"t0": 3}, {"c0": "t0 missing"}, {"c0": "t0-0 t0-1 t0-2"}),
    (
        "range",
        {"t1": 3, "t2": 2},
        {"c1": "t1", "c2": "t1 t2", "c3": "t1"},
        {"c1": "t1-0", "c2": "t1-1 t2-0 t2-1", "c3": "t1-2"},
    ),
    (
        "roundrobin",
        {"t0": 3, "t1": 3},
        {"c0": "t0 t1", "c1": "t0 t1"},
        {"c0": "t0-0 t0-2 t1-1", "c1": "t0-1 t1-0 t1-2"},
    ),
    (
        "roundrobin",
        {"t0": 1, "t1": 2, "t2": 3},
        {"c0": "t0", "c1": "t0 t1", "c2": "t0 t1 t2"},
        {"c0": "t0-0", "c1": "t1-0", "c2": "t1-1 t2-0 t2-1 t2-2"},
    ),
    (
        "sticky",
        {"t0": 2, "t1": 2, "t2": 2, "t3": 2},
        {"c0": "t0 t1 t2 t3", "c1": "t0 t1 t2 t3", "c2": "t0 t1 t2 t3"},
        {"c0": "t0-0 t1-1 t3-0", "c1": "t0-1 t2-0 t3-1", "c2": "t1-0 t2-1"},
    ),
]


@pytest.mark.parametrize(("name", "topics", "members", "expected"), EXAMPLES)
def test_kafkas_examples(name: str, topics: dict[str, int], members: dict[str, str], expected: dict[str, str]) -> None:
    (assignor,) = assignors_of([name])
    assigned = assignor.assign([member(one, wanted) for one, wanted in members.items()], topics)
    assert assigned == {one: partitions(text) for one, text in expected.items()}


def test_static_members_are_ordered_by_their_instance_id() -> None:
    members = [member("z", "t", instance="a"), member("a", "t", instance="b"), member("m", "t")]
    assert RangeAssignor().assign(members, {"t": 3}) == {
        "z": partitions("t-0"),
        "a": partitions("t-1"),
        "m": partitions("t-2"),
    }


def test_sticky_keeps_the_partitions_of_the_remaining_members() -> None:
    """KIP-54's example: of three members the second leaves."""
    topics = dict.fromkeys(("t0", "t1", "t2", "t3"), 2)
    names = " ".join(topics)
    assigned = StickyAssignor().assign(
        [member("c0", names, "t0-0 t1-1 t3-0"), member("c2", names, "t1-0 t2-1")], topics
    )
    assert set(partitions("t0-0 t1-1 t3-0")) <= set(assigned["c0"])
    assert set(partitions("t1-0 t2-1")) <= set(assigned["c2"])
    assert {len(one) for one in assigned.values()} == {4}


def test_sticky_reads_what_members_owned_from_their_user_data() -> None:
    assignor = StickyAssignor()
    data = assignor.user_data(partitions("t-2 t-3"), 5)
    told = GroupMember("b", frozenset({"t"}), user_data=data)
    assigned = assignor.assign([member("a", "t"), told], {"t": 4})
    assert assigned == {"a": partitions("t-0 t-1"), "b": partitions("t-2 t-3")}


def test_of_two_owners_the_one_of_the_later_generation_keeps_the_partition() -> None:
    assigned = StickyAssignor().assign(
        [member("a", "t", "t-0 t-1", generation=4), member("b", "t", "t-0 t-1", generation=5)], {"t": 2}
    )
    assert len(assigned["a"]) == len(assigned["b"]) == 1


def test_cooperative_member_gets_a_partition_only_after_its_owner_has_revoked_it() -> None:
    assignor = CooperativeStickyAssignor()
    first = assignor.assign([member("a", "t", "t-0 t-1 t-2 t-3"), member("b", "t")], {"t": 4})
    assert first == {"a": partitions("t-0 t-1"), "b": []}
    second = assignor.assign([member("a", "t", "t-0 t-1", 2), member("b", "t", "", 2)], {"t": 4})
    assert second == {"a": partitions("t-0 t-1"), "b": partitions("t-2 t-3")}


@pytest.mark.parametrize("stale_first", [False, True])
def test_a_stale_claim_does_not_revoke_a_partition_that_its_owner_keeps(stale_first: bool) -> None:
    members = [member("a", "t", "t-0 t-1", generation=5), member("b", "t", "t-0 t-2 t-3", generation=3)]
    assigned = CooperativeStickyAssignor().assign(reversed(members) if stale_first else members, {"t": 4})
    assert assigned == {"a": partitions("t-0 t-1"), "b": partitions("t-2 t-3")}


@pytest.mark.parametrize("stale_first", [False, True])
def test_the_generation_of_a_claim_may_be_in_the_user_data(stale_first: bool) -> None:
    """Kafka before 3.5 sends the generation there."""
    assignor = CooperativeStickyAssignor()
    members = [
        GroupMember(name, frozenset({"t"}), tuple(partitions("t-0")), user_data=assignor.user_data((), generation))
        for name, generation in (("a", 5), ("b", 3))
    ]
    assigned = assignor.assign(reversed(members) if stale_first else members, {"t": 2})
    assert assigned == {"a": partitions("t-0"), "b": partitions("t-1")}


def test_a_partition_that_two_members_claim_in_one_generation_is_assigned_after_both_have_revoked_it() -> None:
    assignor = CooperativeStickyAssignor()
    first = assignor.assign([member("a", "t", "t-0 t-1"), member("b", "t", "t-0")], {"t": 2})
    assert first == {"a": partitions("t-1"), "b": []}
    second = assignor.assign([member("a", "t", "t-1", 2), member("b", "t", "", 2)], {"t": 2})
    assert second == {"a": partitions("t-1"), "b": partitions("t-0")}


def test_a_partition_waits_for_its_owner_although_a_member_with_a_stale_claim_gets_it() -> None:
    assigned = CooperativeStickyAssignor().assign(
        [member("a", "other", "t-0", generation=5), member("b", "t", "t-0", generation=3)], {"t": 1, "other": 1}
    )
    assert assigned == {"a": partitions("other-0"), "b": []}


ALL: list[Assignor] = [RangeAssignor(), RoundRobinAssignor(), StickyAssignor()]
TOPICS = ("t0", "t1", "t2")


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 7)),
    st.dictionaries(st.sampled_from("abcdef"), st.sets(st.sampled_from(TOPICS)), min_size=1),
    st.data(),
)
def test_every_partition_has_one_owner_that_subscribes(
    topics: dict[str, int], subscriptions: dict[str, set[str]], data: st.DataObject
) -> None:
    everything = [TopicPartition(topic, index) for topic, count in topics.items() for index in range(count)]
    owned = (
        data.draw(st.dictionaries(st.sampled_from(everything), st.sampled_from(sorted(subscriptions))))
        if everything
        else {}
    )
    members = [
        GroupMember(name, frozenset(wanted), tuple(tp for tp, owner in owned.items() if owner == name), 1)
        for name, wanted in subscriptions.items()
    ]
    wanted_topics = {topic for one in members for topic in one.topics}
    for assignor in ALL:
        assigned = assignor.assign(members, topics)
        given_out = [tp for one in assigned.values() for tp in one]
        assert sorted(given_out) == sorted(tp for tp in everything if tp.topic in wanted_topics), assignor.name
        assert all(tp.topic in subscriptions[name] for name, one in assigned.items() for tp in one)
    sticky = StickyAssignor().assign(members, topics)
    for giver, one in sticky.items():
        for tp in one:
            for taker, wanted in subscriptions.items():
                if tp.topic in wanted:
                    assert len(sticky[taker]) + 1 >= len(one), f"{tp} should move from {giver} to {taker}"


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 30))
def test_sticky_moves_only_the_partitions_needed_for_balance(before: int, after: int, count: int) -> None:
    topics = {"t": count}
    assignor = StickyAssignor()
    old = assignor.assign([member(f"m{one}", "t") for one in range(before)], topics)
    members = [GroupMember(f"m{one}", frozenset({"t"}), tuple(old.get(f"m{one}", ())), 1) for one in range(after)]
    new = assignor.assign(members, topics)
    stayed = sum(len(set(old[name]) & set(new.get(name, ()))) for name in old)
    quotas = sorted((len(new[name]) for name in new), reverse=True)
    owned = sorted((len(old.get(name, ())) for name in new), reverse=True)
    assert stayed == sum(min(one, other) for one, other in zip(quotas, owned, strict=True))


@pytest.mark.parametrize("wanted", [["nope"], ["range", "range"], [], ["range", "cooperative-sticky"]])
def test_unusable_assignors_are_refused(wanted: list[str]) -> None:
    with pytest.raises(InvalidRequestError):
        assignors_of(wanted)
