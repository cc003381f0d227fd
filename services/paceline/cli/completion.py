"""`paceline completion`: completes commands, options and topic names on Tab."""

import os
from typing import Final

import click

from paceline.cli.connection import default_bootstrap

_VARIABLE: Final = "_PACELINE_COMPLETE"
_ANSWER_MS: Final = 2_000
"""Longest wait for the names of topics; a shell that waits longer on Tab seems to hang."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that lets a shell complete commands, options and the names of topics.

    For bash add `eval "$(paceline completion bash)"` to ~/.bashrc. For zsh add the same line with zsh to ~/.zshrc. For
    fish run `paceline completion fish > ~/.config/fish/completions/paceline.fish`.
    """
    from click.shell_completion import get_completion_class

    from paceline.cli.commands import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "paceline", _VARIABLE).source())


def topic_names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics of the cluster that begin with ``incomplete``; none when no cluster answers in time."""
    import grpc

    from paceline.model.errors import PacelineError
    from paceline_client import Admin

    bootstrap = context.params.get("bootstrap") or os.environ.get("PACELINE_BOOTSTRAP_SERVERS") or default_bootstrap()
    try:
        with Admin(bootstrap) as admin:
            names = admin.list_topics(timeout_ms=_ANSWER_MS)
    except (PacelineError, grpc.RpcError, ValueError):
        return []
    return [name for name in names if name.startswith(incomplete)]
