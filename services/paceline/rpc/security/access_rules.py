"""The rules of the internal RPCs: which role may call an RPC, and which id in the request must be the caller's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from paceline.internal.v1 import controller_service_pb2 as controller_pb
from paceline.model.errors import InvalidRequestError
from paceline.model.identity import Role

INTERNAL_PACKAGE: Final = "/paceline.internal."


@dataclass(frozen=True, slots=True)
class AccessRule:
    """The callers that may use one RPC."""

    role: Role
    claimed_id: Callable[[Any], int]
    """Returns the node id of the caller according to the request."""


def _controller_of_stamp(request: Any) -> int:
    return int(request.stamp.controller_id)


def _broker_id(request: Any) -> int:
    return int(request.broker_id)


def _controller_id(request: Any) -> int:
    return int(request.controller_id)


def _replica_id(request: Any) -> int:
    """Return the replica id, field 1, of a request that is not parsed yet.

    The bytes are parsed as a message whose only field is an int32 in field 1. So the protobuf library skips the
    partitions, and if the field occurs twice it chooses the same value as when it parses the whole request.
    """
    try:
        return int(controller_pb.FollowStateRequest.FromString(request).controller_id)
    except DecodeError as failure:
        raise InvalidRequestError(f"the message cannot be parsed: {failure}") from None


_REPLICA_MANAGER: Final = f"{INTERNAL_PACKAGE}v1.ReplicaManagerService/"
_REPLICATION: Final = f"{INTERNAL_PACKAGE}v1.ReplicationService/"
_CONTROLLER: Final = f"{INTERNAL_PACKAGE}v1.ControllerService/"

ACCESS_RULES: Final[Mapping[str, AccessRule]] = {
    f"{_REPLICA_MANAGER}LeaderAndIsr": AccessRule(Role.CONTROLLER, _controller_of_stamp),
    f"{_REPLICA_MANAGER}StopReplica": AccessRule(Role.CONTROLLER, _controller_of_stamp),
    f"{_REPLICA_MANAGER}UpdateMetadata": AccessRule(Role.CONTROLLER, _controller_of_stamp),
    f"{_REPLICA_MANAGER}DescribeLogDirs": AccessRule(Role.CONTROLLER, _controller_of_stamp),
    f"{_REPLICA_MANAGER}AlterReplicaLogDirs": AccessRule(Role.CONTROLLER, _controller_of_stamp),
    f"{_REPLICA_MANAGER}RetryLogDir": AccessRule(Role.CONTROLLER, _controller_of_stamp),
    f"{_REPLICATION}Fetch": AccessRule(Role.BROKER, _replica_id),
    f"{_REPLICATION}FetchStream": AccessRule(Role.BROKER, _replica_id),
    f"{_REPLICATION}OffsetsForLeaderEpoch": AccessRule(Role.BROKER, _replica_id),
    f"{_CONTROLLER}ControlledShutdown": AccessRule(Role.BROKER, _broker_id),
    f"{_CONTROLLER}BrokerHeartbeat": AccessRule(Role.BROKER, _broker_id),
    f"{_CONTROLLER}CreateInternalTopic": AccessRule(Role.BROKER, _broker_id),
    f"{_CONTROLLER}FollowState": AccessRule(Role.CONTROLLER, _controller_id),
}
"""The rule of every internal RPC; an internal RPC without a rule is denied to every caller."""
