"""`paceline group`: consumer groups, their members, offsets and lag."""

import re
from typing import Any, Final

import click

from paceline.cli.connection import bootstrap_option, open_admin, parse_partition
from paceline.cli.exit_codes import NEGATIVE_VERDICT
from paceline.cli.failures import check_partition, reported
from paceline.cli.numbers import MAX_INT64, parse_number
from paceline.cli.output import output_option, show
from paceline.cli.times import parse_moment
from paceline.model.errors import GroupIdNotFoundError

_STATES: Final = ("stable", "empty", "preparing-rebalance", "completing-rebalance")
_LAG_COLUMNS: Final = ("group", "partition", "committed", "end", "lag", "member", "client_id")
_OFFSETS_AT_ONCE: Final = 500
"""Partitions in one request for the offsets of a large group; with long names and texts they take about 2 MiB."""


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
    """Show the records that each group has not committed yet, by partition.

    Exits with 3 when a group does not exist.
    """
    missing = []
    with reported(output):
        from paceline_client import Consumer

        rows: list[dict[str, Any]] = []
        with open_admin(bootstrap) as admin, Consumer(bootstrap) as consumer:
            for described in admin.describe_groups(groups):
                if described.state == "Dead":
                    missing.append(described.group_id)
                rows += _lag(admin, consumer, described)
        show(rows, output, _LAG_COLUMNS)
    _exit_if_missing(missing)


def _lag(admin: Any, consumer: Any, described: Any) -> list[dict[str, Any]]:
    committed = _committed(admin, described.group_id)
    owners = {tp: member for member in described.members for tp in member.assignment}
    partitions = sorted(committed.keys() | owners.keys())
    ends = _ends(consumer, partitions)
    rows = []
    for tp in partitions:
        offset, end, owner = committed.get(tp), ends.get(tp), owners.get(tp)
        rows.append(
            {
                "group": described.group_id,
                "partition": str(tp),
                "committed": None if offset is None else offset.offset,
                "end": end,
                "lag": None if offset is None or end is None else max(0, end - offset.offset),
                "member": None if owner is None else owner.member_id,
                "client_id": None if owner is None else owner.client_id,
                "metadata": "" if offset is None else offset.metadata,
            }
        )
    return rows


def _committed(admin: Any, group_id: str) -> dict[Any, Any]:
    """Return all committed offsets of a group, in several requests if they are too large for one response."""
    from paceline.model.errors import InvalidRequestError

    try:
        return dict(admin.group_offsets(group_id))
    except InvalidRequestError:
        names = [(topic.name, one.partition) for topic in admin.describe_topics() for one in topic.partitions]
    found: dict[Any, Any] = {}
    for at in range(0, len(names), _OFFSETS_AT_ONCE):
        found |= admin.group_offsets(group_id, partitions=names[at : at + _OFFSETS_AT_ONCE])
    return found


def _ends(consumer: Any, partitions: list[Any]) -> dict[Any, int]:
    """Return the end offsets of partitions; partitions of deleted topics are omitted."""
    from paceline.model.errors import UnknownTopicOrPartitionError

    ends: dict[Any, int] = {}
    for topic in dict.fromkeys(tp.topic for tp in partitions):
        of_topic = [tp for tp in partitions if tp.topic == topic]
        try:
            ends |= consumer.end_offsets(of_topic, timeout_ms=10_000)
        except UnknownTopicOrPartitionError as error:
            click.echo(str(error), err=True)
    return ends


@group.command()
@click.argument("name", metavar="GROUP")
@click.argument("which", nargs=-1, metavar="[TOPIC[/PARTITION]]...")
@click.option(
    "--to",
    "target",
    required=True,
    metavar="start|end|OFFSET|+N|-N|TIME",
    help="start, end, an offset, a shift as +N or -N, or a time: 10m ago, 2026-01-31T12:00, @MS since 1970",
)
@click.option("--dry-run", is_flag=True, help="show the offsets without committing them")
@output_option
@bootstrap_option
def reset(name: str, which: tuple[str, ...], target: str, dry_run: bool, output: str, bootstrap: str) -> None:
    """Set the committed offsets of a group without members; without topics, for every partition with an offset."""
    kind, number = _target(target)
    with reported(output):
        from paceline_client import Consumer, TopicPartition

        with open_admin(bootstrap) as admin, Consumer(bootstrap) as consumer:
            committed = _committed(admin, name)
            partitions = []
            for text in which:
                topic, index = parse_partition(text)
                (found,) = admin.describe_topics([topic])
                check_partition(topic, [one.partition for one in found.partitions], index)
                partitions += [
                    TopicPartition(topic, one.partition) for one in found.partitions if index in (None, one.partition)
                ]
            partitions = sorted(set(partitions) or committed.keys())
            if not partitions:
                raise GroupIdNotFoundError(
                    f"group {name} has no committed offsets; name topics to commit their offsets"
                )
            offsets = _targets(consumer, partitions, committed, kind, number)
            if offsets and not dry_run:
                admin.alter_group_offsets(name, offsets)
        rows = [
            {
                "group": name,
                "partition": str(tp),
                "before": committed[tp].offset if tp in committed else None,
                "after": offset,
            }
            for tp, offset in sorted(offsets.items())
        ]
        show(rows, output)


def _target(text: str) -> tuple[str, int]:
    """Parse ``--to`` into its kind (start, end, offset, shift or time) and its number."""
    if text in ("start", "end"):
        return text, 0
    if re.fullmatch(r"[+-]\d{1,18}", text):
        return "shift", int(text)
    number = parse_number(text.removeprefix("@"), MAX_INT64)
    if number is not None:
        return ("time" if text.startswith("@") else "offset"), number
    moment_ms = parse_moment(text.removeprefix("@"))
    if moment_ms is None:
        raise click.BadParameter(
            f"{text!r} is none of start, end, OFFSET, +N, -N, a time ago like 10m, a time like 2026-11-21T17:00, @MS",
            param_hint="--to",
        )
    return "time", moment_ms


def _targets(consumer: Any, partitions: list[Any], committed: Any, kind: str, number: int) -> dict[Any, int]:
    """Return the offset for each partition, limited to the range from its first record to its end."""
    first, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    if kind == "start":
        return dict(first)
    if kind == "end":
        return dict(ends)
    if kind == "time":
        found = consumer.offsets_for_times(dict.fromkeys(partitions, number))
        return {tp: ends[tp] if place is None else place.offset for tp, place in found.items()}
    wanted = {
        tp: number if kind == "offset" else (committed[tp].offset if tp in committed else first[tp]) + number
        for tp in partitions
    }
    return {tp: min(max(offset, first[tp]), ends[tp]) for tp, offset in wanted.items()}


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
