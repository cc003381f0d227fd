"""`paceline acl` and `paceline whoami`: access rules, what they allow, and the principal of a client."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from paceline.cli.connection import bootstrap_option, open_admin
from paceline.cli.exit_codes import NEGATIVE_VERDICT
from paceline.cli.failures import reported
from paceline.cli.output import output_option, show, show_summary, tell
from paceline.model.acls import CLUSTER_NAME, IMPLIED, Operation, ResourceType
from paceline.model.errors import InvalidRequestError

if TYPE_CHECKING:
    from paceline_client import AccessRule

_COLUMNS: Final = ("resource_type", "resource_name", "pattern_type", "permission", "principal", "operation", "host")
_PRODUCER: Final = (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
_CONSUMER: Final = (Operation.READ, Operation.DESCRIBE)
_OPERATIONS: Final = click.Choice([operation.value for operation in Operation], case_sensitive=False)


@click.group()
def acl() -> None:
    """Show, change and check access rules."""


def _principal(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Accept ``alice`` for ``User:alice``."""
    return value if value is None or value.startswith("User:") else f"User:{value}"


def _resource_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name resources, which the command passes to `_resources`."""
    for option in (
        click.option("--prefixed", is_flag=True, help="the names are beginnings of names"),
        click.option("--cluster", is_flag=True, help="the cluster"),
        click.option("--transactional-id", "ids", multiple=True, metavar="NAME", help="transactional id"),
        click.option("--group", "groups", multiple=True, metavar="NAME", help="consumer group; may be repeated"),
        click.option("--topic", "topics", multiple=True, metavar="NAME", help="topic, * is every; may be repeated"),
    ):
        command = option(command)
    return command


def _resources(
    topics: Iterable[str], groups: Iterable[str], ids: Iterable[str], cluster: bool, prefixed: bool
) -> list[dict[str, str]]:
    """Return the resources as fields of rules."""
    pattern = "PREFIXED" if prefixed else "LITERAL"
    named = [(ResourceType.TOPIC, topics), (ResourceType.GROUP, groups), (ResourceType.TRANSACTIONAL_ID, ids)]
    found = [(kind.value, name, pattern) for kind, names in named for name in names]
    found += [(ResourceType.CLUSTER.value, CLUSTER_NAME, "LITERAL")] * cluster
    return [dict(zip(("resource_type", "resource_name", "pattern_type"), one, strict=True)) for one in found]


@acl.command("list")
@_resource_options
@click.option("--match", is_flag=True, help="all rules that apply to the named resources, whatever their pattern")
@click.option("--principal", callback=_principal, metavar="NAME", help="only rules of this principal")
@output_option
@bootstrap_option
def list_(match: bool, principal: str | None, output: str, bootstrap: str, **named: Any) -> None:
    """List access rules."""
    with reported(output):
        rows: dict[AccessRule, dict[str, str]] = {}
        unreadable: tuple[str, ...] = ()
        with open_admin(bootstrap) as admin:
            for resource in _resources(**named) or [{}]:
                selected = resource | ({"pattern_type": "MATCH"} if match else {})
                found = admin.describe_acls(**selected, principal=principal or "")
                rows |= {rule: asdict(rule) for rule in found.rules}
                unreadable = found.unreadable
        for reason in unreadable:
            click.echo(f"refuses everybody but super users, remove all its rules to repair it: {reason}", err=True)
        show(list(rows.values()), output, _COLUMNS)


def _rule_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that describe rules of a principal, which the command passes to `_rules`."""
    for option in (
        click.option("--consumer", is_flag=True, help="Read and Describe on the topics, Read on the groups"),
        click.option("--producer", is_flag=True, help="Write, Describe and Create on the topics"),
        click.option("--host", "hosts", multiple=True, metavar="ADDRESS", help="only from this address"),
        click.option("--operation", "operations", multiple=True, type=_OPERATIONS, help="may be repeated"),
        _resource_options,
    ):
        command = option(command)
    return command


def _rules(
    principal: str, permission: str, hosts: Iterable[str], operations: Iterable[str], producer: bool, consumer: bool,
    **named: Any,
) -> "list[AccessRule]":  # fmt: skip
    """Return the rules that the options mean.

    Raises:
        InvalidRequestError: a shortcut lacks its resources, or no resource or no operation on it is named.
    """
    from paceline_client import AccessRule

    resources = _resources(**named)
    kinds = {resource["resource_type"] for resource in resources}
    if not resources:
        raise InvalidRequestError("name a resource: --topic, --group, --transactional-id or --cluster")
    if (producer or consumer) and ResourceType.TOPIC not in kinds:
        raise InvalidRequestError("--producer and --consumer need --topic")
    if consumer and ResourceType.GROUP not in kinds:
        raise InvalidRequestError("--consumer needs --group: a consumer commits its offsets in a group")
    shortcuts = {
        ResourceType.TOPIC: (_PRODUCER if producer else ()) + (_CONSUMER if consumer else ()),
        ResourceType.GROUP: (Operation.READ,) if consumer else (),
    }
    found = []
    for resource in resources:
        wanted = [*operations, *shortcuts.get(ResourceType(resource["resource_type"]), ())]
        if not wanted:
            raise InvalidRequestError(f"name an operation on {resource['resource_name']}: --operation")
        found += [
            AccessRule(principal=principal, operation=str(operation), permission=permission, host=host, **resource)
            for operation in dict.fromkeys(wanted)
            for host in hosts
        ]
    return found


@acl.command()
@click.argument("principal", callback=_principal)
@_rule_options
@click.option("--deny", is_flag=True, help="deny instead of allow; a Deny wins over every Allow")
@click.option("--deny-host", "deny_hosts", multiple=True, metavar="ADDRESS", help="also deny it from this address")
@output_option
@bootstrap_option
def add(
    principal: str, hosts: tuple[str, ...], deny: bool, deny_hosts: tuple[str, ...], output: str, bootstrap: str,
    **given: Any,
) -> None:  # fmt: skip
    """Add rules for PRINCIPAL, for example: paceline acl add alice --consumer --topic rides --group team-a."""
    with reported(output):
        rules = _rules(principal, "Deny" if deny else "Allow", hosts or ("*",), **given)
        rules += _rules(principal, "Deny", deny_hosts, **given)
        with open_admin(bootstrap) as admin:
            admin.create_acls(rules)
        tell([asdict(rule) for rule in rules], output, "\n".join(f"added: {rule}" for rule in rules))


@acl.command()
@click.argument("principal", callback=_principal, required=False)
@_rule_options
@click.option("--deny", is_flag=True, help="only rules that deny")
@output_option
@bootstrap_option
def remove(
    principal: str | None, hosts: tuple[str, ...], deny: bool, output: str, bootstrap: str, operations: tuple[str, ...],
    producer: bool, consumer: bool, **named: Any,
) -> None:  # fmt: skip
    """Remove the rules of PRINCIPAL, or of everybody, on the named resources; without an operation, all of them."""
    with reported(output):
        permission = "Deny" if deny else "Allow"
        if operations or producer or consumer:
            rules = _rules(principal or "", permission, hosts or ("",), operations, producer, consumer, **named)
            filters = [asdict(rule) for rule in rules]
        else:
            resources = _resources(**named)
            if not resources and not principal:
                raise InvalidRequestError("name a principal or a resource")
            one = {"principal": principal or "", "permission": permission if deny else ""}
            filters = [resource | one | {"host": host} for resource in resources or [{}] for host in hosts or ("",)]
        removed: dict[AccessRule, None] = {}
        with open_admin(bootstrap) as admin:
            for selected in filters:
                removed |= dict.fromkeys(admin.delete_acls(**selected))
        lines = [f"removed: {rule}" for rule in removed] or ["no rule matches"]
        tell([asdict(rule) for rule in removed], output, "\n".join(lines))


@acl.command()
@click.argument("principal", callback=_principal)
@click.argument("operation", type=_OPERATIONS)
@click.argument("resource", metavar="RESOURCE")
@click.option("--host", default="", metavar="ADDRESS", help="address of the principal; default: of this machine")
@output_option
@bootstrap_option
def check(principal: str, operation: str, resource: str, host: str, output: str, bootstrap: str) -> None:
    """Show whether PRINCIPAL may carry out OPERATION on RESOURCE: topic:NAME, group:NAME, cluster.

    Exits with 3 if it may not.
    """
    with reported(output):
        kind, _, name = resource.partition(":")
        if not name and kind != "cluster":
            raise InvalidRequestError(f"{resource!r} is not topic:NAME, group:NAME, transactionalid:NAME or cluster")
        with open_admin(bootstrap) as admin:
            verdict = admin.check_acl(principal, operation, kind, name or CLUSTER_NAME, host=host)
        line = f"{'allowed' if verdict.allowed else 'refused'}: {verdict.rule}"
        if verdict.mode != "enforce":
            line += f"; authorizer.mode is {verdict.mode}, so nothing is refused"
        tell([asdict(verdict)], output, line)
    if not verdict.allowed:
        raise SystemExit(NEGATIVE_VERDICT)


@acl.command("export")
@bootstrap_option
def export_(bootstrap: str) -> None:
    """Print all rules as JSON, for `paceline acl import`."""
    with reported(), open_admin(bootstrap) as admin:
        click.echo(json.dumps([asdict(rule) for rule in admin.describe_acls().rules], indent=2))


@acl.command("import")
@click.argument("files", nargs=-1, required=True, type=click.File())
@click.option("--principal", callback=_principal, metavar="NAME", help="only rules of this principal")
@output_option
@bootstrap_option
def import_(files: tuple[IO[str], ...], principal: str | None, output: str, bootstrap: str) -> None:
    """Add the rules in FILES, as printed by export or suggest; - is stdin. Rules that are not in FILES stay."""
    with reported(output):
        rules = [rule for file in files for rule in read_rules(file.read(), file.name)]
        rules = [rule for rule in rules if principal in (None, rule.principal)]
        with open_admin(bootstrap) as admin:
            admin.create_acls(rules)
        tell([asdict(rule) for rule in rules], output, f"rules: {len(rules)}")


def read_rules(text: str, name: str) -> "list[AccessRule]":
    """Return the rules in a file of `paceline acl export`.

    Raises:
        InvalidRequestError: the file is not such JSON.
    """
    from paceline_client import AccessRule

    try:
        return [AccessRule(**{key: str(value) for key, value in row.items()}) for row in json.loads(text)]
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidRequestError(f"{name} is not a list of rules as printed by paceline acl export: {error}") from None


@acl.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def suggest(files: tuple[Path, ...]) -> None:
    """Print the rules that would allow what the audit logs FILES refused, or would have refused with enforce.

    Read them before you import them: a log also has what should stay forbidden.
    """
    with reported():
        rules, skipped = suggested(line for file in files for line in file.read_text(errors="replace").splitlines())
        if skipped:
            click.echo(f"refusals whose resources the log does not name: {skipped}", err=True)
        click.echo(json.dumps([asdict(rule) for rule in rules], indent=2))


def suggested(lines: Iterable[str]) -> "tuple[list[AccessRule], int]":
    """Return rules for the refusals in lines of audit logs, without implied ones, and how many name no resource."""
    from paceline_client import AccessRule

    wanted: dict[tuple[str, ResourceType, str], set[Operation]] = {}
    skipped = 0
    for line in lines:
        try:
            found = json.loads(line[line.index("{") : line.rindex("}") + 1])
            if found.get("event") not in ("denied", "would_deny"):
                continue
            kind, _, name = found["resource"].split(":", 2)
            key = (found["principal"], ResourceType(kind), name)
            wanted.setdefault(key, set()).add(Operation(found["operation"]))
        except (ValueError, KeyError, AttributeError):
            skipped += '"would_deny"' in line
    rules = []
    for (principal, kind, name), operations in sorted(wanted.items()):
        implied = {one for operation in operations for one in IMPLIED.get(operation, ())}
        rules += [AccessRule(principal, one.value, kind.value, name) for one in sorted(operations - implied)]
    return rules, skipped


@click.command()
@output_option
@bootstrap_option
def whoami(output: str, bootstrap: str) -> None:
    """Show the principal under which the cluster knows this client."""
    with reported(output), open_admin(bootstrap) as admin:
        show_summary(asdict(admin.who_am_i()), output)
