"""Options of every command that calls a cluster: its addresses and the certificates for them.

Addresses come from the flag, the environment, or the dev cluster that runs in this directory.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.numbers import parse_number
from paceline.dev import DEV_DIRECTORY
from paceline.model.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE

if TYPE_CHECKING:
    from paceline_client import Admin

DEFAULT_BOOTSTRAP = "127.0.0.1:9102"

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
        envvar="PACELINE_BOOTSTRAP_SERVERS",
        callback=_addresses,
        help=f"host:port,... of brokers [default: the dev cluster of this directory, else {DEFAULT_BOOTSTRAP}]",
    )(command)


def _addresses(context: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    bootstrap = value or default_bootstrap()
    if not context.resilient_parsing:
        from paceline.model.errors import InvalidRequestError
        from paceline_client.addresses import parse_bootstrap

        try:
            parse_bootstrap(bootstrap)
        except InvalidRequestError as error:
            raise click.BadParameter(str(error)) from None
    return bootstrap


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


@contextmanager
def reached(bootstrap: str) -> "Iterator[Admin]":
    """Yield an `Admin` for changes, after checking that a broker answers.

    A change waits for a controller as long as a failover may take; without the check a mistyped address would wait as
    long.

    Raises:
        BootstrapError: no address answered.
    """
    from paceline_client import Admin

    with Admin(bootstrap) as admin:
        admin.describe_cluster()
        yield admin


def parse_partition(text: str) -> tuple[str, int | None]:
    """Split ``topic/3`` into topic and partition; a bare topic means all partitions."""
    topic, separator, index = text.rpartition("/")
    if not separator:
        return text, None
    number = parse_number(index)
    if number is None:
        raise click.BadParameter(f"{text!r} is neither TOPIC nor TOPIC/PARTITION")
    return topic, number
