"""Znodes of access lists, as Kafka 2.8 writes them; docs/protocol/zookeeper.md#access-lists.

The name of a resource is not escaped in its path: ``/kafka-acl/Topic/*`` has the rules on every topic.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.znodes.json_codec import decode_object, decode_text, encode_json
from paceline.model.acls import AclEntry, Operation, PatternType, Permission, ResourcePattern, ResourceType

ACL_CHANGES: Final = "/kafka-acl-changes"
EXTENDED_ACL_CHANGES: Final = "/kafka-acl-extended-changes"
ACL_ROOTS: Final = {
    PatternType.LITERAL: "/kafka-acl",
    PatternType.PREFIXED: "/kafka-acl-extended/prefixed",
}
"""Parents of the nodes of each resource type."""
ACL_NODES: Final = (
    *(f"{root}/{kind}" for root in ACL_ROOTS.values() for kind in ResourceType),
    ACL_CHANGES,
    EXTENDED_ACL_CHANGES,
)
"""Created by every process at start, with parents; Kafka's tools expect them."""
_VERSION: Final = 1
_OPERATIONS: Final = {operation.casefold(): operation for operation in Operation}
_BY_JAVA_NAME: Final = {kind.name: kind for kind in ResourceType}


def acl_path(resource: ResourcePattern) -> str:
    """Return the node with the rules on a resource."""
    return f"{ACL_ROOTS[resource.pattern]}/{resource.type}/{resource.name}"


def acl_change_prefix(pattern: PatternType) -> str:
    """Return the path of change nodes without their sequence number."""
    return f"{ACL_CHANGES if pattern is PatternType.LITERAL else EXTENDED_ACL_CHANGES}/acl_changes_"


def encode_acls(entries: Iterable[AclEntry]) -> bytes:
    """Return the JSON of the rules on a resource."""
    acls = [
        {"principal": one.principal, "permissionType": one.permission, "operation": one.operation, "host": one.host}
        for one in entries
    ]
    return encode_json({"version": _VERSION, "acls": acls})  # type: ignore[dict-item]


def decode_acls(path: str, data: bytes | None) -> tuple[AclEntry, ...]:
    """Return the rules on a resource, each once.

    Raises:
        MalformedZnodeError: not this JSON, or an unknown operation or permission: none of the rules can be used.
    """
    try:
        return _entries_in(data)
    except MalformedZnodeError as error:
        raise MalformedZnodeError(path, error.reason) from None


@lru_cache(1_000)
def _entries_in(data: bytes | None) -> tuple[AclEntry, ...]:
    """Return the rules in the data of a node; nodes of many resources often have the same."""
    found = decode_object("", data)
    found.version(_VERSION)
    entries: dict[AclEntry, None] = {}
    for one in found.objects("acls"):
        try:
            permission = Permission(one.string("permissionType").capitalize())
            operation = _operation(one.string("operation"))
        except ValueError as error:
            raise MalformedZnodeError("", str(error)) from None
        entries[AclEntry(one.string("principal"), permission, operation, one.string("host"))] = None
    return tuple(entries)


def _operation(text: str) -> Operation:
    """Return an operation by the name that Kafka's tools write, whatever its case."""
    try:
        return _OPERATIONS[text.casefold()]
    except KeyError:
        raise ValueError(f"{text[:80]!r} is not a valid operation") from None


def encode_acl_change(resource: ResourcePattern) -> bytes:
    """Return the data of the change node that announces new rules on a resource."""
    kind = resource.type.name
    if resource.pattern is PatternType.LITERAL:
        return f"{kind}:{resource.name}".encode()
    change = {"version": _VERSION, "resourceType": kind, "name": resource.name, "patternType": resource.pattern.value}
    return encode_json(change)  # type: ignore[arg-type]


def decode_acl_change(path: str, data: bytes | None) -> ResourcePattern:
    """Return the resource that a change node names.

    Raises:
        MalformedZnodeError: no resource with a known type.
    """
    if path.startswith(f"{ACL_CHANGES}/"):
        kind, _, name = decode_text(path, data).partition(":")
        pattern = PatternType.LITERAL.value
    else:
        found = decode_object(path, data)
        kind, name, pattern = (found.string(key) for key in ("resourceType", "name", "patternType"))
    try:
        return ResourcePattern(_type(kind), name, PatternType(pattern.upper()))
    except ValueError as error:
        raise MalformedZnodeError(path, str(error)) from None


def _type(text: str) -> ResourceType:
    """Return a type by its name in Java, as Kafka 2.8 announces it, or in paths, as earlier versions did."""
    known = _BY_JAVA_NAME.get(text.upper())
    return known if known is not None else ResourceType(text)
