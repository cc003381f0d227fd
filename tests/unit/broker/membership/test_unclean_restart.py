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


def test_a_new_broker_and_a_crashed_process_report_no_unclean_restart() -> None:
    cluster = BrokerCluster((1,))
    assert not says_unclean(cluster)
    cluster.restart(1)
    assert not says_unclean(cluster)


def test_a_power_loss_is_reported_until_a_controller_acknowledges_this_registration() -> None:
    cluster = after_power_loss()
    assert says_unclean(cluster)
    of_nobody = ControllerStamp(CONTROLLER_ID, cluster.controller_epoch, None)
    cluster[1].node.handle_control(UpdateMetadataRequest(of_nobody, cluster.live(), ()))
    cluster.time.run_due()
    assert says_unclean(cluster), "the controller may not have read the registration"
    epoch = cluster[1].node.broker_epoch
    cluster.update_metadata()
    cluster.time.run_until(lambda: not says_unclean(cluster), 5_000)
    assert cluster[1].node.broker_epoch == epoch
    cluster.restart(1)
    assert not says_unclean(cluster)


def test_an_unacknowledged_unclean_restart_is_reported_in_the_next_session_and_by_the_next_process() -> None:
    cluster = after_power_loss()
    epoch = cluster[1].node.broker_epoch
    cluster.server.expire(cluster[1].zookeeper.session_id)
    cluster.time.run_until(lambda: cluster[1].node.broker_epoch != epoch, 10_000)
    assert says_unclean(cluster)
    cluster.restart(1)
    assert says_unclean(cluster)


def test_an_acknowledgement_during_a_new_registration_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = after_power_loss()
    node = cluster[1].node
    epoch = node.broker_epoch
    noted = ControllerStamp(CONTROLLER_ID, cluster.controller_epoch, epoch)

    def slow(*args: Any) -> Flow[Registered]:
        # The data of this registration is already fixed; the acknowledgement of the previous one arrives now.
        node.handle_control(UpdateMetadataRequest(noted, cluster.live(), ()))
        yield Sleep(100)
        return (yield from register_broker(*args))

    monkeypatch.setattr(registration, "register_broker", slow)
    cluster.server.expire(cluster[1].zookeeper.session_id)
    cluster.time.run_until(lambda: node.broker_epoch != epoch, 10_000)
    cluster.time.run_for(1_000)
    assert not says_unclean(cluster), "no later request would remove the flag"


def test_an_acknowledgement_rewrites_the_registration_only_once() -> None:
    cluster = after_power_loss()
    cluster.update_metadata()
    cluster.time.run_until(lambda: not says_unclean(cluster), 5_000)
    version = cluster.zk(GetData(znodes.broker_path(1))).stat.version  # type: ignore[attr-defined]
    cluster.update_metadata()
    cluster.time.run_until(lambda: True, 1_000)
    assert cluster.zk(GetData(znodes.broker_path(1))).stat.version == version  # type: ignore[attr-defined]
    assert bytes(cluster[1].files.contents[MARK]) == b"boot\n"


@pytest.mark.parametrize("known_id", [True, False])
def test_a_known_broker_with_empty_disks_reports_an_unclean_restart(known_id: bool) -> None:
    cluster = BrokerCluster((1, 2))
    if known_id:
        cluster.restart(1, wipe=True)
        assert says_unclean(cluster)
    else:
        broker = cluster.boot(3, MemoryFiles())
        cluster.time.run_until(lambda: broker.node.ready, 10_000)
        assert not says_unclean(cluster, 3)
