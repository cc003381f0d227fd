"""`paceline topic`: create, list, describe, configure, grow, trim, delete."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click

from paceline.cli.completion import topic_names
from paceline.cli.connection import bootstrap_option, reached
from paceline.cli.failures import NEGATIVE_VERDICT, reported
from paceline.cli.numbers import COUNT
from paceline.cli.output import output_option, show
from paceline.cli.trim import trim
from paceline.model.errors import PacelineError

if TYPE_CHECKING:
    from paceline_client import Admin, TopicResult

_MIN_ISR: Final = "min.insync.replicas"


@click.group()
def topic() -> None:
    """Create, list, describe, configure, grow and delete topics."""


topic.add_command(trim)


@topic.command()
@click.argument("name")
@click.option("--partitions", type=COUNT, help="number of partitions [default: num.partitions of the controller]")
@click.option("--replication-factor", type=COUNT, help="replicas of each [default: default.replication.factor]")
@click.option("--config", "configs", multiple=True, metavar="KEY=VALUE", help="topic configuration; may be repeated")
@click.option("--validate-only", is_flag=True, help="check without creating anything")
@output_option
@bootstrap_option
def create(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    validate_only: bool,
    output: str,
    bootstrap: str,
) -> None:
    """Create a topic and return when every partition has a leader."""
    pairs = dict(_key_value(text) for text in configs)
    if len(pairs) < len(configs):
        raise click.UsageError("a key is given more than once in --config")
    with reported(output):
        from paceline_client import NewTopic

        with reached(bootstrap) as admin:
            wanted = NewTopic(name, partitions, replication_factor, configs=pairs)
            (made,) = admin.create_topics([wanted], validate_only=validate_only)
            if output == "table":
                click.echo(f"{name} can be created" if validate_only else f"created {name}")
            else:
                show([_made_row(made)], output)
            if not validate_only:
                _warn_if_unwritable(admin, made)


def _made_row(made: "TopicResult") -> dict[str, Any]:
    return {"topic": made.name, "topic_id": made.topic_id or None, "assignments": [list(r) for r in made.assignments]}


def _warn_if_unwritable(admin: "Admin", made: "TopicResult") -> None:
    """Warn when a topic has fewer replicas than acks=all writes need in sync; Kafka allows such topics, too."""
    with suppress(PacelineError):
        (entry,) = admin.describe_configs(made.name, [_MIN_ISR])[made.name]
        fewest = min(map(len, made.assignments), default=None)
        if fewest is not None and entry.value is not None and fewest < int(entry.value):
            click.echo(
                f"{made.name} has {fewest} replicas and {_MIN_ISR}={entry.value} ({entry.source}): writes with acks=all"
                f" are refused; paceline topic alter {made.name} --set {_MIN_ISR}={fewest}",
                err=True,
            )


@topic.command("list")
@output_option
@bootstrap_option
def list_topics(output: str, bootstrap: str) -> None:
    """List topics."""
    with reported(output):
        from paceline_client import Admin

        with Admin(bootstrap) as admin:
            found = admin.describe_topics()
        rows = [
            {
                "topic": each.name,
                "partitions": len(each.partitions),
                "replication_factor": max((len(p.replicas) for p in each.partitions), default=0),
                "under_replicated": sum(len(p.isr) < len(p.replicas) for p in each.partitions),
                "offline": sum(p.leader is None for p in each.partitions),
                "topic_id": each.topic_id,
            }
            for each in found
        ]
        show(rows, output)


@topic.command()
@click.argument("names", nargs=-1, required=True, shell_complete=topic_names)
@output_option
@bootstrap_option
def describe(names: tuple[str, ...], output: str, bootstrap: str) -> None:
    """Show leader, replicas and ISR of each partition; exits with 3 when a partition has no leader."""
    with reported(output):
        from paceline_client import Admin

        with Admin(bootstrap) as admin:
            found = admin.describe_topics(dict.fromkeys(names))
        rows = [
            {
                "topic": each.name,
                "partition": p.partition,
                "leader": p.leader,
                "leader_epoch": p.leader_epoch,
                "replicas": list(p.replicas),
                "isr": list(p.isr),
                "offline": list(p.offline_replicas),
            }
            for each in found
            for p in each.partitions
        ]
        show(rows, output)
    if any(row["leader"] is None for row in rows):
        raise SystemExit(NEGATIVE_VERDICT)


@topic.command()
@click.argument("name", shell_complete=topic_names)
@click.option("--key", "keys", multiple=True, help="show only this key; may be repeated")
@output_option
@bootstrap_option
def configs(name: str, keys: tuple[str, ...], output: str, bootstrap: str) -> None:
    """Show the effective configuration, each value with its source."""
    with reported(output):
        from paceline_client import Admin

        with Admin(bootstrap) as admin:
            found = admin.describe_configs(name, keys)[name]
        rows = [{"key": entry.key, "value": entry.value, "source": entry.source} for entry in found]
        if output != "table":
            for row, entry in zip(rows, found, strict=True):
                row |= {"type": entry.type, "default": entry.default_value, "documentation": entry.documentation}
        show(rows, output)


@topic.command()
@click.argument("name", shell_complete=topic_names)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="set a key; may be repeated")
@click.option("--delete", "deletes", multiple=True, metavar="KEY", help="restore the default; may be repeated")
@click.option("--append", "appends", multiple=True, metavar="KEY=VALUE,...", help="add members to a list")
@click.option("--subtract", "subtracts", multiple=True, metavar="KEY=VALUE,...", help="remove members from a list")
@click.option("--validate-only", is_flag=True, help="check without changing anything")
@bootstrap_option
def alter(
    name: str,
    sets: tuple[str, ...],
    deletes: tuple[str, ...],
    appends: tuple[str, ...],
    subtracts: tuple[str, ...],
    validate_only: bool,
    bootstrap: str,
) -> None:
    """Change single keys of a topic's configuration; running brokers apply them within a second."""
    pairs = {
        operation: [_key_value(text) for text in texts]
        for operation, texts in (("set", sets), ("append", appends), ("subtract", subtracts))
    }
    if not deletes and not any(pairs.values()):
        raise click.UsageError("give at least one of --set, --delete, --append and --subtract")
    with reported():
        from paceline_client import ConfigChange

        changes = [ConfigChange(key, "delete") for key in deletes]
        for operation, given in pairs.items():
            changes += [ConfigChange(key, operation, value) for key, value in given]  # type: ignore[arg-type]
        with reached(bootstrap) as admin:
            admin.alter_configs({name: changes}, validate_only=validate_only)
    click.echo(f"{name} can be altered" if validate_only else f"altered {name}")


@topic.command("add-partitions")
@click.argument("name", shell_complete=topic_names)
@click.option("--count", type=COUNT, required=True, help="new number of partitions")
@click.option("--validate-only", is_flag=True, help="check without changing anything")
@bootstrap_option
def add_partitions(name: str, count: int, validate_only: bool, bootstrap: str) -> None:
    """Add partitions and return when each has a leader. This changes the mapping of keys to partitions."""
    with reported(), reached(bootstrap) as admin:
        (result,) = admin.create_partitions({name: count}, validate_only=validate_only)
    added = f"{result.first_partition} to {count - 1}"
    click.echo(f"{name} can get partitions {added}" if validate_only else f"added partitions {added} to {name}")


@topic.command()
@click.argument("names", nargs=-1, required=True, shell_complete=topic_names)
@click.option("--yes", is_flag=True, help="do not ask for confirmation")
@bootstrap_option
def delete(names: tuple[str, ...], yes: bool, bootstrap: str) -> None:
    """Delete topics with all their records."""
    names = tuple(dict.fromkeys(names))
    if not yes:
        click.confirm(f"delete {', '.join(names)} with all records?", abort=True, err=True)
    with reported():
        with reached(bootstrap) as admin:
            results = admin.delete_topics(names, raise_errors=False)
        deleted = [each.name for each in results if each.error is None]
        if deleted:
            click.echo(f"deleted {', '.join(deleted)}")
        failed = [each.error for each in results if each.error is not None]
        for error in failed[:-1]:
            click.echo(f"{error.code.name}: {error}", err=True)
        if failed:
            raise failed[-1]


def _key_value(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE")
    return key, value
