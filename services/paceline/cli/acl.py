"""`paceline acl` and `paceline whoami`: access rules, what they allow, and the principal of a client."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final

import click

from paceline.cli.connection import bootstrap_option, open_admin
from paceline.cli.exit_codes import NEGATIVE_VERDICT
from paceline.cli.failures import reported
from paceline.cli.output import output_option, show, show_summary, tell
from paceline.model.acls import (
    ANY,
    CLUSTER_NAME,
    IMPLIED,
    Acl,
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    validated,
)
from paceline.model.errors import InvalidRequestError

_COLUMNS: Final = ("resource_type", "resource_name", "pattern_type", "permission", "principal", "operation", "host")
_PRODUCER: Final = (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
_CONSUMER: Final = (Operation.READ, Operation.DESCRIBE)
_RESOURCES: Final = (
    ("--topic", "topics", "name of a topic; * is every topic"),
    ("--group", "groups", "name of a consumer group"),
    ("--transactional-id", "transactional_ids", "transactional id"),
)
_OPERATIONS: Final = click.Choice([operation.value for operation in Operation], case_sensitive=False)


@click.group()
def acl() -> None:
    """Show, change and check access rules."""


def _principal(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Accept ``alice`` for ``User:alice``."""
    return value if value is None or value.startswith("User:") else f"User:{value}"


def _resource_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name resources."""
    command = click.option("--prefixed", is_flag=True, help="the names are beginnings of names")(command)
    command = click.option("--cluster", is_flag=True, help="the cluster")(command)
    for flag, field, text in reversed(_RESOURCES):
        command = click.option(flag, field, multiple=True, metavar="NAME", help=f"{text}; may be repeated")(command)
    return command


def _resources(
    topics: tuple[str, ...], groups: tuple[str, ...], transactional_ids: tuple[str, ...], cluster: bool, prefixed: bool
) -> list[ResourcePattern]:
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    named = (
        (ResourceType.TOPIC, topics), (ResourceType.GROUP, groups), (ResourceType.TRANSACTIONAL_ID, transactional_ids),
    )  # fmt: skip
    found = [ResourcePattern(kind, name, pattern) for kind, names in named for name in names]
    return found + [ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME)] * cluster


def _named(**named: Any) -> list[ResourcePattern | None]:
    """Return the named resources, or None, which stands for all."""
    return [*_resources(**named)] or [None]


def _filter(resource: ResourcePattern | None) -> dict[str, str]:
    if resource is None:
        return {}
    return {"resource_type": resource.type, "resource_name": resource.name, "pattern_type": resource.pattern}


def _rule_of(acl_: Acl) -> Any:
    from paceline_client import AccessRule

    (kind, name, pattern), (principal, permission, operation, host) = validated(acl_)
    return AccessRule(principal, operation.value, kind.value, name, pattern.value, permission.value, host)


@acl.command("list")
@_resource_options
@click.option("--match", is_flag=True, help="all rules that apply to the named resources, whatever their pattern")
@click.option("--principal", callback=_principal, metavar="NAME", help="only rules of this principal")
@output_option
@bootstrap_option
def list_(match: bool, principal: str | None, output: str, bootstrap: str, **named: Any) -> None:
    """List access rules."""
    with reported(output):
        rows: dict[Any, dict[str, str]] = {}
        unreadable: tuple[str, ...] = ()
        with open_admin(bootstrap) as admin:
            for resource in _named(**named):
                selected = _filter(resource) | ({"pattern_type": "MATCH"} if match else {})
                found = admin.describe_acls(**selected, principal=principal or "")
                rows |= {rule: asdict(rule) for rule in found.rules}
                unreadable = found.unreadable
        for reason in unreadable:
            click.echo(f"refuses everybody but super users, remove all its rules to repair it: {reason}", err=True)
        show(list(rows.values()), output, _COLUMNS)


def _rule_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that describe rules of a principal."""
    for option in (
        click.option("--consumer", is_flag=True, help="Read and Describe on the topics, Read on the groups"),
        click.option("--producer", is_flag=True, help="Write, Describe and Create on the topics"),
        click.option("--host", "hosts", multiple=True, metavar="ADDRESS", help="only from this address"),
        click.option("--operation", "operations", multiple=True, type=_OPERATIONS, help="may be repeated"),
        _resource_options,
    ):
        command = option(command)
    return command


def _entries(
    principal: str, operations: tuple[str, ...], hosts: tuple[str, ...], producer: bool, consumer: bool,
    permission: Permission, resources: list[ResourcePattern],
) -> list[Acl]:  # fmt: skip
    """Return the rules that the options mean.

    Raises:
        InvalidRequestError: a shortcut lacks its resources, or nothing is named.
    """
    kinds = {resource.type for resource in resources}
    if (producer or consumer) and ResourceType.TOPIC not in kinds:
        raise InvalidRequestError("--producer and --consumer need --topic")
    if consumer and ResourceType.GROUP not in kinds:
        raise InvalidRequestError("--consumer needs --group: a consumer commits its offsets in a group")
    if not resources:
        raise InvalidRequestError("name a resource: --topic, --group, --transactional-id or --cluster")
    found = []
    for resource in resources:
        wanted = [Operation(operation) for operation in operations]
        if resource.type is ResourceType.TOPIC:
            wanted += (_PRODUCER if producer else ()) + (_CONSUMER if consumer else ())
        if resource.type is ResourceType.GROUP and consumer:
            wanted.append(Operation.READ)
        if not wanted:
            raise InvalidRequestError(f"name an operation on {resource.type} {resource.name}: --operation")
        found += [
            Acl(resource, AclEntry(principal, permission, operation, host))
            for operation in dict.fromkeys(wanted)
            for host in hosts or (ANY,)
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
    principal: str, operations: tuple[str, ...], hosts: tuple[str, ...], producer: bool, consumer: bool, deny: bool,
    deny_hosts: tuple[str, ...], output: str, bootstrap: str, **named: Any,
) -> None:  # fmt: skip
    """Add rules for PRINCIPAL, for example: paceline acl add alice --consumer --topic rides --group team-a."""
    with reported(output):
        resources, permission = _resources(**named), Permission.DENY if deny else Permission.ALLOW
        rules = _entries(principal, operations, hosts, producer, consumer, permission, resources)
        if deny_hosts:
            rules += _entries(principal, operations, deny_hosts, producer, consumer, Permission.DENY, resources)
        wanted = [_rule_of(rule) for rule in rules]
        with open_admin(bootstrap) as admin:
            admin.create_acls(wanted)
        tell([asdict(rule) for rule in wanted], output, "\n".join(f"added: {rule}" for rule in rules))


@acl.command()
@click.argument("principal", callback=_principal, required=False)
@_rule_options
@click.option("--deny", is_flag=True, help="only rules that deny")
@output_option
@bootstrap_option
def remove(
    principal: str | None, operations: tuple[str, ...], hosts: tuple[str, ...], producer: bool, consumer: bool,
    deny: bool, output: str, bootstrap: str, **named: Any,
) -> None:  # fmt: skip
    """Remove the rules of PRINCIPAL, or of everybody, on the named resources; without an operation, all of them."""
    with reported(output):
        resources = _resources(**named)
        filters: list[dict[str, str]] = []
        if operations or producer or consumer:
            permission = Permission.DENY if deny else Permission.ALLOW
            rules = _entries(principal or "", operations, hosts, producer, consumer, permission, resources)
            for resource, entry in rules:
                one = {"principal": entry.principal, "operation": entry.operation, "permission": entry.permission}
                filters.append(_filter(resource) | one | ({"host": entry.host} if hosts else {}))
        else:
            if not resources and not principal:
                raise InvalidRequestError("name a principal or a resource")
            one = {"principal": principal} if principal else {}
            one |= {"permission": Permission.DENY} if deny else {}
            each_host = [{"host": host} for host in hosts] or [{}]
            filters = [_filter(resource) | one | host for resource in _named(**named) for host in each_host]
        removed: dict[Any, None] = {}
        with open_admin(bootstrap) as admin:
            for selected in filters:
                removed |= dict.fromkeys(admin.delete_acls(**selected))
        lines = [
            f"removed: {one.permission} {one.principal} {one.operation} on "
            f"{one.resource_type}:{one.pattern_type}:{one.resource_name} from {one.host}"
            for one in removed
        ]
        tell([asdict(one) for one in removed], output, "\n".join(lines) or "no rule matches")


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
        types = {one.casefold(): one for one in ResourceType}
        if kind.casefold() not in types or (not name and kind.casefold() != "cluster"):
            raise InvalidRequestError(f"{resource!r} is not topic:NAME, group:NAME, transactionalid:NAME or cluster")
        with open_admin(bootstrap) as admin:
            verdict = admin.check_acl(principal, operation, types[kind.casefold()], name or CLUSTER_NAME, host=host)
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


def read_rules(text: str, name: str) -> list[Any]:
    """Return the rules in a file of `paceline acl export`.

    Raises:
        InvalidRequestError: the file is not such JSON, or a rule in it can never apply; nothing was changed.
    """
    try:
        rows = json.loads(text)
        found = [
            Acl(
                ResourcePattern(ResourceType(row["resource_type"]), row["resource_name"], PatternType(pattern)),
                AclEntry(row["principal"], Permission(permission), Operation(row["operation"]), row.get("host", ANY)),
            )
            for row in rows
            for pattern, permission in [(row.get("pattern_type", "LITERAL"), row.get("permission", "Allow"))]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequestError(f"{name} is not a list of rules as printed by paceline acl export: {error}") from None
    return [_rule_of(rule) for rule in found]


@acl.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--table", is_flag=True, help="print a table instead of JSON")
def suggest(files: tuple[Path, ...], table: bool) -> None:
    """Print the rules that would allow what the audit logs FILES refused, or would have refused with enforce.

    Read them before you import them: a log also has what should stay forbidden.
    """
    with reported():
        rules, skipped = suggested(line for file in files for line in file.read_text(errors="replace").splitlines())
        if skipped:
            click.echo(f"refusals whose resources the log does not name: {skipped}", err=True)
        rows = [asdict(rule) for rule in rules]
        if table:
            show(rows, "table", _COLUMNS)
        else:
            click.echo(json.dumps(rows, indent=2))


def suggested(lines: Iterable[str]) -> tuple[list[Any], int]:
    """Return rules for the refusals in lines of audit logs, without implied ones, and how many name no resource."""
    wanted: dict[tuple[str, ResourceType, str], set[Operation]] = {}
    skipped = 0
    for line in lines:
        try:
            found = json.loads(line[line.index("{") : line.rindex("}") + 1])
            if found.get("event") not in ("denied", "would_deny") or "rpc" not in found:
                continue
            kind, _, rest = found["resource"].partition(":")
            key = (found["principal"], ResourceType(kind), rest.partition(":")[2])
            wanted.setdefault(key, set()).add(Operation(found["operation"]))
        except (ValueError, AttributeError):
            skipped += '"would_deny"' in line
    rules = []
    for (principal, kind, name), operations in sorted(wanted.items()):
        implied = {one for operation in operations for one in IMPLIED.get(operation, ())}
        for operation in sorted(operations - implied):
            try:
                entry = AclEntry(principal, Permission.ALLOW, operation)
                rules.append(_rule_of(Acl(ResourcePattern(kind, name), entry)))
            except InvalidRequestError:
                skipped += 1
    return rules, skipped


@click.command()
@output_option
@bootstrap_option
def whoami(output: str, bootstrap: str) -> None:
    """Show the principal under which the cluster knows this client."""
    with reported(output), open_admin(bootstrap) as admin:
        show_summary(asdict(admin.who_am_i()), output)
