"""Print rows as a table for people, or as JSON or NDJSON for programs."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from paceline.model.errors import PacelineError

FORMATS = ("table", "json", "ndjson")
Row = Mapping[str, Any]
_WIDE = 100_000

output_option: Callable[[Any], Any] = click.option(
    "-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True, help="output format"
)


def show(rows: Sequence[Row], output: str, columns: Sequence[str] | None = None, title: str | None = None) -> None:
    """Print rows; ``columns`` selects and orders the columns of the table, while JSON always has every key."""
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
        table.add_row(*(cell(row.get(name)) for name in names))
    # Keep a row on a single line even on a narrow terminal: a name that is wrapped cannot be copied.
    # Without these arguments rich would read `[x]` as markup and `:b:` as an emoji.
    console = Console(highlight=False, markup=False, emoji=False, width=_WIDE)
    # Rich would exit the process when the reader closes the pipe; `click.echo` raises, as for the other formats.
    with console.capture() as captured:
        console.print(table)
    text = captured.get()
    click.echo(
        text if console.is_terminal else "\n".join(map(str.rstrip, text.splitlines())), nl=not console.is_terminal
    )


def show_summary(summary: Mapping[str, Any], output: str) -> None:
    """Print names and values, a line each in the table format."""
    if output != "table":
        click.echo(json.dumps(dict(summary), indent=2 if output == "json" else None))
        return
    for name, value in summary.items():
        if name == "details":
            continue  # for programs
        shown = ", ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else value
        shown = ", ".join(map(str, value)) if isinstance(value, list) else shown
        click.echo(f"{name.replace('_', ' ')}: {shown if shown != '' else '-'}")


def tell(rows: Sequence[Row], output: str, line: str) -> None:
    """Print the outcome of a change: ``line`` as table output, ``rows`` in the other formats."""
    if output == "table":
        click.echo(line)
    else:
        show(rows, output)


def error_fields(error: "PacelineError | None") -> dict[str, str | None]:
    """Return the ``error`` and ``message`` of a row, both None without an error."""
    return {"error": None if error is None else error.code.name, "message": None if error is None else str(error)}


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return "-"
    text = ",".join(str(item) for item in value) if isinstance(value, list | tuple) else str(value)
    return printable(text)


def printable(text: str) -> str:
    """Return a text without characters that clear the screen or reverse the text; a client may choose such names."""
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
