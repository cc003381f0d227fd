"""`paceline cluster`: brokers and the active controller."""

import click

from paceline.cli.active_controller import find_controller_problem
from paceline.cli.connection import bootstrap_option, open_admin
from paceline.cli.exit_codes import NEGATIVE_VERDICT
from paceline.cli.failures import reported
from paceline.cli.output import output_option, show


@click.group()
def cluster() -> None:
    """Show brokers and the active controller."""


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
