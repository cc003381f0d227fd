"""The part of AclService for revoked certificates."""

from typing import Any, Final, TypeVar

from paceline.controller.service.metadata_servicer import NodeHandle
from paceline.controller.service.zookeeper_writes import zookeeper_errors, zookeeper_timeout_s
from paceline.coordination.flow import Flow
from paceline.coordination.revoked_certificates import read_owners, read_serial_numbers, restore, revoke
from paceline.model.acls import MAX_PRINCIPAL_CHARACTERS, Operation, ResourceType
from paceline.model.errors import BrokerNotAvailableError, InvalidRequestError
from paceline.model.serial_numbers import serial_number_of
from paceline.rpc.security.authorizer import current_call
from paceline.rpc.security.rpc_needs import Need
from paceline.v1 import acl_service_pb2 as pb

_DESCRIBE_CLUSTER: Final = Need(Operation.DESCRIBE, ResourceType.CLUSTER)

T = TypeVar("T")


class CertificateRpcs:
    """Serves revoked certificates on one listener."""

    _handle: NodeHandle

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
        if current_call().allows(_DESCRIBE_CLUSTER, request):
            owners = await self._on_zookeeper(read_owners(), context)
        else:
            owners = dict.fromkeys(sorted(await self._on_zookeeper(read_serial_numbers(), context)), "")
        return pb.DescribeRevokedCertificatesResponse(
            certificates=[
                pb.RevokedCertificate(serial_number=number, principal=owner) for number, owner in owners.items()
            ]
        )

    async def _on_zookeeper(self, flow: Flow[T], context: Any) -> T:
        """Run a flow on ZooKeeper; for errors see `zookeeper_errors`."""
        self._handle.get()
        if self._handle.on_session is None:
            raise BrokerNotAvailableError("the controller is starting")
        with zookeeper_errors():
            result: T = await self._handle.on_session(flow, zookeeper_timeout_s(context))
            return result
