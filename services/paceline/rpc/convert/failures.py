"""Errors of partitions, with the current leader: `model.client_io` <-> ``paceline.v1`` PartitionError."""

from collections.abc import Callable

from paceline.model.client_io import PartitionFailure
from paceline.model.control import Endpoint
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import TopicPartition
from paceline.rpc.errors import THROTTLE_RETRY_DELAY_MS
from paceline.v1 import errors_pb2

AddressOf = Callable[[int], Endpoint | None]
"""Returns the address of a broker on the listener that received the request, None when it is unknown."""


def no_address(broker_id: int) -> Endpoint | None:
    """Return None: an `AddressOf` without addresses."""
    return None


def failure_to_proto(failure: PartitionFailure, address_of: AddressOf = no_address) -> errors_pb2.PartitionError:
    """Encode the error of a partition, with the leader's address if it is known."""
    leader = None
    if failure.leader is not None:
        endpoint = address_of(failure.leader.leader_id)
        leader = errors_pb2.LeaderHint(
            leader_id=failure.leader.leader_id,
            leader_epoch=failure.leader.leader_epoch,
            host=endpoint.host if endpoint else "",
            port=endpoint.port if endpoint else 0,
            topic_id=failure.leader.topic_id or "",
        )
    return errors_pb2.PartitionError(
        code=int(failure.code),  # type: ignore[arg-type]
        message=failure.message or failure.code.name,
        current_leader=leader,
        log_start_offset=failure.log_start_offset,
        high_watermark=failure.high_watermark,
        retry_after_ms=THROTTLE_RETRY_DELAY_MS if failure.code is ErrorCode.THROTTLED else None,
    )


def optional_failure(failure: PartitionFailure | None, address_of: AddressOf) -> errors_pb2.PartitionError | None:
    """Encode the error of a partition; return None for None."""
    return None if failure is None else failure_to_proto(failure, address_of)


def no_leader_to_proto(topic_partition: TopicPartition) -> errors_pb2.PartitionError:
    """Return the encoded error of a partition without a leader."""
    return failure_to_proto(
        PartitionFailure(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic_partition} has no leader at the moment")
    )
