"""Check parsed requests by the rows of `rpc_needs`, and audit administrative changes.

`authorized` wraps a handler: it refuses a request, or entries of it, leaves entries out of lists, and writes a line for
each entry of a change to the audit log.
"""

import itertools
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Final

from google.protobuf import descriptor_pool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass

from paceline.model.acls import ResourcePattern, ResourceType
from paceline.model.errors import ErrorCode, PacelineError
from paceline.rpc.security.authorizer import Call, current_call
from paceline.rpc.security.rpc_needs import Need, Row

REQUEST_ID_KEY: Final = "paceline-request-id"
_KEYS: Final = ("topic", "partition", "name", "group_id", "resource", "broker_id")
"""Fields of an entry that its result has as well."""


async def authorized(inner: Callable[[Any, Any], Awaitable[Any]], request: Any, context: Any) -> Any:
    """Call a handler with the part of a parsed request that the rules allow, and add the refused entries to its answer.

    Raises:
        PacelineError: the rules refuse the request as a whole.
    """
    call = current_call()
    row = call.row
    if row is None or (call.exempt is not None and not row.is_change):
        return await inner(request, context)
    if row.is_change and hasattr(context, "set_trailing_metadata"):
        context.set_trailing_metadata(((REQUEST_ID_KEY, call.request_id),))
    check_call(call, request)
    allowed, refused = _allowed_entries(call, row, request)
    if refused and len(refused) == len(getattr(request, row.field)):
        # An empty list would mean every resource to some handlers.
        return _with_refused(call, row, request, None, refused)
    try:
        response = await inner(allowed, context)
    except BaseException as failure:
        # A caller that disconnects does not undo its change.
        code = failure.code if isinstance(failure, PacelineError) else ErrorCode.UNKNOWN_SERVER_ERROR
        _audit(call, row, allowed, None, "CANCELLED" if isinstance(failure, CancelledError) else code.name)
        raise
    if row.listed and row.each is not None and call.exempt is None:
        _leave_out(call, row.each, response, row.listed)
    _audit(call, row, allowed, response, None)
    return _with_refused(call, row, request, response, refused) if refused else response


def check_call(call: Call, request: Any) -> None:
    """Check the needs of a request as a whole.

    Raises:
        PacelineError: the rules refuse it.
    """
    for need in call.row.call if call.row is not None else ():
        if not call.meets(need, request).allowed:
            raise call.error(need.operation, *need.resource_of(request))


def _allowed_entries(call: Call, row: Row, request: Any) -> tuple[Any, dict[int, PacelineError]]:
    """Return the request without refused entries, and the errors of these by their position."""
    if row.each is None or not row.field or call.exempt is not None:
        return request, {}
    refused: dict[int, PacelineError] = {}
    entries = getattr(request, row.field)
    for index, entry in enumerate(entries):
        if not call.meets(row.each, entry).allowed:
            refused[index] = call.error(row.each.operation, *row.each.resource_of(entry))
            if not row.answers:
                raise refused[index]
    if not refused:
        return request, refused
    allowed = type(request)()
    allowed.CopyFrom(request)
    allowed.ClearField(row.field)
    getattr(allowed, row.field).extend(entry for index, entry in enumerate(entries) if index not in refused)
    return allowed, refused


def _with_refused(call: Call, row: Row, request: Any, response: Any, refused: dict[int, PacelineError]) -> Any:
    """Return the answer with a result for each refused entry, in the order of the request."""
    found = response if response is not None else _answer_class(call.method)()
    if getattr(request, "page_token", ""):
        return found  # the first page had them
    results, entries = getattr(found, row.answers), getattr(request, row.field)
    given = list(results)
    del results[:]
    rest = iter(given)
    for index, entry in enumerate(entries):
        if index in refused:
            _fill(results.add(), entry, refused[index])
        else:
            results.extend(itertools.islice(rest, 1))  # a page may have fewer
    return found


def _fill(result: Any, entry: Any, error: PacelineError) -> None:
    known = result.DESCRIPTOR.fields_by_name
    for key in _KEYS:
        if key in known and isinstance(entry, str):
            setattr(result, key, entry)
        elif key in known and hasattr(entry, key):
            if known[key].message_type is not None:
                getattr(result, key).CopyFrom(getattr(entry, key))
            else:
                setattr(result, key, getattr(entry, key))
    result.error.code = int(error.code)
    result.error.message = str(error)


@cache
def _answer_class(method: str) -> Any:
    service, _, name = method[1:].rpartition("/")
    return GetMessageClass(descriptor_pool.Default().FindServiceByName(service).methods_by_name[name].output_type)


def _audit(call: Call, row: Row, request: Any, response: Any, error: str | None) -> None:
    """Write a line for each entry of an administrative change."""
    if not row.is_change or getattr(request, "validate_only", False):
        return
    need = row.each or row.call[-1]
    entries = list(getattr(request, row.field)) if row.field else []
    if row.each is not None and not entries:
        return  # A request without entries changes nothing.
    field = row.answers or (row.field if hasattr(response, row.field) else "results")
    results = list(getattr(response, field, ()))
    for index, entry in enumerate(entries or [request]):
        kind, name = need.resource_of(entry)
        topic = getattr(entry, "topic", "")
        resource = ResourcePattern(ResourceType.TOPIC, topic) if topic else ResourcePattern(kind, name)
        result = results[index] if len(results) == len(entries) and entries else response
        failed = error
        if result is not None and "error" in result.DESCRIPTOR.fields_by_name and result.HasField("error"):
            failed = ErrorCode(result.error.code).name
        new = None if isinstance(entry, str) else MessageToDict(entry, preserving_proto_field_name=True)
        call.audit_change(str(resource), need.operation, new, failed, entry_name(entry))


def entry_name(entry: Any) -> str:
    """Return the name under which `Call.note_old` has the old value of an entry of a request."""
    if isinstance(entry, str):
        return entry
    if getattr(entry, "topic", ""):
        return f"{entry.topic}/{entry.partition}"
    resource = getattr(entry, "resource", None)
    return str(resource.name if resource is not None else getattr(entry, "name", ""))


def _leave_out(call: Call, need: Need, response: Any, listed: str) -> None:
    entries = getattr(response, listed)
    kept = [entry for entry in entries if call.allows(need, entry)]
    del entries[:]
    entries.extend(kept)
