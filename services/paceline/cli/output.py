"""One way to print rows: a table for people, JSON or NDJSON for programs."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

FORMATS = ("table", "json", "ndjson")
Row = Mapping[str, Any]
_WIDE = 240

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
    if not rows:
        click.echo("nothing to show", err=True)
        return
    from rich.console import Console
    from rich.table import Table

    names = list(columns or rows[0])
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        numeric = all(isinstance(row.get(name), int | float) or row.get(name) is None for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in names))
    console = Console(highlight=False)
    # Nothing is cut when the output goes to a file or a program.
    console.print(table) if console.is_terminal else Console(highlight=False, width=_WIDE).print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value)
