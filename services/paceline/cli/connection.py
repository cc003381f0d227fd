"""Bootstrap addresses: from the flag, the environment, or the dev cluster of this directory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.numbers import parse_number

if TYPE_CHECKING:
    from paceline_client import Admin

DEV_DIRECTORY = Path("build/dev")
DEFAULT_BOOTSTRAP = "127.0.0.1:9102"

bootstrap_option: Callable[[Any], Any] = click.option(
    "-b",
    "--bootstrap-servers",
    "bootstrap",
    envvar="PACELINE_BOOTSTRAP_SERVERS",
    callback=lambda _context, _parameter, value: value or default_bootstrap(),
    help=f"host:port,... of brokers [default: the dev cluster of this directory, else {DEFAULT_BOOTSTRAP}]",
)


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
