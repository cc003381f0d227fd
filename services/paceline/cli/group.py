"""`paceline group`: consumer groups, their members, offsets and lag."""

from typing import Any, Final

import click

from paceline.cli.connection import bootstrap_option, open_admin, parse_partition
from paceline.cli.exit_codes import NEGATIVE_VERDICT
from paceline.cli.failures import reported
from paceline.cli.output import output_option, show
from paceline.operations.group_offsets import (
    TARGETS,
    committed_offsets,
    group_lag,
    parse_target,
    partitions_to_reset,
    reset_offsets,
    reset_rows,
)

_STATES: Final = ("stable", "empty", "preparing-rebalance", "completing-rebalance")
_LAG_COLUMNS: Final = ("group", "partition", "committed", "end", "lag", "member", "client_id")


@click.group()
def group() -> None:
    """Show consumer groups with members, committed offsets and lag; reset offsets."""


@group.command("list")
@click.option("--state", "states", multiple=True, type=click.Choice(_STATES), help="only groups in this state")
@output_option
@bootstrap_option
def list_(states: tuple[str, ...], output: str, bootstrap: str) -> None:
    """List the groups of the cluster."""
    with reported(output):
        with open_admin(bootstrap) as admin:
            found = admin.list_groups([state.replace("-", "_") for state in states])
        rows = [
            {
                "group": one.group_id,
                "state": one.state,
                "members": one.member_count,
                "coordinator": one.coordinator,
                "type": one.protocol_type,
            }
            for one in found
        ]
        show(rows, output)


@group.command()
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...")
@output_option
@bootstrap_option
def describe(groups: tuple[str, ...], output: str, bootstrap: str) -> None:
    """Show the members of groups and their partitions. Exits with 3 when a group does not exist."""
    missing = []
    with reported(output):
        rows: list[dict[str, Any]] = []
        with open_admin(bootstrap) as admin:
            for one in admin.describe_groups(groups):
                if one.state == "Dead":
                    missing.append(one.group_id)
                rows += _members(one)
        show(rows, output, ("group", "state", "coordinator", "generation", "assignor", "member", "host", "partitions"))
    _exit_if_missing(missing)


def _members(one: Any) -> list[dict[str, Any]]:
    shared = {
        "group": one.group_id,
        "state": one.state,
        "coordinator": one.coordinator,
        "generation": one.generation,
        "assignor": one.protocol or None,
    }
    no_member: dict[str, Any] = {
        "member": None,
        "instance": None,
        "client_id": None,
        "host": None,
        "leader": False,
        "partitions": [],
    }
    rows = [
        shared
        | {
            "member": member.member_id,
            "instance": member.group_instance_id or None,
            "client_id": member.client_id,
            "host": member.client_host,
            "leader": member.member_id == one.leader,
            "partitions": [str(tp) for tp in member.assignment],
        }
        for member in one.members
    ]
    return rows or [shared | no_member]


@group.command()
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...")
@output_option
@bootstrap_option
def lag(groups: tuple[str, ...], output: str, bootstrap: str) -> None:
    """Show the records that each group has not committed yet, by partition; - where the leader does not answer.

    Exits with 3 when a group does not exist.
    """
    missing = []
    with reported(output):
        rows: list[dict[str, Any]] = []
        with open_admin(bootstrap) as admin:
            for name in groups:
                described, found = group_lag(admin, name)
                if described.state == "Dead":
                    missing.append(name)
                rows += found
        show(rows, output, _LAG_COLUMNS)
    _exit_if_missing(missing)


@group.command()
@click.argument("name", metavar="GROUP")
@click.argument("which", nargs=-1, metavar="[TOPIC[/PARTITION]]...")
@click.option(
    "--to",
    "target",
    required=True,
    metavar=TARGETS,
    help="start, end, an offset, a shift as +N or -N, or a time: 10m ago, 2026-01-31T12:00, @MS since 1970",
)
@click.option("--dry-run", is_flag=True, help="show the offsets without committing them")
@output_option
@bootstrap_option
def reset(name: str, which: tuple[str, ...], target: str, dry_run: bool, output: str, bootstrap: str) -> None:
    """Set the committed offsets of a group without members; without topics, for every partition with an offset."""
    try:
        wanted = parse_target(target)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--to") from None
    with reported(output):
        from paceline_client import Consumer

        with open_admin(bootstrap) as admin, Consumer(bootstrap) as consumer:
            committed = committed_offsets(admin, name)
            partitions = partitions_to_reset(admin, name, [parse_partition(text) for text in which], committed)
            offsets = reset_offsets(consumer, partitions, committed, wanted)
            if offsets and not dry_run:
                admin.alter_group_offsets(name, offsets)
        rows = reset_rows(name, committed, offsets)
        show(rows, output)


@group.command()
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...")
@output_option
@bootstrap_option
def delete(groups: tuple[str, ...], output: str, bootstrap: str) -> None:
    """Delete groups without members, and their offsets."""
    with reported(output):
        with open_admin(bootstrap) as admin:
            admin.delete_groups(groups)
        show([{"group": one, "deleted": True} for one in groups], output)


def _exit_if_missing(missing: list[str]) -> None:
    if missing:
        click.echo(f"no such group: {', '.join(missing)}", err=True)
        raise SystemExit(NEGATIVE_VERDICT)
