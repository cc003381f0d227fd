"""Convert the description of a process (DescribeNode)."""

from typing import Any, Final

from paceline.model import node_description as model
from paceline.rpc.convert.common import message_of, value_of
from paceline.v1 import metadata_service_pb2 as pb

_PARTS: Final[dict[str, tuple[Any, Any]]] = {
    "listeners": (model.NodeListener, pb.NodeListener),
    "certificates": (model.NodeCertificate, pb.NodeCertificate),
    "directories": (model.NodeDirectory, pb.NodeDirectory),
    "peers": (model.NodePeer, pb.NodePeer),
}
_CONTROLLER_PARTS: Final[dict[str, tuple[Any, Any]]] = {
    "brokers": (model.NodeBroker, pb.NodeBroker),
    "undecided": (model.NodeUndecidedPartition, pb.NodeUndecidedPartition),
    "stuck_moves": (model.NodeStuckMove, pb.NodeStuckMove),
    "removals": (model.NodeRemoval, pb.NodeRemoval),
}


def node_to_proto(node: model.NodeDescription) -> pb.DescribeNodeResponse:
    """Encode a description."""
    active = node.active_controller
    return message_of(
        pb.DescribeNodeResponse,
        node,
        active_controller=active
        and message_of(pb.NodeActiveController, active, **_messages(active, _CONTROLLER_PARTS)),
        **_messages(node, _PARTS),
    )


def node_from_proto(message: pb.DescribeNodeResponse) -> model.NodeDescription:
    """Decode a description."""
    active = None
    if message.HasField("active_controller"):
        found = message.active_controller
        active = value_of(model.NodeActiveController, found, **_values(found, _CONTROLLER_PARTS))
    return value_of(model.NodeDescription, message, active_controller=active, **_values(message, _PARTS))


def _messages(value: Any, parts: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
    return {name: [message_of(wire, each) for each in getattr(value, name)] for name, (_, wire) in parts.items()}


def _values(message: Any, parts: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
    return {name: tuple(value_of(kind, each) for each in getattr(message, name)) for name, (kind, _) in parts.items()}
