"""Command groups. Imports are lazy: `paceline --help` must not wait for gRPC."""

import importlib
import re
from typing import Any

import click

from paceline import __version__
from paceline.cli.exit_codes import INTERRUPTED, LOCAL_FAILURE

_COMMANDS = {
    "dev": ("paceline.cli.dev", "dev", "run a cluster of real processes on this machine"),
    "certs": ("paceline.cli.certs", "certs", "create certificates for a secure cluster"),
    "topic": ("paceline.cli.topic", "topic", "create, list, describe, configure, grow and delete topics"),
    "partition": ("paceline.cli.partition", "partition", "show replica progress; elect leaders"),
    "reassign": ("paceline.cli.reassign", "reassign", "move partitions to other brokers"),
    "cluster": ("paceline.cli.cluster", "cluster", "show what is wrong in the cluster; brokers, active controller"),
    "broker": ("paceline.cli.broker", "broker", "show partitions and disks of brokers; drain, empty and remove them"),
    "doctor": ("paceline.cli.doctor", "doctor", "check a broker or controller before it serves"),
    "controller": ("paceline.cli.controller", "controller", "show the active controller"),
    "produce": ("paceline.cli.produce", "produce", "write lines of stdin to a topic"),
    "consume": ("paceline.cli.consume", "consume", "print the records of a topic"),
    "group": ("paceline.cli.group", "group", "show consumer groups, committed offsets and lag; reset offsets"),
    "acl": ("paceline.cli.acl", "acl", "show, change and check access rules"),
    "quota": ("paceline.cli.quota", "quota", "show and change what users and client ids may use per second"),
    "whoami": ("paceline.cli.acl", "whoami", "show the principal under which the cluster knows this client"),
    "watch": ("paceline.cli.watch", "watch", "follow elections, ISR changes, brokers and topics live"),
    "verify": ("paceline.cli.verify", "verify", "compare the stored records of all replicas"),
    "log": ("paceline.cli.log", "log", "show and check the files of a stopped broker"),
    "pipeline": ("paceline.cli.pipeline", "pipeline", "run Spark jobs over topics and the cluster"),
    "top": ("paceline.cli.top", "top", "show log end, high watermark, lag and ISR of partitions live"),
    "gateway": ("paceline.cli.gateway", "gateway", "serve callers that have generated stubs alone"),
    "console": ("paceline.cli.console", "console", "show the cluster and its replication in a browser"),
    "completion": ("paceline.cli.completion", "completion", "complete commands and topic names on Tab"),
}


def _first_sentence(text: str) -> str:
    """Return the first sentence in full: click would cut off a long sentence, but wraps a given short help."""
    return re.split(r"\.(?:\s|$)|; ", " ".join(text.split()), maxsplit=1)[0]


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        if isinstance(command, click.Group):
            for each in command.commands.values():
                each.short_help = each.short_help or _first_sentence(each.help or "")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = "Options are given after the verb: paceline topic list -b host:port"
            raise click.UsageError(f"{error.format_message()} {hint}", ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            if ctx.obj is not None:
                ctx.obj()  # from here on Ctrl-C raises KeyboardInterrupt instead of running main's signal handler
            return super().invoke(ctx)
        except KeyboardInterrupt:  # raised outside `reported()` of the command
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except OSError as error:  # raised by printing the result after `reported()` of the command
            from paceline.cli.failures import end_quietly, give_up_unwritten, os_error_text

            if isinstance(error, BrokenPipeError):
                end_quietly()
            click.echo(f"LOCAL_FAILURE: {os_error_text(error)}", err=True)
            give_up_unwritten()
            ctx.exit(LOCAL_FAILURE)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from None


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="paceline")
def cli() -> None:
    """Ordered, replicated event streams over gRPC."""
