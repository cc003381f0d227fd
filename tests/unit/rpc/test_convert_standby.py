"""Updates for standbys survive the wire, and columns that do not fit are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.internal.v1 import controller_service_pb2 as pb
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.standby import StateUpdate, TopicStates
from paceline.rpc.convert import standby

small = st.integers(0, 2**31 - 1)
states = st.builds(
    LeaderAndIsr, st.integers(-1, 5_000), small, st.lists(st.integers(0, 9), max_size=4).map(tuple), small, small
)
extras = st.dictionaries(st.text(max_size=5), st.one_of(st.none(), st.integers(-5, 5), st.text(max_size=5)), min_size=1)
topic_states = st.builds(
    TopicStates,
    st.one_of(st.none(), st.just("Y1dSx3bqQVO9hPzmbN0nfA")),
    st.dictionaries(small, st.one_of(st.none(), states), max_size=8),
    st.dictionaries(small, extras, max_size=3),
)
updates = st.builds(
    StateUpdate,
    st.integers(1, 2**63 - 1),
    small,
    st.booleans(),
    st.one_of(st.none(), st.integers(0, 2**63 - 1)),
    st.dictionaries(st.sampled_from(["a", "b", "topic-with-a-longer-name"]), topic_states),
    st.lists(st.sampled_from(["x", "y"]), max_size=2).map(tuple),
    st.one_of(st.none(), st.dictionaries(small, st.integers(0, 2**63 - 1), max_size=4)),
)


@given(updates)
def test_an_update_survives_the_wire(update: StateUpdate) -> None:
    message = pb.FollowStateResponse.FromString(standby.state_update_to_proto(update).SerializeToString())
    assert standby.state_update_from_proto(message) == update


def test_unchanged_brokers_differ_from_no_brokers() -> None:
    choices: tuple[dict[int, int] | None, ...] = (None, {})
    for epochs in choices:
        update = StateUpdate(1, 1, broker_epochs=epochs)
        message = pb.FollowStateResponse.FromString(standby.state_update_to_proto(update).SerializeToString())
        assert standby.state_update_from_proto(message).broker_epochs == epochs


def test_equal_isrs_are_stored_once() -> None:
    known = {number: LeaderAndIsr(1, 0, (1, 2, 3), 0, 1) for number in range(3)}
    message = standby.state_update_to_proto(StateUpdate(1, 1, topics={"a": TopicStates(None, known)}))
    found = standby.state_update_from_proto(message).topics["a"].states
    assert len({id(state.isr) for state in found.values() if state is not None}) == 1


@pytest.mark.parametrize("column", ["leaders", "zk_versions", "isr_sizes", "isr_members"])
def test_columns_of_different_lengths_are_refused(column: str) -> None:
    known = {number: LeaderAndIsr(1, 0, (1, 2), 0, 1) for number in range(3)}
    message = standby.state_update_to_proto(StateUpdate(1, 1, topics={"a": TopicStates(None, known)}))
    getattr(message.topics[0], column).append(1)
    with pytest.raises(ValueError):
        standby.state_update_from_proto(message)
