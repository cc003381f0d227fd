"""`paceline partition explain` names the broker that stands still, and calls the partition healthy after the repair."""

import json
import re

import pytest
from click.testing import CliRunner, Result

from paceline.cli.commands import cli
from paceline.cli.exit_codes import NEGATIVE_VERDICT
from paceline.dev.local_cluster import LocalCluster
from paceline.model.state_change import StateChangeKind
from paceline_client import Admin, NewTopic, Producer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

DEADLINE_S = 60.0
HEALTHY = (
    "explained/0 is healthy: broker {} leads in epoch 0, all 3 replicas are in sync, and all records up to offset {} "
)


def run(cluster: LocalCluster, *words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "-b", cluster.bootstrap])


def test_a_follower_that_stands_still_is_named_until_it_fetches_again(cluster: LocalCluster) -> None:
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap, acks=1) as producer:
        admin.create_topics([NewTopic("explained", 1, 3, configs={"min.insync.replicas": "3"})])
        producer.send("explained", b"a").result(DEADLINE_S)
        (before,) = admin.describe_topics(["explained"])[0].partitions
        leader, paused = before.leader, next(one for one in before.replicas if one != before.leader)
        assert leader is not None

        def first_line() -> str:
            return run(cluster, "partition", "explain", "explained/0").stdout.partition("\n")[0]

        def is_healthy(end: int) -> bool:
            return first_line() == HEALTHY.format(leader, end) + "are committed"

        eventually(lambda: is_healthy(1), DEADLINE_S, "healthy")
        cluster.pause(cluster.broker(paused))
        try:
            # A follower at the leader's log end stays in the ISR even if it does not fetch.
            producer.send("explained", b"b").result(DEADLINE_S)
            rest = " and ".join(str(one) for one in before.isr if one != paused)
            expected = re.compile(
                rf"explained/0 takes no acks=all writes since \d\d:\d\d:\d\d UTC, because its ISR is {rest} and "
                # On a busy machine the session of the broker may end before the command has answered.
                rf"min\.insync\.replicas is 3: broker {paused} (has not fetched for \d+\.\d s|is not alive)"
            )
            eventually(lambda: expected.fullmatch(first_line()), DEADLINE_S, expected.pattern)
            ended = run(cluster, "partition", "explain", "explained/0", "-o", "json")
            assert ended.exit_code == NEGATIVE_VERDICT
            kinds = {row["kind"]: row for row in json.loads(ended.stdout)}
            assert "under-min-isr" in kinds, ended.stdout
            described = run(cluster, "topic", "describe", "explained")
            assert "explained/0 takes no acks=all writes since" in described.stderr
        finally:
            cluster.resume(cluster.broker(paused))
        eventually(lambda: is_healthy(2), DEADLINE_S, "healthy again")
        shrunk = [
            one.isr
            for one in admin.past_events(topics=["explained"], kinds=[StateChangeKind.ISR_SHRUNK], broker_id=leader)
        ]
        assert tuple(one for one in before.isr if one != paused) in shrunk


def test_a_partition_or_topic_that_does_not_exist_is_an_error(cluster: LocalCluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("single", 1, 3)])
    absent = run(cluster, "partition", "explain", "single/7")
    assert absent.exit_code == 64 + 5 and "topic single has 1 partitions, no partition 7" in absent.stderr
    assert run(cluster, "partition", "explain", "never-was").exit_code == 64 + 5
