"""`paceline dev`: a cluster on the loopback interface with all files in a single directory."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from paceline.cli.exit_codes import LOCAL_FAILURE, NEGATIVE_VERDICT
from paceline.cli.output import output_option, show
from paceline.dev import DEV_DIRECTORY

_directory_option = click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEV_DIRECTORY,
    show_default=True,
    help="directory for data, logs and process ids",
)


@click.group()
def dev() -> None:
    """Run a cluster of real processes on this machine: embedded ZooKeeper, controllers and brokers."""


@dev.command()
@_directory_option
@click.option("--brokers", type=click.IntRange(1, 50), default=3, show_default=True)
@click.option("--controllers", type=click.IntRange(1, 9), default=2, show_default=True)
@click.option("--config", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="settings file")
@click.option("--racks", metavar="A,B,...", help="racks, assigned to the brokers in turn")
@click.option("--secure", is_flag=True, help="use TLS on every listener and with ZooKeeper; prints exports for clients")
@click.option("--console", is_flag=True, help="start the console, too, and print its address")
@click.option(
    "--port-offset",
    type=click.IntRange(-1_000, 40_000),
    metavar="N",
    help="add N to every documented port [default: the previous ports, else the documented ports, else free ports]",
)
def up(
    directory: Path,
    brokers: int,
    controllers: int,
    config: Path | None,
    racks: str | None,
    secure: bool,
    console: bool,
    port_offset: int | None,
) -> None:
    """Start a cluster and return when it serves requests.

    Reuses data, settings and ports of an earlier start in the same directory.
    """
    from dataclasses import astuple

    from paceline.cli.console import require_extra
    from paceline.dev.detached_cluster import alive, dev_command, read_state
    from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, LocalClusterError, settings_of_few
    from paceline.dev.ports import default_plan, taken
    from paceline.rpc.security.client_tls import FILE_VARIABLES

    if console:
        require_extra()
    state = read_state(directory)
    processes = [] if state is None else [state["zookeeper"], *state["nodes"]]
    if any(alive(process["pid"], directory) for process in processes):
        ended = [node["name"] for node in processes[1:] if not alive(node["pid"], directory)]
        for name in ended:
            click.echo(f"{name} is not running; start it with: {dev_command('start', directory)} {name}", err=True)
        stop = dev_command("down", directory)
        raise click.ClickException(f"a cluster runs in {directory} already; stop it with: {stop}")
    plan = None
    if port_offset is not None:
        plan = default_plan(controllers, brokers, port_offset)
        if busy := taken(plan.all()):
            ports = ", ".join(map(str, busy))
            raise click.ClickException(f"ports of --port-offset {port_offset} are in use: {ports}")
    few = settings_of_few(brokers) if config is None else {}
    if few:
        click.echo("fewer than three brokers: " + ", ".join(f"{key}={value}" for key, value in few.items()), err=True)
    cluster = LocalCluster(
        directory,
        config or CONFIG_FILE,
        brokers=brokers,
        controllers=controllers,
        detached=True,
        secure=secure,
        ports=plan,
        racks=[rack.strip() for rack in (racks or "").split(",") if rack.strip()],
        # Enable the topic that `paceline pipeline analyse` reads; with a settings file, that file decides.
        settings={} if config else {"cluster.events.topic.enable": "true", **few},
    )
    try:
        cluster.start(say=lambda text: click.echo(text, err=True))
        gateway = cluster.start_gateway()
        if console:
            cluster.start_console()
    except (LocalClusterError, OSError) as error:
        cluster.stop(force=True)  # of a cluster whose console did not start
        click.echo(str(error), err=True)
        if secure:
            click.echo("false")  # makes eval "$(paceline dev up --secure)" fail
        raise SystemExit(LOCAL_FAILURE) from None
    if cluster.ports not in (default_plan(controllers, brokers), plan):
        click.echo("not using the documented ports; choose ports with --port-offset", err=True)
    click.echo(f"up: bootstrap servers {cluster.bootstrap}", err=secure)
    click.echo(f"gateway: {gateway.client_address}", err=True)
    if console:
        again = f"another browser needs a new address: {dev_command('logs', directory)} console -n 1"
        click.echo(f"console: {cluster.console_address}", err=secure)
        click.echo(again, err=True)
    if cluster.client_tls is not None:
        click.echo(f"export PACELINE_BOOTSTRAP_SERVERS={cluster.bootstrap}")
        for name, path in zip(FILE_VARIABLES, astuple(cluster.client_tls), strict=True):
            click.echo(f"export {name}={shlex.quote(str(path))}")
    if directory != DEV_DIRECTORY and not secure:
        click.echo(f"for other commands: export PACELINE_BOOTSTRAP_SERVERS={cluster.bootstrap}", err=True)
    click.echo(f"stop it with: {dev_command('down', directory)}", err=True)


@dev.command()
@_directory_option
def down(directory: Path) -> None:
    """Stop the cluster; its data stays."""
    from paceline.dev.detached_cluster import stop_detached

    stopped = stop_detached(directory)
    click.echo(f"stopped: {', '.join(stopped)}" if stopped else f"no cluster runs in {directory}")


@dev.command()
@_directory_option
@output_option
def status(directory: Path, output: str) -> None:
    """Show the processes with their addresses; exits with 3 when a process has ended or there is no cluster."""
    from paceline.dev.detached_cluster import alive, dev_command, read_state

    state = read_state(directory)
    if state is None:
        click.echo(f"no cluster runs in {directory}; start one with: {dev_command('up', directory)}", err=True)
        raise SystemExit(NEGATIVE_VERDICT)
    rows = [
        {
            "name": node["name"],
            "pid": node["pid"],
            "running": bool(node["pid"]) and alive(node["pid"], directory),
            "client": node["client"],
            "metrics": _metrics_address(node["argv"]),
            "log": node["log"],
        }
        for node in [
            {"name": "zookeeper", "client": state["zookeeper"]["connect"], "log": "", "argv": [], **state["zookeeper"]},
            *state["nodes"],
        ]
    ]
    show(rows, output)
    if not all(row["running"] for row in rows):
        raise SystemExit(NEGATIVE_VERDICT)


def _metrics_address(argv: list[str]) -> str | None:
    ports = [word.partition("=")[2] for word in argv if word.startswith("--metrics-port=")]
    return f"127.0.0.1:{ports[-1]}" if ports else None


_node_argument = click.argument("name", metavar="NAME")


@contextmanager
def _one_line() -> Iterator[None]:
    """Print a failure as one line without a traceback and exit with code 1."""
    from paceline.dev.detached_cluster import DetachedClusterError

    try:
        yield
    except (DetachedClusterError, OSError) as error:
        raise click.ClickException(str(error)) from None


@dev.command()
@_node_argument
@_directory_option
def start(name: str, directory: Path) -> None:
    """Start a stopped process, such as broker-1, with its ports and data; return when it serves requests."""
    from paceline.dev.detached_cluster import start_node

    with _one_line():
        pid = start_node(directory, name, lambda text: click.echo(text, err=True))
    click.echo(f"started {name}: pid {pid}")


@dev.command()
@_node_argument
@_directory_option
def stop(name: str, directory: Path) -> None:
    """Stop a process with SIGTERM; a broker moves its leaders away first."""
    from paceline.dev.detached_cluster import stop_node

    with _one_line():
        stop_node(directory, name, force=False)
    click.echo(f"stopped {name}")


@dev.command()
@_node_argument
@_directory_option
def kill(name: str, directory: Path) -> None:
    """Kill a process with SIGKILL, as a crash would."""
    from paceline.dev.detached_cluster import stop_node

    with _one_line():
        stop_node(directory, name, force=True)
    click.echo(f"killed {name}")


@dev.command()
@_node_argument
@_directory_option
def restart(name: str, directory: Path) -> None:
    """Stop a process with SIGTERM and start it again."""
    from paceline.dev.detached_cluster import start_node, stop_node

    with _one_line():
        stop_node(directory, name, force=False)
        pid = start_node(directory, name, lambda text: click.echo(text, err=True))
    click.echo(f"restarted {name}: pid {pid}")


@dev.command()
@_node_argument
@_directory_option
@click.option("--paused/--resumed", "paused", default=True, help="SIGSTOP, or SIGCONT with --resumed")
def pause(name: str, directory: Path, paused: bool) -> None:
    """Suspend a process without closing its connections; --resumed continues it."""
    import signal

    from paceline.dev.detached_cluster import signal_node

    with _one_line():
        signal_node(directory, name, signal.SIGSTOP if paused else signal.SIGCONT)
    click.echo(f"{'paused' if paused else 'resumed'} {name}")


@dev.command()
@_node_argument
@_directory_option
@click.option("-n", "--lines", type=click.IntRange(0, 1_000_000), default=25, show_default=True)
@click.option("-f", "--follow", is_flag=True, help="print new lines until interrupted")
def logs(name: str, directory: Path, lines: int, follow: bool) -> None:
    """Print the last lines of a process's log."""
    import time
    from collections import deque

    from paceline.dev.detached_cluster import find_node

    with _one_line(), open(find_node(directory, name)["log"], encoding="utf-8", errors="replace") as file:
        for line in deque(file, maxlen=lines):
            click.echo(line, nl=False)
        while follow:
            if line := file.readline():
                click.echo(line, nl=False)
            else:
                time.sleep(0.1)
