"""Kafka's ``DumpLogSegments --offsets-decoder`` reads our ``__consumer_offsets``, as ``paceline log offsets`` does."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.broker.groups.group import Group, GroupState
from paceline.broker.groups.member import Member
from paceline.broker.groups.records import (
    OffsetValue,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from paceline.broker.groups.requests import Protocol
from paceline.cli.commands import cli
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.os_files import OsFiles
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.model.consumer_protocol import Assignment, Subscription, encode_assignment, encode_subscription
from paceline.model.identifiers import TopicPartition
from tests.golden.test_kafka_reads_our_log import NOW_MS, dump, jars

__all__ = ["jars"]

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

TP = TopicPartition("__consumer_offsets", 0)
OFFSET_FIELDS = ("offset", "leader_epoch", "metadata", "commit_timestamp")
GROUP_FIELDS = ("protocol_type", "generation", "protocol", "leader", "current_state_timestamp")
MEMBER_FIELDS = ("member_id", "group_instance_id", "client_id", "client_host")


def as_kafka(name: str) -> str:
    """Return a name of ours in Kafka's spelling."""
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))


def group() -> Group:
    """Return a stable group of a static and a dynamic member."""
    group = Group("shop", 0, GroupState.STABLE, NOW_MS)
    for name, instance in (("m-1", None), ("m-2", "till-2")):
        subscription = encode_subscription(Subscription(("sales",), owned_partitions={"sales": (1,)}, generation_id=3))
        protocols = (Protocol("range", subscription),)
        group.add(Member(name, instance, "client", "/10.0.0.1", 60_000, 10_000, protocols))
    group.protocol, group.generation = "range", 4
    return group


def test_kafka_decodes_our_offsets_and_groups(jars: Path, tmp_path: Path) -> None:
    manager = LogManager(OsFiles(), [str(tmp_path)], LogConfig(), on_dir_failure=lambda _path, _error: None)
    manager.load(NOW_MS)
    log = manager.get_or_create(TP, "AAAAAAAAAAAAAAAAAAAAAA", True)
    log.assign_leader_epoch(0, 0)
    assignments = {"m-1": encode_assignment(Assignment({"sales": (0, 2)})), "m-2": encode_assignment(Assignment({}))}
    records = [
        (
            encode_offset_key("shop", TopicPartition("sales", 7)),
            encode_offset_value(OffsetValue(42, 5, "note", NOW_MS)),
        ),
        (encode_group_key("shop"), encode_group_value(group().to_value(assignments))),
        (encode_offset_key("shop", TopicPartition("sales", 8)), None),
        (encode_group_key("gone"), None),
    ]
    for key, value in records:
        log.append_as_leader(encode_batch([NewRecord(NOW_MS, key, value)]), 0, NOW_MS)
    manager.shutdown()
    out = dump(jars, [tmp_path / "__consumer_offsets-0" / "00000000000000000000.log"], "--offsets-decoder")
    lines = [line for line in out.splitlines() if line.startswith("| offset:")]
    assert len(lines) == 4, out
    keys = [json.loads(line.partition(" key: ")[2].partition(" payload: ")[0]) for line in lines]
    values = [line.partition(" payload: ")[2] for line in lines]
    assert keys == [
        {"type": "1", "data": {"group": "shop", "topic": "sales", "partition": 7}},
        {"type": "2", "data": {"group": "shop"}},
        {"type": "1", "data": {"group": "shop", "topic": "sales", "partition": 8}},
        {"type": "2", "data": {"group": "gone"}},
    ]
    committed = {"offset": 42, "leaderEpoch": 5, "metadata": "note", "commitTimestamp": NOW_MS}
    assert json.loads(values[0]) == {"version": "3", "data": committed}
    kept = json.loads(values[1])["data"]
    members = kept.pop("members")
    assert kept == {
        "protocolType": "consumer",
        "generation": 4,
        "protocol": "range",
        "leader": "m-1",
        "currentStateTimestamp": NOW_MS,
    }
    assert [one["groupInstanceId"] for one in members] == [None, "till-2"]
    assert members[0]["assignment"] == {
        "assignedPartitions": [{"topic": "sales", "partitions": [0, 2]}],
        "userData": None,
    }
    assert members[0]["subscription"]["ownedPartitions"] == [{"topic": "sales", "partitions": [1]}]
    assert values[2:] == ["<DELETE>", "<DELETE>"]

    ended = CliRunner().invoke(cli, ["log", "offsets", str(tmp_path), "-o", "ndjson"])
    ours = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [{name: row[name] for name in ("group", "topic", "partition") if name in row} for row in ours] == [
        key["data"] for key in keys
    ]
    assert [row["deleted"] for row in ours] == [False, False, True, True]
    assert {as_kafka(name): ours[0][name] for name in OFFSET_FIELDS} == committed
    assert {as_kafka(name): ours[1][name] for name in GROUP_FIELDS} == kept
    for member, theirs in zip(ours[1]["members"], members, strict=True):
        assert {as_kafka(name): member[name] for name in MEMBER_FIELDS} == {
            as_kafka(name): theirs[as_kafka(name)] for name in MEMBER_FIELDS
        }
        assigned = [{"topic": topic, "partitions": each} for topic, each in member["assignment"]["partitions"].items()]
        assert assigned == theirs["assignment"]["assignedPartitions"]
        assert member["subscription"]["topics"] == theirs["subscription"]["topics"]
