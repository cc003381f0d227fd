"""`paceline cluster`: brokers and the active controller."""

import click

from paceline.cli.connection import bootstrap_option
from paceline.cli.failures import reported
from paceline.cli.output import output_option, show


@click.group()
def cluster() -> None:
    """Brokers and the active controller."""


@cluster.command()
@output_option
@bootstrap_option
def info(output: str, bootstrap: str) -> None:
    """List live brokers; the title names cluster and controller."""
    with reported(output):
        from paceline_client import Admin

        with Admin(bootstrap) as admin:
            found = admin.describe_cluster()
        rows = [
            {"broker": broker.broker_id, "address": f"{broker.host}:{broker.port}", "rack": broker.rack or None}
            for broker in found.brokers
        ]
        title = f"cluster {found.cluster_id}, controller {found.controller_id} epoch {found.controller_epoch}"
        show(rows, output, title=title)
