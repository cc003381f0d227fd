"""`paceline partition`: what a leader knows of each replica."""

from typing import Any

import click

from paceline.cli.connection import bootstrap_option, parse_partition
from paceline.cli.failures import reported
from paceline.cli.output import output_option, show


@click.group()
def partition() -> None:
    """What a leader knows of its replicas."""


@partition.command()
@click.argument("which", metavar="TOPIC[/PARTITION]")
@output_option
@bootstrap_option
def describe(which: str, output: str, bootstrap: str) -> None:
    """Show log end offset (LEO), high watermark (HW) and ISR, replica by replica, as the leader sees them."""
    topic, index = parse_partition(which)
    with reported(output):
        from paceline_client import Admin

        with Admin(bootstrap) as admin:
            found = admin.describe_replicas(topic, None if index is None else [index])
        rows = [
            {
                "partition": f"{topic}/{view.partition}",
                "replica": replica.broker_id,
                "role": "leader" if replica.broker_id == view.leader else "follower",
                "leo": replica.log_end_offset,
                "hw": view.high_watermark,
                "lag": None if replica.log_end_offset is None else max(_end(view) - replica.log_end_offset, 0),
                "in_sync": replica.in_sync,
                "last_caught_up_ms": replica.last_caught_up_ago_ms,
                "last_fetch_ms": replica.last_fetch_ago_ms,
                "leader_epoch": view.leader_epoch,
                "log_start": view.log_start_offset,
                "isr": list(view.isr),
            }
            for view in found
            for replica in view.replicas
        ]
        columns = (
            "partition",
            "replica",
            "role",
            "leo",
            "hw",
            "lag",
            "in_sync",
            "last_caught_up_ms",
            "leader_epoch",
            "isr",
        )
        show(rows, output, columns)


def _end(view: Any) -> int:
    return next((r.log_end_offset or 0 for r in view.replicas if r.broker_id == view.leader), 0)
