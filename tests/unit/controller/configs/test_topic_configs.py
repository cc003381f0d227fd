"""DescribeConfigs and IncrementalAlterConfigs for topics: origin of each value, refusals, writes, notifications."""

from typing import Any

import pytest

from paceline.controller.admin.admin_requests import DescribeConfigs, IncrementalAlterConfigs
from paceline.controller.admin.admin_values import (
    ConfigAlteration,
    ConfigKeyChange,
    ConfigOperation,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from paceline.controller.configs import topic_configs
from paceline.controller.configs.config_changes import NOTICE_KEPT_MS, NOTICES_KEPT, RETRY_MS
from paceline.coordination import znodes
from paceline.coordination.interface import Create, Delete, Multi, SetData
from paceline.log.log_config import TOPIC_KEYS
from paceline.model.admin import NewTopic
from paceline.model.errors import (
    InvalidConfigError,
    InvalidRequestError,
    NotControllerError,
    RequestTimedOutError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from paceline.model.settings import ControllerConfig
from paceline.model.state_change import StateChangeKind
from tests.unit.controller.admin_calls import alter, ask, change, entries, kinds, topic
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster

APPEND, SUBTRACT, DELETE = ConfigOperation.APPEND, ConfigOperation.SUBTRACT, ConfigOperation.DELETE


def started(config: ControllerConfig | None = None, **overrides: str) -> Cluster:
    """Brokers 1 and 2; topic ``a`` with these overrides."""
    cluster = Cluster(config)
    cluster.start_broker(1, 2)
    cluster.start_controller()
    configs = {key.replace("_", "."): value for key, value in overrides.items()}
    assert cluster.create(NewTopic("a", assignments=((1, 2),), configs=configs))[0].error is None
    return cluster


def stored(cluster: Cluster) -> dict[str, str]:
    return dict(cluster.data(znodes.topic_config_path("a"))["config"])


def notices(cluster: Cluster) -> list[str]:
    return [
        cluster.data(f"{znodes.CONFIG_CHANGES}/{name}")["entity_path"]
        for name in cluster.children(znodes.CONFIG_CHANGES)
    ]


def test_a_configuration_that_zookeeper_refuses_does_not_fail_the_request_for_other_topics() -> None:
    cluster = started()
    assert cluster.create(NewTopic("b", assignments=((1, 2),)))[0].error is None
    path = znodes.topic_config_path("a")
    cluster.server.tree.unreadable.add(path)
    node = cluster.controller
    resources = tuple((topic(name), ()) for name in ("a", "b"))
    described = ask(cluster, lambda reply: node.ask(DescribeConfigs(resources, reply=reply)))
    assert kinds(described) == [UnknownServerError, None]
    longer = (change("retention.ms", "1000"),)
    assert kinds(alter(cluster, ("a", longer), ("b", longer))) == [UnknownServerError, None]
    cluster.server.tree.unreadable.clear()
    cluster.server.tree.read_only.add(path)
    assert kinds(alter(cluster, ("a", longer), ("b", longer))) == [UnknownServerError, None]
    assert notices(cluster) == ["topics/b", "topics/b"]


# describing


def test_every_value_has_its_origin() -> None:
    defaults = {"retention.ms": "86400000", "min.insync.replicas": "1", "nonsense": "1", "segment.bytes": "x"}
    cluster = started(ControllerConfig(CONTROLLER_ID, topic_defaults=defaults), segment_ms="7")
    found = entries(cluster, "a")
    assert list(found) == list(TOPIC_KEYS)
    assert (found["segment.ms"].value, found["segment.ms"].source) == ("7", ConfigSource.TOPIC)
    assert (found["retention.ms"].value, found["retention.ms"].source) == ("86400000", ConfigSource.BROKER_DEFAULT)
    for key, value in (("min.insync.replicas", "1"), ("segment.bytes", "1073741824"), ("cleanup.policy", "delete")):
        assert (found[key].value, found[key].source) == (value, ConfigSource.BUILT_IN_DEFAULT)


def test_only_the_requested_keys_are_described() -> None:
    cluster = started()
    assert list(entries(cluster, "a", "retention.ms", "cleanup.policy")) == ["retention.ms", "cleanup.policy"]


def test_the_cluster_wide_unclean_flag_is_a_broker_default() -> None:
    key = "unclean.leader.election.enable"
    cluster = started(ControllerConfig(CONTROLLER_ID, unclean_leader_election_enable=True))
    assert (entries(cluster, "a")[key].value, entries(cluster, "a")[key].source) == (
        "true",
        ConfigSource.BROKER_DEFAULT,
    )
    cluster.zk(Create(znodes.broker_config_path(None), znodes.encode_config({key: "false"})))
    assert entries(cluster, "a")[key].value == "false"


def test_a_stored_value_that_does_not_parse_counts_as_not_set() -> None:
    cluster = started()
    cluster.zk(SetData(znodes.topic_config_path("a"), znodes.encode_config({"segment.bytes": "x", "odd": "1"})))
    assert entries(cluster, "a")["segment.bytes"].source is ConfigSource.BUILT_IN_DEFAULT


def test_each_invalid_resource_has_its_own_error() -> None:
    cluster = started()
    cluster.create(NewTopic("broken", assignments=((1,),)))
    cluster.zk(SetData(znodes.topic_config_path("broken"), b"{"))
    asked = [
        (topic("a"), ("retention.ms",)),
        (topic("nosuch"), ()),
        (topic("a"), ("retention",)),
        (ConfigResource(None, "a"), ()),
        (topic("broken"), ()),
    ]
    node = cluster.controller
    results = ask(cluster, lambda reply: node.ask(DescribeConfigs(tuple(asked), reply=reply)))
    assert kinds(results) == [
        None,
        UnknownTopicOrPartitionError,
        InvalidConfigError,
        InvalidRequestError,
        InvalidConfigError,
    ]
    assert [result.resource for result in results] == [resource for resource, _ in asked]


def test_a_topic_whose_configuration_node_is_missing_has_the_defaults() -> None:
    cluster = started()
    cluster.zk(Delete(znodes.topic_config_path("a")))
    assert entries(cluster, "a")["retention.ms"].source is ConfigSource.BUILT_IN_DEFAULT
    assert kinds(alter(cluster, ("a", (change("retention.ms", "5"),)))) == [None]
    assert stored(cluster) == {"retention.ms": "5"}


# changing


def test_single_keys_change_and_brokers_are_notified() -> None:
    cluster = started(retention_ms="1000", segment_ms="7")
    changes = (change("retention.ms", "2000"), change("segment.ms", None, DELETE), change("flush.messages", "1"))
    assert kinds(alter(cluster, ("a", changes))) == [None]
    assert stored(cluster) == {"retention.ms": "2000", "flush.messages": "1"}
    assert notices(cluster) == ["topics/a"]
    assert entries(cluster, "a")["segment.ms"].source is ConfigSource.BUILT_IN_DEFAULT


def test_configuration_and_notification_are_one_transaction() -> None:
    cluster = started()
    before = len(cluster.writes)
    alter(cluster, ("a", (change("retention.ms", "5"),)))
    written = cluster.writes[before:]
    assert len({write.zxid for write in written}) == 1
    assert len(written) == 2


def test_lists_grow_and_shrink() -> None:
    cluster = started()
    alter(cluster, ("a", (change("cleanup.policy", "compact", APPEND),)))
    assert stored(cluster) == {"cleanup.policy": "delete,compact"}, "appended to the default"
    alter(cluster, ("a", (change("cleanup.policy", "compact", APPEND),)))
    assert stored(cluster) == {"cleanup.policy": "delete,compact"}
    alter(cluster, ("a", (change("cleanup.policy", "delete", SUBTRACT),)))
    assert stored(cluster) == {"cleanup.policy": "compact"}
    (refused,) = alter(cluster, ("a", (change("cleanup.policy", "compact", SUBTRACT),)))
    assert type(refused.error) is InvalidConfigError
    throttled = "leader.replication.throttled.replicas"
    alter(cluster, ("a", (change(throttled, "0:1,1:2", APPEND),)))
    alter(cluster, ("a", (change(throttled, "0:1,1:2", SUBTRACT),)))
    assert stored(cluster) == {"cleanup.policy": "compact", throttled: ""}


@pytest.mark.parametrize(
    ("bad", "error", "said"),
    [
        (change("retention", "1"), InvalidConfigError, "unknown topic configuration 'retention'"),
        (change("retention.ms", "soon"), InvalidConfigError, "invalid value 'soon' for retention.ms"),
        (change("min.insync.replicas", "0"), InvalidConfigError, "between 1"),
        (change("max.message.bytes", str((4 << 20) + 1)), InvalidConfigError, "at most 4194304 bytes"),
        (change("retention.ms", None), InvalidConfigError, "needs a value"),
        (change("retention.ms", "1", APPEND), InvalidConfigError, "not a list"),
        (change("nosuch", "1", APPEND), InvalidConfigError, "unknown topic configuration 'nosuch'"),
        (change("nosuch", None, DELETE), InvalidConfigError, "unknown topic configuration 'nosuch'"),
        (change("retention.ms", "1", DELETE), InvalidRequestError, "takes no value"),
        (change("retention.ms", "1", None), InvalidRequestError, "operation"),
        (change("segment.ms", "8"), InvalidRequestError, "more than once"),
        (change("min.compaction.lag.ms", str(2**62)), InvalidConfigError, "must not exceed"),
    ],
)
def test_an_invalid_change_refuses_the_whole_resource(bad: ConfigKeyChange, error: type[Exception], said: str) -> None:
    cluster = started(max_compaction_lag_ms="1000")
    before = len(cluster.writes)
    (result,) = alter(cluster, ("a", (change("segment.ms", "7"), bad)))
    assert type(result.error) is error
    assert said in str(result.error)
    assert len(cluster.writes) == before


def test_a_refused_resource_does_not_stop_the_others() -> None:
    cluster = started()
    cluster.create(NewTopic("b", assignments=((1,),)))
    set_it = (change("retention.ms", "5"),)
    results = alter(cluster, ("nosuch", set_it), ("a", set_it), ("b", set_it), ("b", set_it), ("a/b", ()))
    assert kinds(results) == [
        UnknownTopicOrPartitionError,
        None,
        InvalidRequestError,
        InvalidRequestError,
        UnknownTopicOrPartitionError,
    ]
    assert stored(cluster) == {"retention.ms": "5"}
    assert cluster.data(znodes.topic_config_path("b"))["config"] == {}


def test_a_resource_of_an_unknown_kind_and_one_without_changes_are_refused() -> None:
    cluster = started()
    asked = [ConfigAlteration(ConfigResource(None, "a"), ()), ConfigAlteration(topic("a"), ())]
    node = cluster.controller
    results = ask(cluster, lambda reply: node.ask(IncrementalAlterConfigs(tuple(asked), False, reply=reply)))
    assert kinds(results) == [InvalidRequestError] * 2
    assert ResourceType.TOPIC is results[1].resource.kind


def test_invalid_keys_of_other_tools_can_be_removed() -> None:
    cluster = started()
    cluster.zk(SetData(znodes.topic_config_path("a"), znodes.encode_config({"odd": "1", "segment.ms": "x"})))
    assert kinds(alter(cluster, ("a", (change("odd", None, DELETE), change("retention.ms", "5"))))) == [None]
    assert stored(cluster) == {"segment.ms": "x", "retention.ms": "5"}


def test_validation_changes_nothing() -> None:
    cluster = started()
    before = len(cluster.writes)
    results = alter(cluster, ("a", (change("retention.ms", "5"),)), validate_only=True)
    assert kinds(results) == [None]
    assert kinds(alter(cluster, ("a", (change("x", "5"),)), validate_only=True)) == [InvalidConfigError]
    assert len(cluster.writes) == before


def test_a_change_whose_reply_was_lost_succeeds_and_is_written_once() -> None:
    cluster = started()
    link = cluster.controller_clients[CONTROLLER_ID].link
    path = znodes.topic_config_path("a")
    link.lose_next_reply(lambda r: isinstance(r, Multi) and any(o.path == path for o in r.operations))
    assert kinds(alter(cluster, ("a", (change("retention.ms", "5"),)))) == [None]
    assert notices(cluster) == ["topics/a"]


def test_a_reply_lost_in_the_last_attempt_has_an_unknown_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_configs, "ATTEMPTS", 1)
    cluster = started()
    link = cluster.controller_clients[CONTROLLER_ID].link
    path = znodes.topic_config_path("a")
    link.lose_next_reply(lambda r: isinstance(r, Multi) and any(o.path == path for o in r.operations))
    assert kinds(alter(cluster, ("a", (change("retention.ms", "5"),)))) == [RequestTimedOutError]
    assert stored(cluster) == {"retention.ms": "5"}, "it was applied"


def test_a_topic_that_is_being_deleted_is_unknown() -> None:
    cluster = started()
    cluster.brokers.silent.add(1)
    cluster.delete("a", timeout_ms=100)
    assert kinds(alter(cluster, ("a", (change("retention.ms", "5"),)))) == [UnknownTopicOrPartitionError]


def test_allowing_unclean_elections_gives_an_offline_partition_a_leader() -> None:
    cluster = started()
    cluster.kill_broker(2)
    cluster.settle()
    cluster.kill_broker(1)
    cluster.settle()
    cluster.start_broker(2)
    cluster.settle()
    assert cluster.state("a-0").startswith("-1/")
    alter(cluster, ("a", (change("unclean.leader.election.enable", "true"),)))
    cluster.settle()
    assert cluster.state("a-0").startswith("2/")


def test_a_written_configuration_is_an_event() -> None:
    cluster = started()
    cluster.state_changes.clear()
    for entity in ("topics/a", "topics/none", "brokers/2", "brokers/9", "users/alice", "brokers/<default>"):
        cluster.zk(Create(znodes.CONFIG_CHANGE_PREFIX, znodes.encode_config_change(entity), sequential=True))
    cluster.settle()
    wanted = (StateChangeKind.TOPIC_CONFIGURED, StateChangeKind.BROKER_CONFIGURED)
    found = [(one.kind, one.topic, one.replica) for one in cluster.state_changes if one.kind in wanted]
    # Notifications about one topic that are read together are one event.
    assert found[0] == (StateChangeKind.TOPIC_CONFIGURED, "a", None)
    assert {one[2] for one in found[1:]} == {1, 2} and {one[1] for one in found[1:]} == {None}


def test_old_notifications_are_deleted() -> None:
    cluster = started()
    for _ in range(NOTICES_KEPT + 5):
        cluster.zk(Create(znodes.CONFIG_CHANGE_PREFIX, znodes.encode_config_change("topics/x"), sequential=True))
    cluster.time.run_for(NOTICE_KEPT_MS)
    alter(cluster, ("a", (change("retention.ms", "5"),)))
    cluster.settle()
    left = cluster.children(znodes.CONFIG_CHANGES)
    assert len(left) == NOTICES_KEPT
    assert notices(cluster)[-1] == "topics/a"


def test_a_change_is_handled_although_an_old_notification_cannot_be_deleted() -> None:
    cluster = started()
    for _ in range(NOTICES_KEPT + 5):
        cluster.zk(Create(znodes.CONFIG_CHANGE_PREFIX, znodes.encode_config_change("topics/x"), sequential=True))
    cluster.server.tree.read_only.add(f"{znodes.CONFIG_CHANGE_PREFIX}{0:010d}")
    cluster.time.run_for(NOTICE_KEPT_MS)
    cluster.kill_broker(2)
    cluster.settle()
    cluster.kill_broker(1)
    cluster.settle()
    cluster.start_broker(2)
    cluster.settle()
    assert cluster.state("a-0").startswith("-1/"), "the remaining ISR member is dead"
    alter(cluster, ("a", (change("unclean.leader.election.enable", "true"),)))
    cluster.settle()
    assert cluster.state("a-0").startswith("2/")
    assert len(cluster.children(znodes.CONFIG_CHANGES)) == NOTICES_KEPT + 1, "the other old ones were deleted"


@pytest.mark.parametrize("unread", ["the notification", "the configuration"])
def test_a_change_that_zookeeper_refuses_to_read_is_handled_when_it_can_be_read(unread: str) -> None:
    cluster = started()
    for broker_id in (2, 1):
        cluster.kill_broker(broker_id)
        cluster.settle()
    cluster.start_broker(2)
    cluster.settle()
    cluster.state_changes.clear()
    path, number = znodes.topic_config_path("a"), len(cluster.children(znodes.CONFIG_CHANGES))
    cluster.server.tree.unreadable.add(
        path if unread == "the configuration" else f"{znodes.CONFIG_CHANGE_PREFIX}{number:010d}"
    )
    cluster.zk(SetData(path, znodes.encode_config({"unclean.leader.election.enable": "true"})))
    for entity in ("topics/a", "topics/other"):
        cluster.zk(Create(znodes.CONFIG_CHANGE_PREFIX, znodes.encode_config_change(entity), sequential=True))
    cluster.time.run_for(3 * RETRY_MS)
    assert cluster.state("a-0").startswith("-1/"), "not read"
    cluster.server.tree.unreadable.clear()
    cluster.time.run_for(3 * RETRY_MS)
    assert cluster.state("a-0").startswith("2/")
    configured = [one for one in cluster.state_changes if one.kind is StateChangeKind.TOPIC_CONFIGURED]
    assert len(configured) == 1, "the change is one event"


def test_recent_notifications_are_kept_for_brokers_to_read() -> None:
    """One request may change thousands of resources, as the throttle of a large reassignment does."""
    cluster = started()
    node, throttle = cluster.controller, (change("leader.replication.throttled.rate", "1000"),)
    names = [str(broker_id) for broker_id in range(NOTICES_KEPT + 5)]
    asked = [ConfigAlteration(ConfigResource(ResourceType.BROKER, name), throttle) for name in names]
    assert set(
        kinds(ask(cluster, lambda reply: node.ask(IncrementalAlterConfigs(tuple(asked), False, reply=reply))))
    ) == {None}
    cluster.settle()
    alter(cluster, ("a", (change("retention.ms", "5"),)))
    cluster.settle()
    assert notices(cluster)[-NOTICES_KEPT - 6 :] == [*(f"brokers/{name}" for name in names), "topics/a"]


def test_a_standby_refuses() -> None:
    cluster = started()
    standby = cluster.start_controller(CONTROLLER_ID + 1)
    answers: list[Any] = []
    standby.ask(IncrementalAlterConfigs((), False, reply=answers.append))
    cluster.settle()
    assert isinstance(answers[0], NotControllerError)
