"""The guard: callers that are admitted, and requests that they may send."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import grpc
import grpc.aio
import pytest

from paceline.internal.v1 import controller_service_pb2 as controller_pb
from paceline.internal.v1 import replica_manager_service_pb2 as control_pb
from paceline.internal.v1 import replication_service_pb2 as replication_pb
from paceline.model.acls import AccessRules
from paceline.model.errors import BrokerNotAvailableError, ClusterAuthorizationError, InvalidRequestError
from paceline.model.quotas import DEFAULT, REQUEST, ClientQuotas, QuotaEntity
from paceline.rpc.admission.caller_quota import NO_QUOTA
from paceline.rpc.interceptors import AioErrorInterceptor
from paceline.rpc.security.audit_log import AuditLog
from paceline.rpc.security.authorizer import Authorizer, Mode, acting_as, current_call
from paceline.rpc.security.guard import Guard, current_caller

CLUSTER = "0123456789abcdef" * 2
FETCH = "/paceline.internal.v1.ReplicationService/Fetch"
STOP = "/paceline.internal.v1.ReplicaManagerService/StopReplica"
PUBLIC = "/paceline.v1.MetadataService/DescribeCluster"


@pytest.fixture(autouse=True)
def no_call_remains() -> Iterator[None]:
    """`Guard.admit` makes a call the current one, of this thread here."""
    with acting_as(current_call()):
        yield


class Context:
    """A connection whose certificate has these URIs."""

    def __init__(
        self, *uris: str, certificate: bool = True, principals: tuple[str, ...] = (), number: str = "1"
    ) -> None:
        self._metadata = [("user-agent", "test"), *(("paceline-principal", one) for one in principals)]
        self._context: dict[str, Any] = {"x509_pem_cert": [f"{uris} {number}".encode()]} if certificate else {}
        if len(uris) == 1:  # gRPC leaves it out when there are several
            self._context["peer_spiffe_id"] = [uris[0].encode()]

    def auth_context(self) -> Any:
        return self._context

    def peer(self) -> str:
        return "ipv4:10.0.0.9:4711"

    def invocation_metadata(self) -> Any:
        return self._metadata


def identity(path: str, *principals: str, cluster: str = CLUSTER, number: str = "1") -> Context:
    return Context(f"spiffe://{cluster}/{path}", principals=principals, number=number)


def number_in(pem: bytes) -> str:
    return pem.decode().split()[-1]


def guard(lines: list[str] | None = None, **more: Any) -> Guard:
    log = AuditLog("broker/1", (lines if lines is not None else []).append)
    arguments = {"client_auth": True, "super_users": {"User:admin"}, "anonymous_is_super": False} | more
    return Guard("CONTROL", CLUSTER, authorizer=Authorizer(audit=log), serial_number_of=number_in, **arguments)


def test_caller_is_known_to_servicers_and_super_users_are_nodes_and_the_named() -> None:
    one = guard()
    for path, principal, is_super in (
        ("client/admin", "User:admin", True),
        ("client/guest", "User:guest", False),
        ("broker/1", "User:broker/1", True),
        ("gateway/a", "User:gateway/a", False),
    ):
        for _ in range(2):  # the second time from the cache
            assert one.admit(PUBLIC, identity(path)).principal == principal
            assert (current_caller().principal, current_caller().is_super) == (principal, is_super)


def test_a_gateway_calls_for_the_client_that_it_names() -> None:
    lines: list[str] = []
    one = guard(lines)
    caller = one.admit(PUBLIC, identity("gateway/a", "User:alice"))
    assert (caller.principal, caller.is_super, current_caller().principal) == ("User:alice", False, "User:alice")
    assert caller.identity is not None and caller.identity.principal == "User:gateway/a"
    assert one.admit(PUBLIC, identity("gateway/a")).principal == "User:gateway/a"


def test_quotas_are_those_of_the_named_client_and_nodes_have_none() -> None:
    quotas = ClientQuotas()
    quotas.use({QuotaEntity(DEFAULT, "test"): {REQUEST: 1.0}})
    one = guard(quotas=quotas)
    for path, names, user in (
        ("client/guest", (), "guest"), ("gateway/a", ("User:alice",), "alice"), ("gateway/a", (), "gateway/a"),
        ("client/admin", (), "admin"), ("broker/1", (), ""), ("controller/1", (), ""),
    ):  # fmt: skip
        one.admit(PUBLIC, identity(path, *names))
        current_call().quota.charge(REQUEST, 1_000)
        assert quotas.pause_ms(user, "test", REQUEST, 0) > 0 if user else current_call().quota is NO_QUOTA
    one.admit(FETCH, identity("broker/1"))
    assert current_call().quota is NO_QUOTA


@pytest.mark.parametrize(
    ("path", "principals", "reason"),
    [
        ("client/guest", ("User:alice",), "only a gateway"),
        ("client/admin", ("User:alice",), "only a gateway"),
        ("broker/1", ("User:alice",), "only a gateway"),
        ("gateway/a", ("User:admin",), "super user"),
        ("gateway/a", ("User:broker/1",), "no node"),
        ("gateway/a", ("User:gateway/b",), "no node"),
        ("gateway/a", ("alice",), "one client"),
        ("gateway/a", ("User:" + "a" * 300,), "one client"),
        ("gateway/a", ("User:alice", "User:bob"), "one client"),
    ],
)
def test_a_principal_that_may_not_be_named_is_refused(path: str, principals: tuple[str, ...], reason: str) -> None:
    lines: list[str] = []
    with pytest.raises(ClusterAuthorizationError, match=reason):
        guard(lines).admit(PUBLIC, identity(path, *principals))
    assert len(lines) == 1 and path in lines[0]


def test_a_caller_without_a_certificate_may_name_no_principal() -> None:
    with pytest.raises(ClusterAuthorizationError, match="only a gateway"):
        Guard("CLIENT").admit(PUBLIC, Context(certificate=False, principals=("User:alice",)))


def test_a_gateway_is_no_node_and_never_a_super_user() -> None:
    one = guard(super_users={"User:gateway/a"})
    caller = one.admit(PUBLIC, identity("gateway/a"))
    assert not caller.is_super and not caller.is_node
    with pytest.raises(ClusterAuthorizationError, match="only a broker"):
        one.admit(FETCH, identity("gateway/a"))


@pytest.mark.parametrize(
    "context",
    [
        identity("client/admin", "f" * 32),
        Context("https://example.org/"),
        Context("spiffe://" + CLUSTER + "/operator/1"),
        Context(),
        Context(f"spiffe://{CLUSTER}/broker/1", f"spiffe://{CLUSTER}/broker/2"),
        Context(certificate=False),
    ],
)
def test_other_clusters_and_certificates_without_one_identity_are_refused_every_time(context: Context) -> None:
    lines: list[str] = []
    one = guard(lines)
    for _ in (1, 2):
        with pytest.raises(ClusterAuthorizationError):
            one.admit(PUBLIC, context)
    assert len(lines) == 1, "the second refusal is counted"


def test_a_revoked_certificate_is_refused_everywhere_and_another_of_the_same_name_is_not() -> None:
    lines: list[str] = []
    one = guard(lines)
    authorizer = one._authorizer
    health = "/grpc.health.v1.Health/Check"
    for path, method in (("client/admin", PUBLIC), ("broker/1", FETCH), ("client/guest", health)):
        authorizer.revoked = frozenset()
        assert one.admit(method, identity(path, number="a1")).serial_number == "a1"
        call = current_call()
        assert call.withdrawn() is None
        authorizer.revoked = frozenset({"a1", "ff"})
        for _ in range(2):
            with pytest.raises(ClusterAuthorizationError, match="serial number a1 is revoked") as refused:
                one.admit(method, identity(path, number="a1"))
            assert refused.value.metadata == {"revoked_serial_number": "a1"}
        withdrawn = call.withdrawn()
        assert isinstance(withdrawn, ClusterAuthorizationError)
        assert withdrawn.metadata == {"revoked_serial_number": "a1"}
        one.admit(method, identity(path, number="b2"))
        assert current_call().withdrawn() is None
    assert len(lines) == 3 and all("is revoked" in line for line in lines)
    authorizer.revoked = frozenset({"ff"})
    one.admit(PUBLIC, identity("client/admin", number="a1"))


def test_a_stream_that_a_gateway_opened_for_a_client_ends_with_the_certificate_of_the_gateway() -> None:
    one = guard()
    one.admit(PUBLIC, identity("gateway/a", "User:alice", number="a1"))
    one._authorizer.revoked = frozenset({"a1"})
    assert current_call().withdrawn() is not None


def test_until_the_revoked_certificates_were_read_a_certificate_gets_health_checks_alone() -> None:
    one = guard(client_auth=False)
    one._authorizer.revoked = None
    with pytest.raises(BrokerNotAvailableError):
        one.admit(PUBLIC, identity("client/admin"))
    one.admit("/grpc.health.v1.Health/Check", identity("client/admin"))
    one.admit(PUBLIC, Context(certificate=False))


def test_without_client_auth_a_caller_without_certificate_is_anonymous_and_has_no_internal_rpc() -> None:
    one = guard(client_auth=False)
    caller = one.admit(PUBLIC, Context(certificate=False))
    assert caller.principal == "User:ANONYMOUS" and not caller.is_super
    one.check(PUBLIC, caller, None, Context(certificate=False))
    with pytest.raises(ClusterAuthorizationError, match="only a broker"):
        one.admit(FETCH, Context(certificate=False))


def test_plaintext_listener_admits_every_caller() -> None:
    one = Guard("CONTROL")
    caller = one.admit(STOP, Context())
    one.check(STOP, caller, control_pb.StopReplicaRequest(), Context())
    assert caller.is_super


def test_request_must_be_of_the_role_and_the_id_in_the_certificate() -> None:
    one = guard()

    def check(path: str, method: str, request: Any) -> None:
        context = identity(path)
        one.check(method, one.admit(method, context), request, context)

    stop = control_pb.StopReplicaRequest(stamp=control_pb.ControllerStamp(controller_id=1_000_000))
    check("controller/1000000", STOP, stop)
    for path in ("controller/1000001", "broker/1", "client/admin"):
        with pytest.raises(ClusterAuthorizationError):
            check(path, STOP, stop)
    with pytest.raises(ClusterAuthorizationError):
        check("controller/1000000", STOP, control_pb.StopReplicaRequest())
    with pytest.raises(ClusterAuthorizationError, match="no access rule"):
        check("broker/1", "/paceline.internal.v1.ReplicationService/Unheard", b"")
    shutdown = "/paceline.internal.v1.ControllerService/ControlledShutdown"
    check("broker/1", shutdown, controller_pb.ControlledShutdownRequest(broker_id=1))
    with pytest.raises(ClusterAuthorizationError):
        check("broker/1", shutdown, controller_pb.ControlledShutdownRequest(broker_id=2))


def test_replica_id_of_bytes_is_the_one_that_the_parser_will_take() -> None:
    one, context = guard(), identity("broker/1")
    caller = one.admit(FETCH, context)
    first = replication_pb.FetchRequest(replica_id=1, session_id=5).SerializeToString()
    second = replication_pb.FetchRequest(replica_id=2).SerializeToString()
    one.check(FETCH, caller, first, context)
    assert replication_pb.FetchRequest.FromString(first + second).replica_id == 2
    with pytest.raises(ClusterAuthorizationError, match="from broker 2"):
        one.check(FETCH, caller, first + second, context)
    with pytest.raises(InvalidRequestError):
        one.check(FETCH, caller, b"\xff", context)


def test_a_public_method_without_a_row_in_the_table_is_refused_to_all_but_super_users() -> None:
    authorizer = Authorizer(Mode.ENFORCE, {"User:admin"})
    authorizer.use(AccessRules({}))
    one = Guard("CLIENT", CLUSTER, True, {"User:admin"}, False, authorizer)
    with pytest.raises(ClusterAuthorizationError, match="not in the table of RPCs"):
        one.admit("/paceline.v1.LogService/Unheard", identity("client/guest"))
    one.admit("/paceline.v1.LogService/Unheard", identity("client/admin"))
    authorizer.mode = Mode.LOG
    one.admit("/paceline.v1.LogService/Unheard", identity("client/guest"))


def test_until_the_rules_were_read_a_client_is_asked_to_call_again_and_exempt_callers_are_served() -> None:
    """A definite refusal would fail the clients of every broker that restarts."""
    authorizer = Authorizer(Mode.ENFORCE, {"User:admin"})
    one = Guard("CLIENT", CLUSTER, True, {"User:admin"}, False, authorizer)
    with pytest.raises(BrokerNotAvailableError) as refused:
        one.admit(PUBLIC, identity("client/guest"))
    assert refused.value.retriable and refused.value.definite
    one.admit("/grpc.health.v1.Health/Check", identity("client/guest"))
    one.admit(PUBLIC, identity("client/admin"))
    one.admit(PUBLIC, identity("broker/1"))


def test_nodes_and_super_users_are_exempt_from_the_rules_and_other_clients_are_not() -> None:
    authorizer = Authorizer(Mode.ENFORCE, {"User:admin"})
    authorizer.use(AccessRules({}))
    one = Guard("CLIENT", CLUSTER, True, {"User:admin"}, False, authorizer)
    for path, exempt in (("client/admin", True), ("broker/1", True), ("controller/7", True), ("client/guest", False)):
        one.admit(PUBLIC, identity(path))
        assert (current_call().exempt is not None) is exempt
    assert current_call().host == "10.0.0.9"


@pytest.mark.parametrize("path", ["client/guest", "gateway/a"])
async def test_a_server_looks_for_a_named_principal_in_the_headers_of_each_call(path: str) -> None:
    """The wrapped handler of a method is kept, and the next call may name a principal."""
    one, found = guard(), list[str]()

    async def describe(_request: bytes, _context: Any) -> bytes:
        found.append(current_caller().principal)
        return b""

    async def handler_of(_details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(describe)

    interceptor = AioErrorInterceptor(lambda _method, _seconds, _reason: None, 1, 1, one)
    for principals in ((), ("User:alice",), (), ("User:bob",)):
        context: Any = identity(path, *principals)
        context.read, context.abort = AsyncMock(return_value=b""), AsyncMock(side_effect=grpc.aio.AbortError)
        details = SimpleNamespace(method=PUBLIC, invocation_metadata=context.invocation_metadata())
        handler = await interceptor.intercept_service(handler_of, details)
        with contextlib.suppress(grpc.aio.AbortError):
            await handler.stream_unary(None, context)
    refused = ["User:guest", "User:guest"]
    assert found == (["User:gateway/a", "User:alice", "User:gateway/a", "User:bob"] if path == "gateway/a" else refused)
