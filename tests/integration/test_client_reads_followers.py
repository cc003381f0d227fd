"""A consumer with a rack reads from the preferred read replica, and from the leader again after any error."""

from collections.abc import Iterator

import pytest

from paceline.model.errors import ErrorCode
from paceline_client import Consumer
from paceline_client.subscription import PartitionState
from tests.integration.client_clusters import ONE, read, write
from tests.integration.fake_cluster import FakeCluster, wait_for


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Start two brokers; the leader names the follower as preferred read replica to consumers with a rack."""
    fake = FakeCluster().start()
    fake.topic("one")
    leader = fake.logs[ONE].leader
    fake.faults.read_replica = next(node for node in sorted(fake.brokers) if node != leader)
    yield fake
    fake.stop()


def state_of(consumer: Consumer) -> PartitionState:
    state = consumer._assignment.find(ONE)
    assert state is not None
    return state


def leader_of(cluster: FakeCluster) -> int:
    leader = cluster.logs[ONE].leader
    assert leader is not None
    return leader


def follower_of(cluster: FakeCluster) -> int:
    assert cluster.faults.read_replica is not None
    return cluster.faults.read_replica


def test_a_consumer_reads_from_the_follower_that_the_leader_names(cluster: FakeCluster) -> None:
    write(cluster, b"a", b"b")
    with Consumer(cluster.bootstrap, client_rack="r") as consumer:
        consumer.assign([ONE])
        assert [record.value for record in read(consumer, 2)] == [b"a", b"b"]
        write(cluster, b"c")
        assert [record.value for record in read(consumer, 1)] == [b"c"]
    assert cluster.served[leader_of(cluster)] == 0
    assert cluster.served[follower_of(cluster)] >= 2


def test_a_consumer_without_a_rack_reads_from_the_leader(cluster: FakeCluster) -> None:
    write(cluster, b"a")
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        read(consumer, 1)
    assert cluster.served[follower_of(cluster)] == 0


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.CORRUPT_MESSAGE,
    ],
)
def test_an_error_of_the_follower_sends_the_consumer_back_without_moving_its_position(
    cluster: FakeCluster, error: ErrorCode
) -> None:
    write(cluster, b"a", b"b", b"c")
    cluster.faults.follower_refuse = [error]
    with Consumer(cluster.bootstrap, client_rack="r", auto_offset_reset="error") as consumer:
        consumer.assign([ONE])
        consumer.seek(ONE, 1)
        assert [record.value for record in read(consumer, 2)][-2:] == [b"b", b"c"]
        assert state_of(consumer).read_replica is None
    assert cluster.faults.follower_refuse == []
    assert cluster.served[leader_of(cluster)] == 1


def test_an_unreachable_follower_sends_the_consumer_back(cluster: FakeCluster) -> None:
    write(cluster, b"a")
    with Consumer(cluster.bootstrap, client_rack="r") as consumer:
        consumer.assign([ONE])
        read(consumer, 1)
        cluster.brokers[follower_of(cluster)].stop()
        write(cluster, b"b")
        assert [record.value for record in read(consumer, 1)] == [b"b"]
    assert cluster.served[leader_of(cluster)] == 1


def test_the_leader_is_asked_again_after_a_while(cluster: FakeCluster) -> None:
    write(cluster, b"a")
    with Consumer(cluster.bootstrap, client_rack="r", fetch_max_wait_ms=50) as consumer:
        consumer.assign([ONE])
        read(consumer, 1)
        cluster.faults.read_replica = None
        with consumer._lock:
            state_of(consumer).read_replica_until_ms = 0
        wait_for(lambda: state_of(consumer).read_replica is None, what="the consumer fetches from the leader again")
        write(cluster, b"b")
        assert [record.value for record in read(consumer, 1)] == [b"b"]
    assert cluster.served[leader_of(cluster)] == 1


def test_a_follower_named_by_the_leader_is_used_before_metadata_shows_it_in_sync(cluster: FakeCluster) -> None:
    cluster.faults.isr = [leader_of(cluster)]
    write(cluster, b"a")
    with Consumer(cluster.bootstrap, client_rack="r") as consumer:
        consumer.assign([ONE])
        assert [record.value for record in read(consumer, 1, timeout_s=20)] == [b"a"]
    assert cluster.served[leader_of(cluster)] == 0


def test_a_follower_that_later_metadata_shows_out_of_sync_is_left(cluster: FakeCluster) -> None:
    write(cluster, b"a")
    with Consumer(cluster.bootstrap, client_rack="r", fetch_max_wait_ms=50) as consumer:
        consumer.assign([ONE])
        read(consumer, 1)
        cluster.faults.read_replica = None
        cluster.faults.isr = [leader_of(cluster)]
        consumer._metadata.request()
        wait_for(lambda: state_of(consumer).read_replica is None, what="the consumer fetches from the leader again")
        # A fetch that was in flight may still read the first record from the follower; the second is the leader's.
        for _ in range(2):
            served_before = cluster.served[leader_of(cluster)]
            write(cluster, b"b")
            assert [record.value for record in read(consumer, 1, timeout_s=20)] == [b"b"]
    assert cluster.served[leader_of(cluster)] == served_before + 1


def test_a_follower_that_metadata_does_not_know_is_no_dead_end(cluster: FakeCluster) -> None:
    cluster.faults.read_replica = 77
    write(cluster, b"a")
    with Consumer(cluster.bootstrap, client_rack="r") as consumer:
        consumer.assign([ONE])
        assert [record.value for record in read(consumer, 1, timeout_s=20)] == [b"a"]
    assert cluster.served[leader_of(cluster)] == 1
