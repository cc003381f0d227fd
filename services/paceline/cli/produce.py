"""`paceline produce`: lines of stdin become records."""

import sys

import click

from paceline.cli.connection import bootstrap_option, parse_partition
from paceline.cli.failures import LOCAL_FAILURE, check_partition, reported
from paceline.model.errors import MessageTooLargeError

_MAX_BLOCK_MS = 15_000
"""A person waits at a terminal: a cluster that does not answer is reported as soon as by the other commands."""


@click.command()
@click.argument("which", metavar="TOPIC[/PARTITION]")
@click.option("-k", "--key", help="key of every record")
@click.option("--key-separator", metavar="TEXT", help="a line is KEY, this text, VALUE")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="header of every record")
@click.option("--acks", type=click.Choice(["all", "leader", "none"]), default="all", show_default=True)
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
    key: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    acks: str,
    compression: str,
    bootstrap: str,
) -> None:
    """Write each line of stdin as one record and say where they went; lines that are too large are left out."""
    topic, partition = parse_partition(which)
    pairs = [_header(text) for text in headers]
    counts: dict[int, int] = {}
    failures: list[str] = []

    def delivered(at: object, error: Exception | None) -> None:
        if error is not None:
            failures.append(f"{type(error).__name__}: {error}")
        elif at is not None:
            index = at.partition  # type: ignore[attr-defined]
            counts[index] = counts.get(index, 0) + 1

    with reported():
        from paceline_client import Admin, Producer

        with Admin(bootstrap) as admin:  # a producer would wait some seconds for a topic that may be on its way
            (found,) = admin.describe_topics([topic])
            check_partition(topic, [each.partition for each in found.partitions], partition)
        with Producer(
            bootstrap,
            acks=acks,
            enable_idempotence=acks == "all",
            compression=compression,
            max_block_ms=_MAX_BLOCK_MS,
        ) as producer:
            for number, line in enumerate(sys.stdin.buffer, 1):
                value = line.rstrip(b"\r\n")
                record_key = key.encode() if key is not None else None
                if key_separator is not None:
                    before, found, after = value.partition(key_separator.encode())
                    if found:
                        record_key, value = before, after
                try:
                    producer.send(
                        topic, value, key=record_key, partition=partition, headers=pairs, on_delivery=delivered
                    )
                except MessageTooLargeError as error:
                    failures.append(f"line {number}: {error.code.name}: {error}")
    for failure in failures[:3]:
        click.echo(failure, err=True)
    where = ", ".join(f"{count} to {topic}/{index}" for index, count in sorted(counts.items()))
    click.echo(f"{sum(counts.values())} records{': ' + where if where else ''}", err=True)
    if failures:
        click.echo(f"{len(failures)} records failed", err=True)
        raise SystemExit(LOCAL_FAILURE)


def _header(text: str) -> tuple[str, bytes]:
    name, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value.encode()
