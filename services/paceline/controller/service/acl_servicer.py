"""AclService: access rules, quotas, revoked certificates, and what the rules allow. Any controller serves it."""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeVar

from paceline.controller.service.certificate_servicer import CertificateRpcs
from paceline.controller.service.metadata_servicer import NodeHandle
from paceline.controller.service.quota_servicer import QuotaRpcs
from paceline.controller.service.zookeeper_writes import written
from paceline.coordination.access_lists import AccessListReader, AclChange
from paceline.model.acls import (
    ANY,
    AccessRules,
    Acl,
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    UnreadableResource,
    validated,
)
from paceline.model.errors import (
    BrokerNotAvailableError,
    ErrorCode,
    InvalidRequestError,
    PacelineError,
)
from paceline.rpc.convert import common
from paceline.rpc.pages import page_in_request_order
from paceline.rpc.security.authorizer import Call, Mode, current_call
from paceline.v1 import acl_service_pb2 as pb
from paceline.v1 import acl_service_pb2_grpc

MAX_ACLS: Final = 10_000
_NAMES: Final[dict[str, type[StrEnum]]] = {
    "resource_type": ResourceType,
    "pattern_type": PatternType,
    "operation": Operation,
    "permission": Permission,
}
"""Fields of rules and filters that name a member of an enum."""

E = TypeVar("E", bound=StrEnum)
New = Callable[[tuple[AclEntry, ...]], tuple[AclEntry, ...]]


class AclServicer(QuotaRpcs, CertificateRpcs, acl_service_pb2_grpc.AclServiceServicer):
    """Serves access rules, quotas and revoked certificates on one listener."""

    def __init__(self, handle: NodeHandle) -> None:
        self._handle = handle

    async def CreateAcls(self, request: pb.CreateAclsRequest, context: Any) -> pb.CreateAclsResponse:  # noqa: N802
        """Add rules, or none if one is invalid."""
        lists, by_resource = self._lists(), dict[ResourcePattern, tuple[AclEntry, ...]]()
        for message in common.bounded(request.acls, MAX_ACLS, "rules"):
            resource, entry = validated(_acl_from_proto(message))
            by_resource[resource] = (*by_resource.get(resource, ()), entry)
        for resource, added in by_resource.items():
            await _change(lists, resource, partial(_with, added), context)
        return pb.CreateAclsResponse()

    async def DeleteAcls(self, request: pb.DeleteAclsRequest, context: Any) -> pb.DeleteAclsResponse:  # noqa: N802
        """Remove the rules that the filter selects."""
        lists, selects = self._lists(), _filter(request.filter)
        if not request.filter.ListFields():
            raise InvalidRequestError("the filter is empty: name at least a resource type, a principal or an operation")
        named = {field.name for field, _ in request.filter.ListFields()}
        is_whole_resource = named == {"resource_type", "resource_name", "pattern_type"}
        response = pb.DeleteAclsResponse()
        for resource, entries in sorted(self._rules(lists).resources.items()):
            if isinstance(entries, UnreadableResource):
                everything = _acl_to_proto(Acl(resource, AclEntry("", Permission.ALLOW, Operation.ALL)))
                if not is_whole_resource or not selects(everything):
                    continue
            elif not any(selects(_acl_to_proto(Acl(resource, entry))) for entry in entries):
                continue

            def kept(old: tuple[AclEntry, ...], on: ResourcePattern = resource) -> tuple[AclEntry, ...]:
                return tuple(entry for entry in old if not selects(_acl_to_proto(Acl(on, entry))))

            old, new = await _change(lists, resource, kept, context)
            response.acls.extend(_acl_to_proto(Acl(resource, entry)) for entry in old if entry not in new)
        return response

    async def DescribeAcls(  # noqa: N802
        self, request: pb.DescribeAclsRequest, context: Any
    ) -> pb.DescribeAclsResponse:
        """Return a page of the rules that the filter selects."""
        rules, selects = self._rules(self._lists()), _filter(request.filter)
        found = [acl for acl in map(_acl_to_proto, rules.acls()) if selects(acl)]
        acls, token = page_in_request_order(found, request.page_size, request.page_token, lambda acl: acl)
        broken = [
            f"{resource}: {entries}"
            for resource, entries in rules.resources.items()
            if isinstance(entries, UnreadableResource) and not request.page_token
        ]
        return pb.DescribeAclsResponse(acls=acls, next_page_token=token, unreadable=sorted(broken))

    async def CheckAcls(self, request: pb.CheckAclsRequest, context: Any) -> pb.CheckAclsResponse:  # noqa: N802
        """Decide as for a request."""
        call = current_call()
        kind = _named(ResourceType, request.resource_type)
        key = (_named(Operation, request.operation), kind, request.resource_name)
        verdict = call.authorizer.exemption(request.principal) or call.authorizer.decide(
            request.principal, request.host or call.host, key
        )
        return pb.CheckAclsResponse(allowed=verdict.allowed, rule=verdict.rule, mode=call.authorizer.mode)

    async def WhoAmI(self, request: pb.WhoAmIRequest, context: Any) -> pb.WhoAmIResponse:  # noqa: N802
        """Return the caller's principal."""
        call = current_call()
        principal, authorizer = call.caller.principal, call.authorizer
        is_super = authorizer.exemption(principal) is not None
        return pb.WhoAmIResponse(principal=principal, host=call.host, super_user=is_super, mode=authorizer.mode)

    def _lists(self) -> AccessListReader:
        if current_call().authorizer.mode is Mode.OFF:
            raise InvalidRequestError("authorizer.mode is off: this cluster has no access lists")
        self._handle.get()
        lists = self._handle.access_lists
        if lists is None:
            raise BrokerNotAvailableError("the controller is starting")
        return lists

    def _rules(self, lists: AccessListReader) -> AccessRules:
        if lists.rules is None:
            raise BrokerNotAvailableError("the access lists have not been read from ZooKeeper yet")
        return lists.rules


async def _change(lists: AccessListReader, resource: ResourcePattern, new: New, context: Any) -> AclChange:
    """Change the rules on one resource, and write the change to the audit log; for errors see `written`."""
    return await written(partial(lists.change, resource, new), partial(_audit, current_call(), resource), context)


def _audit(call: Call, resource: ResourcePattern, answer: AclChange | Exception) -> None:
    name = str(resource)
    if isinstance(answer, Exception):
        code = answer.code if isinstance(answer, PacelineError) else ErrorCode.UNKNOWN_SERVER_ERROR
        call.audit_change(name, Operation.ALTER, None, code.name)
        return
    old, new = (
        [f"{one.permission} {one.principal} {one.operation} from {one.host}" for one in some] for some in answer
    )
    if old != new:
        call.note_old(name, old)
        call.audit_change(name, Operation.ALTER, new, None, name)


def _with(added: tuple[AclEntry, ...], old: tuple[AclEntry, ...]) -> tuple[AclEntry, ...]:
    return (*old, *(entry for entry in added if entry not in old))


def _filter(message: pb.AclFilter) -> Callable[[pb.Acl], bool]:
    """Return whether a rule is selected.

    Raises:
        InvalidRequestError: a type, pattern, operation or permission is not known, or MATCH names no resource.
    """
    wanted = {field.name: value for field, value in message.ListFields()}
    name, match = message.resource_name, wanted.get("pattern_type", "").upper() == "MATCH"
    if match:
        if not name:
            raise InvalidRequestError("the pattern type MATCH needs the name of a resource")
        del wanted["pattern_type"], wanted["resource_name"]
    wanted |= {field: _named(_NAMES[field], wanted[field]).value for field in wanted.keys() & _NAMES}

    def selects(acl: pb.Acl) -> bool:
        if any(getattr(acl, field) != value for field, value in wanted.items()):
            return False
        if not match:
            return True
        if acl.pattern_type == PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, ANY)

    return selects


def _named(names: type[E], text: str) -> E:
    for name in names:
        if name.casefold() == text.casefold():
            return name
    raise InvalidRequestError(f"{text[:100]!r} is not known; these are {', '.join(names)}")


def _acl_from_proto(message: pb.Acl) -> Acl:
    pattern = _named(PatternType, message.pattern_type or PatternType.LITERAL)
    operation, permission = _named(Operation, message.operation), _named(Permission, message.permission)
    resource = ResourcePattern(_named(ResourceType, message.resource_type), message.resource_name, pattern)
    return Acl(resource, AclEntry(message.principal, permission, operation, message.host or ANY))


def _acl_to_proto(acl: Acl) -> pb.Acl:
    (kind, name, pattern), (principal, permission, operation, host) = acl
    return pb.Acl(
        resource_type=kind,
        resource_name=name,
        pattern_type=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission=permission,
    )
