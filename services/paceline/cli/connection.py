"""Options of every command that calls a cluster: its addresses and the certificates for them.

Addresses come from the flag, the environment, or the dev cluster that runs in this directory.
"""

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from paceline.cli.numbers import parse_number
from paceline.dev import DEV_DIRECTORY, program
from paceline.model.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE

if TYPE_CHECKING:
    from paceline_client import Admin, PartitionDescription, TopicDescription

DEFAULT_BOOTSTRAP = "127.0.0.1:9102"
BOOTSTRAP_VARIABLE: Final = "PACELINE_BOOTSTRAP_SERVERS"
CONNECT_MS, _CONTROLLER_MS = 1_500, 8_000
"""Longest waits while no address accepts a connection, and for an active controller. In 8 s a standby takes over from a
controller that has failed on a dev cluster, whose ZooKeeper sessions end after 6 s."""
_MOST_CLUSTERS: Final = 3
_ORIGIN: Final = "paceline.cli.connection.origin"

_TLS_FLAGS = (
    ("--tls-key", KEY_FILE, "private key of --tls-cert"),
    ("--tls-cert", CERTIFICATE_FILE, "certificate of this client"),
    ("--tls-ca", CA_FILE, "certificate of the authority that signed those of the cluster; turns on TLS"),
)


def bootstrap_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--bootstrap-servers``, which the command gets as ``bootstrap``, and the flags that name certificates."""
    for flag, variable, text in _TLS_FLAGS:
        command = click.option(
            flag,
            variable,
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False),
            expose_value=False,
            callback=_use_file,
            help=f"{text} [default: ${variable}]",
        )(command)
    return click.option(
        "-b",
        "--bootstrap-servers",
        "bootstrap",
        envvar=BOOTSTRAP_VARIABLE,
        callback=_addresses,
        help=f"host:port,... of brokers [default: the dev cluster of this directory, else {DEFAULT_BOOTSTRAP}]",
    )(command)


def _addresses(context: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    bootstrap = value or default_bootstrap()
    if value is None and not context.resilient_parsing:
        _name_other_directory(bootstrap)
    context.meta[_ORIGIN] = bootstrap, context.get_parameter_source("bootstrap") if value else None
    if not context.resilient_parsing:
        from paceline.model.errors import InvalidRequestError
        from paceline_client.addresses import parse_bootstrap

        try:
            parse_bootstrap(bootstrap)
        except InvalidRequestError as error:
            raise click.BadParameter(str(error)) from None
    return bootstrap


def _name_other_directory(bootstrap: str) -> None:
    """Print whose cluster the default address belongs to when a dev cluster of another directory has that address."""
    from paceline.dev.detached_cluster import running_clusters

    if bootstrap == DEFAULT_BOOTSTRAP:
        for directory, addresses in running_clusters().items():
            if bootstrap in addresses.split(","):
                click.echo(f"using the dev cluster of {directory}, which has the default address {bootstrap}", err=True)


def address_hint() -> str:
    """Return where the addresses of the running command come from, and what to do when no broker answers there."""
    from paceline.dev.detached_cluster import running_clusters

    context = click.get_current_context(silent=True)
    bootstrap, source = (context.meta.get(_ORIGIN) if context else None) or (DEFAULT_BOOTSTRAP, None)
    running = {str(where): addresses for where, addresses in running_clusters().items() if addresses != bootstrap}
    here = running.get(str(DEV_DIRECTORY.resolve()))
    few = list(running.items())[:_MOST_CLUSTERS]
    others = "".join(f"; the dev cluster of {where} has -b {addresses}" for where, addresses in few)
    if source is ParameterSource.ENVIRONMENT:
        advice = f"unset {BOOTSTRAP_VARIABLE} to use the dev cluster of this directory" if here else "change it"
        return f"{bootstrap} is from {BOOTSTRAP_VARIABLE}: {advice}, or name brokers with -b host:port,...{others}"
    if source is not None:
        return f"{bootstrap} is from -b{others}"
    if bootstrap != DEFAULT_BOOTSTRAP:
        return f"{bootstrap} is from {DEV_DIRECTORY}/cluster.json: `{program()} dev status` shows its processes"
    start = f"start a local cluster with `{program()} dev up`, or name brokers with -b host:port,..."
    return f"{bootstrap} is the default address: {start}{others}"


def _use_file(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Set the variable that clients read, for as long as the command runs."""
    if path is None:
        return
    variable = parameter.name or ""
    before = os.environ.get(variable)
    os.environ[variable] = path
    context.call_on_close(lambda: _restore(variable, before))


def _restore(variable: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = value


def default_bootstrap() -> str:
    """Return the addresses of the dev cluster in ``build/dev``, else the first broker's documented address."""
    from paceline.dev.detached_cluster import read_state

    state = read_state(DEV_DIRECTORY)
    return str(state["bootstrap"]) if state else DEFAULT_BOOTSTRAP


def open_admin(bootstrap: str) -> "Admin":
    """Return an `Admin` that waits seconds for a connection and for an active controller, unlike an application."""
    from paceline_client import Admin

    return Admin(bootstrap, connect_timeout_ms=CONNECT_MS, controller_timeout_ms=_CONTROLLER_MS)


def parse_partition(text: str) -> tuple[str, int | None]:
    """Split ``topic/3`` into topic and partition; a bare topic means all partitions."""
    topic, separator, index = text.rpartition("/")
    if not separator:
        return text, None
    number = parse_number(index)
    if number is None:
        raise click.BadParameter(f"{text!r} is neither TOPIC nor TOPIC/PARTITION")
    return topic, number


def partitions_of(topics: "Iterable[TopicDescription]") -> "dict[tuple[str, int], PartitionDescription]":
    """Return the partitions of topics, by topic and index."""
    return {(topic.name, one.partition): one for topic in topics for one in topic.partitions}
