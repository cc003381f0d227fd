"""Authorize calls by access lists: `Authorizer` decides with the latest rules, `Call` is one call or stream.

The guard creates the `Call` of every RPC; `authorized_requests` checks parsed requests with it. LogService checks the
partitions of Produce and Fetch itself with `Call.may`, which costs a look-up for a topic that the stream has used
before.
"""

import contextlib
import logging
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from paceline.model.acls import (
    CLUSTER_NAME,
    MAX_NAME_CHARACTERS,
    NEVER_READ,
    SUPER_USER,
    AccessRules,
    Operation,
    ResourcePattern,
    ResourceType,
    Verdict,
)
from paceline.model.errors import (
    ClusterAuthorizationError,
    GroupAuthorizationError,
    PacelineError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)
from paceline.model.identity import ANONYMOUS, Identity
from paceline.rpc.admission.caller_quota import NO_QUOTA, CallerQuota
from paceline.rpc.security.audit_log import (
    CHANGED,
    DENIED,
    WOULD_DENY,
    AuditLine,
    AuditLog,
    new_request_id,
    value,
)
from paceline.rpc.security.rpc_needs import Need, Row

LOG = logging.getLogger("paceline.authorizer")
_MAX_VERDICTS: Final = 10_000
_ERRORS: Final[dict[ResourceType, type[PacelineError]]] = {
    ResourceType.TOPIC: TopicAuthorizationError,
    ResourceType.GROUP: GroupAuthorizationError,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdAuthorizationError,
}
_OFF: Final = Verdict(True, "authorizer.mode=off")
_NODE: Final = Verdict(True, "node of the cluster")
_NODES: Final = ("User:broker/", "User:controller/")
"""Beginnings of the principals of nodes; names of clients have no slash."""

Key = tuple[Operation, ResourceType, str]
_CLUSTER_EVENTS: Final[Key] = (Operation.WRITE, ResourceType.TOPIC, "__cluster_events")
_NODES_ONLY: Final = Verdict(False, "only nodes of the cluster write to it")


class Mode(StrEnum):
    """``authorizer.mode``."""

    OFF = "off"
    LOG = "log"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of an RPC."""

    principal: str = ANONYMOUS
    """``User:<name>``."""
    identity: Identity | None = None
    """Identity in the caller's certificate, None when it has no certificate."""
    is_super: bool = False
    """Whether the caller may see details for operators, such as broker epochs."""
    serial_number: str = ""
    """Serial number of the caller's certificate, as in `Authorizer.revoked`; empty without a certificate."""

    @property
    def is_node(self) -> bool:
        """Whether the caller is a broker or a controller."""
        return self.identity is not None and self.identity.role.is_node


class Authorizer:
    """Decides for every listener of a process, with the rules that were read last."""

    def __init__(
        self,
        mode: Mode = Mode.OFF,
        super_users: Collection[str] = (),
        allow_without_rules: bool = False,
        audit: AuditLog | None = None,
    ) -> None:
        """``allow_without_rules`` is ``allow.everyone.if.no.acl.found``."""
        self.mode = mode
        self.audit = audit or AuditLog()
        self.rules: AccessRules | None = None
        """None until the rules were read for the first time; until then only super users are allowed."""
        self.generation = 0
        """Number of times that the rules were read."""
        self.revoked: Collection[str] | None = frozenset()
        """Serial numbers of the revoked certificates as of the latest read; None until the first."""
        self._super_users = frozenset(super_users)
        self._allow_without_rules = allow_without_rules
        self._verdicts: dict[tuple[str, str, Key], Verdict] = {}
        self._any_verdicts: dict[tuple[str, str, Operation, ResourceType], Verdict] = {}
        """Of `decide_any`, which looks at every rule."""

    def use(self, rules: AccessRules) -> None:
        """Decide with these rules from now on."""
        self.rules = rules
        self.generation += 1
        self._verdicts.clear()
        self._any_verdicts.clear()

    def is_revoked(self, serial_number: str) -> bool:
        """Whether a certificate is revoked, whatever the mode."""
        return self.revoked is not None and serial_number in self.revoked

    def exemption(self, principal: str) -> Verdict | None:
        """Return why the rules do not apply to a principal, None when they do."""
        if principal.startswith(_NODES):
            return _NODE
        return SUPER_USER if principal in self._super_users else None

    def decide(self, principal: str, host: str, key: Key) -> Verdict:
        """Return the verdict about a principal to which the rules apply."""
        known = self._verdicts.get((principal, host, key))
        if known is None:
            known = NEVER_READ
            if key == _CLUSTER_EVENTS:
                known = _NODES_ONLY
            elif self.rules is not None:
                known = self.rules.decide(principal, host, *key, self._allow_without_rules)
            if len(self._verdicts) >= _MAX_VERDICTS:
                self._verdicts.clear()
            self._verdicts[principal, host, key] = known
        return known

    def decide_any(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> Verdict:
        """Return the verdict about an operation on some resource of a type."""
        if self.rules is None:
            return NEVER_READ
        known = self._any_verdicts.get((principal, host, operation, kind))
        if known is None:
            known = self.rules.decide_any(principal, host, operation, kind, self._allow_without_rules)
            if len(self._any_verdicts) >= _MAX_VERDICTS:
                self._any_verdicts.clear()
            self._any_verdicts[principal, host, operation, kind] = known
        return known


@dataclass(slots=True)
class Call:
    """One call, or one stream of requests, of a caller."""

    caller: Caller
    authorizer: Authorizer
    method: str = ""
    listener: str = ""
    peer: str = ""
    row: Row | None = None
    exempt: Verdict | None = _OFF
    """Why the rules do not apply; None when they do."""
    quota: CallerQuota = NO_QUOTA
    _granted: dict[Key, None] = field(default_factory=dict)
    _generation: int = 0
    _lost: Key | None = None
    _request_id: str = ""
    _old: dict[str, Any] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """The caller's address as rules name it."""
        return host_of(self.peer)

    @property
    def request_id(self) -> str:
        """Id of the call in its lines of the audit log, and in the trailing metadata of an administrative call."""
        self._request_id = self._request_id or new_request_id()
        return self._request_id

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the call may carry out an operation; a refusal is in the audit log."""
        if self.exempt is not None:
            return True
        key = (operation, kind, name)
        if self._generation == self.authorizer.generation and key in self._granted:
            return True
        return self._judged(key).allowed

    def error(self, operation: Operation, kind: ResourceType, name: str) -> PacelineError:
        """Return the error of a refusal, which does not depend on whether the resource exists."""
        of = "the cluster" if kind is ResourceType.CLUSTER else f"{kind.value.lower()} {name!r}"
        words = f"{self.caller.principal} needs {operation} on {of}"
        return _ERRORS.get(kind, ClusterAuthorizationError)(words)

    def allows(self, need: Need, entry: Any) -> bool:
        """Whether a list may show an entry; without a line in the audit log."""
        if self.exempt is not None or self.authorizer.mode is not Mode.ENFORCE:
            return True
        kind, name = need.resource_of(entry)
        return self._verdict((need.operation, kind, name)).allowed

    def withdrawn(self) -> PacelineError | None:
        """Return the error of a stream that has lost a permission that it has used, or whose certificate is revoked."""
        if self.authorizer.is_revoked(self.caller.serial_number):
            number = self.caller.serial_number
            words = f"the certificate of {self.caller.principal} with serial number {number} is revoked"
            return ClusterAuthorizationError(words).with_metadata(revoked_serial_number=number)
        if self.exempt is None:
            self._refresh()
        return None if self._lost is None else self.error(*self._lost)

    def note_old(self, name: str, old: Any) -> None:
        """Remember the value that an administrative change of ``name`` replaces, for the audit log."""
        self._old[name] = old

    def audit_change(self, resource: str, operation: str, new: Any, error: str | None, name: str = "") -> None:
        """Write the line of an administrative change; the old value is the one noted for ``name``."""
        line = self._line(CHANGED, resource, operation, self._rule_of_change())
        line.old, line.new, line.error = value(self._old.get(name)), value(new), error
        self.authorizer.audit.changed(line)

    def _rule_of_change(self) -> str:
        if self.exempt is not None:
            return self.exempt.rule
        rules = (self._verdict(key).rule for key in self._granted)
        return "; ".join(dict.fromkeys(rules))[:1_000]

    def meets(self, need: Need, entry: Any) -> Verdict:
        """Return the verdict about a need for the resource that a request, or an entry of it, names."""
        if self.exempt is not None:
            return self.exempt
        kind, name = need.resource_of(entry)
        if need.or_cluster:
            on_cluster = (need.operation, ResourceType.CLUSTER, CLUSTER_NAME)
            if self._verdict(on_cluster).allowed:
                return self._judged(on_cluster)
        if need.or_write_any:
            found = self.authorizer.decide_any(self.caller.principal, self.host, Operation.WRITE, ResourceType.TOPIC)
            if found.allowed:
                return found
        return self._judged((need.operation, kind, name))

    def _verdict(self, key: Key) -> Verdict:
        return self.authorizer.decide(self.caller.principal, self.host, key)

    def _judged(self, key: Key) -> Verdict:
        """Return the verdict; remember a permission, and write a refusal to the audit log."""
        self._refresh()
        verdict = self._verdict(key)
        if verdict.allowed:
            self._granted[key] = None
            return verdict
        operation, kind, name = key
        enforced = self.authorizer.mode is Mode.ENFORCE
        resource = str(ResourcePattern(kind, name[:MAX_NAME_CHARACTERS]))
        event = DENIED if enforced else WOULD_DENY
        self.authorizer.audit.refused(self._line(event, resource, operation, verdict.rule))
        return verdict if enforced else replace(verdict, allowed=True)

    def _refresh(self) -> None:
        """Decide again about the permissions that the call has used, if the rules have changed."""
        if self._generation != self.authorizer.generation:
            self._generation = self.authorizer.generation
            granted, self._granted = self._granted, {}
            for key in granted:
                if not self._judged(key).allowed and self._lost is None:
                    self._lost = key

    def _line(self, event: str, resource: str, operation: str, rule: str) -> AuditLine:
        uri = self.caller.identity.uri if self.caller.identity is not None else ""
        line = AuditLine(
            event, self.caller.principal, uri, self.peer, self.listener, self.method, resource, operation, rule
        )
        line.request_id = self.request_id
        return line


_UNGUARDED: Final = Call(Caller(is_super=True), Authorizer())
current: Final[ContextVar[Call]] = ContextVar("call", default=_UNGUARDED)


def current_call() -> Call:
    """Return the current RPC; outside of an RPC, a call to which no rules apply.

    On a stream of requests call this before the handler first waits.
    """
    return current.get()


@contextlib.contextmanager
def acting_as(call: Call) -> Iterator[None]:
    """Make ``call`` the current RPC for the duration of the context."""
    token = current.set(call)
    try:
        yield
    finally:
        current.reset(token)


def host_of(peer: str) -> str:
    """Return the address in gRPC's name of a peer: ``ipv4:127.0.0.1:4711`` gives ``127.0.0.1``."""
    _, _, address = peer.replace("%5B", "[").replace("%5D", "]").partition(":")
    return address.rpartition(":")[0].strip("[]")
