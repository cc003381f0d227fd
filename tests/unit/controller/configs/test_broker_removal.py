"""The dynamic setting broker.removal: refusals, and no new replica on a broker that is being removed."""

import pytest

from paceline.controller.admin.admin_values import ConfigOperation
from paceline.model.broker_dynamic_config import REMOVAL
from paceline.model.errors import InvalidConfigError
from tests.unit.controller.admin_calls import change
from tests.unit.controller.cluster import Cluster
from tests.unit.controller.configs.test_broker_configs import alter, broker
from tests.unit.controller.configs.test_topic_configs import started


def set_removal(cluster: Cluster, name: str, value: str | None) -> str:
    """Set or delete the setting and return the error, empty without one."""
    wanted = change(REMOVAL, value) if value else change(REMOVAL, None, ConfigOperation.DELETE)
    (result,) = alter(cluster, (broker(name), (wanted,)))
    assert result.error is None or isinstance(result.error, InvalidConfigError)
    return str(result.error or "")


def removals(cluster: Cluster) -> dict[int, str]:
    active = cluster.controller.describe_active()
    assert active is not None
    return {one.broker_id: one.state for one in active.removals}


def test_a_broker_that_is_being_removed_gets_no_new_replica_and_the_next_controller_knows() -> None:
    cluster = started()
    assert set_removal(cluster, "2", "removing") == ""
    assert removals(cluster) == {2: "removing"}
    context = cluster.controller._components.context
    assert 2 in context.live_broker_ids()
    assert 2 not in context.placeable_broker_ids()
    assert set_removal(cluster, "2", None) == ""
    assert removals(cluster) == {}
    assert 2 in context.placeable_broker_ids()


@pytest.mark.parametrize("value", ["removing", "removed"])
def test_all_brokers_and_an_unknown_broker_are_refused(value: str) -> None:
    cluster = started()
    assert set_removal(cluster, "", value) == "broker.removal is for a single broker"
    assert set_removal(cluster, "77", value).startswith("there is no broker 77; live brokers: 1, 2")
    assert removals(cluster) == {}


def test_another_value_is_refused() -> None:
    assert "removing or removed is expected" in set_removal(started(), "2", "gone")


def test_two_brokers_are_not_removed_at_once() -> None:
    cluster = started()
    cluster.start_broker(3)
    assert set_removal(cluster, "2", "removing") == ""
    assert set_removal(cluster, "3", "removing").startswith("broker 2 is being removed: finish with")
    assert removals(cluster) == {2: "removing"}


def test_a_broker_with_replicas_is_not_marked_removed() -> None:
    cluster = started()
    assert set_removal(cluster, "2", "removed").startswith("broker 2 still has replicas of")
    assert removals(cluster) == {}


def test_the_last_broker_is_not_removed() -> None:
    cluster = started()
    context = cluster.controller._components.context
    context.removals.update({1: "removed"})
    assert set_removal(cluster, "2", "removing") == "broker 2 is the last live broker, so that it cannot be removed"
