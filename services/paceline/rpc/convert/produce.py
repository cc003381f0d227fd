"""Produce: `model.client_io` <-> ``paceline.v1``; `rpc/wire.py` encodes the batches.

An absent field has the default that the protos document; an unknown enum value is refused.
"""

from typing import Final

from paceline.model.client_io import ProduceResult, RequiredAcks
from paceline.model.errors import InvalidRequiredAcksError
from paceline.rpc.convert.common import at_least
from paceline.rpc.convert.failures import AddressOf, failure_to_proto, no_address
from paceline.v1 import log_service_pb2 as pb

DEFAULT_TIMEOUT_MS: Final = 30_000
MAX_TIMEOUT_MS: Final = 600_000
_ACKS: Final[dict[int, RequiredAcks]] = {
    pb.ACKS_UNSPECIFIED: RequiredAcks.ALL,
    pb.ACKS_NONE: RequiredAcks.NONE,
    pb.ACKS_LEADER: RequiredAcks.LEADER,
    pb.ACKS_ALL: RequiredAcks.ALL,
}


def acks_from_proto(number: int) -> RequiredAcks:
    """Decode the requested acks; unspecified means ALL.

    Raises:
        InvalidRequiredAcksError: the number is unknown.
    """
    acks = _ACKS.get(number)
    if acks is None:
        raise InvalidRequiredAcksError(f"acks {number} is not one of NONE, LEADER, ALL")
    return acks


def timeout_from_proto(timeout_ms: int) -> int:
    """Return a request's timeout: 0 means 30 s, and ten minutes is the limit.

    Raises:
        InvalidRequestError: the timeout is negative.
    """
    return min(at_least(timeout_ms, 0, "timeout"), MAX_TIMEOUT_MS) or DEFAULT_TIMEOUT_MS


def produce_result_to_proto(result: ProduceResult, address_of: AddressOf = no_address) -> pb.ProducePartitionResult:
    """Encode the result of one partition; a failed result has no offsets."""
    topic, partition = result.topic_partition
    if result.failure is not None:
        return pb.ProducePartitionResult(
            topic=topic, partition=partition, error=failure_to_proto(result.failure, address_of)
        )
    return pb.ProducePartitionResult(
        topic=topic,
        partition=partition,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
    )
