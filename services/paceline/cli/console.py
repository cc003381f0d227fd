"""`paceline console`: show replication at work in a browser, live or from a recording."""

import gzip
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.connection import bootstrap_option, open_admin
from paceline.cli.exit_codes import LOCAL_FAILURE
from paceline.cli.failures import reported
from paceline.dev.ports import CONSOLE, choose_port

if TYPE_CHECKING:
    from paceline.console.service.source import LiveSource, ReplaySource
    from paceline.console.values import Decoder


def require_extra() -> None:
    """Exit with a hint when the packages of the console are not installed."""
    try:
        import paceline.console.service.server  # noqa: F401
    except ImportError as error:
        click.echo(f"the console needs the extra: pip install 'paceline[console]' ({error})", err=True)
        raise click.exceptions.Exit(LOCAL_FAILURE) from None


@click.command()
@click.option(
    "--replay",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="play a recording (.ndjson or .ndjson.gz) instead of showing a cluster",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help=f"0 takes a free one  [default: {CONSOLE}, or a free one]",
)
@click.option(
    "--name", "names", multiple=True, metavar="HOST", help="host name in browsers' addresses; may be repeated"
)
@click.option(
    "--address-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="keep the address for the next browser in FILE, which other users cannot read",
)
@click.option("--show-records", is_flag=True, help="show what is in records to everybody who may open the console")
@click.option("--allow-changes", is_flag=True, help="let viewers create, alter, trim and delete topics, produce, reset")
@click.option(
    "--descriptors",
    "descriptors",
    multiple=True,
    metavar="TOPIC=FILE:MESSAGE",
    help="show values of a topic as this Protobuf message of a descriptor file"
    " (protoc --include_imports -o FILE), such as rides=rides.binpb:acme.Ride; may be repeated",
)
@bootstrap_option
def console(
    replay: Path | None,
    host: str,
    port: int | None,
    names: tuple[str, ...],
    address_file: Path | None,
    show_records: bool,
    allow_changes: bool,
    descriptors: tuple[str, ...],
    bootstrap: str,
) -> None:
    """Serve the console: the cluster, its topics, records and groups, and the replication of a partition over time.

    Prints the address to open. The address is good for one browser; the console then prints another. A recording has
    only the replication.
    """
    if replay is not None and (show_records or allow_changes or descriptors):
        raise click.UsageError("a recording has no records and cannot be changed")
    require_extra()
    from paceline.console.service.cluster import Cluster
    from paceline.console.service.server import serve

    def say(address: str) -> None:
        click.echo(f"open {address}")
        if address_file is not None:
            _replace(address_file, address)

    with reported("table"):
        decoders = dict(_decoder(text) for text in descriptors)
        source = _live(bootstrap) if replay is None else _recorded(replay)
        cluster = None
        if replay is None:
            cluster = Cluster(bootstrap, show_records=show_records, allow_changes=allow_changes, decoders=decoders)
        try:
            if cluster is not None:
                cluster.start()
            serve(source, host, choose_port(CONSOLE) if port is None else port, names, say, cluster)
        finally:
            source.close()
            if cluster is not None:
                cluster.close()


def _decoder(text: str) -> "tuple[str, Decoder]":
    from paceline.console.values import Decoder, DescriptorError

    topic, equals, rest = text.partition("=")
    file, _, message = rest.rpartition(":")
    if not (topic and equals and file and message):
        raise click.BadParameter(f"{text!r} is not TOPIC=FILE:MESSAGE", param_hint="--descriptors")
    try:
        return topic, Decoder(Path(file).read_bytes(), message)
    except DescriptorError as error:
        raise click.BadParameter(f"{file} {error}", param_hint="--descriptors") from None


def _replace(path: Path, address: str) -> None:
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(f"{address}\n")
    new.replace(path)


def _recorded(path: Path) -> "ReplaySource":
    from paceline.console.recording import MAX_LINE, read_recording
    from paceline.console.service.source import ReplaySource

    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        recording = read_recording(iter(partial(lines.readline, MAX_LINE), ""))
    if recording.cut is not None:
        click.echo(f"{path}: {recording.cut}", err=True)
    return ReplaySource(recording)


def _live(bootstrap: str) -> "LiveSource":
    from paceline.console.service.source import LiveSource

    with open_admin(bootstrap) as admin:
        cluster = admin.describe_cluster()  # fails when no broker answers, unlike the console, which waits for one
    return LiveSource(lambda: open_admin(bootstrap), f"cluster {cluster.cluster_id}")
