"""When the high watermarks are written to ``replication-offset-checkpoint``."""

from itertools import pairwise

import pytest

from paceline.log.checkpoint import decode_offsets
from paceline.log.files import join
from tests.support.broker_cluster import TP, BrokerCluster, BrokerUnderTest

INTERVAL_MS = 5_000


def written(broker: BrokerUnderTest) -> int | None:
    """Return the high watermark of the partition in the checkpoint, None without a checkpoint."""
    path = join("/data", "replication-offset-checkpoint")
    if not broker.files.exists(path):
        return None
    return decode_offsets(broker.files.read_at(path, 0, broker.files.size(path)))[TP]


@pytest.mark.origin("S2-4")
def test_no_checkpoint_is_written_before_the_first_leader_and_isr() -> None:
    cluster = BrokerCluster((1,))
    cluster.time.run_for(60_000)
    assert written(cluster[1]) is None
    cluster.decide(1, 0, (1,), is_new=True)
    cluster.time.run_for(INTERVAL_MS - 1)
    assert written(cluster[1]) is None
    cluster.time.run_for(1)
    assert written(cluster[1]) == 0


def test_a_checkpoint_is_written_once_per_interval_however_many_leader_and_isr_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = BrokerCluster((1,))
    cluster.decide(1, 0, (1,), is_new=True)
    cluster.time.run_for(INTERVAL_MS // 2)
    cluster.decide(1, 1, (1,))
    cluster[1].produce(b"a", b"b")
    writes: list[float] = []
    write = cluster[1].logs.checkpoint_high_watermarks

    def counted() -> None:
        writes.append(cluster.time.now_ms())
        write()

    monkeypatch.setattr(cluster[1].logs, "checkpoint_high_watermarks", counted)
    cluster.time.run_for(3 * INTERVAL_MS)
    assert len(writes) == 3 and {later - earlier for earlier, later in pairwise(writes)} == {INTERVAL_MS}
    assert written(cluster[1]) == 2


def test_a_directory_that_fails_while_a_checkpoint_is_written_is_taken_offline() -> None:
    cluster = BrokerCluster((1,))
    cluster.decide(1, 0, (1,), is_new=True)
    cluster[1].files.fails = lambda operation, path: "replication-offset-checkpoint" in path
    cluster.time.run_for(INTERVAL_MS)
    assert list(cluster[1].node.replica_manager.hosted.offline) == [TP]


def test_a_stopped_broker_has_written_its_last_high_watermark_and_writes_no_more() -> None:
    cluster = BrokerCluster((1,), controlled_shutdown_enable=False)
    cluster.decide(1, 0, (1,), is_new=True)
    cluster[1].produce(b"a")
    done: list[bool] = []
    cluster[1].node.stop(lambda: done.append(True))
    cluster.time.run_until(lambda: bool(done), 10_000)
    assert written(cluster[1]) == 1
    cluster[1].files.remove(join("/data", "replication-offset-checkpoint"))
    cluster.time.run_for(2 * INTERVAL_MS)
    assert written(cluster[1]) is None
