"""DeleteRecords from the client and the command line, against a real cluster."""

import json
import time

import pytest
from click.testing import CliRunner

from paceline.cli.commands import cli
from paceline.dev.local_cluster import LocalCluster
from paceline.model.errors import (
    OffsetOutOfRangeError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from paceline_client import Admin, Consumer, NewTopic, Producer, TopicPartition

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

LONG_S = 180.0


def filled(cluster: LocalCluster, topic: str, **configs: str) -> None:
    """Create a topic with one partition on three brokers, and write 100 records."""
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 3, configs={"min.insync.replicas": "2", **configs})])
    with Producer(cluster.bootstrap, batch_size=200) as producer:
        producer.send_many(topic, [(b"k", b"%d" % number) for number in range(100)]).result(LONG_S)


def read(cluster: LocalCluster, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        deadline = time.monotonic() + LONG_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} were read"
            for records in consumer.poll(timeout_ms=500).values():
                found += [record.value or b"" for record in records]
    return found


def test_deleted_records_are_removed_from_every_replica(local_cluster: LocalCluster) -> None:
    filled(local_cluster, "trimmed")
    with Admin(local_cluster.bootstrap) as admin:
        (result,) = admin.delete_records({("trimmed", 0): 40})
        assert result.low_watermark == 40
        (view,) = admin.describe_replicas("trimmed")
        assert view.log_start_offset == 40
        assert {replica.log_start_offset for replica in view.replicas} == {40}
    assert read(local_cluster, "trimmed", 60) == [b"%d" % number for number in range(40, 100)]


def test_offsets_that_cannot_be_deleted_are_refused_by_name(local_cluster: LocalCluster) -> None:
    filled(local_cluster, "untrimmed", **{"cleanup.policy": "compact"})
    filled(local_cluster, "short")
    with Admin(local_cluster.bootstrap) as admin:
        with pytest.raises(PolicyViolationError):
            admin.delete_records({("untrimmed", 0): 1})
        with pytest.raises(OffsetOutOfRangeError):
            admin.delete_records({("short", 0): 101})
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.delete_records({("short", 7): 1})
        results = admin.delete_records({("short", 0): None, ("short", 7): 1}, raise_errors=False)
        assert [result.low_watermark for result in results] == [100, None]


def test_trim_asks_for_confirmation_and_deletes(local_cluster: LocalCluster) -> None:
    filled(local_cluster, "by-hand")
    runner = CliRunner()
    at = ["-b", local_cluster.bootstrap]
    shown = runner.invoke(cli, ["topic", "trim", "by-hand", "--before-offset", "30", "--dry-run", "-o", "json", *at])
    assert json.loads(shown.stdout) == [{"partition": "by-hand/0", "log_start": 0, "before": 30, "records": 30}]
    refused = runner.invoke(cli, ["topic", "trim", "by-hand", "--all", *at], input="n\n")
    assert refused.exit_code == 1 and "permanently delete 100 records of 1 partitions?" in refused.stderr
    done = runner.invoke(cli, ["topic", "trim", "by-hand/0", "--before-offset", "30", "--yes", "-o", "json", *at])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)[0]["low_watermark"] == 30
    beyond = runner.invoke(cli, ["topic", "trim", "by-hand", "--before-offset", "1000", "--yes", *at])
    assert beyond.exit_code >= 64 and "OFFSET_OUT_OF_RANGE" in beyond.stderr
    assert runner.invoke(cli, ["topic", "trim", "by-hand", *at]).exit_code == 2


def test_partitions_are_trimmed_all_or_none_and_a_dry_run_prints_the_result(local_cluster: LocalCluster) -> None:
    with Admin(local_cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("uneven", 2, 3)])
        with Producer(local_cluster.bootstrap) as producer:
            producer.send_many("uneven", [(b"k", b"v")] * 50, partition=0).result(LONG_S)
        runner, at = CliRunner(), ["-b", local_cluster.bootstrap]
        for arguments in (["--dry-run"], ["--yes"], ["--yes", "-o", "json"]):
            refused = runner.invoke(cli, ["topic", "trim", "uneven", "--before-offset", "30", *arguments, *at])
            assert (refused.exit_code, refused.stdout) == (64 + 11, ""), arguments
            assert "uneven/1: offset 30 is beyond the high watermark 0" in refused.stderr
        assert json.loads(refused.stderr)["error"]["reason"] == "OFFSET_OUT_OF_RANGE"
        assert [view.log_start_offset for view in admin.describe_replicas("uneven")] == [0, 0]
    twice = runner.invoke(cli, ["topic", "trim", "uneven/0", "uneven", "--all", "--dry-run", "-o", "json", *at])
    assert [row["records"] for row in json.loads(twice.stdout)] == [50, 0], "named twice, counted once"
