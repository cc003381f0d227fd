"""`paceline gateway`: publish and subscribe for callers that have generated stubs alone."""

import os

import click


@click.command(
    add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("arguments", metavar="[--KEY VALUE]...", nargs=-1, type=click.UNPROCESSED)
def gateway(arguments: tuple[str, ...]) -> None:
    """Run a gateway until SIGTERM; --help lists its settings, docs/gateway.md describes them."""
    from paceline.gateway.__main__ import main

    raise SystemExit(main(arguments, os.environ))
