"""Access lists: the rules, and the decision whether a principal may carry out an operation on a resource.

The decision is a function of rules and request; it returns the rule that decided. Brokers, controllers and the
simulator use it. Names of resource types, operations and permissions are Kafka's, as its tools print them.

Order of a decision, for a principal that is not a super user:

1. A resource whose rules could not be read refuses.
2. A Deny that matches refuses.
3. An Allow that matches allows. Read, Write, Delete and Alter allow Describe; AlterConfigs allows DescribeConfigs.
4. Without a match the request is refused, unless ``allow.everyone.if.no.acl.found`` is set and no rule, of any
   principal, is on the resource.

Source: Kafka 2.8 AclAuthorizer.authorizeAction; KIP-11, KIP-290.
"""

import ipaddress
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from paceline.model.errors import InvalidRequestError

ANY: Final = "*"
"""As a literal resource name every resource of a type, as a host every address."""
EVERYONE: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
MAX_NAME_CHARACTERS: Final = 249
"""Longest name of a resource, as of a topic or a group."""
MAX_PRINCIPAL_CHARACTERS: Final = 249


class ResourceType(StrEnum):
    """Kind of resource."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"
    TRANSACTIONAL_ID = "TransactionalId"
    DELEGATION_TOKEN = "DelegationToken"


class PatternType(StrEnum):
    """How the name of a rule's resource is compared."""

    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


class Operation(StrEnum):
    """Operation that a rule allows or denies."""

    ALL = "All"
    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    CLUSTER_ACTION = "ClusterAction"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    ALTER_CONFIGS = "AlterConfigs"
    IDEMPOTENT_WRITE = "IdempotentWrite"


class Permission(StrEnum):
    """Whether a rule allows or denies."""

    ALLOW = "Allow"
    DENY = "Deny"


IMPLIED: Final[Mapping[Operation, frozenset[Operation]]] = {
    Operation.ALL: frozenset(Operation) - {Operation.ALL},
    **dict.fromkeys(
        (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER), frozenset({Operation.DESCRIBE})
    ),
    Operation.ALTER_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS}),
}
"""The operations that an Allow of an operation allows as well."""
_IMPLIED_BY: Final[Mapping[Operation, frozenset[Operation]]] = {
    operation: frozenset({operation, *(one for one in IMPLIED if operation in IMPLIED[one])}) for operation in Operation
}
"""The operations whose Allow allows an operation; a Deny applies to its own operation only, or to all."""

OPERATIONS_OF: Final[Mapping[ResourceType, frozenset[Operation]]] = {
    ResourceType.TOPIC: frozenset(Operation) - {Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE},
    ResourceType.GROUP: frozenset({Operation.ALL, Operation.READ, Operation.DESCRIBE, Operation.DELETE}),
    ResourceType.CLUSTER: frozenset(Operation) - {Operation.READ, Operation.WRITE, Operation.DELETE},
    ResourceType.TRANSACTIONAL_ID: frozenset({Operation.ALL, Operation.DESCRIBE, Operation.WRITE}),
    ResourceType.DELEGATION_TOKEN: frozenset({Operation.ALL, Operation.DESCRIBE}),
}
"""The operations that a rule on a resource type may name; source: Kafka 2.8 AclEntry.supportedOperations."""


class AclEntry(NamedTuple):
    """One permission on a resource."""

    principal: str
    """``User:alice``, or ``User:*`` for every principal."""
    permission: Permission
    operation: Operation
    host: str = ANY
    """An address as text, or ``*``."""


class ResourcePattern(NamedTuple):
    """The resource, or the resources with a common prefix, that a rule is about."""

    type: ResourceType
    name: str
    pattern: PatternType = PatternType.LITERAL

    def __str__(self) -> str:
        """Return ``Topic:LITERAL:rides``, as in the audit log."""
        return f"{self.type}:{self.pattern}:{self.name}"


class Acl(NamedTuple):
    """A rule."""

    resource: ResourcePattern
    entry: AclEntry

    def __str__(self) -> str:
        """Return a line for people and for the audit log."""
        principal, permission, operation, host = self.entry
        return f"{permission} {principal} {operation} on {self.resource} from {host}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a decision."""

    allowed: bool
    rule: str
    """The rule that decided: an `Acl` as text, or the reason without a matching rule."""


class UnreadableResource(str):
    """Stands for the entries of a resource that cannot be parsed; the text, never empty, is the reason."""


Entries: TypeAlias = tuple[AclEntry, ...] | UnreadableResource

NEVER_READ: Final = Verdict(False, "the rules have not been read from ZooKeeper yet")
NO_MATCH: Final = Verdict(False, "no rule allows it")
SUPER_USER: Final = Verdict(True, "super user")
NO_RULES: Final = Verdict(True, "no rule on the resource, allow.everyone.if.no.acl.found is true")


def validated(acl: Acl) -> Acl:
    """Return a rule that a caller wants to create, with its address in the usual form.

    Raises:
        InvalidRequestError: the rule can never apply, or its resource cannot be a name in ZooKeeper.
    """
    (kind, name, pattern), entry = acl
    if not name or len(name) > MAX_NAME_CHARACTERS:
        raise InvalidRequestError(f"the name of a resource has 1 to {MAX_NAME_CHARACTERS} characters, not {len(name)}")
    if "/" in name or name in (".", "..") or not name.isprintable():
        raise InvalidRequestError(f"the resource name {name!r} has '/', control characters, or is '.' or '..'")
    if pattern is PatternType.PREFIXED and name == ANY:
        raise InvalidRequestError("a prefix is the beginning of names: use the literal name '*' for every resource")
    if kind is ResourceType.CLUSTER and (name != CLUSTER_NAME or pattern is not PatternType.LITERAL):
        raise InvalidRequestError(f"the only resource of type Cluster is {CLUSTER_NAME!r}, a literal name")
    if entry.operation not in OPERATIONS_OF[kind]:
        known = ", ".join(sorted(OPERATIONS_OF[kind]))
        raise InvalidRequestError(f"{entry.operation} is not an operation on {kind}; these are {known}")
    if not entry.principal.startswith("User:") or not 5 < len(entry.principal) <= MAX_PRINCIPAL_CHARACTERS:
        raise InvalidRequestError(f"the principal {entry.principal!r} is not User:name")
    if not entry.principal.isprintable() or "," in entry.principal:
        raise InvalidRequestError(f"the principal {entry.principal!r} has a comma or control characters")
    if entry.host != ANY:
        try:
            address = str(ipaddress.ip_address(entry.host))
        except ValueError:
            raise InvalidRequestError(f"the host {entry.host!r} is neither an address nor '*'") from None
        return Acl(acl.resource, entry._replace(host=address))
    return acl


class _Cell:
    """The entries of one resource, by principal."""

    __slots__ = ("by_principal", "pattern", "unreadable")

    def __init__(self, pattern: ResourcePattern, entries: Entries) -> None:
        self.pattern = pattern
        self.unreadable = isinstance(entries, UnreadableResource)
        self.by_principal: dict[str, list[AclEntry]] = {}
        for entry in () if isinstance(entries, UnreadableResource) else entries:
            self.by_principal.setdefault(entry.principal, []).append(entry)

    def entries_of(self, principal: str) -> Iterator[AclEntry]:
        yield from self.by_principal.get(principal, ())
        yield from self.by_principal.get(EVERYONE, ())


@dataclass(slots=True)
class _Prefixes:
    """The prefixed resources of one type.

    Every prefix of a name that is in the sorted list is the greatest entry below the name, or a prefix of that entry.
    So the matches are found with one binary search and the chain of prefixes of the entry found.
    """

    names: list[str] = field(default_factory=list)
    cells: list[_Cell] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    """Position of the longest other entry that is a prefix of the entry, -1 without one."""

    @classmethod
    def of(cls, cells: Iterable[_Cell]) -> "_Prefixes":
        found = cls()
        chain: list[int] = []
        for index, cell in enumerate(sorted(cells, key=lambda cell: cell.pattern.name)):
            name = cell.pattern.name
            while chain and not name.startswith(found.names[chain[-1]]):
                chain.pop()
            found.names.append(name)
            found.cells.append(cell)
            found.parents.append(chain[-1] if chain else -1)
            chain.append(index)
        return found

    def matching(self, name: str) -> Iterator[_Cell]:
        index = bisect_right(self.names, name) - 1
        while index >= 0:
            if name.startswith(self.names[index]):
                yield self.cells[index]
            index = self.parents[index]


class AccessRules:
    """All rules of a cluster, indexed for decisions; a value that does not change."""

    def __init__(self, resources: Mapping[ResourcePattern, Entries]) -> None:
        self._cells: dict[tuple[ResourceType, str, PatternType], _Cell] = {
            pattern: _Cell(pattern, entries) for pattern, entries in resources.items()
        }
        self.resources = dict(resources)
        self._prefixed = {kind: self._prefixes_of(kind) for kind in ResourceType}

    def changed(self, resources: Mapping[ResourcePattern, Entries]) -> "AccessRules":
        """Return the rules after a change of some resources; a resource without entries has no rules any more."""
        after = AccessRules.__new__(AccessRules)
        after.resources, after._cells, after._prefixed = dict(self.resources), dict(self._cells), dict(self._prefixed)
        for pattern, entries in resources.items():
            if entries:
                after.resources[pattern] = entries
                after._cells[pattern] = _Cell(pattern, entries)
            else:
                after.resources.pop(pattern, None)
                after._cells.pop(pattern, None)
        for kind in {pattern.type for pattern in resources if pattern.pattern is PatternType.PREFIXED}:
            after._prefixed[kind] = after._prefixes_of(kind)
        return after

    def _prefixes_of(self, kind: ResourceType) -> "_Prefixes":
        cells = self._cells.values()
        return _Prefixes.of(
            cell for cell in cells if cell.pattern.pattern is PatternType.PREFIXED and cell.pattern.type is kind
        )

    @property
    def unreadable_count(self) -> int:
        """Number of resources whose rules cannot be parsed."""
        return sum(isinstance(entries, UnreadableResource) for entries in self.resources.values())

    def acls(self) -> list[Acl]:
        """Return all rules that can be read, sorted by resource."""
        return [
            Acl(pattern, entry)
            for pattern, entries in sorted(self.resources.items())
            if not isinstance(entries, UnreadableResource)
            for entry in entries
        ]

    def decide(
        self,
        principal: str,
        host: str,
        operation: Operation,
        kind: ResourceType,
        name: str,
        allow_without_rules: bool = False,
    ) -> Verdict:
        """Decide for a principal that is not a super user; ``host`` is its address as text."""
        allowing: Acl | None = None
        implied_by = _IMPLIED_BY[operation]
        has_rules = False
        for cell in self._matching(kind, name):
            has_rules = True
            if cell.unreadable:
                return Verdict(False, f"the rules on {cell.pattern} cannot be parsed")
            for entry in cell.entries_of(principal):
                if entry.host not in (ANY, host):
                    continue
                if entry.permission is Permission.DENY:
                    if entry.operation is operation or entry.operation is Operation.ALL:
                        return Verdict(False, str(Acl(cell.pattern, entry)))
                elif allowing is None and entry.operation in implied_by:
                    allowing = Acl(cell.pattern, entry)
        if allowing is not None:
            return Verdict(True, str(allowing))
        return NO_RULES if allow_without_rules and not has_rules else NO_MATCH

    def decide_any(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, allow_without_rules: bool = False
    ) -> Verdict:
        """Decide whether some resource of a type is allowed; source: Kafka 2.8 Authorizer.authorizeByResourceType."""
        for cell in self._cells.values():
            if cell.pattern.type is kind and any(cell.entries_of(principal)):
                verdict = self.decide(principal, host, operation, kind, cell.pattern.name)
                if verdict.allowed:
                    return verdict
        wildcard = self.decide(principal, host, operation, kind, ANY, allow_without_rules)
        return wildcard if wildcard.allowed else NO_MATCH

    def _matching(self, kind: ResourceType, name: str) -> Iterator[_Cell]:
        for literal in (name, ANY) if name != ANY else (ANY,):
            cell = self._cells.get((kind, literal, PatternType.LITERAL))
            if cell is not None:
                yield cell
        yield from self._prefixed[kind].matching(name)
