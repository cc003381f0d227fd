"""A cluster whose follower leaves the ISR after two seconds, and ways to make a follower lag."""

from paceline.coordination import znodes
from paceline.model.client_io import RequiredAcks
from paceline.model.fetch_position import FetchPosition
from paceline.model.replica_fetch import ReplicaFetchRequest
from tests.support.broker_cluster import TP, BrokerCluster

LAG_MAX_MS = 2_000


def make(**config: object) -> BrokerCluster:
    cluster = BrokerCluster(replica_lag_time_max_ms=LAG_MAX_MS, **config)
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    return cluster


def leader(cluster: BrokerCluster):  # type: ignore[no-untyped-def]
    return cluster[1].node.replica_manager.hosted.online[TP]


def notifications(cluster: BrokerCluster) -> list[str]:
    return sorted(path for path in cluster.paths() if path.startswith(znodes.ISR_CHANGE_PREFIX))


def lag(cluster: BrokerCluster, *broker_ids: int) -> int:
    """Cut followers off, append a record, and return the time when they were last caught up."""
    cluster.cuts |= {(broker_id, 1) for broker_id in broker_ids}
    cluster[1].produce(b"lacking", acks=RequiredAcks.LEADER)
    one = leader(cluster).followers[broker_ids[0]]
    found = one.caught_up_ms(1)
    assert isinstance(found, int)
    return found


def fetch_by_hand(
    cluster: BrokerCluster, replica_id: int, offset: int, max_wait_ms: int = 0, session_epoch: int = -1
) -> list[object]:
    """Send the leader a fetch as if it came from this replica; the list stays empty until the answer comes."""
    epoch = leader(cluster).leader_epoch
    named = FetchPosition(TP, None, offset, 1_000, epoch, None, 0)
    broker_epoch = cluster[replica_id].node.broker_epoch if replica_id in cluster.brokers else 1
    answers: list[object] = []
    request = ReplicaFetchRequest(replica_id, broker_epoch, max_wait_ms, 1, 1_000, 0, session_epoch, [named], [])
    cluster[1].node.handle_replica_fetch(request, answers.append)
    return answers
