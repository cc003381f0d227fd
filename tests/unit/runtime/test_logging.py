"""Logs: one form for everything, and a state-change log that machines can read."""

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import ReplicaOffsets, RequestAnswer, StateChange, StateChangeKind, state_change_fields
from paceline.runtime.logging import (
    STATE_CHANGE_LOGGER,
    StateChangeWriter,
    configure_logging,
    write_state_changes,
)
from tests.support.waiting import eventually

CHANGE = StateChange(
    who="broker-1",
    wall_ms=5,
    kind=StateChangeKind.ISR_SHRUNK,
    topic_partition=TopicPartition("t", 3),
    isr=(1, 2),
    old_isr=(1, 2, 3),
    leader_epoch=0,
    replicas=(ReplicaOffsets(1, 10, 7), ReplicaOffsets(3, None)),
    cause="lagging",
)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root, level = list(logging.getLogger().handlers), logging.getLogger().level
    yield
    logging.getLogger().handlers[:] = root
    logging.getLogger().setLevel(level)
    changes = logging.getLogger(STATE_CHANGE_LOGGER)
    for handler in list(changes.handlers):
        changes.removeHandler(handler)
        handler.close()
    changes.propagate = True
    structlog.reset_defaults()


def test_a_traceback_on_the_console_is_pythons_own_and_shows_no_values() -> None:
    stream = io.StringIO()
    configure_logging("console", "info", stream=stream)
    secret = "found in a local variable"
    try:
        raise ValueError("told in the message")
    except ValueError:
        logging.getLogger("paceline.x").exception("failed")
    text = stream.getvalue()
    assert "Traceback (most recent call last):\n" in text and "ValueError: told in the message" in text
    assert secret not in text


def test_json_lines_carry_the_process_and_the_callers_fields() -> None:
    stream = io.StringIO()
    configure_logging("json", "info", stream=stream, bound={"broker": 7})
    logging.getLogger("paceline.broker").warning("disk %s", "full")
    structlog.get_logger("paceline.x").info("started", port=5)
    logging.getLogger("paceline.broker").debug("not heard")
    first, second = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (first["event"], first["level"], first["broker"], first["logger"]) == (
        "disk full",
        "warning",
        7,
        "paceline.broker",
    )
    assert (second["event"], second["port"], second["broker"]) == ("started", 5, 7)


def test_a_traceback_stays_on_its_line_in_json() -> None:
    stream = io.StringIO()
    configure_logging("json", stream=stream)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("paceline.rpc").exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: why" in json.loads(line)["exception"]


def test_a_state_change_contains_only_known_fields() -> None:
    assert state_change_fields(CHANGE) == {
        "who": "broker-1",
        "wall_ms": 5,
        "kind": "isr-shrunk",
        "topic": "t",
        "partition": 3,
        "leader_epoch": 0,
        "isr": [1, 2],
        "old_isr": [1, 2, 3],
        "replicas": [{"broker_id": 1, "log_end_offset": 10, "high_watermark": 7}, {"broker_id": 3}],
        "cause": "lagging",
    }


def test_the_state_change_log_is_one_json_object_per_line_in_its_own_file(tmp_path: Path) -> None:
    stream = io.StringIO()
    path = tmp_path / "deep" / "state-change.log"
    configure_logging("console", stream=stream, state_change_path=str(path))
    write_state_changes([CHANGE])
    write_state_changes([CHANGE])
    assert [json.loads(line) for line in path.read_text().splitlines()] == [state_change_fields(CHANGE)] * 2
    assert stream.getvalue() == ""


def test_the_writer_keeps_the_order_and_has_written_everything_when_it_closes(tmp_path: Path) -> None:
    path = tmp_path / "state-change.log"
    configure_logging("console", stream=io.StringIO(), state_change_path=str(path))
    writer = StateChangeWriter()
    for wall_ms in range(2_000):
        writer.put(replace(CHANGE, wall_ms=wall_ms))
    writer.close()
    assert [json.loads(line)["wall_ms"] for line in path.read_text().splitlines()] == list(range(2_000))


def test_a_state_change_that_cannot_be_written_does_not_end_the_log(tmp_path: Path) -> None:
    path, stream = tmp_path / "state-change.log", io.StringIO()
    configure_logging("console", stream=stream, state_change_path=str(path))
    writer = StateChangeWriter()
    broken: Any = object()
    writer.put(broken)
    eventually(lambda: "writing state changes failed" in stream.getvalue(), 60.0, "the failure is logged")
    writer.put(CHANGE)
    writer.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [state_change_fields(CHANGE)]


def test_every_field_of_a_state_change_is_written() -> None:
    for field in fields(StateChange):
        known = {
            "kind": CHANGE.kind,
            "topic_partition": TopicPartition("t", 3),
            "replicas": CHANGE.replicas,
            "answer": RequestAnswer(request="LeaderAndIsr", controller_id=1),
        }
        values: dict[str, Any] = {"who": "broker-1", "wall_ms": 5, field.name: known.get(field.name, "x")}
        change = StateChange(**values)
        written = {"topic_partition": "partition", "answer": "request"}.get(field.name, field.name)
        assert written in state_change_fields(change)


def test_without_a_file_state_changes_are_in_the_services_log() -> None:
    stream = io.StringIO()
    configure_logging("console", stream=stream)
    write_state_changes([CHANGE])
    assert '"kind":"isr-shrunk"' in stream.getvalue()
