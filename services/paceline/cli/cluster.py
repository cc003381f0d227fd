"""`paceline cluster`: brokers and the active controller."""

import click

from paceline.cli.active_controller import why_not_in_office
from paceline.cli.connection import bootstrap_option
from paceline.cli.failures import NEGATIVE_VERDICT, reported
from paceline.cli.output import output_option, show


@click.group()
def cluster() -> None:
    """Brokers and the active controller."""


@cluster.command()
@output_option
@bootstrap_option
def info(output: str, bootstrap: str) -> None:
    """List live brokers; the title names cluster and controller. Exits with 3 when no controller is in office."""
    with reported(output):
        from paceline_client import Admin

        with Admin(bootstrap) as admin:
            found = admin.describe_cluster()
        rows = [
            {"broker": broker.broker_id, "address": f"{broker.host}:{broker.port}", "rack": broker.rack or None}
            for broker in found.brokers
        ]
        problem = why_not_in_office(found)
        controller = f"controller {found.controller_id} epoch {found.controller_epoch}"
        show(rows, output, title=f"cluster {found.cluster_id}, {controller if problem is None else 'no controller'}")
    if problem is not None:
        click.echo(problem, err=True)
        raise SystemExit(NEGATIVE_VERDICT)
