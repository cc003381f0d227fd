"""`paceline controller`: the active controller."""

import click

from paceline.cli.active_controller import find_controller_problem
from paceline.cli.connection import bootstrap_option, open_admin
from paceline.cli.exit_codes import NEGATIVE_VERDICT
from paceline.cli.failures import reported
from paceline.cli.output import output_option, show


@click.group()
def controller() -> None:
    """Show the active controller."""


@controller.command()
@output_option
@bootstrap_option
def describe(output: str, bootstrap: str) -> None:
    """Show the active controller; exits with 3 when there is none or it does not answer."""
    with reported(output):
        with open_admin(bootstrap) as admin:
            found = admin.describe_cluster()
        problem = find_controller_problem(found)
        row = {
            "controller": found.controller_id,
            "epoch": found.controller_epoch or None,
            "address": found.controller_address or None,
            "active": problem is None,
            "cluster_id": found.cluster_id,
            "answered_by": found.node_id,
        }
        show([row], output)
    if problem is not None:
        click.echo(problem, err=True)
        raise SystemExit(NEGATIVE_VERDICT)
