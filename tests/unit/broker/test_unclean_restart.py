"""How a broker reports an unclean restart, and for how long (docs/protocol/log-format.md#unclean-restart)."""

from typing import Any

import pytest

from paceline.broker.membership import registration
from paceline.coordination import znodes
from paceline.coordination.flow import Flow, Sleep
from paceline.coordination.interface import GetData
from paceline.coordination.recipes import Registered, register_broker
from paceline.model.control import ControllerStamp, UpdateMetadataRequest
from tests.support.broker_cluster import CONTROLLER_ID, BrokerCluster
from tests.unit.log.memory_files import MemoryFiles

MARK = "/data/.kernel_boot_id"


def says_unclean(cluster: BrokerCluster, broker_id: int = 1) -> bool:
    path = znodes.broker_path(broker_id)
    response = cluster.zk(GetData(path))
    return znodes.decode_broker(path, response.data, broker_id).unclean_restart  # type: ignore[attr-defined]


def after_power_loss() -> BrokerCluster:
    cluster = BrokerCluster((1,))
    cluster[1].files.contents[MARK][:] = b"the boot before\n"
    cluster.restart(1)
    return cluster


def test_a_new_broker_and_one_that_only_crashed_say_nothing() -> None:
    cluster = BrokerCluster((1,))
    assert not says_unclean(cluster)
    cluster.restart(1)
    assert not says_unclean(cluster)


def test_b17_power_loss_is_said_until_a_controller_has_taken_note_of_this_registration() -> None:
    cluster = after_power_loss()
    assert says_unclean(cluster)
    of_nobody = ControllerStamp(CONTROLLER_ID, cluster.controller_epoch, None)
    cluster[1].node.handle_control(UpdateMetadataRequest(of_nobody, cluster.live(), ()))
    cluster.time.run_due()
    assert says_unclean(cluster), "such a request may come from a controller that has not seen the registration"
    epoch = cluster[1].node.broker_epoch
    cluster.update_metadata()
    cluster.time.run_until(lambda: not says_unclean(cluster), 5_000)
    assert cluster[1].node.broker_epoch == epoch
    cluster.restart(1)
    assert not says_unclean(cluster)


def test_an_unclean_restart_nobody_took_note_of_is_said_again_in_the_next_session_and_the_next_life() -> None:
    cluster = after_power_loss()
    epoch = cluster[1].node.broker_epoch
    cluster.server.expire(cluster[1].zookeeper.session_id)
    cluster.time.run_until(lambda: cluster[1].node.broker_epoch != epoch, 10_000)
    assert says_unclean(cluster)
    cluster.restart(1)
    assert says_unclean(cluster)


def test_a_note_that_comes_while_a_new_session_registers_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = after_power_loss()
    node = cluster[1].node
    epoch = node.broker_epoch
    noted = ControllerStamp(CONTROLLER_ID, cluster.controller_epoch, epoch)

    def slow(*args: Any) -> Flow[Registered]:
        # What this registration says has been decided; the answer to the one before comes now.
        node.handle_control(UpdateMetadataRequest(noted, cluster.live(), ()))
        yield Sleep(100)
        return (yield from register_broker(*args))

    monkeypatch.setattr(registration, "register_broker", slow)
    cluster.server.expire(cluster[1].zookeeper.session_id)
    cluster.time.run_until(lambda: node.broker_epoch != epoch, 10_000)
    cluster.time.run_for(1_000)
    assert not says_unclean(cluster), "no later request would have it taken back"


def test_the_note_is_taken_once_however_many_requests_come() -> None:
    cluster = after_power_loss()
    cluster.update_metadata()
    cluster.time.run_until(lambda: not says_unclean(cluster), 5_000)
    version = cluster.zk(GetData(znodes.broker_path(1))).stat.version  # type: ignore[attr-defined]
    cluster.update_metadata()
    cluster.time.run_until(lambda: True, 1_000)
    assert cluster.zk(GetData(znodes.broker_path(1))).stat.version == version  # type: ignore[attr-defined]
    assert bytes(cluster[1].files.contents[MARK]) == b"boot\n"


@pytest.mark.parametrize("known_id", [True, False])
def test_b16_a_broker_whose_disks_were_replaced_has_lost_everything(known_id: bool) -> None:
    cluster = BrokerCluster((1, 2))
    if known_id:
        cluster.restart(1, wipe=True)
        assert says_unclean(cluster)
    else:
        broker = cluster.boot(3, MemoryFiles())
        cluster.time.run_until(lambda: broker.node.ready, 10_000)
        assert not says_unclean(cluster, 3)
