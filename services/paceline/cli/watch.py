"""`paceline watch`: follow events of the cluster live."""

import datetime
import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from paceline.cli.completion import topic_names
from paceline.cli.connection import bootstrap_option, open_admin, parse_partition
from paceline.cli.failures import reported
from paceline.cli.numbers import BROKER_ID
from paceline.model.errors import PacelineError
from paceline.model.state_change import StateChange, StateChangeKind, state_change_fields
from paceline.operations.times import parse_moment

_GROUPS: Final = {
    "isr": ("isr-proposed", "isr-shrunk", "isr-expanded", "isr-refused", "isr-unknown"),
    "leader": ("leader-elected", "became-leader", "became-follower"),
    "controller": ("controller-elected", "controller-resigned", "control-refused", "control-request"),
    "broker": ("broker-up", "broker-down", "broker-registered", "session-changed"),
    "log": ("log-dir-failed", "log-damaged", "log-set-aside", "became-offline"),
    "topic": ("topic-created", "topic-deleted"),
    "config": ("topic-configured", "broker-configured"),
    "truncate": ("truncated",),
    "reassign": ("reassignment",),
    "state": ("transition",),
}
_REPLICA_OFFLINE: Final = "OfflineReplica"
_NEW_PARTITION_STEPS: Final = (("NonExistentPartition", "NewPartition"), ("NewPartition", "OnlinePartition"))
_OFFSETS: Final = ("isr-shrunk", "isr-expanded", "isr-refused", "truncated")


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC[/PARTITION]]...", shell_complete=topic_names)
@click.option(
    "-k",
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND",
    help=f"show only these: {', '.join(_GROUPS)}, or a kind as printed; may be repeated",
)
@click.option("--since", metavar="10m|all|TIME", help="start in the past: 90s, 10m, 2h, all, 2026-11-21T17:00")
@click.option("--broker", "broker_id", type=BROKER_ID, help="show events of a broker instead of the controller")
@click.option("-n", "--num", type=click.IntRange(min=1), help="stop after this many lines")
@click.option(
    "--record",
    "record_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="write all events and the offsets of these partitions into a file for `paceline console --replay`",
)
@click.option("-o", "--output", type=click.Choice(["table", "ndjson"]), default="table", show_default=True)
@bootstrap_option
def watch(
    topics: tuple[str, ...],
    kinds: tuple[str, ...],
    since: str | None,
    broker_id: int | None,
    num: int | None,
    record_file: Path | None,
    output: str,
    bootstrap: str,
) -> None:
    """Follow elections, ISR changes, brokers and topics live, until interrupted.

    The events come from the active controller, and from the next controller after a failover; with --broker from that
    broker, with offsets of its own replicas. Normal transitions of single replicas are shown only with --kind state.
    """
    wanted = [parse_partition(text) for text in topics]
    if record_file is not None:
        if kinds or since or broker_id is not None or num:
            raise click.UsageError("--record writes all events from now on; it takes only topics")
        from paceline.cli.watch_record import record

        with reported(output):
            record(bootstrap, record_file, wanted)
        return
    since_ms, chosen = _since_ms(since), _kinds(kinds)
    with reported(output), open_admin(bootstrap) as admin:
        from paceline.rpc.convert.events import MAX_NAMED_PARTITIONS

        admin.describe_cluster()  # fails when no broker answers, unlike a watch, which waits for one
        _warn_if_absent(admin, {topic for topic, _ in wanted})
        items = admin.watch_events(
            since_ms=since_ms,
            topics=sorted({topic for topic, _ in wanted}),
            kinds=chosen,
            partitions=[(topic, index) for topic, index in wanted if index is not None][:MAX_NAMED_PARTITIONS],
            broker_id=broker_id,
        )
        lines = _event_lines(items, wanted, bool(kinds), fold=output == "table" and not kinds)
        _print(lines, output, num)


def _warn_if_absent(admin: Any, topics: set[str]) -> None:
    """Warn about topics that do not exist: a watch on a mistyped name would never print an event."""
    with suppress(PacelineError):
        if absent := sorted(topics.difference(admin.list_topics() if topics else ())):
            click.echo(f"does not exist now: {', '.join(absent)}", err=True)


def _print(lines: Iterator[tuple[dict[str, Any], str]], output: str, num: int | None) -> None:
    printed = 0
    for row, text in lines:
        if row:
            click.echo(json.dumps(row) if output == "ndjson" else text)
            printed += 1
            if printed == num:
                return
        else:
            click.echo(text, err=True)


def _event_lines(
    items: Any, wanted: list[tuple[str, int | None]], with_replica_steps: bool, fold: bool = False
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each event as a row and as a line; a note for the user has an empty row."""
    address = ""
    for item in items:
        if item.address != address:
            yield {}, f"{'watching' if not address else 'continuing at'} {item.address}"
            address = item.address
        if item.gap is not None and not item.gap.other_process:
            yield {}, f"{item.gap.lost_count} events were dropped because this watcher was too slow"
        shown = [
            change
            for change in item.events
            if _is_wanted(change, wanted) and (with_replica_steps or not _is_replica_step(change))
        ]
        for change in _folded(shown) if fold else shown:
            yield state_change_fields(change), event_line(change)


def _folded(changes: list[StateChange]) -> Iterator[StateChange]:
    """Yield changes, the steps of a topic's new partitions as one: 16 partitions make 32 steps to OnlinePartition."""
    for topic, steps in itertools.groupby(changes, _new_topic):
        if topic is None:
            yield from steps
            continue
        each = list(steps)
        count = len({step.topic_partition for step in each})
        cause = f"{count} partition{'s' * (count > 1)}, {each[0].cause}"
        whole = replace(each[-1], topic_partition=None, topic=topic, from_state=each[0].from_state, cause=cause)
        yield replace(whole, leader=None, isr=None, controller_epoch=None)


def _new_topic(change: StateChange) -> str | None:
    """Return the topic of a partition's step from creation to OnlinePartition, None for any other change."""
    is_step = (change.from_state, change.to_state) in _NEW_PARTITION_STEPS and change.replica is None
    return change.topic_partition.topic if is_step and change.topic_partition is not None else None


def _is_replica_step(change: StateChange) -> bool:
    """Whether a replica made a normal transition; a transition to offline does not count: it may shrink the ISR."""
    is_step = change.kind is StateChangeKind.TRANSITION and change.replica is not None
    return is_step and change.to_state != _REPLICA_OFFLINE


def _is_wanted(change: StateChange, wanted: list[tuple[str, int | None]]) -> bool:
    if not wanted or change.topic_partition is None:
        return True
    topic, partition = change.topic_partition
    return any(topic == name and index in (None, partition) for name, index in wanted)


def event_line(change: StateChange) -> str:
    """Return an event as a line: time (with the date, unless it is today), source, kind, subject and details."""
    where = "-"
    if change.topic_partition is not None:
        where = str(change.topic_partition)
    elif change.topic is not None:
        where = change.topic
    moment = datetime.datetime.fromtimestamp(change.wall_ms / 1000)
    day = "" if moment.date() == datetime.date.today() else f"{moment:%Y-%m-%d} "
    when = moment.strftime("%H:%M:%S.%f")[:-3]
    return f"{day}{when}  {change.who:<19} {change.kind.value:<19} {where:<20} {'  '.join(_details(change))}".rstrip()


def _details(change: StateChange) -> Iterator[str]:
    if change.kind is StateChangeKind.TRANSITION and change.to_state:
        replica = f"replica {change.replica} " if change.replica is not None else ""
        yield f"{replica}{change.from_state} -> {change.to_state}"
    elif change.topic_partition is None and change.replica is not None:
        yield f"broker {change.replica}"
    if change.leader is not None:
        yield f"leader {'none' if change.leader < 0 else change.leader} epoch {change.leader_epoch}"
    if change.isr is not None:
        before = f"{_ids(change.old_isr)} -> " if change.old_isr and change.old_isr != change.isr else ""
        yield f"isr {before}{_ids(change.isr)}"
    if change.kind.value in _OFFSETS and change.replicas:
        yield "ends " + " ".join(f"{one.broker_id}:{_or_dash(one.log_end_offset)}" for one in change.replicas)
    if change.topic_partition is None and change.controller_epoch:
        yield f"controller epoch {change.controller_epoch}"
    if change.answer is not None:
        yield f"{change.answer.request} {change.answer.error or 'applied'}"
    if change.cause:
        yield f"({change.cause})"


def _ids(brokers: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, brokers)) + "]"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _kinds(texts: tuple[str, ...]) -> list[StateChangeKind]:
    words = [word for text in texts for part in text.split(",") for word in _GROUPS.get(part, (part,))]
    known = {kind.value: kind for kind in StateChangeKind}
    for word in words:
        if word not in known:
            raise click.BadParameter(f"{word!r} is none of {', '.join([*_GROUPS, *known])}", param_hint="--kind")
    return [known[word] for word in dict.fromkeys(words)]


def _since_ms(text: str | None) -> int | None:
    """Return the Unix time in ms of ``10m``, ``all`` (0) or a date and time; None if ``text`` is None."""
    if text is None:
        return None
    since_ms = 0 if text == "all" else parse_moment(text)
    if since_ms is None:
        raise click.BadParameter(
            f"{text!r} is neither a time ago like 10m, nor all, nor a time like 2026-11-21T17:00",
            param_hint="--since",
        )
    return since_ms
