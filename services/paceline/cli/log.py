"""``paceline log``: show and check the files of a broker that is stopped. Nothing is changed."""

import errno
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.exit_codes import NEGATIVE_VERDICT
from paceline.cli.failures import reported
from paceline.cli.output import Row, output_option, printable
from paceline.cli.record_text import to_text

if TYPE_CHECKING:
    from paceline.log.os_files import ReadOnlyFiles

_directory = click.argument("directory", metavar="DIR")


@click.group()
def log() -> None:
    """Show and check the files of a broker that is stopped, without a change.

    DIR is a log directory (`log.dirs`) or the folder of one partition in it. A directory that a running broker has
    locked is refused, and a broker that is started meanwhile finds the directory locked.
    """


@log.command(name="dump")
@_directory
@click.option("--records", is_flag=True, help="print the records of each batch too")
@output_option
def dump_command(directory: str, records: bool, output: str) -> None:
    """Print every batch, index entry, producer snapshot, epoch and checkpoint; exits with 3 if a file is unreadable."""
    from paceline.log.inspection.dump import dump

    _run(directory, output, lambda files, path: dump(files, path, records))


@log.command(name="verify")
@_directory
@output_option
def verify_command(directory: str, output: str) -> None:
    """Print each byte that breaks a rule of the format, and the remedy; exits with 3 if a rule is broken.

    Files that are only out of place, for example those of a log that was set aside, are printed as notes.
    """
    from paceline.log.inspection.verify import Verifier

    _run(directory, output, lambda files, path: Verifier(files, path).findings(), "broken rules")


@log.command(name="offsets")
@_directory
@output_option
def offsets_command(directory: str, output: str) -> None:
    """Print the committed offsets and groups in __consumer_offsets; exits with 3 if a record is unreadable."""
    from paceline.cli.group_records import group_rows

    _run(directory, output, group_rows)


def _run(
    directory: str, output: str, rows_of: "Callable[[ReadOnlyFiles, str], Iterable[Row]]", total: str | None = None
) -> None:
    """Print rows as they come; exit with 3 if one is unreadable or says that a rule is broken."""
    negative = number = 0
    with reported(output), _at_rest(directory) as (files, path):
        for number, row in enumerate(rows_of(files, path), 1):
            negative += row.get("broken", row.get("kind") == "unreadable" or "unreadable_records" in row)
            if output == "table":
                click.echo(_finding(row) if "broken" in row else _line(row))
            else:
                before = "" if output == "ndjson" else "[\n" if number == 1 else ",\n"
                click.echo(before + json.dumps(row, default=to_text), nl=output == "ndjson")
        if output == "json":
            click.echo("\n]" if number else "[]")
        elif output == "table" and total is not None:
            click.echo(f"{total}: {negative}")
    sys.exit(NEGATIVE_VERDICT if negative else 0)


@contextmanager
def _at_rest(directory: str) -> "Iterator[tuple[ReadOnlyFiles, str]]":
    """Hold a shared lock on the log directory, so that no broker changes files that are being read.

    A log that was set aside is read without the lock: a running broker does not use it.

    Raises:
        OSError: there is no such directory, or a running broker has locked it.
    """
    from paceline.log.directory_names import is_set_aside
    from paceline.log.inspection.dump import log_folders
    from paceline.log.log_manager import LOCK_FILE
    from paceline.log.os_files import ReadOnlyFiles

    path = Path(directory).resolve()
    with ExitStack() as stack:
        files = stack.enter_context(closing(ReadOnlyFiles()))
        log_dir = path.parent if str(path) in log_folders(files, str(path)) else path
        if (log_dir / LOCK_FILE).exists() and not is_set_aside(path.name):
            lock = files.lock(str(log_dir / LOCK_FILE))
            if lock is None:
                reason = "a running broker has locked this log directory; stop the broker first"
                raise OSError(errno.EBUSY, reason, str(log_dir))
            stack.callback(lock.release)
        yield files, str(path)


def _finding(row: Row) -> str:
    place = f"{printable(row['file'])}, byte {row['position']}"
    return f"{'broken' if row['broken'] else 'note'}: {place}: {row['rule']}: {row['message']}\n    {row['advice']}"


def _line(row: Row) -> str:
    """Return a row as words; values that are absent (null, -1, false, empty) are left out."""
    place = f"{printable(row['file'])}, byte {row['position']}" if "position" in row else printable(row["file"])
    words = ", ".join(_words(row, ("file", "position", "kind", "records")))
    records = (f"\n    record: {', '.join(_words(record))}" for record in row.get("records", ()))
    return f"{place}: {row['kind']}: {words}{''.join(records)}"


def _words(row: Row, without: tuple[str, ...] = ()) -> Iterator[str]:
    for name, value in row.items():
        word = name.replace("_", " ")
        if name == "crc_valid" and not value:
            yield "crc WRONG"
        elif value is True or (value is None and name in ("key", "value")):
            yield word if value else f"{word} null"
        elif not (name in without or value is None or value is False or value in (-1, [], "")):
            text = value if isinstance(value, int | str) else json.dumps(value, default=to_text, ensure_ascii=False)
            yield f"{word} {printable(str(text))}"
