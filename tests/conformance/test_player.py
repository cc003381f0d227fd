"""The player detects wrong answers, wrong logs and drivers that violate the protocol."""

import contextlib
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.v1 import errors_pb2
from tests.conformance.answers import ScenarioError, UnsupportedError, difference
from tests.conformance.clusters import ScriptedCluster
from tests.conformance.driver import Driver, DriverError, DriverSpec, ToolchainMissingError
from tests.conformance.player import Player
from tests.conformance.scenarios import Scenario, all_scenarios, error_facts

GREETING = 'print(json.dumps({"id": 1, "ok": {}}), flush=True)'


def driver_of(body: str) -> Driver:
    script = "import json, sys\nsys.stdin.readline()\n" + GREETING + "\n" + textwrap.dedent(body)
    return Driver(DriverSpec("test", (sys.executable, "-c", script)))


@pytest.fixture
def scripted() -> Iterator[ScriptedCluster]:
    cluster = ScriptedCluster()
    yield cluster
    cluster.stop()


@pytest.mark.parametrize(
    ("wanted", "found", "says"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, ""),
        ({"a": 1}, {"a": 2}, "answer.a is 2, 1 was expected"),
        ({"a": 1}, {}, "answer has no a"),
        ([{"a": 1}], [{"a": 1}, {"a": 1}], "1 entries were expected"),
        ([1, 2], [1, 3], "answer[1] is 3"),
        ({"a": None}, {"a": ""}, "answer.a is ''"),
        ("9007199254740993", "9007199254740992", "was expected"),
        ({"a": {}}, {"a": 1}, "an object was expected"),
    ],
)
def test_a_difference_is_named(wanted: Any, found: Any, says: str) -> None:
    problem = difference(wanted, found)
    assert says in problem and bool(says) == bool(problem)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("sys.stdin.readline(); print('hello')", "no JSON"),
        ('sys.stdin.readline(); print(\'{"id": 9, "ok": {}}\')', "not one answer"),
        ("sys.stdin.readline(); print('{\"id\": 2}')", "not one answer"),
        ("sys.stdin.readline(); sys.stderr.write('it broke'); sys.exit(3)", "it broke"),
    ],
)
def test_a_driver_that_breaks_the_protocol_is_found(body: str, says: str) -> None:
    driver = driver_of(body)
    with pytest.raises(DriverError, match=says):
        driver.ask({"command": "close"}, 30.0)
    driver.kill()


def test_a_driver_that_does_not_answer_fails_after_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driver_of("import time; time.sleep(600)")
    with pytest.raises(DriverError, match="no answer to produce within"):
        driver.ask({"command": "produce"}, 0.2)
    driver.kill()


@pytest.mark.parametrize(("code", "error"), [(77, ToolchainMissingError), (1, DriverError)])
def test_a_build_reports_whether_the_toolchain_is_missing_or_the_build_fails(
    code: int, error: type[DriverError]
) -> None:
    build = ("sh", "-c", f"echo 'the client needs Go 1.25' >&2; exit {code}")
    with pytest.raises(DriverError, match=r"the client needs Go 1\.25") as raised:
        Driver(DriverSpec("test", ("true",), build))
    assert raised.type is error


def produced(cluster: ScriptedCluster, results: str, writes: list[bytes]) -> Player:
    """Return a player whose driver reports two delivered records, and whose cluster has ``writes``."""
    from paceline.log.record_batch import NewRecord, encode_batch
    from paceline.model.identifiers import TopicPartition

    driver = driver_of(f'sys.stdin.readline(); print(\'{{"id": 2, "ok": {{"results": {results}}}}}\', flush=True)')
    playing = Player(driver, cluster)
    cluster.topic("t", 1)
    for value in writes:
        cluster.fake.logs[TopicPartition("t", 0)].append(encode_batch([NewRecord(0, None, value)]))
    playing._step({"send": {"command": "produce", "topic": "t", "records": {"count": 2, "partition": 0}}})
    return playing


SECOND = '{"partition": 0, "offset": "1"}'
OFFSETS = '[{"partition": 0, "offset": "0"}, {"partition": 0, "offset": "1"}]'


@pytest.mark.parametrize(
    ("results", "writes", "says"),
    [
        (OFFSETS, [b"0", b"1"], ""),
        (OFFSETS, [b"0", b"1", b"1"], "twice"),
        (OFFSETS, [b"0"], "is not there"),
        (OFFSETS, [b"1", b"0"], "is not there"),
        ('[{"partition": 0, "offset": "0"}]', [b"0", b"1"], "1 outcomes for 2 records"),
        (OFFSETS.replace(SECOND, '{"error": {"definite": true}}'), [b"0", b"1"], "surely is not"),
        (OFFSETS.replace(SECOND, '{"error": {"definite": false}}'), [b"0"], "not delivered"),
        ('[{"partition": 0, "offset": "1"}, {"partition": 0, "offset": "0"}]', [b"1", b"0"], "overtook"),
    ],
)
def test_lost_duplicate_and_reordered_records_are_found(
    scripted: ScriptedCluster, results: str, writes: list[bytes], says: str
) -> None:
    playing = produced(scripted, results, writes)
    check = {"check_exactly_once": {"topic": "t"}}
    if not says:
        playing._step(check)
        return
    with pytest.raises(ScenarioError, match=says):
        playing._step(check)


ANSWERS = {
    "made": '{"ok": {}}',
    "in doubt": '{"error": {"code": "REQUEST_TIMED_OUT", "definite": false}}',
    "refused": '{"error": {"code": "NOT_CONTROLLER", "definite": true}}',
    "exists": '{"error": {"code": "TOPIC_ALREADY_EXISTS", "definite": true}}',
}


@pytest.mark.parametrize(
    ("answers", "passes"),
    [
        (["made"], True),
        (["in doubt", "made"], True),
        (["in doubt", "exists"], True),
        (["in doubt", "in doubt"], False),
        (["in doubt", "refused"], False),
        (["refused", "made"], False),
        (["exists", "made"], False),
    ],
)
def test_a_change_of_unknown_outcome_may_be_repeated_once(answers: list[str], passes: bool) -> None:
    lines = [f'{{"id": {number}, {ANSWERS[name][1:]}' for number, name in enumerate(answers, 2)]
    driver = driver_of(f"for line in {lines}: sys.stdin.readline(); print(line, flush=True)")
    step = {"send": {"command": "create_topic"}, "again": "TOPIC_ALREADY_EXISTS"}
    with contextlib.nullcontext() if passes else pytest.raises(ScenarioError):
        Player(driver, None)._step(step)
    driver.kill()


def test_wrong_values_and_wrong_numbers_of_calls_are_found(scripted: ScriptedCluster) -> None:
    playing = Player(driver_of(""), scripted)
    scripted.topic("t", 1)
    playing._step({"check_log": {"topic": "t", "values": []}})
    for step in (
        {"check_log": {"topic": "t", "values": ["dg=="]}},
        {"check_calls": {"method": "Produce", "at_least": 1}},
    ):
        with pytest.raises(ScenarioError):
            playing._step(step)


def test_a_missing_feature_of_a_client_is_not_a_failure() -> None:
    driver = driver_of('sys.stdin.readline(); print(\'{"id": 2, "unsupported": "no such thing"}\', flush=True)')
    scenario = Scenario("n", "g", "none", ({"send": {"command": "partition_for_key"}},))
    with pytest.raises(UnsupportedError, match="no such thing"):
        Player(driver, None).play(scenario)


def test_every_error_code_has_a_scenario_of_produce_and_one_of_fetch() -> None:
    names = {scenario.name for scenario in all_scenarios()}
    codes = {name.removeprefix("ERROR_CODE_") for name, number in errors_pb2.ErrorCode.items() if number}
    assert codes == {facts.name for facts in error_facts()}
    elsewhere = {"OUT_OF_ORDER_SEQUENCE_NUMBER"}  # The scenarios of lost sequences have the reaction of a producer.
    for operation, others in (("Produce", elsewhere), ("Fetch", set())):
        assert {f"an error of {operation} has its reaction: {code}" for code in codes - others} <= names


def test_steps_of_scenarios_are_known_ones() -> None:
    known = {"send", "do", "topic", "check_log", "check_exactly_once", "check_calls", "kill_driver"}
    known |= {"wait", "wait_assigned", "wait_read", "remember", "check_unchanged"}
    for scenario in all_scenarios():
        for step in scenario.steps:
            assert known & step.keys(), (scenario.name, step)
