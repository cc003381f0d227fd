"""`paceline acl`: the rules that options mean, files of rules, and suggestions from an audit log."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.cli import acl as module
from paceline.cli.acl import acl, read_rules, suggested
from paceline.model.errors import InvalidRequestError
from paceline_client import AccessRule, AccessRules, AccessVerdict


class Admin:
    """Records the calls."""

    def __init__(self) -> None:
        self.created: list[AccessRule] = []
        self.deleted: list[dict[str, str]] = []
        self.rules: list[AccessRule] = []

    def create_acls(self, rules: list[AccessRule]) -> None:
        self.created += rules

    def delete_acls(self, **selected: str) -> list[AccessRule]:
        self.deleted.append(selected)
        return []

    def describe_acls(self, **_selected: str) -> AccessRules:
        return AccessRules(tuple(self.rules))

    def check_acl(self, principal: str, operation: str, *_resource: str, host: str = "") -> AccessVerdict:
        return AccessVerdict(operation == "Read" and principal == "User:alice", "the rule", "enforce")


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    made = Admin()
    monkeypatch.setattr(module, "open_admin", lambda _bootstrap: contextlib.nullcontext(made))
    yield made


def run(*words: str, code: int = 0, text: str | None = None) -> str:
    result = CliRunner().invoke(acl, [*words, "-b", "127.0.0.1:1"] if words[0] != "suggest" else words, input=text)
    assert result.exit_code == code, result.output
    return result.output


def test_the_shortcut_of_a_consumer(admin: Admin) -> None:
    run("add", "alice", "--consumer", "--topic", "rides", "--group", "team")
    assert {(one.principal, one.operation, one.resource_type, one.resource_name) for one in admin.created} == {
        ("User:alice", "Read", "Topic", "rides"),
        ("User:alice", "Describe", "Topic", "rides"),
        ("User:alice", "Read", "Group", "team"),
    }


def test_the_shortcut_of_a_producer_with_a_prefix_and_a_denied_host(admin: Admin) -> None:
    run("add", "User:bob", "--producer", "--topic", "team-", "--prefixed", "--deny-host", "10.0.0.7")
    allowed = {(one.operation, one.pattern_type, one.host) for one in admin.created if one.permission == "Allow"}
    denied = {(one.operation, one.pattern_type, one.host) for one in admin.created if one.permission == "Deny"}
    assert allowed == {(name, "PREFIXED", "*") for name in ("Write", "Describe", "Create")}
    assert denied == {(name, "PREFIXED", "10.0.0.7") for name in ("Write", "Describe", "Create")}


@pytest.mark.parametrize(
    "words",
    [
        ("add", "alice", "--consumer", "--topic", "rides"),
        ("add", "alice", "--producer", "--group", "g"),
        ("add", "alice", "--operation", "Read"),
        ("add", "alice", "--topic", "rides"),
        ("remove",),
        ("check", "alice", "Read", "rides"),
        ("check", "alice", "Read", "topic:"),
    ],
)
def test_options_that_mean_no_rule_change_nothing_and_say_why(admin: Admin, words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(acl, [*words, "-b", "127.0.0.1:1"])
    assert result.exit_code == 67 and "INVALID_REQUEST" in result.output
    assert not admin.created and not admin.deleted


def test_an_unknown_operation_is_a_usage_error(admin: Admin) -> None:
    assert "Peek" in run("add", "alice", "--topic", "t", "--operation", "Peek", code=2)
    assert not admin.created


def test_remove_selects_by_principal_resource_and_operation(admin: Admin) -> None:
    run("remove", "alice", "--topic", "rides")
    run("remove", "--topic", "rides")
    run("remove", "alice", "--operation", "Read", "--topic", "rides", "--host", "10.0.0.1")
    named = {"resource_type": "Topic", "resource_name": "rides", "pattern_type": "LITERAL"}
    given = [{field: value for field, value in one.items() if value} for one in admin.deleted]
    assert given == [
        named | {"principal": "User:alice"},
        named,
        named | {"principal": "User:alice", "operation": "Read", "permission": "Allow", "host": "10.0.0.1"},
    ]


def test_check_exits_with_3_when_the_rules_refuse(admin: Admin) -> None:
    assert run("check", "alice", "read", "topic:rides") == "allowed: the rule\n"
    assert run("check", "bob", "Read", "cluster", code=3) == "refused: the rule\n"


def test_an_export_can_be_imported(admin: Admin) -> None:
    admin.rules = [
        AccessRule("User:alice", "Read", "Topic", "rides"),
        AccessRule("User:bob", "All", "Group", "g", host="::1"),
    ]
    text = run("export")
    run("import", "-", text=text)
    assert admin.created == admin.rules
    run("import", "-", "--principal", "bob", text=text)
    assert admin.created[2:] == admin.rules[1:]


@pytest.mark.parametrize("text", ["", "[1]", '[{"principal": "User:a"}]', '[{"principal": 7}]', "[[]]"])
def test_a_file_without_rules_is_refused_as_a_whole(admin: Admin, text: str) -> None:
    with pytest.raises(InvalidRequestError):
        read_rules(text, "rules.json")
    run("import", "-", text=text, code=67)
    assert not admin.created


def line(event: str, principal: str, operation: str, resource: str) -> str:
    return json.dumps(
        {"event": event, "rpc": "/x/Y", "principal": principal, "operation": operation, "resource": resource}
    )


def test_suggestions_are_the_fewest_rules_for_what_was_refused(tmp_path: Path) -> None:
    lines = [
        line("would_deny", "User:alice", "Describe", "Topic:LITERAL:rides"),
        line("would_deny", "User:alice", "Read", "Topic:LITERAL:rides"),
        line("denied", "User:bob", "Describe", "Group:LITERAL:a:b"),
        line("changed", "User:admin", "Delete", "Topic:LITERAL:rides"),
        line("would_deny", "User:carl", "Read", "(other)"),
        "not JSON",
    ]
    rules, skipped = suggested(lines)
    assert [(one.principal, one.operation, one.resource_name) for one in rules] == [
        ("User:alice", "Read", "rides"),
        ("User:bob", "Describe", "a:b"),
    ]
    assert skipped == 1
    (tmp_path / "audit.log").write_text("\n".join(lines))
    shown: Any = CliRunner().invoke(acl, ["suggest", str(tmp_path / "audit.log")])
    assert shown.exit_code == 0 and len(json.loads(shown.stdout)) == 2
