"""The periodic check that gives leadership back to preferred replicas."""

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import SetData
from paceline.coordination.znodes.json_codec import encode_json
from paceline.model.admin import NewTopic
from paceline.model.settings import ControllerConfig
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, started, tp


def rebalancing(partitions: int, away: int, **settings: int) -> Cluster:
    """``partitions`` preferred on broker 1, of which ``away`` are led by broker 2 although 1 is in sync."""
    config = ControllerConfig(CONTROLLER_ID, **settings)  # type: ignore[arg-type]
    cluster = started(config=config)
    cluster.create(NewTopic("a", assignments=((1, 2),) * partitions))
    for partition in range(away):
        path = znodes.partition_state_path(tp(f"a-{partition}"))
        state = cluster.data(path)
        cluster.zk(SetData(path, encode_json({**state, "leader": 2, "leader_epoch": 1})))
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.start_controller(CONTROLLER_ID + 1)
    cluster.told()
    return cluster


@pytest.mark.parametrize(("away", "moves"), [(1, False), (2, True)])
def test_preferred_leaders_are_elected_only_above_ten_percent_imbalance(away: int, moves: bool) -> None:
    cluster = rebalancing(10, away)
    cluster.time.run_for(4_900)
    assert cluster.told() == {}, "the first check is five seconds after failover"
    cluster.time.run_for(200)
    assert (cluster.data(znodes.partition_state_path(tp("a-0")))["leader"] == 1) is moves


def test_preferred_leaders_are_not_elected_while_a_reassignment_runs() -> None:
    cluster = rebalancing(10, 5)
    cluster.reassign({tp("a-9"): (3, 2)})
    cluster.time.run_for(6_000)
    assert cluster.data(znodes.partition_state_path(tp("a-0")))["leader"] == 2
    cluster.reassign({tp("a-9"): None})
    cluster.time.run_for(300_000)
    assert cluster.data(znodes.partition_state_path(tp("a-0")))["leader"] == 1


def test_a_preferred_replica_outside_the_isr_is_not_elected() -> None:
    cluster = rebalancing(2, 2)
    cluster.change_isr("a-0", [2])
    cluster.time.run_for(6_000)
    leaders = [cluster.data(znodes.partition_state_path(tp(f"a-{p}")))["leader"] for p in (0, 1)]
    assert leaders == [2, 1]
