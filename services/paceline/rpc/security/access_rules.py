"""The rule of every internal RPC: which role may call it, and which id of the request must be the caller's own."""

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
    """Principals that may call one RPC."""

    role: Role
    claimed_id: Callable[[Any], int]
    """Returns the id that a request says its caller has."""


def _controller_of_stamp(request: Any) -> int:
    return int(request.stamp.controller_id)


def _broker_id(request: Any) -> int:
    return int(request.broker_id)


def _controller_id(request: Any) -> int:
    return int(request.controller_id)


def _replica_id(request: Any) -> int:
    """Return the replica id, field 1, of a request that is still bytes.

    They are read as a message that knows an int32 in field 1 and nothing else: the library decides, as it will for the
    whole message, which value counts when the field is there twice, and steps over the partitions.
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
    f"{_REPLICATION}Fetch": AccessRule(Role.BROKER, _replica_id),
    f"{_REPLICATION}FetchStream": AccessRule(Role.BROKER, _replica_id),
    f"{_REPLICATION}OffsetsForLeaderEpoch": AccessRule(Role.BROKER, _replica_id),
    f"{_CONTROLLER}ControlledShutdown": AccessRule(Role.BROKER, _broker_id),
    f"{_CONTROLLER}BrokerHeartbeat": AccessRule(Role.BROKER, _broker_id),
    f"{_CONTROLLER}CreateInternalTopic": AccessRule(Role.BROKER, _broker_id),
    f"{_CONTROLLER}FollowState": AccessRule(Role.CONTROLLER, _controller_id),
}
"""An internal RPC without a row is refused to every caller."""
