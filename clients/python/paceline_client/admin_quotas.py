"""The calls of `Admin` for client quotas."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.rpc.pages import merged_pages
from paceline.v1.acl_service_pb2 import (
    AlterClientQuotasRequest,
    ClientQuota,
    DescribeClientQuotasRequest,
    QuotaChange,
    QuotaEntity,
)
from paceline.v1.acl_service_pb2_grpc import AclServiceStub
from paceline_client.admin_connection import AdminConnection
from paceline_client.errors import sendable


@dataclass(frozen=True, slots=True)
class Quota:
    """The quotas of a user, of a client id, or of a pair of both."""

    user: str | None = None
    """``alice`` for ``User:alice``; ``<default>`` for users without their own quota; None for a client id alone."""
    client_id: str | None = None
    """Name that brokers see (``client_id`` of a client); ``<default>`` for the others; None for a user alone."""
    values: Mapping[str, float] = field(default_factory=dict)
    """By key: ``producer_byte_rate``, ``consumer_byte_rate``, ``request_percentage``, ``controller_mutation_rate``."""


class QuotaAdmin(AdminConnection):
    """The calls of `Admin` for client quotas."""

    def alter_client_quotas(
        self,
        changes: Mapping[str, float | None],
        *,
        user: str | None = None,
        client_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Set quotas of a user, a client id or both; None removes a quota. All processes obey within a second.

        Args:
            changes: values by key; see `Quota`.
            user: name of the user, or ``<default>``.
            client_id: client id, or ``<default>``.
            timeout_ms: longest wait.

        Raises:
            InvalidRequestError: an unknown key, a value that is not above 0, no name or an empty name.
            ClusterAuthorizationError: the caller needs AlterConfigs on the cluster.
        """
        with sendable():
            entity = QuotaEntity(user=user, client_id=client_id)
            request = AlterClientQuotasRequest(
                changes=[QuotaChange(entity=entity, key=key, value=value) for key, value in changes.items()]
            )
        self._on_controller(
            lambda channel, left_s: AclServiceStub(channel).AlterClientQuotas(request, timeout=left_s),
            self._describe_timeout_ms if timeout_ms is None else timeout_ms,
        )

    def describe_client_quotas(self, *, user: str | None = None, client_id: str | None = None) -> list[Quota]:
        """Return the quotas that name a user or a client id, or all quotas, sorted by user and client id."""
        with sendable():
            request = DescribeClientQuotasRequest(filter=QuotaEntity(user=user, client_id=client_id))

        def call(channel: Any, left_s: float) -> Iterable[ClientQuota]:
            stub = AclServiceStub(channel)
            found: Iterable[ClientQuota] = merged_pages(
                request, lambda page: stub.DescribeClientQuotas(page, timeout=left_s), "quotas"
            ).quotas
            return found

        return [_quota(one) for one in self._on_controller(call, self._describe_timeout_ms, only_reads=True)]


def _quota(message: ClientQuota) -> Quota:
    entity = message.entity
    return Quota(
        entity.user if entity.HasField("user") else None,
        entity.client_id if entity.HasField("client_id") else None,
        dict(sorted(message.values.items())),
    )
