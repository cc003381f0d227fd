"""Small conversations with ZooKeeper a broker holds besides those in `coordination`."""

from paceline.coordination import znodes
from paceline.coordination.flow import Flow, Zk
from paceline.coordination.interface import Check, Create, GetData, Multi
from paceline.coordination.recipes import expect


def read_controller_epoch() -> Flow[int | None]:
    """Return the value of ``/controller_epoch`` as it is now, None when it cannot be read.

    A read may come from a server that lags, and a value from the past would let a deposed controller speak again. The
    check is a write to ZooKeeper: it fails unless the version read is the current one.
    """
    (read,) = yield Zk([GetData(znodes.CONTROLLER_EPOCH)])
    if not read.ok:
        return None
    (checked,) = yield Zk([Multi((Check(znodes.CONTROLLER_EPOCH, read.stat.version),))])
    if not checked.ok:
        return None
    return znodes.decode_controller_epoch(znodes.CONTROLLER_EPOCH, read.data)


def notify_log_dir_failure(broker_id: int) -> Flow[None]:
    """Tell the controller that a log directory of this broker has failed (spec/zookeeper.md section 2.10)."""
    path = znodes.LOG_DIR_EVENT_PREFIX
    (created,) = yield Zk([Create(path, znodes.encode_log_dir_event(broker_id), sequential=True)])
    expect(created, path)
