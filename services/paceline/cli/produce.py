"""`paceline produce`: write each line of stdin as a record."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, BinaryIO, Final, Literal

import click

from paceline.cli.completion import topic_names
from paceline.cli.connection import bootstrap_option, open_admin, parse_partition
from paceline.cli.exit_codes import LOCAL_FAILURE
from paceline.cli.failures import check_partition, reported
from paceline.cli.record_text import LineRecord, from_json
from paceline.model.errors import InvalidRequestError, MessageTooLargeError, PacelineError, RequestTimedOutError

_ACKS: Final[Mapping[str, Literal[-1, 0, 1]]] = {"all": -1, "leader": 1, "none": 0, "-1": -1, "1": 1, "0": 0}
"""Names and Kafka's numbers."""
_NOTICE_EVERY_S: Final = 3.0
"""Interval between checks whether the producer waits for another reason than the printed one."""
_INTERRUPTED_FLUSH_S: Final = 2.0
"""Time to deliver the remaining records after Ctrl-C."""
_LONGEST_S: Final = 150.0
"""Longer than the producer's delivery timeout, after which every record has a result."""
_MAX_BLOCK_MS: Final = 15_000
"""Timeout when the cluster does not answer, as short as in the other commands."""

_MAX_RECORD_BYTES: Final = 1_000_000
_MAX_LINE_BYTES: Final = _MAX_RECORD_BYTES + len(b"\r\n")
_ENDLESS_BYTES: Final = 64 << 20
"""Longest line that is skipped; a longer line ends the input, because it is probably binary and may never end."""


@click.command()
@click.argument("which", metavar="TOPIC[/PARTITION]", shell_complete=topic_names)
@click.option(
    "-i",
    "--input",
    "form",
    type=click.Choice(["lines", "ndjson", "json"]),
    default="lines",
    show_default=True,
    help="lines are values; json and ndjson both read a JSON object per line, as consume -o json prints it: value, and"
    " optionally key, headers, partition, timestamp_ms",
)
@click.option("-k", "--key", help="key of every record without another key")
@click.option("--key-separator", metavar="TEXT", help="split each line into KEY, this text, VALUE")
@click.option("-Z", "--tombstone", is_flag=True, help="send empty values as null: compaction then deletes the key")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="header of every record")
@click.option("--acks", type=click.Choice(["all", "leader", "none", "-1", "1", "0"]), default="all", show_default=True)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
)
@bootstrap_option
def produce(
    which: str,
    form: str,
    key: str | None,
    key_separator: str | None,
    tombstone: bool,
    headers: tuple[str, ...],
    acks: str,
    compression: str,
    bootstrap: str,
) -> None:
    """Write each line of stdin as a record and print the records per partition; skips lines that are too large.

    Ends with the input. Ctrl-C also ends it, after writing the lines read so far, if that takes only a moment.
    """
    topic, partition = parse_partition(which)
    if key_separator == "":
        raise click.BadParameter("must have at least one character", param_hint="--key-separator")
    if form != "lines" and (key_separator is not None or tombstone):
        raise click.UsageError("JSON lines have keys and null values: give neither --key-separator nor --tombstone")
    if sys.stdin is None:
        raise click.UsageError("stdin is closed")
    pairs: list[tuple[str, bytes | None]] = [_header(text) for text in headers]
    default_key = None if key is None else key.encode()
    counts: dict[int, int] = {}
    failures: list[str] = []

    def delivered(at: object, error: Exception | None) -> None:
        if error is not None:
            failures.append(f"{type(error).__name__}: {error}")
        elif at is not None:
            index = at.partition  # type: ignore[attr-defined]
            counts[index] = counts.get(index, 0) + 1

    with reported():
        from paceline_client import Producer

        with open_admin(bootstrap) as admin:  # fails at once for an unknown topic, unlike a producer
            (found,) = admin.describe_topics([topic])
            indexes = [each.partition for each in found.partitions]
            check_partition(topic, indexes, partition)
        if sys.stdin.isatty() and sys.stderr.isatty():
            click.echo(f"each line is a record of {which}; Ctrl-D ends the input", err=True)
        try:
            with Producer(
                bootstrap,
                acks=_ACKS[acks],
                enable_idempotence=_ACKS[acks] == -1,
                compression=compression,
                max_record_bytes=_MAX_RECORD_BYTES,
                max_block_ms=_MAX_BLOCK_MS,
            ) as producer:
                try:
                    for number, line in enumerate(_lines(sys.stdin.buffer), 1):
                        if line is None:
                            failures.append(f"line {number}: MESSAGE_TOO_LARGE: more than {_MAX_RECORD_BYTES} bytes")
                            continue
                        line = line.rstrip(b"\r\n")
                        try:
                            record = from_json(line) if form != "lines" else _record(line, key_separator, key is None)
                            at = partition if record.partition is None else record.partition
                            if at is not None and at not in indexes:
                                raise ValueError(f"names partition {at}, but {topic} has {len(indexes)} partitions")
                        except ValueError as error:
                            failures.append(f"line {number}: {error}; not sent")
                            continue
                        try:
                            producer.send(
                                topic,
                                None if tombstone and not record.value else record.value,
                                key=default_key if record.key is None else record.key,
                                partition=at,
                                headers=[*pairs, *record.headers],
                                timestamp_ms=record.timestamp_ms,
                                on_delivery=delivered,
                            )
                        except (MessageTooLargeError, InvalidRequestError) as error:
                            failures.append(f"line {number}: {error.code.name}: {error}")
                    _wait(producer)
                except KeyboardInterrupt:
                    with suppress(PacelineError):
                        producer.flush(_INTERRUPTED_FLUSH_S)
                    raise
        finally:
            for failure in list(dict.fromkeys(failures))[:3]:
                click.echo(failure, err=True)
            where = ", ".join(f"{count} to {topic}/{index}" for index, count in sorted(counts.items()))
            total = sum(counts.values())
            click.echo(f"{total} record{'' if total == 1 else 's'}{': ' + where if where else ''}", err=True)
            if failures:
                click.echo(f"{len(failures)} records failed", err=True)
    if failures:
        raise SystemExit(LOCAL_FAILURE)


def _lines(stream: BinaryIO) -> Iterator[bytes | None]:
    """Yield each line, or None for a line that is too large for a record and is therefore dropped.

    A line of more than `_ENDLESS_BYTES` ends the input.
    """
    while line := stream.readline(_MAX_LINE_BYTES + 1):
        if len(line) <= _MAX_LINE_BYTES:
            yield line
            continue
        yield None
        dropped_bytes = 0
        while line and not line.endswith(b"\n"):
            dropped_bytes += len(line)
            if dropped_bytes > _ENDLESS_BYTES:
                click.echo(f"input ended at a line of more than {_ENDLESS_BYTES} bytes", err=True)
                return
            line = stream.readline(_MAX_LINE_BYTES + 1)


def _record(line: bytes, separator: str | None, needs_key: bool) -> LineRecord:
    """Return the record of a line.

    Raises:
        ValueError: the line lacks the separator and ``needs_key``.
    """
    if separator is None:
        return LineRecord(None, line, [])
    before, found, after = line.partition(separator.encode())
    if not found and needs_key:
        raise ValueError(f"has no {separator!r} between key and value")
    return LineRecord(before, after, []) if found else LineRecord(None, line, [])


def _wait(producer: Any) -> None:
    """Wait until every record has a result, and print what the producer waits for."""
    said = ""
    deadline = time.monotonic() + _LONGEST_S
    while time.monotonic() < deadline:
        try:
            producer.flush(_NOTICE_EVERY_S)
            return
        except RequestTimedOutError as error:
            _, separator, why = str(error).partition("; ")
            if why != said and separator:
                click.echo(f"waiting: {why}", err=True)
                said = why
    producer.flush()


def _header(text: str) -> tuple[str, bytes]:
    name, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value.encode()
