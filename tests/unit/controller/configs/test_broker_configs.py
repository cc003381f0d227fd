"""DescribeConfigs and IncrementalAlterConfigs for brokers: origin of each value, refusals, writes, notifications."""

import pytest

from paceline.controller.admin.admin_requests import DescribeConfigs, IncrementalAlterConfigs
from paceline.controller.admin.admin_values import (
    AlterConfigsResult,
    ConfigAlteration,
    ConfigEntry,
    ConfigKeyChange,
    ConfigOperation,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from paceline.coordination import znodes
from paceline.model.broker_dynamic_config import ALTER_LOG_DIRS_RATE, REMOVAL
from paceline.model.errors import InvalidConfigError, InvalidRequestError
from tests.unit.controller.admin_calls import ask, change, kinds, topic
from tests.unit.controller.cluster import Cluster
from tests.unit.controller.configs.test_topic_configs import notices, started

LEADER = "leader.replication.throttled.rate"
FOLLOWER = "follower.replication.throttled.rate"
UNLIMITED = str(2**63 - 1)


def broker(name: str) -> ConfigResource:
    return ConfigResource(ResourceType.BROKER, name)


def alter(
    cluster: Cluster, *alterations: tuple[ConfigResource, tuple[ConfigKeyChange, ...]]
) -> list[AlterConfigsResult]:
    asked = [ConfigAlteration(resource, changes) for resource, changes in alterations]
    return list(
        ask(cluster, lambda reply: cluster.controller.ask(IncrementalAlterConfigs(tuple(asked), False, reply=reply)))
    )


def described(cluster: Cluster, name: str, *keys: str) -> dict[str, ConfigEntry]:
    (result,) = ask(
        cluster, lambda reply: cluster.controller.ask(DescribeConfigs(((broker(name), keys),), reply=reply))
    )
    assert result.error is None, result.error
    return {entry.key: entry for entry in result.entries}


def test_a_brokers_own_value_overrides_the_default_and_its_origin_is_named() -> None:
    cluster = started()
    assert kinds(alter(cluster, (broker(""), (change(LEADER, "7"), change(FOLLOWER, "8"))))) == [None]
    assert kinds(alter(cluster, (broker("1"), (change(LEADER, "5"),)))) == [None]
    assert described(cluster, "1") == {
        LEADER: ConfigEntry(LEADER, "5", ConfigSource.BROKER),
        FOLLOWER: ConfigEntry(FOLLOWER, "8", ConfigSource.BROKER_DEFAULT),
        ALTER_LOG_DIRS_RATE: ConfigEntry(ALTER_LOG_DIRS_RATE, "33554432", ConfigSource.BUILT_IN_DEFAULT),
        REMOVAL: ConfigEntry(REMOVAL, "", ConfigSource.BUILT_IN_DEFAULT),
    }
    assert described(cluster, "2", LEADER) == {LEADER: ConfigEntry(LEADER, "7", ConfigSource.BROKER_DEFAULT)}
    assert described(cluster, "", LEADER) == {LEADER: ConfigEntry(LEADER, "7", ConfigSource.BROKER_DEFAULT)}


def test_a_rate_that_is_not_set_is_unlimited() -> None:
    assert described(started(), "1", LEADER) == {LEADER: ConfigEntry(LEADER, UNLIMITED, ConfigSource.BUILT_IN_DEFAULT)}


def test_a_change_notifies_the_broker() -> None:
    cluster = started()
    before = notices(cluster)
    alter(cluster, (broker("1"), (change(LEADER, "5"),)), (broker(""), (change(LEADER, "6"),)))
    assert notices(cluster)[len(before) :] == ["brokers/1", "brokers/<default>"]
    assert cluster.data(znodes.broker_config_path(1))["config"] == {LEADER: "5"}


def test_topics_and_brokers_may_be_changed_in_one_request() -> None:
    cluster = started()
    results = alter(
        cluster,
        (broker("1"), (change(LEADER, "5"),)),
        (topic("a"), (change("leader.replication.throttled.replicas", "0:1"),)),
        (topic("1"), (change("retention.ms", "1"),)),
    )
    assert [result.error is None for result in results] == [True, True, False]


@pytest.mark.parametrize("name", ["x", "-1", "01", "1,2", " 1", str(2**31), "9" * 500, "<default>", "١"])
def test_a_resource_name_that_is_no_broker_id_is_refused(name: str) -> None:
    cluster = started()
    assert kinds(alter(cluster, (broker(name), (change(LEADER, "5"),)))) == [InvalidRequestError]


@pytest.mark.parametrize(
    "bad",
    [
        change(LEADER, "-1"),
        change(LEADER, "fast"),
        change(LEADER, str(2**63)),
        change(LEADER, "1", ConfigOperation.APPEND),
        change("retention.ms", "1"),
        change("num.replica.fetchers", "2"),
        change("num.replica.fetchers", None, ConfigOperation.DELETE),
    ],
)
def test_an_invalid_change_refuses_all_changes_of_its_broker(bad: ConfigKeyChange) -> None:
    cluster = started()
    assert kinds(alter(cluster, (broker("1"), (change(FOLLOWER, "5"), bad)))) == [InvalidConfigError]
    assert described(cluster, "1")[FOLLOWER].source is ConfigSource.BUILT_IN_DEFAULT


def test_deleting_a_brokers_value_restores_the_default() -> None:
    cluster = started()
    alter(cluster, (broker(""), (change(LEADER, "7"),)), (broker("1"), (change(LEADER, "5"),)))
    alter(cluster, (broker("1"), (change(LEADER, None, ConfigOperation.DELETE),)))
    assert described(cluster, "1")[LEADER] == ConfigEntry(LEADER, "7", ConfigSource.BROKER_DEFAULT)


@pytest.mark.parametrize("value", ["0", "0:1,2", "0:-1", "*,0:1", "zero:1"])
def test_a_malformed_throttle_list_is_refused(value: str) -> None:
    cluster = started()
    results = alter(cluster, (topic("a"), (change("leader.replication.throttled.replicas", value),)))
    assert kinds(results) == [InvalidConfigError]
