"""A topic whose nodes ZooKeeper refuses to write does not fail the request for the other topics."""

from paceline.coordination import znodes
from paceline.model.admin import NewPartitions, NewTopic
from paceline.model.errors import UnknownServerError
from tests.unit.controller.admin_calls import grow, kinds
from tests.unit.controller.cluster import Cluster

ROWS = ((1, 2),)


def started(*topics: str) -> Cluster:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.start_controller()
    if topics:
        cluster.create(*(NewTopic(name, assignments=ROWS) for name in topics))
    return cluster


def test_a_topic_that_zookeeper_refuses_to_create_does_not_fail_the_others() -> None:
    cluster = started()
    cluster.server.tree.read_only.add(znodes.topic_path("b"))
    results = cluster.create(*(NewTopic(name, assignments=ROWS) for name in ("a", "b", "c")))
    assert kinds(results) == [None, UnknownServerError, None]
    assert cluster.state("a-0").startswith("1/0") and cluster.state("c-0").startswith("1/0")
    cluster.server.tree.read_only.clear()
    assert kinds(cluster.create(NewTopic("b", assignments=ROWS))) == [None]


def test_a_topic_that_zookeeper_refuses_to_mark_does_not_fail_the_deletion_of_the_others() -> None:
    cluster = started("a", "b")
    cluster.server.tree.read_only.add(znodes.delete_topic_path("a"))
    assert kinds(cluster.delete("a", "b")) == [UnknownServerError, None]
    assert cluster.exists(znodes.topic_path("a")) and not cluster.exists(znodes.topic_path("b"))


def test_a_topic_that_zookeeper_refuses_to_grow_does_not_fail_the_others() -> None:
    cluster = started("a", "b")
    cluster.server.tree.read_only.add(znodes.topic_path("a"))
    assert kinds(grow(cluster, NewPartitions("a", 2), NewPartitions("b", 2))) == [UnknownServerError, None]
    assert cluster.state("b-1").partition("/")[0] in ("1", "2")
