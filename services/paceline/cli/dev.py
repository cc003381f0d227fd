"""`paceline dev`: a cluster on loopback, everything below one directory."""

import shlex
from pathlib import Path

import click

from paceline.cli.connection import DEV_DIRECTORY
from paceline.cli.failures import LOCAL_FAILURE, NEGATIVE_VERDICT
from paceline.cli.output import output_option, show

_directory_option = click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEV_DIRECTORY,
    show_default=True,
    help="data, logs and process ids lie below it",
)


@click.group()
def dev() -> None:
    """A cluster of real processes on this machine: embedded ZooKeeper, controllers and brokers."""


@dev.command()
@_directory_option
@click.option("--brokers", type=click.IntRange(1, 50), default=3, show_default=True)
@click.option("--controllers", type=click.IntRange(1, 9), default=2, show_default=True)
@click.option("--config", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="settings file")
@click.option("--racks", metavar="A,B,...", help="racks of the brokers, in turn")
@click.option("--secure", is_flag=True, help="TLS on every listener; prints the exports that clients need")
def up(directory: Path, brokers: int, controllers: int, config: Path | None, racks: str | None, secure: bool) -> None:
    """Start a cluster and return when it serves."""
    from dataclasses import astuple

    from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, LocalClusterError, alive, read_state
    from paceline.rpc.security.client_tls import FILE_VARIABLES

    state = read_state(directory)
    processes = [] if state is None else [state["zookeeper"], *state["nodes"]]
    if any(alive(process["pid"], directory) for process in processes if process["pid"]):
        raise click.ClickException(f"a cluster runs in {directory} already; {_down(directory)} stops it")
    cluster = LocalCluster(
        directory,
        config or CONFIG_FILE,
        brokers=brokers,
        controllers=controllers,
        detached=True,
        secure=secure,
        racks=[rack.strip() for rack in (racks or "").split(",") if rack.strip()],
    )
    try:
        cluster.start(say=lambda text: click.echo(text, err=True))
    except (LocalClusterError, OSError) as error:
        click.echo(str(error), err=True)
        if secure:
            click.echo("false")  # the result of eval "$(paceline dev up --secure)"
        raise SystemExit(LOCAL_FAILURE) from None
    click.echo(f"up: bootstrap servers {cluster.bootstrap}", err=secure)
    if cluster.client_tls is not None:
        click.echo(f"export PACELINE_BOOTSTRAP_SERVERS={cluster.bootstrap}")
        for name, path in zip(FILE_VARIABLES, astuple(cluster.client_tls), strict=True):
            click.echo(f"export {name}={shlex.quote(str(path))}")
    if directory != DEV_DIRECTORY and not secure:
        click.echo(f"other commands find it with: export PACELINE_BOOTSTRAP_SERVERS={cluster.bootstrap}", err=True)
    click.echo(f"stop it with: {_down(directory)}", err=True)


def _down(directory: Path) -> str:
    """Return the command that stops the cluster in a directory."""
    return "paceline dev down" + ("" if directory == DEV_DIRECTORY else f" --directory {shlex.quote(str(directory))}")


@dev.command()
@_directory_option
def down(directory: Path) -> None:
    """Stop the cluster; its data stays."""
    from paceline.dev.local_cluster import stop_detached

    stopped = stop_detached(directory)
    click.echo(f"stopped: {', '.join(stopped)}" if stopped else f"no cluster runs in {directory}")


@dev.command()
@_directory_option
@output_option
def status(directory: Path, output: str) -> None:
    """Show which processes run; exits with 3 when one is gone or there is no cluster."""
    from paceline.dev.local_cluster import alive, read_state

    state = read_state(directory)
    if state is None:
        click.echo(f"no cluster runs in {directory}", err=True)
        raise SystemExit(NEGATIVE_VERDICT)
    rows = [
        {
            "name": node["name"],
            "pid": node["pid"],
            "running": bool(node["pid"]) and alive(node["pid"], directory),
            "client": node["client"],
            "log": node["log"],
        }
        for node in [
            {"name": "zookeeper", "client": state["zookeeper"]["connect"], "log": "", **state["zookeeper"]},
            *state["nodes"],
        ]
    ]
    show(rows, output)
    if not all(row["running"] for row in rows):
        raise SystemExit(NEGATIVE_VERDICT)
