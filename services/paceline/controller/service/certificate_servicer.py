"""The calls of AclService about revoked certificates."""

from typing import Any, Final, TypeVar

from paceline.controller.service.metadata_servicer import NodeHandle
from paceline.coordination.errors import SessionLostError
from paceline.coordination.flow import Flow
from paceline.coordination.revoked_certificates import read_owners, restore, revoke
from paceline.model.acls import MAX_PRINCIPAL_CHARACTERS, Operation, ResourceType
from paceline.model.errors import BrokerNotAvailableError, InvalidRequestError, RequestTimedOutError
from paceline.model.serial_numbers import serial_number_of
from paceline.rpc.deadlines import wait_within_deadline
from paceline.rpc.security.authorizer import current_call
from paceline.rpc.security.rpc_needs import Need
from paceline.v1 import acl_service_pb2 as pb
from paceline.v1 import acl_service_pb2_grpc

_TIMEOUT_MS: Final = 30_000
_DESCRIBE_CLUSTER: Final = Need(Operation.DESCRIBE, ResourceType.CLUSTER)

T = TypeVar("T")


class CertificateServicer(acl_service_pb2_grpc.AclServiceServicer):
    """Serves the list of revoked certificates; `AclServicer` has the other calls."""

    def __init__(self, handle: NodeHandle) -> None:
        self._handle = handle

    async def RevokeCertificate(  # noqa: N802
        self, request: pb.RevokeCertificateRequest, context: Any
    ) -> pb.RevokeCertificateResponse:
        """Revoke a certificate, unless it is the caller's, so that a caller is left who can restore it."""
        number, own = serial_number_of(request.serial_number), current_call().caller.serial_number
        if not own:
            raise InvalidRequestError("the caller has no certificate, so this listener accepts callers without one")
        if number == own:
            raise InvalidRequestError("this is the certificate of the caller: revoke it with another certificate")
        if len(request.principal) > MAX_PRINCIPAL_CHARACTERS:
            raise InvalidRequestError(f"the principal has more than {MAX_PRINCIPAL_CHARACTERS} characters")
        await self._on_zookeeper(revoke(number, request.principal), context)
        return pb.RevokeCertificateResponse()

    async def RestoreCertificate(  # noqa: N802
        self, request: pb.RestoreCertificateRequest, context: Any
    ) -> pb.RestoreCertificateResponse:
        """Accept a revoked certificate again."""
        await self._on_zookeeper(restore(serial_number_of(request.serial_number)), context)
        return pb.RestoreCertificateResponse()

    async def DescribeRevokedCertificates(  # noqa: N802
        self, request: pb.DescribeRevokedCertificatesRequest, context: Any
    ) -> pb.DescribeRevokedCertificatesResponse:
        """Return the revoked certificates; their owners only to callers with Describe on the cluster."""
        shows_owners = current_call().allows(_DESCRIBE_CLUSTER, request)
        found = await self._on_zookeeper(read_owners(), context)
        return pb.DescribeRevokedCertificatesResponse(
            certificates=[
                pb.RevokedCertificate(serial_number=number, principal=owner if shows_owners else "")
                for number, owner in found.items()
            ]
        )

    async def _on_zookeeper(self, flow: Flow[T], context: Any) -> T:
        """Run a flow on ZooKeeper.

        Raises:
            RequestTimedOutError: ZooKeeper has not answered; a change may still be made.
        """
        self._handle.get()
        if self._handle.on_session is None:
            raise BrokerNotAvailableError("the controller is starting")
        try:
            found: T = await self._handle.on_session(flow, wait_within_deadline(_TIMEOUT_MS, context) / 1000)
        except TimeoutError:
            raise RequestTimedOutError("ZooKeeper has not answered in time; a change may still be made") from None
        except SessionLostError as error:
            raise RequestTimedOutError(f"{error}; a change may have been made") from None
        return found
