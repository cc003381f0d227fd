"""One way to print rows: a table for people, JSON or NDJSON for programs."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

FORMATS = ("table", "json", "ndjson")
Row = Mapping[str, Any]
_WIDE = 100_000

output_option: Callable[[Any], Any] = click.option(
    "-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True, help="form of the output"
)


def show(rows: Sequence[Row], output: str, columns: Sequence[str] | None = None, title: str | None = None) -> None:
    """Print rows; ``columns`` picks and orders those of the table, JSON always has every key."""
    if output == "json":
        click.echo(json.dumps(list(rows), indent=2))
        return
    if output == "ndjson":
        for row in rows:
            click.echo(json.dumps(row))
        return
    if title:
        click.echo(title)
    if not rows:
        click.echo("nothing to show", err=True)
        return
    from rich.console import Console
    from rich.table import Table

    names = list(columns or rows[0])
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        numeric = all(isinstance(row.get(name), int | float) or row.get(name) is None for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in names))
    # A row is one line also on a narrow terminal: a name that is broken over lines cannot be copied.
    console = Console(highlight=False, width=_WIDE)
    # Rich ends the process by itself when the reader has gone; `click.echo` raises, as for every other form.
    with console.capture() as captured:
        console.print(table)
    text = captured.get()
    click.echo(
        text if console.is_terminal else "\n".join(map(str.rstrip, text.splitlines())), nl=not console.is_terminal
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value)
