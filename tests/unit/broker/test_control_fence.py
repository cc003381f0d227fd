"""A broker that is not registered yet takes no control request: it may be meant for its last life."""

import pytest

from paceline.broker.control_fence import ControlFence, ControlRequestDeferredError
from paceline.model.control import ControllerStamp, LeaderAndIsrRequest
from paceline.model.errors import ErrorCode
from tests.support.broker_cluster import TP, BrokerCluster


def test_nothing_is_taken_before_the_first_registration() -> None:
    fence = ControlFence(lambda _on_read: None)
    with pytest.raises(ControlRequestDeferredError):
        fence.check(ControllerStamp(1_000_000, 1, 29), -1)
    assert fence.highest_epoch == 0
    assert fence.check(ControllerStamp(1_000_000, 1, 30), 30) is ErrorCode.NONE


def test_a_broker_back_before_its_old_session_ends_is_not_made_leader_by_a_request_for_its_last_life() -> None:
    cluster = BrokerCluster()
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    stamp = cluster.stamp(2)
    cluster[2].crash()
    again = cluster.boot(2)  # on an empty disk, while the old registration still stands
    cluster.time.run_for(100)
    assert again.node.broker_epoch == -1
    with pytest.raises(ControlRequestDeferredError):
        again.node.handle_control(LeaderAndIsrRequest(stamp, (), (cluster.partition(2, 1, (2, 3)),)))
    assert TP not in again.node.replica_manager.partitions
