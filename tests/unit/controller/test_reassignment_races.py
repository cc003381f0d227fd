"""The last replica of a move joins the ISR while a new controller is taking over, at whatever moment."""

import itertools
import json

import pytest

from paceline.controller.topic_admin import NewTopic
from paceline.coordination import znodes
from paceline.coordination.interface import Response, SetData
from tests.unit.controller.asking import kinds, move, moves
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp

PATH = znodes.partition_state_path(tp("a-0"))


def join(cluster: Cluster, broker_id: int) -> None:
    """What a leader does, without waiting for it: a conditional write, and another one when that has lost."""
    node = cluster.server.tree.get(PATH)
    assert node is not None and node.data is not None
    state = json.loads(node.data)
    if broker_id in state["isr"]:
        return
    state["isr"].append(broker_id)

    def answered(responses: list[Response]) -> None:
        if not responses[0].ok:
            join(cluster, broker_id)

    cluster.tool.submit([SetData(PATH, json.dumps(state).encode(), node.version)], answered)


@pytest.mark.parametrize("steps", range(60))
def test_whoever_joins_during_a_takeover_leads_when_the_old_leader_goes(steps: int) -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    assert kinds(move(cluster, ("a-0", (3,)))) == [None]
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.settle()
    cluster.start_controller(CONTROLLER_ID + 1, settle=False)
    passed = itertools.count()
    cluster.time.run_until(lambda: next(passed) == steps, max_ms=0, must_hold=False)
    join(cluster, 3)
    cluster.settle()
    assert moves(cluster) == []
    assert cluster.data(znodes.topic_path("a"))["partitions"] == {"0": [3]}
    assert (cluster.data(PATH)["leader"], cluster.data(PATH)["isr"]) == (3, [3])


def test_a_move_to_a_broker_without_a_lease_leaves_a_partition_that_is_elected_when_it_is_heard_from() -> None:
    cluster = Cluster()
    cluster.lease_ms = 9_000
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    assert kinds(move(cluster, ("a-0", (3,)))) == [None]
    for _ in range(4):
        cluster.heartbeat(1, 2)
        cluster.time.run_for(3_000)
    cluster.change_isr("a-0", [1, 2, 3])
    cluster.settle()
    assert (cluster.data(PATH)["leader"], cluster.data(PATH)["isr"]) == (-1, [3])
    assert cluster.controller.gauges().offline_partitions == 1
    cluster.heartbeat(3)
    cluster.settle()
    assert (cluster.data(PATH)["leader"], cluster.data(PATH)["isr"]) == (3, [3])
