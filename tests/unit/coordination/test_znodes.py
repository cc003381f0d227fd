"""Codecs of znodes: encoding of our own nodes, checks of each schema, and malformed data."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.znodes.json_codec import MAX_ZNODE_BYTES, encode_json
from paceline.model.assignment import ReplicaAssignment
from paceline.model.control import Endpoint
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr

Decoder = Callable[[str, bytes | None], Any]

DECODERS: dict[str, Decoder] = {
    "cluster id": znodes.decode_cluster_id,
    "broker": lambda path, data: znodes.decode_broker(path, data, 1),
    "controller registration": lambda path, data: znodes.decode_controller_registration(path, data, 1),
    "topic": znodes.decode_topic_assignment,
    "state": lambda path, data: znodes.decode_partition_state(path, data, 3),
    "active controller": znodes.decode_active_controller,
    "controller epoch": znodes.decode_controller_epoch,
    "reassignment": znodes.decode_reassignment,
    "partition set": znodes.decode_partition_set,
    "log dir event": znodes.decode_log_dir_event,
    "config": znodes.decode_config,
    "config change": znodes.decode_config_change,
    "producer id block": znodes.decode_producer_id_block,
}

VALID: dict[str, Any] = {
    "cluster id": {"version": "1", "id": "CKe3fYzRTaG7UdOPYZDl6g"},
    "broker": {
        "version": 5,
        "host": "h",
        "port": 9092,
        "endpoints": ["CLIENT://h:9092", "CONTROL://h:9094"],
        "jmx_port": -1,
        "timestamp": "1610000000000",
        "rack": "r1",
        "listener_security_protocol_map": {"CLIENT": "PLAINTEXT", "CONTROL": "PLAINTEXT"},
        "features": {"f": {"min_version": 1}},
        "unclean_restart": True,
    },
    "controller registration": {"version": 1, "endpoints": ["CONTROL://h:9084"], "timestamp": "1"},
    "topic": {
        "version": 3,
        "partitions": {"0": [1, 2, 3], "10": [2, 3], "2": [3]},
        "adding_replicas": {"0": [1]},
        "removing_replicas": {"0": [3]},
        "topic_id": "eXJCp4ylSmWetEcU8Netnw",
    },
    "state": {"version": 1, "leader": 1, "leader_epoch": 4, "controller_epoch": 7, "isr": [1, 3, 2], "elr": [4]},
    "active controller": {"version": 2, "brokerid": 1000001, "timestamp": "1", "kraftControllerEpoch": -1},
    "controller epoch": 7,
    "reassignment": {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [4, 5]}]},
    "partition set": {"version": 1, "partitions": [{"topic": "t", "partition": 0}]},
    "log dir event": {"version": 1, "broker": 3, "event": 1},
    "config": {"version": 1, "config": {"retention.ms": "60000"}},
    "config change": {"version": 2, "entity_path": "topics/t"},
    "producer id block": {"version": 1, "broker": 1, "block_start": "1000", "block_end": "1999"},
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["1", "t", "-1"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


def only_malformed(name: str, data: bytes | None) -> None:
    try:
        DECODERS[name]("/some/path", data)
    except MalformedZnodeError as error:
        assert error.path == "/some/path"
        assert error.reason


@pytest.mark.parametrize("name", DECODERS)
def test_the_valid_example_of_each_schema_decodes(name: str) -> None:
    DECODERS[name]("/some/path", json.dumps(VALID[name]).encode())


@given(name=st.sampled_from(sorted(DECODERS)), data=st.none() | st.binary(max_size=200))
def test_arbitrary_bytes_give_a_value_or_malformed_znode_error(name: str, data: bytes | None) -> None:
    only_malformed(name, data)


@given(name=st.sampled_from(sorted(DECODERS)), value=json_values)
def test_arbitrary_json_gives_a_value_or_malformed_znode_error(name: str, value: Any) -> None:
    only_malformed(name, json.dumps(value).encode())


@given(data=st.data(), name=st.sampled_from(sorted(set(DECODERS) - {"controller epoch"})), value=json_values)
def test_valid_json_with_one_member_replaced_gives_a_value_or_malformed_znode_error(
    data: st.DataObject, name: str, value: Any
) -> None:
    node = json.loads(json.dumps(VALID[name]))
    target = node
    key = data.draw(st.sampled_from(sorted(target)))
    while isinstance(target[key], dict) and target[key] and data.draw(st.booleans()):
        target = target[key]
        key = data.draw(st.sampled_from(sorted(target)))
    if data.draw(st.booleans()):
        target[key] = value
    else:
        del target[key]
    only_malformed(name, json.dumps(node).encode())


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"version":1,"partitions":' + b'{"0":' * 100_000,
        b'{"version":' + b"9" * 10_000 + b"}",
        b'{"version":NaN}',
        b'{"version":1e999}',
        b'{"version":1',
        b"\xff\xfe",
        b"",
        b" " * (MAX_ZNODE_BYTES + 1),
        b"null",
        b'"text"',
        b'{"version":99}',
        b'{"version":true}',
        b'{"version":"1","id":"\\ud800"}',
    ],
    ids=lambda data: repr(data[:24]),
)
def test_hostile_data_is_malformed(name: str, data: bytes) -> None:
    with pytest.raises(MalformedZnodeError):
        DECODERS[name]("/some/path", data)


@pytest.mark.parametrize("name", sorted(set(DECODERS) - {"config"}))
def test_null_data_is_malformed_where_a_value_is_required(name: str) -> None:
    with pytest.raises(MalformedZnodeError):
        DECODERS[name]("/some/path", None)


def test_null_data_of_a_config_entity_means_no_overrides() -> None:
    assert znodes.decode_config("/config/topics/t", None) == {}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("topic", {"partitions": {"0": [1, 1]}, "adding_replicas": {}, "removing_replicas": {}}),
        ("topic", {"partitions": {"0": []}, "adding_replicas": {}, "removing_replicas": {}}),
        ("topic", {"partitions": {"00": [1]}, "adding_replicas": {}, "removing_replicas": {}}),
        ("topic", {"partitions": {"-1": [1]}, "adding_replicas": {}, "removing_replicas": {}}),
        ("topic", {"adding_replicas": {"0": [9]}}),
        ("topic", {"removing_replicas": {"7": [1]}}),
        ("topic", {"adding_replicas": {"0": [1]}, "removing_replicas": {"0": [1]}}),
        ("state", {"leader": -2}),
        ("state", {"leader_epoch": -1}),
        ("state", {"isr": [1, 1]}),
        ("state", {"isr": [1.0]}),
        ("state", {"leader": 2**31}),
        ("broker", {"endpoints": ["CLIENT//h:1"]}),
        ("broker", {"endpoints": ["CLIENT://h:70000"]}),
        ("broker", {"endpoints": ["CLIENT://a:1", "CLIENT://b:1"]}),
        ("broker", {"timestamp": 1610000000000}),
        ("broker", {"unclean_restart": "yes"}),
        ("reassignment", {"partitions": [{"topic": "..", "partition": 0, "replicas": [1]}]}),
        ("reassignment", {"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}] * 2}),
        ("config change", {"entity_path": "topics/../x"}),
        ("config change", {"entity_path": "secrets/x"}),
        ("config change", {"version": 1, "entity_type": "users", "entity_name": "u"}),
        ("producer id block", {"block_end": "999"}),
        ("log dir event", {"event": 2}),
    ],
)
def test_values_outside_the_schema_are_malformed(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(MalformedZnodeError):
        DECODERS[name]("/some/path", json.dumps({**VALID[name], **change}).encode())


def test_partitions_come_in_the_order_of_their_numbers() -> None:
    assignment = znodes.decode_topic_assignment("/t", json.dumps(VALID["topic"]).encode())
    assert list(assignment.partitions) == [0, 2, 10]


def test_a_topic_of_version_1_has_no_adding_or_removing_replicas_and_no_id() -> None:
    data = json.dumps({**VALID["topic"], "version": 1}).encode()
    assignment = znodes.decode_topic_assignment("/t", data)
    assert assignment.topic_id is None
    assert not any(partition.is_being_reassigned for partition in assignment.partitions.values())


def test_extra_keys_of_a_state_survive_a_rewrite_but_never_replace_schema_keys() -> None:
    state = znodes.decode_partition_state("/s", json.dumps(VALID["state"]).encode(), 3)
    assert state.extra == {"elr": [4]}
    data = znodes.encode_partition_state(LeaderAndIsr(2, 5, (2,), 3, 8), {**state.extra, "leader": 9})
    assert json.loads(data) == {
        "version": 1,
        "leader": 2,
        "leader_epoch": 5,
        "controller_epoch": 8,
        "isr": [2],
        "elr": [4],
    }


def test_an_empty_isr_is_never_written() -> None:
    with pytest.raises(ValueError, match="empty ISR"):
        znodes.encode_partition_state(LeaderAndIsr(1, 0, (), 0, 1))


def test_an_empty_isr_is_malformed() -> None:
    data = b'{"version":1,"leader":-1,"leader_epoch":0,"controller_epoch":1,"isr":[]}'
    with pytest.raises(MalformedZnodeError, match="'isr': empty"):
        znodes.decode_partition_state("/s", data, 0)


def test_our_registration_has_the_client_endpoint_for_older_tools() -> None:
    broker = znodes.BrokerRegistration(
        broker_id=1,
        endpoints=(Endpoint("REPLICATION", "b1", 9093), Endpoint("CLIENT", "::1", 9092)),
        timestamp_ms=1610000000000,
        rack="r1",
        unclean_restart=True,
    )
    data = znodes.encode_broker(broker)
    node = json.loads(data)
    assert (node["host"], node["port"], node["version"]) == ("::1", 9092, 5)
    assert node["endpoints"] == ["REPLICATION://b1:9093", "CLIENT://[::1]:9092"]
    assert node["listener_security_protocol_map"] == {"REPLICATION": "PLAINTEXT", "CLIENT": "PLAINTEXT"}
    again = znodes.decode_broker("/brokers/ids/1", data, 1)
    assert (again.endpoints, again.rack, again.unclean_restart) == (broker.endpoints, "r1", True)


def test_a_broker_without_a_plaintext_listener_has_no_host() -> None:
    broker = znodes.BrokerRegistration(1, (Endpoint("SSL", "h", 1),), 0, security_protocols={"SSL": "SSL"})
    node = json.loads(znodes.encode_broker(broker))
    assert (node["host"], node["port"]) == (None, -1)


def test_a_broker_of_version_1_has_one_plaintext_endpoint() -> None:
    data = b'{"version":1,"host":"h","port":9092,"jmx_port":9999,"timestamp":"1"}'
    assert znodes.decode_broker("/b", data, 1).endpoints == (Endpoint("PLAINTEXT", "h", 9092),)


@given(
    st.dictionaries(
        st.integers(0, 10_000),
        st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True),
        max_size=8,
    ),
    st.data(),
)
def test_assignments_survive_a_round_trip(partitions: dict[int, list[int]], data: st.DataObject) -> None:
    assignment = {}
    for number, replicas in partitions.items():
        target = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True))
        assignment[number] = ReplicaAssignment(tuple(replicas)).reassign_to(target)
    topic = znodes.TopicAssignment(assignment, "eXJCp4ylSmWetEcU8Netnw")
    assert znodes.decode_topic_assignment("/t", znodes.encode_topic_assignment(topic)) == topic


@given(st.lists(st.tuples(st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True), st.integers(0, 100)), unique=True))
def test_partition_sets_survive_a_round_trip(pairs: list[tuple[str, int]]) -> None:
    partitions = tuple(TopicPartition(*pair) for pair in pairs)
    assert znodes.decode_partition_set("/p", znodes.encode_partition_set(partitions)) == partitions


@pytest.mark.parametrize(("child", "broker_id"), [("0", 0), ("1001", 1001), ("01", None), ("x", None), ("٣", None)])
def test_a_child_name_is_an_id_or_nothing(child: str, broker_id: int | None) -> None:
    assert znodes.parse_id(child) == broker_id


@given(st.integers(-1, 2**31 - 1), st.integers(0), st.integers(0), st.lists(st.integers(0), min_size=1, max_size=5))
def test_a_state_without_extra_keys_is_the_compact_json_of_its_fields(
    leader: int, leader_epoch: int, controller_epoch: int, isr: list[int]
) -> None:
    data = znodes.encode_partition_state(LeaderAndIsr(leader, leader_epoch, tuple(isr), 9, controller_epoch))
    value = {"version": 1, "leader": leader, "leader_epoch": leader_epoch, "controller_epoch": controller_epoch}
    assert data == encode_json({**value, "isr": list(isr)})
