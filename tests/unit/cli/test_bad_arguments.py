"""Invalid arguments are usage errors, with a plain message, before any request to a cluster."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli.commands import cli
from paceline.cli.reassign_plan import read_plan

USAGE = 2
TOO_LARGE, FAR_TOO_LARGE = "2147483648", "9" * 30
UNREACHABLE = ("-b", "127.0.0.1:1")


@pytest.mark.parametrize("number", [TOO_LARGE, FAR_TOO_LARGE])
@pytest.mark.parametrize(
    "command",
    [
        "topic create t --partitions {}",
        "topic create t --replication-factor {}",
        "topic add-partitions t --count {}",
        "topic trim t/{} --all --yes",
        "partition describe t/{}",
        "partition elect --preferred t/{}",
        "reassign plan --topic t --replication-factor {}",
        "reassign cancel t/{}",
        "broker describe {}",
        "broker drain {}",
        "broker undrain {}",
        "broker logdirs {}",
        "broker configs {}",
        "broker alter {} --set a=b",
        "consume t/{}",
        "produce t/{}",
        "watch t/{}",
        "watch --broker {}",
        "top t/{}",
    ],
)
def test_a_number_beyond_32_bits_is_wrong_usage(command: str, number: str) -> None:
    ended = CliRunner().invoke(cli, [*command.format(number).split(), *UNREACHABLE])
    assert (ended.exit_code, "2147483647" in ended.stderr) == (USAGE, True), ended.stderr[-500:]


@pytest.mark.parametrize(
    "command",
    ["consume t --from {}", "topic trim t --before-offset {} --yes", "reassign start plan.json --throttle {}"],
)
def test_a_number_beyond_64_bits_is_wrong_usage(command: str) -> None:
    ended = CliRunner().invoke(cli, [*command.format(2**63).split(), *UNREACHABLE])
    assert (ended.exit_code, str(2**63 - 1) in ended.stderr) == (USAGE, True), ended.stderr[-500:]


def test_a_plan_with_a_number_beyond_32_bits_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": [{"topic": "t", "partition": 2**31, "replicas": [1]}]}))
    with pytest.raises(ValueError, match=r"entry 0 .* to 2147483647"):
        read_plan(path)


@pytest.mark.parametrize("elections", [("--preferred", "--unclean"), ("--unclean", "--preferred")])
def test_an_election_cannot_be_of_both_kinds(elections: tuple[str, str]) -> None:
    ended = CliRunner().invoke(cli, ["partition", "elect", *elections, "--yes", "t/0", *UNREACHABLE])
    assert ended.exit_code == USAGE
    assert "--preferred or --unclean, not both" in ended.stderr


def test_an_election_without_a_kind_is_wrong_usage() -> None:
    ended = CliRunner().invoke(cli, ["partition", "elect", "--yes", "t/0", *UNREACHABLE])
    assert ended.exit_code == USAGE
    assert "choose an election: --preferred or --unclean" in ended.stderr and "both" not in ended.stderr


def test_a_key_cannot_be_given_two_values() -> None:
    ended = CliRunner().invoke(cli, ["topic", "create", "t", "--config", "a=1", "--config", "a=2", *UNREACHABLE])
    assert (ended.exit_code, "more than once" in ended.stderr) == (USAGE, True), ended.stderr


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1"])
@pytest.mark.parametrize("command", ["reassign status --watch --timeout {}", "top --interval {}"])
def test_a_time_that_is_negative_or_not_finite_is_wrong_usage(command: str, seconds: str) -> None:
    ended = CliRunner().invoke(cli, [*command.format(seconds).split(), *UNREACHABLE])
    assert (ended.exit_code, "Invalid value for" in ended.stderr) == (USAGE, True), ended.stderr


def test_an_empty_separator_is_wrong_usage() -> None:
    ended = CliRunner().invoke(cli, ["produce", "t", "--key-separator", "", *UNREACHABLE])
    assert (ended.exit_code, "at least one character" in ended.stderr) == (USAGE, True), ended.stderr


def test_closed_stdin_is_reported_as_a_usage_error() -> None:
    command = [str(Path(sys.executable).with_name("paceline")), "produce", "t", *UNREACHABLE]
    ended = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *command], capture_output=True, timeout=60, check=False)
    assert (ended.returncode, b"stdin is closed" in ended.stderr) == (USAGE, True), ended.stderr


@pytest.mark.parametrize(("template", "named"), [("%x", "%x"), ("%v %", "%"), ("%%%k%q", "%q")])
def test_an_unknown_field_of_a_format_is_named(template: str, named: str) -> None:
    ended = CliRunner().invoke(cli, ["consume", "t", "-f", template, *UNREACHABLE])
    assert (ended.exit_code, f"{named} is not a field" in ended.stderr) == (USAGE, True), ended.stderr


@pytest.mark.parametrize("start", ["soon", "-5m", "2026-13-01"])
def test_consume_begins_either_at_an_offset_or_at_a_time(start: str) -> None:
    ended = CliRunner().invoke(cli, ["consume", "t", "--from", start, *UNREACHABLE])
    assert (ended.exit_code, "nor a time like" in ended.stderr) == (USAGE, True), ended.stderr


def test_a_missing_plan_file_is_named_without_a_python_class(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    ended = CliRunner().invoke(cli, ["reassign", "start", str(path), *UNREACHABLE])
    assert ended.exit_code in (1, USAGE) and str(path) in ended.stderr and "Error:" not in ended.stderr.split("\n")[0]


@pytest.mark.parametrize(
    "options",
    [
        "pipeline doctor --tasks 0",
        "verify --tasks 0",
        "reassign plan --topic t --by-load nan",
        "reassign plan --topic t --threshold 0",
        "pipeline ingest t --to lake --interval inf",
        "pipeline ingest t --to a-file",
    ],
)
def test_a_job_checks_its_options_before_it_starts(
    options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").touch()
    ended = CliRunner().invoke(cli, options.split())
    assert (ended.exit_code, "Invalid value for" in ended.stderr) == (USAGE, True), ended.stderr


@pytest.mark.parametrize("address", ["127.0.0.1", "host:99999", "a:1,b", "::1:9092"])
def test_a_wrong_address_is_wrong_usage(address: str) -> None:
    ended = CliRunner().invoke(cli, ["topic", "list", "-b", address])
    assert (ended.exit_code, "is not host:port" in ended.stderr) == (USAGE, True), ended.stderr


def test_an_option_before_the_verb_is_shown_behind_it() -> None:
    ended = CliRunner().invoke(cli, ["-b", "127.0.0.1:1", "topic", "list"])
    assert (ended.exit_code, "after the verb" in ended.stderr) == (USAGE, True), ended.stderr


def test_a_word_that_is_no_number_is_called_so() -> None:
    ended = CliRunner().invoke(cli, ["broker", "describe", "x", *UNREACHABLE])
    assert (ended.exit_code, "'x' is not a valid integer." in ended.stderr) == (USAGE, True), ended.stderr


def test_a_certificate_to_revoke_that_is_neither_a_file_nor_a_number_is_named() -> None:
    done = CliRunner().invoke(cli, ["certs", "revoke", "absent.crt", "-b", "127.0.0.1:1"])
    assert done.exit_code == 1
    assert "there is no such file, and 'absent.crt' is not a serial number" in done.stderr
