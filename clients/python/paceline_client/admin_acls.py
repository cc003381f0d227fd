"""The calls of `Admin` for access rules, what they allow, and revoked certificates."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from paceline.rpc.pages import merged_pages
from paceline.v1.acl_service_pb2 import (
    Acl,
    AclFilter,
    CheckAclsRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeRevokedCertificatesRequest,
    RestoreCertificateRequest,
    RevokeCertificateRequest,
    WhoAmIRequest,
)
from paceline.v1.acl_service_pb2_grpc import AclServiceStub
from paceline_client.admin_connection import AdminConnection
from paceline_client.errors import sendable


@dataclass(frozen=True, slots=True)
class AccessRule:
    """A rule: whether a principal may carry out an operation on a resource. The names are Kafka's."""

    principal: str
    """``User:alice``; ``User:*`` is every principal."""
    operation: str
    """``Read``, ``Write``, ``Create``, ``Delete``, ``Alter``, ``Describe``, ``DescribeConfigs``, ``AlterConfigs``,
    ``ClusterAction``, ``IdempotentWrite`` or ``All``."""
    resource_type: str
    """``Topic``, ``Group``, ``Cluster`` or ``TransactionalId``."""
    resource_name: str
    """Name of the resource, ``kafka-cluster`` for the cluster; ``*`` in a literal pattern is every name."""
    pattern_type: str = "LITERAL"
    """``PREFIXED`` for all names that begin with ``resource_name``."""
    permission: str = "Allow"
    """``Allow`` or ``Deny``; a Deny wins."""
    host: str = "*"
    """Address from which the rule applies."""

    def __str__(self) -> str:
        """Return the rule as in the audit log."""
        on = f"{self.resource_type}:{self.pattern_type}:{self.resource_name}"
        return f"{self.permission} {self.principal} {self.operation} on {on} from {self.host}"


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The result of `AclAdmin.describe_acls`."""

    rules: tuple[AccessRule, ...]
    unreadable: tuple[str, ...] = ()
    """Resources whose rules cannot be parsed, which refuse everybody but super users, with the reason."""


@dataclass(frozen=True, slots=True)
class AccessVerdict:
    """The decision of the rules."""

    allowed: bool
    rule: str
    """The rule that decides, or the reason without one."""
    mode: str
    """``authorizer.mode`` of the answering controller: only ``enforce`` refuses."""


@dataclass(frozen=True, slots=True)
class Identification:
    """The caller as the cluster knows it."""

    principal: str
    host: str
    super_user: bool
    mode: str


class AclAdmin(AdminConnection):
    """The calls of `Admin` for access rules."""

    def create_acls(self, rules: Iterable[AccessRule], *, timeout_ms: int | None = None) -> None:
        """Add rules, or none if one is refused; a rule that exists stays. Every process obeys them within a second.

        Raises:
            InvalidRequestError: a rule can never apply: an unknown operation, an empty prefix, a name with ``/``.
            ClusterAuthorizationError: the caller needs Alter on the cluster.
        """
        with sendable():
            request = CreateAclsRequest(acls=[Acl(**asdict(rule)) for rule in rules])
        self._ask_acls("CreateAcls", request, timeout_ms)

    def delete_acls(self, **selected: str) -> list[AccessRule]:
        """Remove the rules whose fields have the given values, and return them.

        Args:
            selected: fields of `AccessRule`; ``pattern_type="MATCH"`` selects all rules that apply to the named
                resource. Only the resource's type, name and pattern also removes rules that cannot be parsed.
        """
        with sendable():
            request = DeleteAclsRequest(filter=AclFilter(**selected))
        return [_rule_of(acl) for acl in self._ask_acls("DeleteAcls", request, None).acls]

    def describe_acls(self, **selected: str) -> AccessRules:
        """Return the rules whose fields have the given values, sorted by resource; see `delete_acls`."""
        with sendable():
            request = DescribeAclsRequest(filter=AclFilter(**selected))

        def call(channel: Any, left_s: float) -> Any:
            stub = AclServiceStub(channel)
            return merged_pages(request, lambda page: stub.DescribeAcls(page, timeout=left_s), "acls")

        answer = self._on_controller(call, self._describe_timeout_ms, only_reads=True)
        return AccessRules(tuple(_rule_of(acl) for acl in answer.acls), tuple(answer.unreadable))

    def check_acl(
        self, principal: str, operation: str, resource_type: str, resource_name: str, *, host: str = "",
        timeout_ms: int | None = None,
    ) -> AccessVerdict:  # fmt: skip
        """Return whether the rules allow a principal an operation, and the rule that decides.

        Args:
            principal: ``User:alice``.
            operation: as the type and the name of the resource see `AccessRule`.
            resource_type: kind of resource.
            resource_name: name of the resource.
            host: address of the principal; default: the address of this client.
            timeout_ms: longest wait.
        """
        with sendable():
            request = CheckAclsRequest(
                principal=principal,
                host=host,
                operation=operation,
                resource_type=resource_type,
                resource_name=resource_name,
            )
        answer = self._ask_acls("CheckAcls", request, timeout_ms, only_reads=True)
        return AccessVerdict(answer.allowed, answer.rule, answer.mode)

    def who_am_i(self, timeout_ms: int | None = None) -> Identification:
        """Return the principal and the address under which the rules know this client."""
        answer = self._ask_acls("WhoAmI", WhoAmIRequest(), timeout_ms, only_reads=True)
        return Identification(answer.principal, answer.host, answer.super_user, answer.mode)

    def revoke_certificate(self, serial_number: str, principal: str = "", *, timeout_ms: int | None = None) -> None:
        """Make every process refuse a certificate, within a minute; other certificates of its owner stay valid.

        Args:
            serial_number: hexadecimal digits, as ``paceline certs show`` prints them.
            principal: the owner, for people who read the list.
            timeout_ms: longest wait.

        Raises:
            InvalidRequestError: not a serial number, or that of the certificate with which this client calls.
            ClusterAuthorizationError: the caller needs Alter on the cluster.
        """
        with sendable():
            request = RevokeCertificateRequest(serial_number=serial_number, principal=principal)
        self._ask_acls("RevokeCertificate", request, timeout_ms)

    def restore_certificate(self, serial_number: str, *, timeout_ms: int | None = None) -> None:
        """Make every process accept a revoked certificate again.

        Raises:
            InvalidRequestError: the certificate is not revoked.
        """
        with sendable():
            request = RestoreCertificateRequest(serial_number=serial_number)
        self._ask_acls("RestoreCertificate", request, timeout_ms)

    def describe_revoked_certificates(self, timeout_ms: int | None = None) -> dict[str, str]:
        """Return the owners of the revoked certificates by serial number; empty without Describe on the cluster."""
        request = DescribeRevokedCertificatesRequest()
        answer = self._ask_acls("DescribeRevokedCertificates", request, timeout_ms, only_reads=True)
        return {one.serial_number: one.principal for one in answer.certificates}

    def _ask_acls(self, method: str, request: Any, timeout_ms: int | None, only_reads: bool = False) -> Any:
        return self._on_controller(
            lambda channel, left_s: getattr(AclServiceStub(channel), method)(request, timeout=left_s),
            self._describe_timeout_ms if timeout_ms is None else timeout_ms,
            only_reads,
        )


def _rule_of(acl: Acl) -> AccessRule:
    return AccessRule(**{field.name: getattr(acl, field.name) for field in fields(AccessRule)})
