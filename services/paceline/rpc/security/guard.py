"""Determine the caller of every RPC, and allow or deny the call; no other module does that.

Both error interceptors use the guard of their listener: they call `Guard.admit` when a call begins and `Guard.check`
with every request. Servicers read the caller with `current_caller`. What a client may do is decided by access lists, in
`authorizer`.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, Protocol

from paceline.model.errors import BrokerNotAvailableError, ClusterAuthorizationError
from paceline.model.identity import PRINCIPAL_KEY, Identity, InvalidIdentityError, Role
from paceline.model.quotas import ClientQuotas
from paceline.rpc.admission.caller_quota import CallerQuota
from paceline.rpc.security.access_rules import ACCESS_RULES, INTERNAL_PACKAGE
from paceline.rpc.security.audit_log import DENIED, AuditLine, new_request_id
from paceline.rpc.security.authorizer import Authorizer, Call, Caller, Mode, current, current_call
from paceline.rpc.security.rpc_needs import RPC_NEEDS

_CLIENT_PACKAGE: Final = "/paceline.v1."
_SPIFFE_ID: Final = "peer_spiffe_id"
_CERTIFICATE: Final = "x509_pem_cert"
_PUBLIC_PACKAGE: Final = "/paceline."
_MAX_KNOWN_CALLERS: Final = 1_000
_MAX_PRINCIPAL: Final = 255
NODE_LISTENERS: Final = frozenset({"CONTROL", "REPLICATION"})
"""Listeners whose callers are nodes of the cluster."""


def current_caller() -> Caller:
    """Return the caller of the current RPC; outside of an RPC, a caller with `Caller.is_super`."""
    return current_call().caller


def names_principal(metadata: Iterable[tuple[str, str | bytes]] | None) -> bool:
    """Whether the metadata of a call names the principal of a gateway's caller."""
    for entry in metadata or ():  # noqa: SIM110, because a generator takes twice as long
        if entry[0] == PRINCIPAL_KEY:
            return True
    return False


class CallContext(Protocol):
    """The part of a servicer's context that describes the connection."""

    def auth_context(self) -> Any: ...

    def peer(self) -> str: ...

    def invocation_metadata(self) -> Any: ...


class Guard:
    """Allows or denies the calls of one listener.

    Args:
        listener: name of the listener.
        cluster: trust domain of this cluster; None for a PLAINTEXT listener, whose callers have no identity.
        client_auth: whether every caller must have an identity.
        super_users: principals with `Caller.is_super`, in addition to controllers and brokers.
        anonymous_is_super: whether callers without an identity have `Caller.is_super`, as in a cluster without TLS.
        authorizer: decides by access lists, and has the audit log and the revoked certificates.
        serial_number_of: returns the serial number of a certificate in PEM, as in `Authorizer.revoked`.
        quotas: of the clients; nodes of the cluster have none.
    """

    def __init__(
        self,
        listener: str,
        cluster: str | None = None,
        client_auth: bool = False,
        super_users: Collection[str] = (),
        anonymous_is_super: bool = True,
        authorizer: Authorizer | None = None,
        serial_number_of: Callable[[bytes], str] = lambda _pem: "",
        quotas: ClientQuotas | None = None,
    ) -> None:
        self._quotas = quotas or ClientQuotas()
        self._listener = listener
        self._cluster = cluster
        self._client_auth = client_auth
        self._super_users = frozenset(super_users)
        self._anonymous = Caller(is_super=anonymous_is_super)
        self._authorizer = authorizer or Authorizer()
        self._serial_number_of = serial_number_of
        self._callers: dict[bytes, Caller] = {}
        """Callers by certificate: another certificate of the same name is another caller."""
        self.known_peers: dict[str, str] = {}
        """Peers, as in ``context.peer()``, with an admitted call, and the serial numbers of their certificates;
        `ConnectionLimiter` removes closed connections."""

    def admit(self, method: str, context: CallContext, is_named: bool = True) -> Caller:
        """Return the caller of a new call, and make it the result of `current_caller`; its message is not read yet.

        Args:
            method: the RPC.
            context: the call.
            is_named: whether the call may name a principal, see `names_principal`.

        Raises:
            ClusterAuthorizationError: the certificate is revoked or of another cluster, the caller has no required
                identity, its role may not use the method or name another principal, or the table of RPCs has no row
                for the method.
            BrokerNotAvailableError: access lists or revoked certificates, which decide, have not been read yet.
        """
        caller = self._anonymous
        if self._cluster is not None:
            caller = self._caller_of(method, context)
            if method.startswith(INTERNAL_PACKAGE):
                self._check_role(method, caller, context)
        if is_named and not method.startswith(INTERNAL_PACKAGE):
            caller = self._named(method, caller, context)
        # A health check of a client does not make the client known on a listener of nodes.
        if self._cluster is None or caller.is_node or self._listener not in NODE_LISTENERS:
            self.known_peers[context.peer()] = caller.serial_number
        self._begin_call(method, caller, context)
        return caller

    def _begin_call(self, method: str, caller: Caller, context: CallContext) -> None:
        authorizer = self._authorizer
        call = Call(caller, authorizer, method, self._listener, context.peer(), RPC_NEEDS.get(method))
        if authorizer.mode is not Mode.OFF and not method.startswith(INTERNAL_PACKAGE):
            call.exempt = authorizer.exemption(caller.principal)
            if call.exempt is None and authorizer.mode is Mode.ENFORCE:
                if call.row is None:
                    raise self._denied(method, caller, context, "the method is not in the table of RPCs")
                if authorizer.rules is None and method.startswith(_PUBLIC_PACKAGE):
                    raise BrokerNotAvailableError("the access lists have not been read yet")
        if method.startswith(_CLIENT_PACKAGE) and not caller.is_node:
            call.quota = CallerQuota(self._quotas, caller.principal, context, method)
        current.set(call)

    def check(self, method: str, caller: Caller, request: Any, context: CallContext) -> None:
        """Check that an admitted caller may make this request; every admitted caller may use the public RPCs.

        Raises:
            ClusterAuthorizationError: the request has another node's id.
        """
        if self._cluster is None or not method.startswith(INTERNAL_PACKAGE):
            return
        rule = ACCESS_RULES[method]
        claimed = rule.claimed_id(request)
        if caller.identity is None or claimed != caller.identity.node_id:
            raise self._denied(method, caller, context, f"the request claims to be from {rule.role} {claimed}")

    def _check_role(self, method: str, caller: Caller, context: CallContext) -> None:
        rule, identity = ACCESS_RULES.get(method), caller.identity
        if rule is None:
            raise self._denied(method, caller, context, "no access rule for this method")
        if identity is None or identity.role is not rule.role:
            raise self._denied(method, caller, context, f"only a {rule.role} may call this method")

    def _named(self, method: str, caller: Caller, context: CallContext) -> Caller:
        """Return the client that a gateway names as its caller; without a name, the caller itself.

        The identity stays that of the gateway, so that lines of the audit log have both.
        """
        names = [value for key, value in context.invocation_metadata() or () if key == PRINCIPAL_KEY]
        if not names:
            return caller
        if caller.identity is None or caller.identity.role is not Role.GATEWAY:
            raise self._denied(method, caller, context, "only a gateway may name another principal")
        name = names[0] if len(names) == 1 and isinstance(names[0], str) else ""
        if not name.startswith("User:") or "/" in name or len(name) > _MAX_PRINCIPAL:
            raise self._denied(method, caller, context, "a gateway may name one client, and no node or gateway")
        if name in self._super_users:
            raise self._denied(method, caller, context, f"a gateway may not name {name}, which is a super user")
        return Caller(name, caller.identity, serial_number=caller.serial_number)

    def _caller_of(self, method: str, context: CallContext) -> Caller:
        found = context.auth_context()
        certificates = found.get(_CERTIFICATE, ())
        certificate = bytes(certificates[0]) if certificates else b""
        caller = self._callers.get(certificate)
        if caller is None:
            uris = found.get(_SPIFFE_ID, ())
            caller = self._new_caller(method, bytes(uris[0]) if len(uris) == 1 else b"", certificate, context)
            if len(self._callers) >= _MAX_KNOWN_CALLERS:
                self._callers.clear()
            self._callers[certificate] = caller
        if certificate:
            self._check_revoked(method, caller, context)
        return caller

    def _check_revoked(self, method: str, caller: Caller, context: CallContext) -> None:
        if self._authorizer.revoked is None and method.startswith(_PUBLIC_PACKAGE):
            raise BrokerNotAvailableError("the revoked certificates have not been read yet")
        number = caller.serial_number
        if self._authorizer.is_revoked(number):
            error = self._denied(method, caller, context, f"the certificate with serial number {number} is revoked")
            raise error.with_metadata(revoked_serial_number=number)

    def _new_caller(self, method: str, uri: bytes, certificate: bytes, context: CallContext) -> Caller:
        """Return the caller with this certificate, or raise, so that denied callers are not cached."""
        if not uri:
            if self._client_auth or certificate:
                raise self._denied(method, Caller(), context, "the certificate has no identity")
            return self._anonymous
        try:
            identity = Identity.parse(uri.decode("ascii", "replace"))
        except InvalidIdentityError as failure:
            raise self._denied(method, Caller(), context, str(failure)) from None
        named = identity.principal in self._super_users and identity.role is not Role.GATEWAY
        number = self._serial_number_of(certificate)
        caller = Caller(identity.principal, identity, identity.role.is_node or named, number)
        if identity.cluster != self._cluster:
            raise self._denied(method, caller, context, f"the certificate belongs to cluster {identity.cluster}")
        return caller

    @property
    def listener(self) -> str:
        """Name of the listener."""
        return self._listener

    def _denied(self, method: str, caller: Caller, context: CallContext, reason: str) -> ClusterAuthorizationError:
        uri = caller.identity.uri if caller.identity is not None else ""
        line = AuditLine(DENIED, caller.principal, uri, context.peer(), self._listener, method, rule=reason)
        line.request_id = new_request_id()
        self._authorizer.audit.refused(line)
        return ClusterAuthorizationError(f"{caller.principal} is not authorized for {method}: {reason}")
