"""AclService: list and change access rules, and tell what they allow. Any controller serves it."""

import asyncio
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeVar

from paceline.controller.service.metadata_servicer import NodeHandle
from paceline.coordination.access_lists import AccessListReader, AclChange
from paceline.coordination.errors import SessionLostError
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
    RequestTimedOutError,
)
from paceline.rpc.convert import common
from paceline.rpc.convert.common import error_to_proto
from paceline.rpc.deadlines import wait_within_deadline
from paceline.rpc.pages import page_in_request_order
from paceline.rpc.security.authorizer import Call, Mode, current_call
from paceline.v1 import acl_service_pb2 as pb
from paceline.v1 import acl_service_pb2_grpc

MAX_ACLS: Final = 10_000
_TIMEOUT_MS: Final = 30_000
_MATCH: Final = "MATCH"

E = TypeVar("E", bound=StrEnum)
New = Callable[[tuple[AclEntry, ...]], tuple[AclEntry, ...]]


class AclServicer(acl_service_pb2_grpc.AclServiceServicer):
    """Serves access rules on one listener."""

    def __init__(self, handle: NodeHandle) -> None:
        self._handle = handle

    async def CreateAcls(self, request: pb.CreateAclsRequest, context: Any) -> pb.CreateAclsResponse:  # noqa: N802
        """Add rules; the response has a result for each rule."""
        lists = self._lists()
        errors: list[PacelineError | None] = []
        positions: dict[ResourcePattern, list[tuple[int, AclEntry]]] = {}
        for index, message in enumerate(common.bounded(request.acls, MAX_ACLS, "rules")):
            errors.append(None)
            try:
                acl = validated(_acl_from_proto(message))
            except InvalidRequestError as error:
                errors[index] = error
            else:
                positions.setdefault(acl.resource, []).append((index, acl.entry))
        for resource, added in positions.items():
            entries = tuple(entry for _, entry in added)
            try:
                await _change(lists, resource, partial(_with, entries), context)
            except PacelineError as error:
                for index, _ in added:
                    errors[index] = error
        return pb.CreateAclsResponse(
            results=[pb.CreateAclResult(error=error_to_proto(pb.AclError, error)) for error in errors]
        )

    async def DeleteAcls(self, request: pb.DeleteAclsRequest, context: Any) -> pb.DeleteAclsResponse:  # noqa: N802
        """Remove the rules that the filter selects."""
        lists, filter_ = self._lists(), _Filter(request.filter)
        if filter_.selects_everything:
            raise InvalidRequestError("the filter is empty: name at least a resource type, a principal or an operation")
        response = pb.DeleteAclsResponse()
        for resource, entries in sorted(self._rules(lists).resources.items()):
            if not filter_.selects_resource(resource):
                continue
            if isinstance(entries, UnreadableResource):
                if not filter_.is_exact_resource:
                    continue
            elif not any(filter_.selects_entry(entry) for entry in entries):
                continue
            try:
                old, new = await _change(lists, resource, filter_.without_selected, context)
            except PacelineError as error:
                response.error.CopyFrom(error_to_proto(pb.AclError, error) or pb.AclError())
                break
            response.acls.extend(_acl_to_proto(Acl(resource, entry)) for entry in old if entry not in new)
        return response

    async def DescribeAcls(  # noqa: N802
        self, request: pb.DescribeAclsRequest, context: Any
    ) -> pb.DescribeAclsResponse:
        """Return a page of the rules that the filter selects."""
        rules, filter_ = self._rules(self._lists()), _Filter(request.filter)
        found = [
            acl for acl in rules.acls() if filter_.selects_resource(acl.resource) and filter_.selects_entry(acl.entry)
        ]
        acls, token = page_in_request_order(found, request.page_size, request.page_token, _acl_to_proto)
        broken = [
            f"{resource}: {entries}"
            for resource, entries in rules.resources.items()
            if isinstance(entries, UnreadableResource) and not request.page_token
        ]
        return pb.DescribeAclsResponse(acls=acls, next_page_token=token, unreadable=sorted(broken))

    async def CheckAcls(self, request: pb.CheckAclsRequest, context: Any) -> pb.CheckAclsResponse:  # noqa: N802
        """Decide as for a request."""
        call = current_call()
        operation = _named(Operation, request.operation, "operation")
        kind = _named(ResourceType, request.resource_type, "resource type")
        authorizer = call.authorizer
        verdict = authorizer.exemption(request.principal)
        if verdict is None:
            verdict = authorizer.decide(
                request.principal, request.host or call.host, (operation, kind, request.resource_name)
            )
        return pb.CheckAclsResponse(allowed=verdict.allowed, rule=verdict.rule, mode=authorizer.mode)

    async def WhoAmI(self, request: pb.WhoAmIRequest, context: Any) -> pb.WhoAmIResponse:  # noqa: N802
        """Return the caller's principal."""
        call: Call = current_call()
        principal, authorizer = call.caller.principal, call.authorizer
        return pb.WhoAmIResponse(
            principal=principal,
            host=call.host,
            super_user=authorizer.exemption(principal) is not None,
            mode=authorizer.mode,
        )

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
    """Change the rules on one resource, and write the change to the audit log.

    Raises:
        PacelineError: the change was refused.
        RequestTimedOutError: ZooKeeper has not answered; the change may still be made.
    """
    done: asyncio.Future[AclChange | Exception] = asyncio.get_running_loop().create_future()
    call = current_call()

    def written(answer: AclChange | Exception) -> None:
        # Also when the caller has disconnected meanwhile, or waits no longer.
        _audit(call, resource, answer)
        if not done.done():
            done.set_result(answer)

    lists.change(resource, new, written)
    try:
        answer = await asyncio.wait_for(done, wait_within_deadline(_TIMEOUT_MS, context) / 1000)
    except TimeoutError:
        raise RequestTimedOutError("ZooKeeper has not answered in time; the change may still be made") from None
    if isinstance(answer, SessionLostError):
        raise RequestTimedOutError(f"{answer}; the change may have been made") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _audit(call: Call, resource: ResourcePattern, answer: AclChange | Exception) -> None:
    name = str(resource)
    if isinstance(answer, Exception):
        code = answer.code if isinstance(answer, PacelineError) else ErrorCode.UNKNOWN_SERVER_ERROR
        call.audit_change(name, Operation.ALTER, None, code.name)
        return
    old, new = map(_texts, answer)
    if old != new:
        call.note_old(name, old)
        call.audit_change(name, Operation.ALTER, new, None, name)


def _texts(entries: tuple[AclEntry, ...]) -> list[str]:
    return [f"{one.permission} {one.principal} {one.operation} from {one.host}" for one in entries]


def _with(added: tuple[AclEntry, ...], old: tuple[AclEntry, ...]) -> tuple[AclEntry, ...]:
    return (*old, *(entry for entry in added if entry not in old))


class _Filter:
    """Selects rules."""

    def __init__(self, message: pb.AclFilter) -> None:
        self._name = message.resource_name
        self._match = message.pattern_type.upper() == _MATCH
        self._type = _optional(ResourceType, message.resource_type, "resource type")
        self._pattern = None if self._match else _optional(PatternType, message.pattern_type, "pattern type")
        self._principal, self._host = message.principal, message.host
        self._operation = _optional(Operation, message.operation, "operation")
        self._permission = _optional(Permission, message.permission, "permission")
        if self._match and not self._name:
            raise InvalidRequestError("the pattern type MATCH needs the name of a resource")
        entry = (self._principal, self._host, self._operation, self._permission)
        self.selects_everything = not (any(entry) or self._name or self._type or self._pattern)
        self.is_exact_resource = bool(self._name and self._type and self._pattern) and not any(entry)

    def selects_resource(self, resource: ResourcePattern) -> bool:
        if self._type not in (None, resource.type) or self._pattern not in (None, resource.pattern):
            return False
        if self._match:
            is_prefix = resource.pattern is PatternType.PREFIXED and self._name.startswith(resource.name)
            return is_prefix or (resource.pattern is PatternType.LITERAL and resource.name in (self._name, ANY))
        return self._name in ("", resource.name)

    def selects_entry(self, entry: AclEntry) -> bool:
        return (
            self._principal in ("", entry.principal)
            and self._host in ("", entry.host)
            and self._operation in (None, entry.operation)
            and self._permission in (None, entry.permission)
        )

    def without_selected(self, entries: tuple[AclEntry, ...]) -> tuple[AclEntry, ...]:
        return tuple(entry for entry in entries if not self.selects_entry(entry))


def _optional(names: type[E], text: str, what: str) -> E | None:
    return _named(names, text, what) if text else None


def _named(names: type[E], text: str, what: str) -> E:
    for name in names:
        if name.casefold() == text.casefold():
            return name
    raise InvalidRequestError(f"the {what} {text[:100]!r} is not known; these are {', '.join(names)}")


def _acl_from_proto(message: pb.Acl) -> Acl:
    pattern = _optional(PatternType, message.pattern_type, "pattern type") or PatternType.LITERAL
    return Acl(
        ResourcePattern(_named(ResourceType, message.resource_type, "resource type"), message.resource_name, pattern),
        AclEntry(
            message.principal,
            _named(Permission, message.permission, "permission"),
            _named(Operation, message.operation, "operation"),
            message.host or ANY,
        ),
    )


def _acl_to_proto(acl: Acl) -> pb.Acl:
    (kind, name, pattern), entry = acl
    return pb.Acl(
        resource_type=kind,
        resource_name=name,
        pattern_type=pattern,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission=entry.permission,
    )
