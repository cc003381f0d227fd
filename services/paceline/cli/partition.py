"""`paceline partition`: replica progress as the leader knows it, and leader elections."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from paceline.cli.completion import topic_names
from paceline.cli.connection import bootstrap_option, open_admin, parse_partition, partitions_of
from paceline.cli.exit_codes import NEGATIVE_VERDICT
from paceline.cli.explain import add_findings, explain_partitions, sentences, tell_problems
from paceline.cli.failures import check_partition, confirm, reported
from paceline.cli.output import output_option, show
from paceline.cli.reassign_requests import elect_leaders

if TYPE_CHECKING:
    from paceline_client import ElectionResult

_LEADERS_S: Final = 10.0
_RETRY_PAUSE_S: Final = 0.2
_COLUMNS: Final = (
    "partition",
    "replica",
    "role",
    "leo",
    "hw",
    "lag",
    "in_sync",
    "online",
    "last_caught_up_ms",
    "leader_epoch",
    "isr",
)


@click.group()
def partition() -> None:
    """Show and explain replica progress; elect leaders."""


partition.add_command(explain_partitions)


@partition.command()
@click.argument("which", metavar="TOPIC[/PARTITION]", shell_complete=topic_names)
@output_option
@bootstrap_option
def describe(which: str, output: str, bootstrap: str) -> None:
    """Show log end offset (LEO), high watermark (HW) and ISR of each replica, as reported by the leader, and problems.

    A partition without a leader is shown from the metadata. Exits with 3 when a partition has no leader or its leader
    does not answer.
    """
    topic, index = parse_partition(which)
    with reported(output):
        with open_admin(bootstrap) as admin:
            described, views = _describe_leaders(admin, topic, index)
            findings = add_findings(admin, [described])
        rows = []
        for each in described.partitions:
            view = views.get((topic, each.partition))
            told = {"findings": sentences(findings, topic, each.partition)}
            rows += [row | told for row in (_seen_by_leader(topic, view) if view else _in_metadata(topic, each))]
        show(rows, output, _COLUMNS)
        tell_problems(findings)
    if len(views) < len(described.partitions):
        raise SystemExit(NEGATIVE_VERDICT)


def _describe_leaders(admin: Any, topic: str, index: int | None) -> tuple[Any, dict[tuple[str, int], Any]]:
    """Return the topic with the chosen partitions, and the views of their leaders; retries until time is up."""
    deadline = time.monotonic() + _LEADERS_S
    views: dict[tuple[str, int], Any] = {}
    while True:
        (described,) = admin.describe_topics([topic])  # reports a topic that does not exist at once
        check_partition(topic, [each.partition for each in described.partitions], index)
        chosen = tuple(each for each in described.partitions if index in (None, each.partition))
        missing = tuple(each for each in chosen if (topic, each.partition) not in views)
        views |= admin.describe_leaders([replace(described, partitions=missing)], timeout_ms=int(_LEADERS_S * 500))
        waiting = any(each.leader is not None and (topic, each.partition) not in views for each in missing)
        if not waiting or time.monotonic() > deadline:
            return replace(described, partitions=chosen), views
        time.sleep(_RETRY_PAUSE_S)


def _seen_by_leader(topic: str, view: Any) -> list[dict[str, Any]]:
    return [
        {
            "partition": f"{topic}/{view.partition}",
            "replica": replica.broker_id,
            "role": "leader" if replica.broker_id == view.leader else "follower",
            "leo": replica.log_end_offset,
            "hw": view.high_watermark,
            "lag": replica.lag_records,
            "in_sync": replica.in_sync,
            "last_caught_up_ms": replica.last_caught_up_ago_ms,
            "last_fetch_ms": replica.last_fetch_ago_ms,
            "hw_told": replica.high_watermark,
            "online": replica.online,
            "broker_epoch": replica.broker_epoch,
            "leader_epoch": view.leader_epoch,
            "log_start": replica.log_start_offset,
            "isr": list(view.isr),
            "min_insync_replicas": view.min_insync_replicas,
            "under_replicated": view.under_replicated,
        }
        for replica in view.replicas
    ]


def _in_metadata(topic: str, partition: Any) -> list[dict[str, Any]]:
    """Return rows from the metadata, with the same keys, for a partition whose leader does not answer."""
    nothing = ("leo", "hw", "lag", "last_caught_up_ms", "last_fetch_ms", "hw_told", "broker_epoch", "log_start")
    return [
        {
            "partition": f"{topic}/{partition.partition}",
            "replica": replica,
            "role": "leader" if replica == partition.leader else "follower",
            **dict.fromkeys(nothing),
            "in_sync": replica in partition.isr,
            "online": replica not in partition.offline_replicas,
            "leader_epoch": partition.leader_epoch,
            "isr": list(partition.isr),
            "min_insync_replicas": None,
            "under_replicated": len(partition.isr) < len(partition.replicas),
        }
        for replica in partition.replicas
    ]


@partition.command()
@click.argument("which", nargs=-1, metavar="[TOPIC[/PARTITION]]...", shell_complete=topic_names)
@click.option("--preferred", is_flag=True, help="the first assigned replica, if it is in sync")
@click.option("--unclean", is_flag=True, help="any replica that is online: may lose records permanently")
@click.option("--all", "everything", is_flag=True, help="every partition that needs such an election")
@click.option("--yes", is_flag=True, help="do not ask before an unclean election")
@click.option("--dry-run", is_flag=True, help="show the leaders without electing them")
@output_option
@bootstrap_option
def elect(
    which: tuple[str, ...],
    preferred: bool,
    unclean: bool,
    everything: bool,
    yes: bool,
    dry_run: bool,
    output: str,
    bootstrap: str,
) -> None:
    """Elect leaders and return when they have acknowledged; skips partitions that need no election."""
    if preferred and unclean:
        raise click.UsageError("give either --preferred or --unclean, not both")
    if not (preferred or unclean):
        raise click.UsageError("choose an election: --preferred or --unclean")
    election: Literal["preferred", "unclean"] = "unclean" if unclean else "preferred"
    if bool(which) == everything:
        raise click.UsageError("name partitions, or give --all")
    wanted = [parse_partition(text) for text in which]
    with reported(output):
        with open_admin(bootstrap) as admin:
            named = None if everything else _expanded(admin, wanted)
            if unclean and not yes and not dry_run:
                results = _elect_confirmed(admin, named)
            else:
                results = elect_leaders(admin, election, named, validate_only=dry_run)
                if unclean:
                    _warn(admin, results, done=not dry_run)
        rows = [
            {
                "partition": str(each.topic_partition),
                "leader": each.leader,
                "leader_epoch": each.leader_epoch,
                "unclean": each.unclean,
                "error": None if each.error is None else each.error.code.name,
                "message": None if each.error is None else str(each.error),
            }
            for each in results
        ]
        if rows or output != "table":
            show(rows, output)
        else:
            click.echo(f"no partition needs {'an unclean' if unclean else 'a preferred'} election", err=True)
        failed = [each.error for each in results if each.error and each.error.code.name != "ELECTION_NOT_NEEDED"]
        if failed:
            raise failed[-1]


def _elect_confirmed(admin: Any, named: list[tuple[str, int]] | None) -> "list[ElectionResult]":
    """Show the effect of an unclean election, ask for confirmation, and elect only these leaders."""
    forecast = elect_leaders(admin, "unclean", named, validate_only=True)
    agreed = [each.topic_partition for each in forecast if each.error is None]
    if not agreed:
        return forecast
    _warn(admin, forecast)
    confirm(f"elect leaders for these {len(agreed)} partitions?")
    others = [each for each in forecast if each.error is not None]
    return [*elect_leaders(admin, "unclean", agreed), *others]


def _expanded(admin: Any, wanted: list[tuple[str, int | None]]) -> list[tuple[str, int]]:
    """Return the partitions; a bare topic stands for all of its partitions."""
    found: list[tuple[str, int]] = []
    for topic, index in wanted:
        if index is not None:
            found.append((topic, index))
        else:
            found += partitions_of(admin.describe_topics([topic]))
    return list(dict.fromkeys(found))


def _warn(admin: Any, results: Any, done: bool = False) -> None:
    """Warn about the records that an unclean election loses, by partition."""
    lossy = [each for each in results if each.unclean]
    if not lossy:
        return
    topics = admin.describe_topics(sorted({each.topic_partition.topic for each in lossy}), from_controller=True)
    described = partitions_of(topics)
    for each in lossy:
        known = described.get(tuple(each.topic_partition))
        gone = [] if known is None or done else [str(broker) for broker in known.isr if broker != each.leader]
        click.echo(
            f"{each.topic_partition}: broker {each.leader} {'leads now' if done else 'would lead'}; every record it "
            f"had not copied{' from ' + ', '.join(gone) if gone else ''} is lost permanently, "
            "acknowledged records included",
            err=True,
        )
