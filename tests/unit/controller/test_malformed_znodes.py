"""Foreign data in ZooKeeper harms the topic, broker or request that it names and nothing else, and is reported."""

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Create, Delete, SetData
from paceline.model.admin import NewTopic
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp

MEGABYTE = 1_000_000

TOPIC_NODES = {
    "no data": b"",
    "not JSON": b"{",
    "foreign JSON": b'{"some":"thing"}',
    "another kind of JSON": b"[1,2]",
    "missing field": b'{"version":3,"topic_id":"xxxxxxxxxxxxxxxxxxxxxx"}',
    "unknown version": b'{"version":99,"partitions":{"0":[1,2]}}',
    "wrong types": b'{"version":3,"partitions":{"0":"1,2"}}',
    "a partition that is no number": b'{"version":3,"partitions":{"zero":[1,2]}}',
    "nested deeply": b"[" * 100_000,
    "1 MB": b'{"version":3,"partitions":"' + b"x" * MEGABYTE + b'"}',
}
STATES = {
    "no data": b"",
    "foreign JSON": b'{"some":"thing"}',
    "missing field": b'{"version":1,"leader":1,"leader_epoch":0,"controller_epoch":1}',
    "unknown version": b'{"version":99,"leader":1,"leader_epoch":0,"controller_epoch":1,"isr":[1,2]}',
    "a leader that is none": b'{"version":1,"leader":-7,"leader_epoch":0,"controller_epoch":1,"isr":[1,2]}',
    "wrong types": b'{"version":1,"leader":"1","leader_epoch":0,"controller_epoch":1,"isr":[1,2]}',
    "an empty ISR": b'{"version":1,"leader":1,"leader_epoch":0,"controller_epoch":1,"isr":[]}',
    "1 MB": b'{"version":1,"isr":"' + b"x" * MEGABYTE + b'"}',
}
REGISTRATIONS = {
    "no data": b"",
    "foreign JSON": b'{"some":"thing"}',
    "missing field": b'{"version":4,"host":"b9"}',
    "unknown version": b'{"version":99,"host":"b9","port":1,"endpoints":["CONTROL://b9:1"]}',
    "wrong types": b'{"version":4,"endpoints":"CONTROL://b9:1"}',
    "1 MB": b'{"version":4,"endpoints":["' + b"x" * MEGABYTE + b'"]}',
}
REQUESTS = {
    "no data": b"",
    "foreign JSON": b'{"some":"thing"}',
    "missing field": b'{"version":1}',
    "unknown version": b'{"version":99,"partitions":[]}',
    "a topic that cannot be": b'{"version":1,"partitions":[{"topic":"../x","partition":0,"replicas":[1]}]}',
    "1 MB": b'{"version":1,"partitions":"' + b"x" * MEGABYTE + b'"}',
}
CONFIGS = {
    "no data": b"",
    "foreign JSON": b'{"some":"thing"}',
    "missing field": b'{"version":1}',
    "unknown version": b'{"version":99,"config":{"unclean.leader.election.enable":"true"}}',
    "wrong types": b'{"version":1,"config":{"unclean.leader.election.enable":true}}',
    "1 MB": b'{"version":1,"config":"' + b"x" * MEGABYTE + b'"}',
}


def table(values: dict[str, bytes]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("data", list(values.values()), ids=list(values))


def started() -> Cluster:
    """Topics ``sick`` and ``well``, both led by broker 1 and followed by 2."""
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(NewTopic("sick", assignments=((1, 2),)), NewTopic("well", assignments=((1, 2),)))
    cluster.told()
    return cluster


def fail_over(cluster: Cluster) -> None:
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.start_controller(CONTROLLER_ID + 1)


def assert_well(cluster: Cluster, caplog: pytest.LogCaptureFixture, path: str) -> None:
    """Check that the other topic gets a new leader, a topic can be created, and the malformed node was logged."""
    epoch = cluster.controller.controller_epoch
    if 1 in cluster.broker_sessions:
        cluster.kill_broker(1)
        cluster.settle()
    assert cluster.data(znodes.partition_state_path(tp("well-0")))["leader"] == 2
    (result,) = cluster.create(NewTopic("fresh", assignments=((3, 2),)))
    assert result.error is None
    assert any(text.startswith("LAI fresh-0 3/0") for text in cluster.told()[3])
    assert cluster.controller.controller_epoch == epoch, "no controller resigned"
    reports = [record for record in caplog.records if path in caplog.handler.format(record)]
    assert reports, f"{path} was not reported"
    for report in reports:
        assert report.exc_info is None, "one line, not a traceback"
        assert "\n" not in report.getMessage() and len(report.getMessage()) < 500
    assert not [r for r in caplog.records if "handling" in r.getMessage()], "no event may fail as a whole"


# topics


@table(TOPIC_NODES)
def test_a_new_topic_with_a_malformed_node_is_ignored_until_it_is_repaired(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = started()
    cluster.zk(Create(znodes.topic_path("broken"), data))
    cluster.settle()
    assert not any("broken" in text for texts in cluster.told().values() for text in texts)
    assert_well(cluster, caplog, znodes.topic_path("broken"))
    cluster.told()
    cluster.zk(SetData(znodes.topic_path("broken"), b'{"version":1,"partitions":{"0":[3,2]}}'))
    cluster.settle()
    assert cluster.state("broken-0").startswith("3/0 isr [3, 2]")
    assert any(text.startswith("LAI broken-0 3/0 [3, 2] new") for text in cluster.told()[3])


@table(TOPIC_NODES)
def test_a_known_topic_keeps_its_assignment_when_its_node_becomes_malformed(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = started()
    cluster.zk(SetData(znodes.topic_path("sick"), data))
    cluster.settle()
    assert cluster.told() == {}
    assert_well(cluster, caplog, znodes.topic_path("sick"))
    assert cluster.state("sick-0") == "2/1 isr [2] ce 1 v1", "the assignment is known, so it has a leader again"


@table(TOPIC_NODES)
def test_a_new_controller_ignores_a_malformed_topic(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    cluster = started()
    cluster.zk(SetData(znodes.topic_path("sick"), data))
    fail_over(cluster)
    before = cluster.state("sick-0")
    assert_well(cluster, caplog, znodes.topic_path("sick"))
    assert cluster.state("sick-0") == before
    assert not any("sick" in text for texts in cluster.told().values() for text in texts)


def test_a_topic_repaired_under_a_new_controller_keeps_its_state() -> None:
    cluster = started()
    path = znodes.topic_path("sick")
    good = cluster.server.tree.get(path).data  # type: ignore[union-attr]
    cluster.zk(SetData(path, b"{"))
    fail_over(cluster)
    cluster.told()
    cluster.zk(SetData(path, good))
    cluster.settle()
    assert any("UM" in text and "sick-0 1/0" in text for text in cluster.told()[3])
    cluster.kill_broker(1)
    cluster.settle()
    assert cluster.state("sick-0").startswith("2/1 isr [2]")


# partition states


@table(STATES)
def test_a_malformed_state_prevents_only_the_election_of_its_partition(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = started()
    path = znodes.partition_state_path(tp("sick-0"))
    cluster.zk(SetData(path, data))
    assert_well(cluster, caplog, path)
    assert cluster.server.tree.get(path).data == data, "a malformed node is not overwritten"  # type: ignore[union-attr]


@table(STATES)
def test_a_new_controller_does_not_overwrite_a_malformed_state(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    cluster = started()
    path = znodes.partition_state_path(tp("sick-0"))
    cluster.zk(SetData(path, data))
    fail_over(cluster)
    assert_well(cluster, caplog, path)
    assert cluster.server.tree.get(path).data == data  # type: ignore[union-attr]
    assert not any("LAI sick" in text for texts in cluster.told().values() for text in texts)


@table(STATES)
def test_a_malformed_state_does_not_delay_other_partitions_of_a_failed_directory(data: bytes) -> None:
    cluster = started()
    cluster.zk(SetData(znodes.partition_state_path(tp("sick-0")), data))
    cluster.told()
    cluster.brokers.failed_dirs[2].update({tp("sick-0"), tp("well-0")})
    cluster.zk(Create(znodes.LOG_DIR_EVENT_PREFIX, znodes.encode_log_dir_event(2), sequential=True))
    cluster.settle()
    assert cluster.state("well-0") == "1/1 isr [1] ce 1 v1"
    assert "LAI well-0 1/1 [1]" in cluster.told()[1]


@table(STATES)
def test_a_topic_with_a_malformed_state_can_be_deleted(data: bytes) -> None:
    cluster = started()
    cluster.zk(SetData(znodes.partition_state_path(tp("sick-0")), data))
    cluster.kill_broker(3)
    cluster.settle()
    (result,) = cluster.delete("sick")
    assert result.error is None and not cluster.exists(znodes.topic_path("sick"))


def test_a_state_repaired_under_a_new_controller_is_read_when_a_broker_starts() -> None:
    cluster = started()
    path = znodes.partition_state_path(tp("sick-0"))
    good = cluster.server.tree.get(path).data  # type: ignore[union-attr]
    cluster.zk(SetData(path, b"{"))
    fail_over(cluster)
    cluster.zk(SetData(path, good))
    cluster.start_broker(4)
    cluster.settle()
    cluster.kill_broker(1)
    cluster.settle()
    assert cluster.state("sick-0").startswith("2/1 isr [2]")


# brokers


@table(REGISTRATIONS)
def test_a_malformed_registration_counts_as_no_broker(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    cluster = started()
    cluster.zk(Create(znodes.broker_path(9), data))
    cluster.zk(Create(f"{znodes.BROKER_IDS}/nonsense", b"{}"))
    cluster.settle()
    assert [broker.broker_id for broker in cluster.controller.describe_cluster().brokers] == [1, 2, 3]
    assert_well(cluster, caplog, znodes.broker_path(9))


@table(REGISTRATIONS)
def test_a_broker_with_an_overwritten_registration_counts_as_dead_until_it_registers_again(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = started()
    path = znodes.broker_path(1)
    good = cluster.server.tree.get(path).data  # type: ignore[union-attr]
    cluster.zk(SetData(path, data))
    cluster.start_broker(4)  # A change of the children, so that the registrations are read as a whole.
    cluster.settle()
    assert [broker.broker_id for broker in cluster.controller.describe_cluster().brokers] == [2, 3, 4]
    assert cluster.state("well-0").startswith("2/1 isr [2]")
    assert any(path in caplog.handler.format(record) for record in caplog.records)
    cluster.zk(SetData(path, good))
    cluster.start_broker(5)
    cluster.settle()
    assert [broker.broker_id for broker in cluster.controller.describe_cluster().brokers] == [1, 2, 3, 4, 5]
    assert "LAI sick-0 2/1 [2], well-0 2/1 [2]" in cluster.told()[1]


# requests of tools


@pytest.mark.parametrize("path", [znodes.REASSIGN_PARTITIONS, znodes.PREFERRED_REPLICA_ELECTION])
@table(REQUESTS)
def test_a_malformed_request_in_an_admin_node_is_removed_and_the_next_one_executed(
    data: bytes, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = started()
    cluster.zk(Create(path, data))
    cluster.settle()
    assert not cluster.exists(path)
    assert cluster.told() == {}
    if path == znodes.REASSIGN_PARTITIONS:
        cluster.zk(Create(path, znodes.encode_reassignment({tp("sick-0"): (1, 3)})))
        cluster.settle()
        assert cluster.data(znodes.topic_path("sick"))["adding_replicas"] == {"0": [3]}
    assert_well(cluster, caplog, path)


@pytest.mark.parametrize("path", [znodes.REASSIGN_PARTITIONS, znodes.PREFERRED_REPLICA_ELECTION])
@table(REQUESTS)
def test_a_new_controller_removes_a_malformed_request_in_an_admin_node(
    data: bytes, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = started()
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.zk(Create(path, data))
    cluster.start_controller(CONTROLLER_ID + 1)
    assert not cluster.exists(path)
    assert_well(cluster, caplog, path)


@table(REQUESTS)
def test_the_content_of_a_deletion_marker_does_not_matter(data: bytes) -> None:
    cluster = started()
    cluster.zk(Create(znodes.delete_topic_path("sick"), data))
    cluster.settle()
    assert not cluster.exists(znodes.topic_path("sick")) and not cluster.exists(znodes.delete_topic_path("sick"))


# configurations


def out_of_sync(cluster: Cluster) -> None:
    """Leave broker 2 as the only live replica of both topics, outside their ISRs."""
    for partition in ("sick-0", "well-0"):
        cluster.change_isr(partition, [1])
    cluster.settle()
    cluster.kill_broker(1)
    cluster.settle()


@table(CONFIGS)
def test_a_malformed_configuration_forbids_unclean_election_of_its_topic_only(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = started()
    cluster.zk(SetData(znodes.topic_config_path("sick"), data))
    allowed = znodes.encode_config({"unclean.leader.election.enable": "true"})
    cluster.zk(SetData(znodes.topic_config_path("well"), allowed))
    out_of_sync(cluster)
    states = [cluster.data(znodes.partition_state_path(tp(f"{topic}-0"))) for topic in ("sick", "well")]
    assert [(state["leader"], state["isr"]) for state in states] == [(-1, [1]), (2, [2])]
    assert_well(cluster, caplog, znodes.topic_config_path("sick"))


@table(CONFIGS)
def test_a_malformed_default_forbids_unclean_election_except_where_a_topic_allows_it(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = started()
    cluster.zk(Create("/config/brokers"), must_succeed=False)
    cluster.zk(Create(znodes.broker_config_path(None), data))
    allowed = znodes.encode_config({"unclean.leader.election.enable": "true"})
    cluster.zk(SetData(znodes.topic_config_path("well"), allowed))
    out_of_sync(cluster)
    assert cluster.data(znodes.partition_state_path(tp("sick-0")))["leader"] == -1
    assert_well(cluster, caplog, znodes.broker_config_path(None))


@table(CONFIGS)
def test_a_malformed_configuration_notification_hides_no_other(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    cluster = started()
    out_of_sync(cluster)
    allowed = znodes.encode_config({"unclean.leader.election.enable": "true"})
    cluster.zk(SetData(znodes.topic_config_path("well"), allowed))
    for content in (data, znodes.encode_config_change("topics/well")):
        cluster.zk(Create(f"{znodes.CONFIG_CHANGES}/config_change_", content, sequential=True))
    cluster.settle()
    assert cluster.data(znodes.partition_state_path(tp("sick-0")))["leader"] == -1
    assert_well(cluster, caplog, f"{znodes.CONFIG_CHANGES}/config_change_")


# controller nodes


@pytest.mark.parametrize("data", [b"", b"{", b'{"version":1}', b'{"version":99,"brokerid":1}', b"x" * MEGABYTE])
def test_a_malformed_controller_node_counts_as_an_active_controller(data: bytes) -> None:
    cluster = started()
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.settle()
    cluster.zk(Create(znodes.CONTROLLER, data))
    node = cluster.start_controller(CONTROLLER_ID + 1)
    assert not node.is_active and cluster.told() == {}
    # When the foreign node is deleted, the waiting controller is elected.
    cluster.zk(Delete(znodes.CONTROLLER))
    cluster.settle()
    assert node.is_active and cluster.data(znodes.CONTROLLER)["brokerid"] == CONTROLLER_ID + 1


def test_a_damaged_cluster_id_prevents_no_election(caplog: pytest.LogCaptureFixture) -> None:
    cluster = started()
    cluster.zk(SetData(znodes.CLUSTER_ID, b"nonsense"))
    fail_over(cluster)
    assert_well(cluster, caplog, znodes.CLUSTER_ID)
