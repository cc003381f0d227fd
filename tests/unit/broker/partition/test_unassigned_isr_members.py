"""At the end of a reassignment the ISR may contain a replica that is no longer assigned."""

from paceline.model.client_io import RequiredAcks
from tests.support.broker_cluster import TP, BrokerCluster


def make() -> BrokerCluster:
    """Broker 2 leads the target (2, 3); broker 1, the former leader, is still in the ISR and got no request."""
    cluster = BrokerCluster(replica_lag_time_max_ms=2_000)
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    cluster.decide(2, 1, (1, 2, 3), replicas=(2, 3), to=(2, 3))
    return cluster


def test_the_high_watermark_waits_for_an_isr_member_that_is_no_longer_assigned() -> None:
    cluster = make()
    answers = cluster[2].produce(b"b", acks=RequiredAcks.ALL)
    cluster.time.run_for(300)
    # If the controller dies now, its successor may elect broker 1, which lacks this record.
    assert cluster[2].log().high_watermark < 2
    assert not answers
    cluster.decide(2, 2, (2, 3), replicas=(2, 3), to=(2, 3))
    cluster.time.run_for(300)
    assert cluster[2].log().high_watermark == 2
    assert answers[0].failure is None


def test_a_replica_that_is_no_longer_assigned_does_not_join_the_isr_again() -> None:
    cluster = make()
    partition = cluster[2].node.replica_manager.hosted.online[TP]
    partition.isr = (2, 3)
    cluster.decide(2, 1, (1, 2, 3), replicas=(2, 3), to=())
    cluster.send(1, cluster.partition(2, 1, (2, 3), replicas=(1, 2, 3)))
    cluster.time.run_for(500)
    assert partition.isr == (2, 3)
    assert partition.proposal is None
