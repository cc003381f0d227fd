"""The audit log: a stable schema, floods of refusals as sums, and limits of what a flood can make it remember."""

import json
from typing import Any

from paceline.rpc.security.audit_log import (
    CHANGED,
    DENIED,
    MAX_PRINCIPALS,
    MAX_RESOURCES,
    MAX_VALUE_CHARACTERS,
    OTHER,
    SUM_S,
    AuditLine,
    AuditLog,
    value,
)

FIELDS = [
    "time", "process", "event", "principal", "uri", "address", "listener", "rpc", "resource", "operation", "rule",
    "old", "new", "error", "count", "request_id",
]  # fmt: skip


class Log:
    """An audit log with a clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.texts: list[str] = []
        self.log = AuditLog("broker/1", self.texts.append, lambda: self.now_s, lambda: 1_764_406_800.25)

    def deny(self, principal: str = "User:loud", resource: str = "Topic:LITERAL:a", rpc: str = "/x/Fetch") -> None:
        self.log.refused(AuditLine(DENIED, principal, "spiffe://x", "ipv4:10.0.0.9:1", "CLIENT", rpc, resource, "Read"))

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.texts]


def test_every_line_has_every_field_in_the_same_order() -> None:
    log = Log()
    log.deny()
    log.log.changed(AuditLine(CHANGED, "User:admin", rpc="/x/DeleteTopics", old={"partitions": 3}, error="X"))
    for line in log.lines():
        assert list(line) == FIELDS
    assert log.lines()[0]["time"] == "2025-11-29T09:00:00.250Z"
    assert log.lines()[1]["old"] == {"partitions": 3}


def test_a_flood_is_one_line_at_once_and_one_sum_every_ten_seconds() -> None:
    log = Log()
    for _ in range(5_000):
        log.deny()
    log.deny("User:other")
    log.deny(resource="Topic:LITERAL:b")
    assert [line["count"] for line in log.lines()] == [1, 1, 1]
    log.log.flush()
    assert len(log.texts) == 3, "the interval is not over"
    log.now_s += SUM_S
    log.log.flush()
    assert [(line["principal"], line["count"]) for line in log.lines()[3:]] == [("User:loud", 4_999)]
    log.deny()
    assert log.lines()[-1]["count"] == 1, "a new interval begins with a line"


def test_sums_are_written_when_the_process_ends_and_by_the_next_refusal() -> None:
    log = Log()
    log.deny()
    log.deny()
    log.log.flush(all_now=True)
    assert [line["count"] for line in log.lines()] == [1, 1]
    log.deny()
    log.deny()
    log.now_s += SUM_S
    log.deny()
    assert [line["count"] for line in log.lines()[2:]] == [1, 1, 1]


def test_a_caller_that_tries_many_resources_shares_lines_and_leaves_room_for_others() -> None:
    log = Log()
    for index in range(10 * MAX_RESOURCES):
        log.deny(resource=f"Topic:LITERAL:{index}")
    assert len(log.texts) == MAX_RESOURCES
    log.deny("User:other")
    assert log.lines()[-1]["principal"] == "User:other"
    log.log.flush(all_now=True)
    (rest,) = log.lines()[MAX_RESOURCES + 1 :]
    assert (rest["principal"], rest["resource"], rest["count"]) == ("User:loud", OTHER, 9 * MAX_RESOURCES)


def test_the_number_of_principals_is_limited() -> None:
    log = Log()
    for index in range(MAX_PRINCIPALS + 30):
        log.deny(f"User:{index}")
    log.log.flush(all_now=True)
    assert len(log.texts) == MAX_PRINCIPALS + 1
    assert (log.lines()[-1]["principal"], log.lines()[-1]["count"]) == (OTHER, 30)


def test_names_cannot_break_a_line_or_be_taken_as_a_format() -> None:
    log = Log()
    log.deny(resource='Topic:LITERAL:100 %s\n{"event":"changed"}')
    (text,) = log.texts
    assert "\n" not in text and json.loads(text)["resource"].startswith("Topic:LITERAL:100 %s")


def test_a_long_value_is_shortened() -> None:
    assert value({"a": 1}) == {"a": 1}
    assert len(value(["x" * 100] * 1_000)) == MAX_VALUE_CHARACTERS + 3
