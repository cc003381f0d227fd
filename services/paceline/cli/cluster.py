"""`paceline cluster`: brokers and the active controller, what is wrong in the cluster, and its metadata as a file."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from paceline.cli.active_controller import find_controller_problem
from paceline.cli.connection import bootstrap_option, open_admin
from paceline.cli.exit_codes import NEGATIVE_VERDICT
from paceline.cli.failures import reported
from paceline.cli.numbers import SECONDS
from paceline.cli.output import output_option, printable, show

if TYPE_CHECKING:
    from paceline.findings.explain import Finding

_AGAIN_S: Final = 1.0


@click.group()
def cluster() -> None:
    """Show brokers, the active controller, and how the cluster is."""


@cluster.command()
@output_option
@bootstrap_option
def info(output: str, bootstrap: str) -> None:
    """List live brokers; the title has the cluster id and the active controller. Exits with 3 without a controller."""
    with reported(output):
        with open_admin(bootstrap) as admin:
            found = admin.describe_cluster()
        rows = [
            {"broker": broker.broker_id, "address": broker.address, "rack": broker.rack or None}
            for broker in found.brokers
        ]
        problem = find_controller_problem(found)
        controller = f"controller {found.controller_id} epoch {found.controller_epoch}"
        show(rows, output, title=f"cluster {found.cluster_id}, {controller if problem is None else 'no controller'}")
    if problem is not None:
        click.echo(problem, err=True)
        raise SystemExit(NEGATIVE_VERDICT)


@cluster.command()
@click.option("--wait", is_flag=True, help="repeat until nothing is wrong, or --timeout is over")
@click.option("--timeout", "timeout_s", type=SECONDS, default=120.0, show_default=True, help="seconds for --wait")
@output_option
@bootstrap_option
def health(wait: bool, timeout_s: float, output: str, bootstrap: str) -> None:
    """Say on one page what is wrong in the cluster, why, and which command comes next; the worst comes first.

    Asks every process, and answers within five seconds also while processes hang or ZooKeeper is away. Exits with 3
    when anything is wrong; notes are not wrong.
    """
    from paceline.findings.cluster import is_wrong

    deadline = time.monotonic() + timeout_s
    with reported(output):
        found = _findings(bootstrap)
        while wait and is_wrong(found) and time.monotonic() < deadline:
            time.sleep(_AGAIN_S)
            found = _findings(bootstrap)
        rows = [_finding_row(one) for one in found]
        if output == "table":
            _print_page(found)
        else:
            show(rows, output)
    if is_wrong(found):
        raise SystemExit(NEGATIVE_VERDICT)


def _findings(bootstrap: str) -> "list[Finding]":
    from paceline.findings.cluster import judge
    from paceline.findings.service.gather_cluster import gather_cluster

    return judge(gather_cluster(bootstrap), time.time_ns() // 1_000_000)


def _finding_row(finding: "Finding") -> dict[str, Any]:
    return asdict(finding) | {"severity": finding.severity.name.lower(), "sentence": finding.sentence}


def _print_page(found: "list[Finding]") -> None:
    for finding in found:
        click.echo(printable(f"{finding.severity.name}: {finding.subject} {finding.symptom}"))
        for label, text in (("cause", finding.cause), ("next", finding.next_command)):
            if text:
                click.echo(printable(f"    {label}: {text}"))


@cluster.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@bootstrap_option
def export_metadata(file: Path, bootstrap: str) -> None:
    """Write the cluster's metadata into a new FILE: topics with ids, assignments and settings, and broker settings.

    The file has no records, leaders or epochs. `paceline pipeline ingest` copies the records of topics.
    """
    with reported():
        from paceline.cli.cluster_export import export_cluster

        with open_admin(bootstrap) as admin:
            found = export_cluster(admin)
        with file.open("x", encoding="utf-8") as new:
            new.write(json.dumps(found, indent=1) + "\n")
        click.echo(f"exported {len(found['topics'])} topics of cluster {found['cluster_id']} to {file}")


@cluster.command("import")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--any-brokers", is_flag=True, help="let the controller place the replicas")
@click.option("--dry-run", is_flag=True, help="check without changing anything")
@bootstrap_option
def import_metadata(file: Path, any_brokers: bool, dry_run: bool, bootstrap: str) -> None:
    """Create the topics and settings of an exported FILE in an empty cluster; topics get new ids.

    Refused for a cluster that has topics. Everything is checked before the first change.
    """
    with reported():
        from paceline.cli.cluster_export import import_cluster

        with open_admin(bootstrap) as admin:
            names = import_cluster(admin, file.read_text(encoding="utf-8"), any_brokers, dry_run)
        click.echo(f"{'would create' if dry_run else 'created'} {len(names)} topics")
