"""Failures of single partitions, with the leader: `model.client_io` <-> ``paceline.v1`` PartitionError."""

from collections.abc import Callable
from typing import Any

from paceline.model.client_io import LeaderHint, PartitionFailure
from paceline.model.control import Endpoint
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import TopicPartition
from paceline.rpc.convert.common import known_code
from paceline.rpc.errors import THROTTLE_RETRY_DELAY_MS
from paceline.v1 import errors_pb2

AddressOf = Callable[[int], Endpoint | None]
"""Address of a broker on the listener a request arrived on; None when not known."""


def no_address(broker_id: int) -> Endpoint | None:
    """Know no addresses."""
    return None


def failure_to_proto(failure: PartitionFailure, address_of: AddressOf = no_address) -> errors_pb2.PartitionError:
    """Return the message, with the leader's address when it is known."""
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


def no_leader_to_proto(topic_partition: TopicPartition) -> errors_pb2.PartitionError:
    """Return the error of a partition that has no leader."""
    return failure_to_proto(
        PartitionFailure(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic_partition} has no leader at the moment")
    )


def failure_from_proto(message: Any) -> PartitionFailure | None:
    """Return the failure of any message with an ``optional PartitionError error``, None when it has none."""
    if not message.HasField("error"):
        return None
    error: errors_pb2.PartitionError = message.error
    hint = None
    if error.HasField("current_leader"):
        leader = error.current_leader
        hint = LeaderHint(leader.leader_id, leader.leader_epoch, leader.topic_id or None)
    return PartitionFailure(
        code=known_code(error.code),
        message=error.message,
        leader=hint,
        log_start_offset=error.log_start_offset if error.HasField("log_start_offset") else None,
        high_watermark=error.high_watermark if error.HasField("high_watermark") else None,
    )


def leader_address_from_proto(message: Any) -> tuple[str, int] | None:
    """Return (host, port) of the leader a failed result points to, None when it names none."""
    if not message.HasField("error") or not message.error.HasField("current_leader"):
        return None
    hint = message.error.current_leader
    return (hint.host, hint.port) if hint.host and hint.port else None
