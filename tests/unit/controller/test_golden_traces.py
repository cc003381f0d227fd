"""What a real controller wrote and sent, reproduced: order of states per partition, what each broker is told."""

import pytest

from tests.unit.controller.trace_replay import TRACES, Replay

SCENARIOS = sorted(path.stem for path in TRACES.glob("*.json"))


def test_the_traces_are_there() -> None:
    assert {"first-controller", "broker-killed", "controlled-shutdown", "reassign-disjoint"} <= set(SCENARIOS)


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
            assert told == expected, f"{step['do']}: {broker}"
            compared += len(expected)
        assert replay.partitions() == step["after"]["partitions"], step["do"]
    assert compared > 0
