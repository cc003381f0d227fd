"""The description of a process is the same after its way over the wire."""

import dataclasses

from paceline.model.identifiers import TopicPartition
from paceline.model.node_description import (
    NodeActiveController,
    NodeBroker,
    NodeCertificate,
    NodeDescription,
    NodeDirectory,
    NodeListener,
    NodePeer,
    NodeRemoval,
    NodeStuckMove,
    NodeUndecidedPartition,
)
from paceline.rpc.convert.nodes import node_from_proto, node_to_proto
from paceline.v1 import metadata_service_pb2 as pb

FULL = NodeDescription(
    node_id=7,
    role="controller",
    server_version="1.2",
    cluster_id="c" * 22,
    state="not-serving",
    clock_ms=11,
    up_ms=12,
    zookeeper_state="in_doubt",
    zookeeper_state_ms=13,
    listeners=(NodeListener("CLIENT", "h:1", True), NodeListener("CONTROL", "h:2")),
    certificates=(NodeCertificate("/c.crt", 14),),
    directories=(NodeDirectory("/d", False, 1, 2, 3, 4, 2), NodeDirectory("/e", True)),
    peers=(NodePeer("leader", 2, "h:3", 15, None, "refused"), NodePeer("controller", -1, "", 0, 16)),
    controller_epoch=17,
    active_controller=NodeActiveController(
        18,
        (NodeBroker(1, 19, True, True, "refused", True), NodeBroker(2)),
        (NodeUndecidedPartition(TopicPartition("t", 0), (1, 2)),),
        (NodeStuckMove(TopicPartition("t", 1), "dead"),),
        (NodeRemoval(3, "removed"),),
        (1_000_001,),
    ),
)


def test_every_field_survives() -> None:
    assert node_from_proto(pb.DescribeNodeResponse.FromString(node_to_proto(FULL).SerializeToString())) == FULL


def test_a_standby_has_no_active_controller() -> None:
    standby = dataclasses.replace(FULL, active_controller=None)
    assert node_from_proto(node_to_proto(standby)) == standby


def test_the_sample_has_no_default_values() -> None:
    """Otherwise a field that is not converted would stay unnoticed."""
    defaults = {one.name: one.default for one in dataclasses.fields(NodeDescription)}
    assert [name for name, value in defaults.items() if getattr(FULL, name) == value] == []
