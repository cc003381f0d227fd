"""`paceline topic`: create, list, describe, configure, grow, trim, delete."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click

from paceline.cli.completion import topic_names
from paceline.cli.connection import bootstrap_option, open_admin
from paceline.cli.exit_codes import NEGATIVE_VERDICT
from paceline.cli.explain import add_findings, sentences, tell_problems
from paceline.cli.failures import confirm, reported
from paceline.cli.numbers import COUNT
from paceline.cli.output import error_fields, output_option, show, tell
from paceline.cli.trim import trim
from paceline.model.errors import PacelineError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from paceline.model.identifiers import INTERNAL_TOPICS

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
@click.option("--if-not-exists", is_flag=True, help="succeed without a change when the topic exists")
@click.option("--validate-only", is_flag=True, help="check without creating anything")
@output_option
@bootstrap_option
def create(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
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

        with open_admin(bootstrap) as admin:
            wanted = NewTopic(name, partitions, replication_factor, configs=pairs)
            try:
                (made,) = admin.create_topics([wanted], validate_only=validate_only)
            except TopicAlreadyExistsError as refusal:
                if not if_not_exists:
                    raise
                _tell_existing(admin, name, output, refusal)
                return
            tell([_made_row(made)], output, f"{name} can be created" if validate_only else f"created {name}")
            if not validate_only:
                _warn_if_unwritable(admin, made)


def _tell_existing(admin: "Admin", name: str, output: str, refusal: PacelineError) -> None:
    """Print a topic that already existed in the form in which the command prints a created topic.

    Raises:
        PacelineError: no topic has this name; creation was refused for a topic whose name differs in ``.`` and ``_``.
    """
    try:
        (found,) = admin.describe_topics([name], from_controller=True)
    except UnknownTopicOrPartitionError:
        raise refusal from None
    assignments = [list(partition.replicas) for partition in found.partitions]
    row = {"topic": name, "topic_id": found.topic_id, "assignments": assignments}
    tell([row], output, f"{name} exists already, nothing was changed")


def _made_row(made: "TopicResult") -> dict[str, Any]:
    return {"topic": made.name, "topic_id": made.topic_id or None, "assignments": [list(r) for r in made.assignments]}


def _warn_if_unwritable(admin: "Admin", made: "TopicResult") -> None:
    """Warn if a topic has fewer replicas than ``min.insync.replicas``, which Kafka allows too."""
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
        with open_admin(bootstrap) as admin:
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
    """Show leader, replicas, ISR and problems of each partition; exits with 3 when a partition has no leader."""
    with reported(output):
        with open_admin(bootstrap) as admin:
            found = admin.describe_topics(dict.fromkeys(names))
            findings = add_findings(admin, found)
        rows = [
            {
                "topic": each.name,
                "partition": p.partition,
                "leader": p.leader,
                "leader_epoch": p.leader_epoch,
                "replicas": list(p.replicas),
                "isr": list(p.isr),
                "offline": list(p.offline_replicas),
                "findings": sentences(findings, each.name, p.partition),
            }
            for each in found
            for p in each.partitions
        ]
        show(rows, output, ("topic", "partition", "leader", "leader_epoch", "replicas", "isr", "offline"))
        tell_problems(findings)
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
        with open_admin(bootstrap) as admin:
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
@output_option
@bootstrap_option
def alter(
    name: str,
    sets: tuple[str, ...],
    deletes: tuple[str, ...],
    appends: tuple[str, ...],
    subtracts: tuple[str, ...],
    validate_only: bool,
    output: str,
    bootstrap: str,
) -> None:
    """Change single keys of a topic's configuration; running brokers apply them within a second."""
    pairs = {
        operation: [_key_value(text) for text in texts]
        for operation, texts in (("set", sets), ("append", appends), ("subtract", subtracts))
    }
    if not deletes and not any(pairs.values()):
        raise click.UsageError("give at least one of --set, --delete, --append and --subtract")
    with reported(output):
        from paceline_client import ConfigChange

        changes = [ConfigChange(key, "delete") for key in deletes]
        for operation, given in pairs.items():
            changes += [ConfigChange(key, operation, value) for key, value in given]  # type: ignore[arg-type]
        with open_admin(bootstrap) as admin:
            admin.alter_configs({name: changes}, validate_only=validate_only)
        line = f"{name} can be altered" if validate_only else f"altered {name}"
        tell([{"topic": name, "altered": not validate_only}], output, line)


@topic.command("add-partitions")
@click.argument("name", shell_complete=topic_names)
@click.option("--count", type=COUNT, required=True, help="new number of partitions")
@click.option("--validate-only", is_flag=True, help="check without changing anything")
@output_option
@bootstrap_option
def add_partitions(name: str, count: int, validate_only: bool, output: str, bootstrap: str) -> None:
    """Add partitions and return when each has a leader. This changes the mapping of keys to partitions."""
    with reported(output):
        with open_admin(bootstrap) as admin:
            (result,) = admin.create_partitions({name: count}, validate_only=validate_only)
        added = f"{result.first_partition} to {count - 1}"
        line = f"{name} can get partitions {added}" if validate_only else f"added partitions {added} to {name}"
        row = {"topic": name, "first_added": result.first_partition, "partitions": count, "added": not validate_only}
        tell([row], output, line)


@topic.command()
@click.argument("names", nargs=-1, required=True, shell_complete=topic_names)
@click.option("--yes", is_flag=True, help="do not ask for confirmation")
@click.option("--if-exists", is_flag=True, help="succeed for topics that do not exist")
@click.option(
    "--internal", is_flag=True, help="allow internal topics: __consumer_offsets has the offsets of all groups"
)
@output_option
@bootstrap_option
def delete(names: tuple[str, ...], yes: bool, if_exists: bool, internal: bool, output: str, bootstrap: str) -> None:
    """Delete topics with all their records."""
    names = tuple(dict.fromkeys(names))
    if not internal and (kept := sorted(INTERNAL_TOPICS.intersection(names))):
        raise click.UsageError(f"{', '.join(kept)} has the state of all groups; add --internal to delete it")
    with reported(output):
        with open_admin(bootstrap) as admin:
            if not yes:
                _confirm_deletion(admin, names, if_exists)
            results = admin.delete_topics(names, raise_errors=False)
        deleted = [each.name for each in results if each.error is None]
        absent = [each.name for each in results if isinstance(each.error, UnknownTopicOrPartitionError)]
        failed = [each.error for each in results if each.error is not None]
        if if_exists:
            failed = [error for error in failed if not isinstance(error, UnknownTopicOrPartitionError)]
            if absent and output == "table":
                click.echo(f"does not exist: {', '.join(absent)}", err=True)
        if deleted or output != "table":
            rows = [{"topic": each.name, "deleted": each.error is None, **error_fields(each.error)} for each in results]
            tell(rows, output, f"deleted {', '.join(deleted)}")
        for error in failed[:-1]:
            click.echo(f"{error.code.name}: {error}", err=True)
        if failed:
            raise failed[-1]


def _confirm_deletion(admin: Any, names: tuple[str, ...], if_exists: bool) -> None:
    """Ask before topics are deleted; with ``if_exists`` only about topics that exist."""
    if if_exists:
        existing = {one.name for one in admin.describe_topics(from_controller=True)}
        names = tuple(name for name in names if name in existing)
    if names:
        confirm(f"delete {', '.join(names)} with all records?")


def _key_value(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE")
    return key, value
