"""`paceline quota`: what users and client ids may use per second."""

from collections.abc import Callable
from typing import Any, Final

import click

from paceline.cli.connection import bootstrap_option, open_admin
from paceline.cli.failures import reported
from paceline.cli.output import output_option, show, tell
from paceline.model.errors import InvalidRequestError
from paceline.model.quotas import KEYS, QuotaEntity

_COLUMNS: Final = ("user", "client_id", *KEYS)


@click.group()
def quota() -> None:
    """Show and change client quotas."""


def _user(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Accept ``User:alice`` for ``alice``."""
    return None if value is None else value.removeprefix("User:")


def _entity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    client = click.option("--client", "client_id", metavar="NAME", help="client id; <default> for every other one")
    return click.option("--user", callback=_user, metavar="NAME", help="user; <default> for every other one")(
        client(command)
    )


@quota.command("set")
@click.argument("values", nargs=-1, required=True, metavar="KEY=VALUE...")
@_entity_options
@output_option
@bootstrap_option
def set_(values: tuple[str, ...], user: str | None, client_id: str | None, output: str, bootstrap: str) -> None:
    """Set quotas of a user, a client id or both: paceline quota set --user alice producer_byte_rate=1000000.

    Keys: producer_byte_rate and consumer_byte_rate in bytes per second on each broker, request_percentage of one event
    loop, controller_mutation_rate in partitions created and deleted per second.
    """
    with reported(output):
        _change(user, client_id, dict(map(_parsed, values)), output, bootstrap)


@quota.command()
@click.argument("keys", nargs=-1, metavar="[KEY...]")
@_entity_options
@output_option
@bootstrap_option
def remove(keys: tuple[str, ...], user: str | None, client_id: str | None, output: str, bootstrap: str) -> None:
    """Remove quotas of a user, a client id or both; without KEY, all of them."""
    with reported(output):
        _change(user, client_id, dict.fromkeys(keys or KEYS), output, bootstrap)


@quota.command("list")
@_entity_options
@output_option
@bootstrap_option
def list_(user: str | None, client_id: str | None, output: str, bootstrap: str) -> None:
    """List quotas; with --user or --client those that name it."""
    with reported(output):
        with open_admin(bootstrap) as admin:
            found = admin.describe_client_quotas(user=user, client_id=client_id)
        rows = [
            {"user": one.user, "client_id": one.client_id, **{key: one.values.get(key) for key in KEYS}}
            for one in found
        ]
        show(rows, output, _COLUMNS)


def _change(
    user: str | None, client_id: str | None, changes: dict[str, float | None], output: str, bootstrap: str
) -> None:
    with open_admin(bootstrap) as admin:
        admin.alter_client_quotas(changes, user=user, client_id=client_id)
    words = (f"{key}={'none' if value is None else f'{value:g}'}" for key, value in changes.items())
    row = {"user": user, "client_id": client_id, **changes}
    tell([row], output, f"quota of {QuotaEntity(user, client_id)}: {', '.join(words)}")


def _parsed(text: str) -> tuple[str, float]:
    key, sign, value = text.partition("=")
    try:
        return key, float(value)
    except ValueError:
        why = "is not KEY=NUMBER" if not sign else "has no number"
        raise InvalidRequestError(f"{text!r} {why}; keys: {', '.join(KEYS)}") from None
