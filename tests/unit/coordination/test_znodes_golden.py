"""Every znode of a real Kafka cluster decodes, and encodes to the same JSON value."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paceline.coordination import znodes
from paceline.model.control import Endpoint
from paceline.model.identifiers import TopicPartition

GOLDEN = Path(__file__).parents[2] / "golden" / "zookeeper"
MOMENTS = sorted(GOLDEN.glob("*/*.ndjson"))

VALUELESS = {"/", "/admin", "/brokers", "/cluster", "/config", *znodes.PERSISTENT_NODES}


def read(moment: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in moment.read_text().splitlines()]


def reencode(path: str, data: bytes, version: int) -> bytes:
    """Decode by the schema of the path, then encode the value."""
    if path == "/cluster/id":
        return znodes.encode_cluster_id(znodes.decode_cluster_id(path, data))
    if match := re.fullmatch(r"/brokers/ids/(\d+)", path):
        return znodes.encode_broker(znodes.decode_broker(path, data, int(match[1])))
    if re.fullmatch(r"/brokers/topics/[^/]+", path):
        return znodes.encode_topic_assignment(znodes.decode_topic_assignment(path, data))
    if path.endswith("/state"):
        state = znodes.decode_partition_state(path, data, version)
        return znodes.encode_partition_state(state.leader_and_isr, state.extra)
    if path == znodes.CONTROLLER:
        return znodes.encode_active_controller(znodes.decode_active_controller(path, data))
    if path == znodes.CONTROLLER_EPOCH:
        return znodes.encode_controller_epoch(znodes.decode_controller_epoch(path, data))
    if path == znodes.LATEST_PRODUCER_ID_BLOCK:
        return znodes.encode_producer_id_block(znodes.decode_producer_id_block(path, data))
    if path == znodes.REASSIGN_PARTITIONS:
        return znodes.encode_reassignment(znodes.decode_reassignment(path, data))
    if path == znodes.PREFERRED_REPLICA_ELECTION or path.startswith(znodes.ISR_CHANGE_PREFIX):
        return znodes.encode_partition_set(znodes.decode_partition_set(path, data))
    if path.startswith(znodes.LOG_DIR_EVENT_PREFIX):
        return znodes.encode_log_dir_event(znodes.decode_log_dir_event(path, data))
    if path.startswith(znodes.CONFIG_CHANGE_PREFIX):
        return znodes.encode_config_change(znodes.decode_config_change(path, data))
    assert path.startswith("/config/"), f"no schema for {path}"
    return znodes.encode_config(znodes.decode_config(path, data))


def as_we_write(path: str, value: Any) -> Any:
    """Return the value of Kafka's node without what only Kafka writes: ports of JMX, features, the epoch of KRaft."""
    if path.startswith("/brokers/ids/"):
        return {**value, "version": 5, "features": {}, "jmx_port": -1}
    if path == znodes.CONTROLLER:
        return {key: value[key] for key in ("brokerid", "timestamp")} | {"version": 1}
    return value


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: f"{moment.parent.name}/{moment.stem}")
def test_every_node_decodes_and_encodes_to_the_same_value(moment: Path) -> None:
    with_data = 0
    for node in read(moment):
        path, text = node["path"], node["data"]
        if not text:
            assert path in VALUELESS or re.search(r"/(partitions(/\d+)?|users/[^/]+(/clients)?)$|^/admin/delete", path)
            continue
        if path == "/feature":  # Kafka's; no service reads it
            continue
        with_data += 1
        again = reencode(path, text.encode(), node["version"])
        assert json.loads(again) == as_we_write(path, json.loads(text)), path
    assert with_data >= 4


def test_the_golden_files_cover_every_kind_of_node() -> None:
    kinds: Counter[str] = Counter()
    for moment in MOMENTS:
        for node in read(moment):
            if node["data"]:
                kinds[re.sub(r"[^/]*\d[^/]*|(?<=topics/)[^/]+", "*", node["path"])] += 1
    assert len(MOMENTS) == 39
    assert kinds["/brokers/topics/*/partitions/*/state"] > 100
    assert {"/controller", "/brokers/ids/*", "/isr_change_notification/*", "/config/changes/*"} <= set(kinds)


def test_persistent_nodes_are_those_of_a_new_kafka_cluster_and_three_of_paceline() -> None:
    fresh = {node["path"] for node in read(GOLDEN / "protocol-2.6" / "01-fresh-cluster-of-three.ndjson")}
    ours = {"/controllers/ids", "/broker_epochs"}
    assert set(znodes.PERSISTENT_NODES) - ours <= fresh
    later = {"/cluster/id", "/controller", "/controller_epoch", "/feature", "/cluster"}
    parents = {parent for path in znodes.PERSISTENT_NODES for parent in znodes.parent_paths(path)}
    brokers = {znodes.broker_path(broker) for broker in (1, 2, 3)}
    assert fresh - later - brokers - {"/"} == (set(znodes.PERSISTENT_NODES) - ours) | (parents - {"/controllers"})


def test_a_partition_under_reassignment_reads_as_union_adding_and_removing() -> None:
    moment = GOLDEN / "protocol-2.6" / "05-during-reassignment-by-api.ndjson"
    (node,) = (node for node in read(moment) if node["path"] == "/brokers/topics/moving")
    assignment = znodes.decode_topic_assignment(node["path"], node["data"].encode())
    moving = assignment.partitions[1]
    assert (moving.replicas, moving.adding, moving.removing) == ((2, 3, 1), (2,), (1,))
    assert (moving.target, moving.origin) == ((2, 3), (3, 1))
    assert not assignment.partitions[0].is_being_reassigned


def test_a_broker_of_protocol_2_8_reads_with_its_endpoint_and_rack() -> None:
    moment = GOLDEN / "protocol-2.8" / "01-fresh-cluster-of-three.ndjson"
    (node,) = (node for node in read(moment) if node["path"] == "/brokers/ids/2")
    broker = znodes.decode_broker(node["path"], node["data"].encode(), 2).live_broker(node["czxid"])
    assert broker.endpoints == (Endpoint("PLAINTEXT", "127.0.0.1", 29392),)
    assert (broker.rack, broker.broker_epoch) == ("r2", 59)


def test_the_isr_change_notification_names_its_partition() -> None:
    (node,) = (
        node
        for node in read(GOLDEN / "protocol-2.6" / "12-isr-change-notification.ndjson")
        if node["path"].startswith(znodes.ISR_CHANGE_PREFIX)
    )
    assert znodes.decode_partition_set(node["path"], node["data"].encode()) == (TopicPartition("moving", 0),)
