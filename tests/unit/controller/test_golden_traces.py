"""Writes and requests of a real Kafka controller, reproduced: order of states per partition, requests per broker."""

from typing import Any

import pytest

from tests.unit.controller.trace_replay import TRACES, Replay

FENCED = frozenset({"reassign-cancel", "reassign-override", "reassign-znode"})
"""Where a move is taken back: ours raises the leader epoch before it stops the replicas, Kafka after. Same writes."""

LAST_NOT_RECORDED = frozenset({"3.9.1/broker-restarted-clean"})
"""Where the recording of a step ends before the UpdateMetadata without partitions that Kafka sends in all others."""

NOT_REPRODUCED = {
    "controller-fence-broken": "a controller whose fence fails resigns; Kafka's stays and handles nothing",
}
"""Traces of behaviour that is better not reproduced."""

SCENARIOS = sorted(
    str(path.relative_to(TRACES).with_suffix("")) for path in TRACES.rglob("*.json") if path.stem not in NOT_REPRODUCED
)


def test_the_traces_are_there() -> None:
    assert {"first-controller", "broker-killed", "controlled-shutdown", "reassign-disjoint"} <= set(SCENARIOS)


def without_epochs(requests: list[Any]) -> list[Any]:
    """Requests as they are but for leader epochs and zk versions."""
    return [
        {
            **request,
            "partitions": {
                name: {key: value for key, value in state.items() if key not in ("leader_epoch", "zkv")}
                for name, state in request["partitions"].items()
            },
        }
        for request in requests
    ]


def test_a_controller_whose_epoch_fence_fails_resigns_where_kafkas_stays_active() -> None:
    replay = Replay("controller-fence-broken")
    broken = replay.trace["steps"][0]
    replay.begin_step()
    replay.play(broken)
    following = replay.trace["steps"][1]
    replay.begin_step()
    replay.play(following)
    assert replay.expected_states(following) == {} != replay.states(), "the topic gets its leader nevertheless"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_trace_of_a_real_controller_is_reproduced(scenario: str) -> None:
    replay = Replay(scenario)
    compared = 0
    for step in replay.trace["steps"]:
        replay.begin_step()
        replay.play(step)
        assert replay.states() == replay.expected_states(step), step["do"]
        ours, theirs = replay.requests(), replay.expected_requests(step)
        for broker in sorted({*ours, *theirs}):
            told, expected = ours.get(broker, []), theirs.get(broker, [])
            if int(broker.split()[1]) in replay.dead:
                # A dying broker may miss its last requests, so only what it did handle counts.
                told = told[: len(expected)]
            if scenario.rpartition("/")[2] in FENCED:
                told, expected = without_epochs(told), without_epochs(expected)
            if scenario in LAST_NOT_RECORDED and len(told) > len(expected) and told[-1]["partitions"] == {}:
                told = told[:-1]
            assert told == expected, f"{step['do']}: {broker}"
            compared += len(expected)
        assert replay.partitions() == step["after"]["partitions"], step["do"]
    assert compared > 0 or not any(step["requests"] for step in replay.trace["steps"])
