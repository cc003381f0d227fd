"""`paceline partition explain`, and the same sentences for the commands that describe partitions."""

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.completion import topic_names
from paceline.cli.connection import bootstrap_option, open_admin, parse_partition
from paceline.cli.exit_codes import NEGATIVE_VERDICT
from paceline.cli.failures import check_partition, reported
from paceline.cli.output import output_option, show
from paceline.findings.explain import Finding, Severity, explain
from paceline.model.errors import PacelineError

if TYPE_CHECKING:
    from paceline_client import Admin, TopicDescription

Findings = dict[tuple[str, int], list[Finding]]


@click.command("explain")
@click.argument("which", metavar="TOPIC[/PARTITION]", shell_complete=topic_names)
@output_option
@bootstrap_option
def explain_partitions(which: str, output: str, bootstrap: str) -> None:
    """Say in one sentence each what is wrong with a partition, why, and which command helps.

    Asks each broker with a replica, and names those that do not answer. Exits with 3 when a partition has a problem.
    """
    topic, index = parse_partition(which)
    with reported(output):
        with open_admin(bootstrap) as admin:
            (described,) = admin.describe_topics([topic])
            check_partition(topic, [each.partition for each in described.partitions], index)
            chosen = tuple(each for each in described.partitions if index in (None, each.partition))
            found = findings_of(admin, replace(described, partitions=chosen))
        rows = [_row(*where, finding) for where, findings in found.items() for finding in findings]
        if output != "table":
            show(rows, output)
        for row in rows if output == "table" else ():
            click.echo(row["sentence"])
            if row["next_command"]:
                click.echo(f"    {row['next_command']}")
    if any(Severity[row["severity"].upper()] >= Severity.WARNING for row in rows):
        raise SystemExit(NEGATIVE_VERDICT)


def findings_of(admin: "Admin", topic: "TopicDescription") -> Findings:
    """Return the findings about the partitions of a topic, by partition."""
    from paceline.findings.service.gather import gather

    facts = gather(admin, topic)
    now_ms = time.time_ns() // 1_000_000
    return {(one.topic, one.partition): explain(one, now_ms) for one in facts}


def add_findings(admin: "Admin", topics: "Iterable[TopicDescription]") -> Findings:
    """Return the findings about topics that a command describes; none about a topic if they cannot be gathered."""
    found: Findings = {}
    for topic in topics:
        with suppress(PacelineError):
            found |= findings_of(admin, topic)
    return found


def tell_problems(found: Findings) -> None:
    """Print the problems, without the notes, on stderr."""
    for finding in (each for findings in found.values() for each in findings):
        if finding.severity >= Severity.WARNING:
            click.echo(finding.sentence, err=True)


def sentences(found: Findings, topic: str, partition: int) -> list[str]:
    """Return the sentences about one partition."""
    return [finding.sentence for finding in found.get((topic, partition), [])]


def _row(topic: str, partition: int, finding: Finding) -> dict[str, Any]:
    fields = asdict(finding) | {"severity": finding.severity.name.lower(), "sentence": finding.sentence}
    del fields["subject"]
    return {"topic": topic, "partition": partition, **fields}
