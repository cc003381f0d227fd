"""`paceline top`: show offsets, lag and ISR of partitions live."""

import json
import math
import sys
import time
from dataclasses import replace
from typing import Any, Final

import click

from paceline.cli.completion import topic_names
from paceline.cli.connection import bootstrap_option, open_admin, parse_partition
from paceline.cli.failures import check_partition, reported
from paceline.cli.numbers import INTERVAL_S
from paceline.cli.output import cell, show

_COLUMNS: Final = ("partition", "leader", "epoch", "leo", "hw", "lag", "behind_ms", "isr", "replicas", "state")
_LEAST_IMPORTANT: Final = ("replicas", "epoch", "behind_ms", "hw", "leo", "leader")
_GAP: Final = 2
_LEADER_MS: Final = 3_000
_WORST: Final = {"offline": 0, "under-min-isr": 1, "under-replicated": 2, "unknown": 3, "": 4}


@click.command()
@click.argument("which", nargs=-1, metavar="[TOPIC[/PARTITION]]...", shell_complete=topic_names)
@click.option("--sort", type=click.Choice(["lag", "partition"]), default="lag", show_default=True)
@click.option("--under-replicated", "troubled", is_flag=True, help="show only partitions with problems")
@click.option("-n", "--num", type=click.IntRange(min=1), help="maximum number of rows [default: the terminal height]")
@click.option("--interval", type=INTERVAL_S, default=1.0, show_default=True, metavar="SECONDS")
@click.option("--once", is_flag=True, help="print once and stop")
@click.option("-o", "--output", type=click.Choice(["table", "ndjson"]), default="table", show_default=True)
@bootstrap_option
def top(
    which: tuple[str, ...],
    sort: str,
    troubled: bool,
    num: int | None,
    interval: float,
    once: bool,
    output: str,
    bootstrap: str,
) -> None:
    """Show log end (LEO), high watermark (HW), lag and ISR of partitions.

    Lag is the number of records that the slowest follower lacks; it is unknown (-) while the leader does not know the
    end of a follower, for example of a dead follower. behind_ms is the longest known time since a follower was caught
    up.
    Partitions with problems come first. A narrow terminal gets fewer columns. Without a terminal each round is printed
    below the previous round.
    """
    wanted = [parse_partition(text) for text in which]
    with reported(output), open_admin(bootstrap) as admin:

        def rows() -> list[dict[str, Any]]:
            return _chosen(_rows(admin, wanted), sort, troubled)

        if once:
            _print(rows()[:num], output)
        elif output == "table" and sys.stdout.isatty():
            _live(rows, num, interval)
        else:
            while True:
                _print(rows()[:num], output)
                time.sleep(interval)


def _rows(admin: Any, wanted: list[tuple[str, int | None]]) -> list[dict[str, Any]]:
    """Return a row per partition; a row has only metadata when the leader does not answer."""
    topics = admin.describe_topics(dict.fromkeys(topic for topic, _ in wanted) or None)
    chosen = [
        replace(topic, partitions=tuple(each for each in topic.partitions if _is_named(topic.name, each, wanted)))
        for topic in topics
    ]
    there = {topic.name: [each.partition for each in topic.partitions] for topic in topics}
    for name, index in wanted:
        check_partition(name, there[name], index)
    views = admin.describe_leaders(chosen, timeout_ms=_LEADER_MS)
    return [
        _row(topic.name, each, views.get((topic.name, each.partition))) for topic in chosen for each in topic.partitions
    ]


def _is_named(topic: str, partition: Any, wanted: list[tuple[str, int | None]]) -> bool:
    return not wanted or any(topic == name and index in (None, partition.partition) for name, index in wanted)


def _row(topic: str, partition: Any, view: Any) -> dict[str, Any]:
    row = {
        "partition": f"{topic}/{partition.partition}",
        "leader": partition.leader,
        "epoch": partition.leader_epoch,
        "leo": None,
        "hw": None,
        "lag": None,
        "behind_ms": None,
        "isr": list(partition.isr),
        "replicas": list(partition.replicas),
        "state": "offline" if partition.leader is None else "unknown",
    }
    if view is None:
        return row
    followers = [each for each in view.replicas if each.broker_id != view.leader]
    leo = next((each.log_end_offset for each in view.replicas if each.broker_id == view.leader), None)
    lags = [each.lag_records for each in followers if each.lag_records is not None]
    behind = [each.last_caught_up_ago_ms for each in followers if each.last_caught_up_ago_ms is not None]
    state = "under-replicated" if view.under_replicated else ""
    if len(view.isr) < view.min_insync_replicas:
        state = "under-min-isr"
    row.update(
        leader=view.leader,
        epoch=view.leader_epoch,
        leo=leo,
        hw=view.high_watermark,
        lag=max(lags, default=0) if len(lags) == len(followers) else None,
        behind_ms=max(behind, default=None),
        isr=list(view.isr),
        state=state,
    )
    return row


def _chosen(rows: list[dict[str, Any]], sort: str, troubled: bool) -> list[dict[str, Any]]:
    if troubled:
        rows = [row for row in rows if row["state"]]
    if sort == "lag":
        # Problems first, then the largest lag; rows with equal lag keep their order.
        rows = sorted(rows, key=lambda row: (_WORST[row["state"]], -_known_lag(row)))
    return rows


def _known_lag(row: dict[str, Any]) -> float:
    """Return the lag to sort by; an unknown lag may be large and sorts first."""
    return math.inf if row["lag"] is None else row["lag"]


def _print(rows: list[dict[str, Any]], output: str) -> None:
    if output == "ndjson":
        now_ms = int(time.time() * 1000)
        for row in rows:
            click.echo(json.dumps({"wall_ms": now_ms, **row}))
    else:
        show(rows, output, _COLUMNS)
    sys.stdout.flush()


def _live(rows: Any, num: int | None, interval_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from paceline.model.errors import PacelineError

    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        note = ""
        found: list[dict[str, Any]] = []
        while True:
            try:
                found, note = rows(), ""
            except PacelineError as error:
                if not error.retriable:
                    raise
                note = f"{error.code.name}: {error}"
            shown = screen(found, num or max(1, console.size.height - 4), note, console.size.width)
            live.update(shown, refresh=True)
            time.sleep(interval_s)


def columns_that_fit(rows: list[dict[str, Any]], width: int) -> tuple[str, ...]:
    """Return the columns that fit into ``width`` characters uncut; the least important columns are left out first."""
    widths = {name: max([len(name), *(len(cell(row[name])) for row in rows)]) + _GAP for name in _COLUMNS}
    left_out = 0
    while left_out < len(_LEAST_IMPORTANT) and sum(widths.values()) > width:
        del widths[_LEAST_IMPORTANT[left_out]]
        left_out += 1
    return tuple(widths)


def screen(rows: list[dict[str, Any]], num: int, note: str, width: int) -> Any:
    """Return the text for a terminal that is ``width`` characters wide."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    trouble = sum(1 for row in rows if row["state"])
    head = f"{time.strftime('%H:%M:%S')}  {len(rows)} partitions, {trouble} with problems"
    table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="bold")
    columns = columns_that_fit(rows[:num], width)
    for name in columns:
        justify: Any = "right" if name in {"epoch", "leo", "hw", "lag", "behind_ms"} else "left"
        # A partition name too long for the terminal wraps to a second line, so that no other column is cut.
        is_name = name == "partition"
        table.add_column(name.replace("_", " "), justify=justify, no_wrap=not is_name, overflow="fold")
    for row in rows[:num]:
        style = "red" if row["state"] in {"offline", "under-min-isr"} else "yellow" if row["state"] else ""
        table.add_row(*(cell(row[name]) for name in columns), style=style)
    more = [Text(f"{len(rows) - num} more", style="dim")] if len(rows) > num else []
    return Group(Text(head, style="bold"), *([Text(note, style="red")] if note else []), table, *more)
