"""Limits of what is under way, even spreading, weights of gateways, order of publishing, tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.gateway.assignor import GatewayAssignor
from paceline.gateway.credits import Credits
from paceline.gateway.leases import KeysError, Lease, TokenKeys
from paceline.gateway.publish_order import PublishOrder
from paceline.gateway.spreading import spread
from paceline.gateway.values import Refusal
from paceline.model.errors import InvalidRequestError
from paceline.model.identifiers import TopicPartition
from paceline_client.assignors import GroupMember

LEASE = Lease("User:ann", "g", "m-1", 3, "t", 0, 17, 2_000)


@pytest.mark.parametrize("limit", [0, -1, 2**31])
def test_a_credit_out_of_range_is_refused_with_its_name(limit: int) -> None:
    with pytest.raises(InvalidRequestError, match="credit_records"):
        Credits(limit)
    with pytest.raises(InvalidRequestError, match="credit_bytes"):
        Credits(1, limit)


@given(st.integers(0, 12), st.integers(1, 5), st.data())
def test_partitions_are_spread_evenly_and_stay_where_they_can(
    partitions: int, streams: int, data: st.DataObject
) -> None:
    all_of_them = [TopicPartition("t", index) for index in range(partitions)]
    owners = {tp: data.draw(st.integers(1, streams)) for tp in all_of_them if data.draw(st.booleans())}
    found = spread(all_of_them, {one: lambda _: True for one in range(1, streams + 1)}, owners)
    counts = [list(found.values()).count(one) for one in range(1, streams + 1)]
    assert len(found) == partitions and max(counts) - min(counts) <= 1
    assert spread(all_of_them, {one: lambda _: True for one in range(1, streams + 1)}, found) == found


def test_a_partition_goes_only_to_a_stream_that_wants_its_topic() -> None:
    a, b = TopicPartition("a", 0), TopicPartition("b", 0)
    found = spread([a, b], {1: lambda topic: topic == "a"}, {b: 1})
    assert found == {a: 1}


def test_gateways_get_partitions_in_proportion_to_their_streams() -> None:
    members = [
        GroupMember("m1", frozenset({"t"}), user_data=b"1"),
        GroupMember("m2", frozenset({"t"}), user_data=b"3"),
        GroupMember("m3", frozenset({"t"}), user_data=b"junk"),
    ]
    found = GatewayAssignor(lambda: 1).assign(members, {"t": 10})
    assert {one: len(partitions) for one, partitions in found.items()} == {"m1": 2, "m2": 6, "m3": 2}


def test_owners_keep_their_partitions_while_the_weights_allow_it() -> None:
    owned = tuple(TopicPartition("t", index) for index in range(3))
    members = [
        GroupMember("m1", frozenset({"t"}), owned, 1, user_data=b"3"),
        GroupMember("m2", frozenset({"t"}), user_data=b"1"),
    ]
    assert GatewayAssignor(lambda: 1).assign(members, {"t": 4}) == {"m1": list(owned), "m2": [TopicPartition("t", 3)]}


def test_records_of_a_partition_never_travel_on_two_paths_at_once() -> None:
    order: PublishOrder[str] = PublishOrder()
    assert order.add("p", "small", "a") and order.add("p", "small", "b")
    assert not order.add("p", "large", "C")
    assert not order.add("p", "small", "d")  # does not overtake C
    assert order.add("q", "large", "E")  # another partition does not wait
    assert order.done("p") == []
    assert order.done("p") == ["C"]
    assert order.done("p") == ["d"]
    assert order.done("p") == []
    assert order.add("p", "large", "F")


def test_a_token_is_read_by_every_gateway_with_the_key_and_refused_when_changed_or_expired() -> None:
    old, new = "00" * 32, "11" * 32
    first, both = TokenKeys.parse(old), TokenKeys.parse(f"{new} # since May\n{old}\n")
    token = first.sign(LEASE)
    assert both.read(token, "User:ann", 1_999) == LEASE
    assert both.read(token, "User:ann", 2_000) is Refusal.EXPIRED
    assert both.read(token, "User:bob", 1_999) is Refusal.INVALID_TOKEN
    assert first.read(both.sign(LEASE), "User:ann", 0) is Refusal.INVALID_TOKEN
    for at in range(len(token)):
        forged = token[:at] + bytes([token[at] ^ 1]) + token[at + 1 :]
        assert both.read(forged, "User:ann", 0) is Refusal.INVALID_TOKEN
    assert both.read(b"", "User:ann", 0) is Refusal.INVALID_TOKEN


@pytest.mark.parametrize(("text", "reason"), [("", "no key"), ("zz" * 32, "hex"), ("00" * 31, "31 bytes")])
def test_a_bad_key_file_is_refused_without_showing_the_key(text: str, reason: str) -> None:
    with pytest.raises(KeysError, match=reason):
        TokenKeys.parse(text)
