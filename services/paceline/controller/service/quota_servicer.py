"""The part of AclService for client quotas, and the quota of partitions that AdminService changes."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from paceline.controller.service.metadata_servicer import NodeHandle
from paceline.controller.service.zookeeper_writes import written
from paceline.coordination.client_quotas import QuotaChange, QuotaReader
from paceline.model.errors import (
    BrokerNotAvailableError,
    ErrorCode,
    InvalidRequestError,
    PacelineError,
    RequestTimedOutError,
    ThrottlingQuotaExceededError,
)
from paceline.model.quotas import MUTATION, QuotaEntity, check_change
from paceline.rpc.convert import common
from paceline.rpc.pages import page_in_request_order
from paceline.rpc.security.authorizer import Call, current_call
from paceline.v1 import acl_service_pb2 as pb

MAX_CHANGES: Final = 10_000
_ALTER: Final = "AlterConfigs"

E = TypeVar("E")


class QuotaRpcs:
    """Serves client quotas on one listener."""

    _handle: NodeHandle

    async def AlterClientQuotas(  # noqa: N802
        self, request: pb.AlterClientQuotasRequest, context: Any
    ) -> pb.AlterClientQuotasResponse:
        """Set and remove quotas, or none if a change is invalid."""
        changes: dict[QuotaEntity, dict[str, float | None]] = {}
        for message in common.bounded(request.changes, MAX_CHANGES, "changes"):
            entity, value = _entity(message.entity), message.value if message.HasField("value") else None
            check_change(entity, message.key, value)
            if message.key in changes.setdefault(entity, {}):
                raise InvalidRequestError(f"{message.key} of {entity} is changed twice")
            changes[entity][message.key] = value
        quotas = _ready(self._handle.quotas)
        for entity, values in changes.items():
            await written(partial(quotas.change, entity, values), partial(_audit, current_call(), entity), context)
        return pb.AlterClientQuotasResponse()

    async def DescribeClientQuotas(  # noqa: N802
        self, request: pb.DescribeClientQuotasRequest, context: Any
    ) -> pb.DescribeClientQuotasResponse:
        """Return a page of the quotas that the filter selects."""
        wanted = _entity(request.filter)
        found = [
            (entity, values)
            for entity, values in (_ready(self._handle.quotas).quotas or {}).items()
            if all(name in (None, of) for name, of in zip(wanted, entity, strict=True))
        ]
        found.sort(key=lambda one: (one[0].user or "", one[0].client_id or ""))
        quotas, token = page_in_request_order(
            found, request.page_size, request.page_token,
            lambda one: pb.ClientQuota(entity=pb.QuotaEntity(**one[0]._asdict()), values=one[1]),
        )  # fmt: skip
        return pb.DescribeClientQuotasResponse(quotas=quotas, next_page_token=token)


async def within_mutation_quota(
    entries: Sequence[E],
    sizes: Sequence[int],
    change: Callable[[tuple[E, ...]], Awaitable[Sequence[Any]]],
    refuse: Callable[[E, PacelineError], Any],
) -> tuple[list[Any], int]:
    """Change topics until the caller's account of partitions is overdrawn, and refuse the rest.

    ``sizes`` are the partitions that each topic's change creates or deletes; 0 is always allowed. ``change`` returns
    the results of topics in their order, ``refuse`` that of a refused topic. Returns the results in the order of
    ``entries`` and the caller's pause in ms. What was not changed is not charged.
    """
    quota = current_call().quota
    refused: set[int] = set()
    for index, size in enumerate(sizes):
        if size and quota.pause_ms(MUTATION):
            refused.add(index)
        else:
            quota.charge(MUTATION, size)
    charged = [(entry, size) for index, (entry, size) in enumerate(zip(entries, sizes, strict=True))
               if index not in refused]  # fmt: skip
    results: Sequence[Any] = ()
    if charged or not entries:
        try:
            results = await change(tuple(entry for entry, _ in charged))
        except PacelineError as failure:
            quota.charge(MUTATION, -_unmade(failure, sum(size for _, size in charged)))
            raise
    quota.charge(MUTATION, -sum(_unmade(one.error, size) for one, (_, size) in zip(results, charged, strict=True)))
    pause_ms, rest = quota.pause_ms(MUTATION), iter(results)
    error = ThrottlingQuotaExceededError(f"too many partitions changed; repeat after {pause_ms} ms ({MUTATION})")
    return [refuse(entry, error) if index in refused else next(rest) for index, entry in enumerate(entries)], pause_ms


def _unmade(error: PacelineError | None, size: int) -> int:
    """Return the partitions that were not changed because of an error."""
    return 0 if error is None or isinstance(error, RequestTimedOutError) else size


def _entity(message: pb.QuotaEntity) -> QuotaEntity:
    return QuotaEntity(
        message.user if message.HasField("user") else None, message.client_id if message.HasField("client_id") else None
    )


def _ready(reader: QuotaReader | None) -> QuotaReader:
    if reader is None or reader.quotas is None:
        raise BrokerNotAvailableError("the quotas have not been read from ZooKeeper yet")
    return reader


def _audit(call: Call, entity: QuotaEntity, answer: QuotaChange | Exception) -> None:
    name = f"quota of {entity}"
    if isinstance(answer, Exception):
        code = answer.code if isinstance(answer, PacelineError) else ErrorCode.UNKNOWN_SERVER_ERROR
        call.audit_change(name, _ALTER, None, code.name)
        return
    old, new = answer
    if old != new:
        call.note_old(name, old)
        call.audit_change(name, _ALTER, new, None, name)
