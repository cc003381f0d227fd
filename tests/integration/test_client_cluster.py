"""The client against a real cluster: ZooKeeper, two controllers, three brokers, as processes."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from paceline.dev.local_cluster import LocalCluster
from paceline.model.errors import (
    InvalidReplicationFactorError,
    InvalidTopicError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from paceline_client import Admin, Consumer, NewTopic, Producer, TopicPartition

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

MIN_ISR_2 = {"min.insync.replicas": "2"}


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap) as client:
        yield client


def read_all(bootstrap: str, topic: str, timeout_s: float = 180.0) -> dict[int, list[bytes]]:
    """Return every record value up to the current end offsets of the topic, by partition."""
    found: dict[int, list[bytes]] = {}
    with Consumer(bootstrap) as consumer:
        consumer.subscribe([topic])
        ends = consumer.end_offsets(consumer.assignment())
        deadline = time.monotonic() + timeout_s
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            assert time.monotonic() < deadline, "the consumer did not reach the end"
            for tp, records in consumer.poll(timeout_ms=500).items():
                found.setdefault(tp.partition, []).extend(record.value or b"" for record in records)
    return found


def wait_full_isr(admin: Admin, topic: str, timeout_s: float = 180.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        (described,) = admin.describe_topics([topic])
        if all(p.leader is not None and len(p.isr) == len(p.replicas) for p in described.partitions):
            return
        assert time.monotonic() < deadline, f"not in sync: {described}"
        time.sleep(0.1)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_makes_the_round_trip(cluster: LocalCluster, admin: Admin, compression: str) -> None:
    topic = f"codec-{compression}"
    admin.create_topics([NewTopic(topic, 2, 3, configs=MIN_ISR_2)])
    with Producer(cluster.bootstrap, compression=compression) as producer:
        producer.send_many(topic, [(b"%d" % (n % 50), b"value %06d" % n) for n in range(5_000)]).result(180)
        at = producer.send(topic, None, key=b"gone", headers=[("h", b"1"), ("h", None)], timestamp_ms=123).result(180)
    found = read_all(cluster.bootstrap, topic)
    values = [value for partition in found.values() for value in partition if value]
    assert sorted(values) == [b"value %06d" % n for n in range(5_000)]
    with Consumer(cluster.bootstrap) as consumer:
        tp = TopicPartition(topic, at.partition)
        consumer.assign([tp])
        assert at.offset is not None
        consumer.seek(tp, at.offset)
        (record,) = next(iter(consumer.poll(timeout_ms=60_000).values()))
    assert (record.key, record.value, record.timestamp_ms) == (b"gone", None, 123)
    assert record.headers == (("h", b"1"), ("h", None))


@pytest.mark.parametrize("acks", ["leader", "none"])
def test_weaker_acks_write_too(cluster: LocalCluster, admin: Admin, acks: str) -> None:
    admin.create_topics({f"acks-{acks}": (1, 3)})
    with Producer(cluster.bootstrap, acks=acks) as producer:
        producer.send_many(f"acks-{acks}", [(None, b"%d" % n) for n in range(1_000)]).result(180)
    deadline = time.monotonic() + 180
    while len(read_all(cluster.bootstrap, f"acks-{acks}").get(0, [])) < 1_000:
        assert time.monotonic() < deadline


def test_killing_a_leader_during_produce_neither_loses_nor_duplicates_records(
    cluster: LocalCluster, admin: Admin
) -> None:
    admin.create_topics([NewTopic("survivor", 3, 3, configs=MIN_ISR_2)])
    leader = admin.describe_topics(["survivor"])[0].partitions[0].leader
    assert leader is not None
    node = cluster.broker(leader)
    placed: dict[bytes, tuple[int, int | None]] = {}
    failed: list[str] = []
    count = 0
    over = threading.Event()

    with Producer(cluster.bootstrap, batch_size=4_096, linger_ms=2) as producer:

        def load() -> None:
            nonlocal count
            while not over.is_set():
                value = b"%07d" % count

                def delivered(at: object, error: Exception | None, value: bytes = value) -> None:
                    if error is not None:
                        failed.append(str(error))
                    else:
                        placed[value] = (at.partition, at.offset)  # type: ignore[attr-defined]

                producer.send("survivor", value, key=b"%d" % (count % 31), on_delivery=delivered)
                count += 1
                if count % 50 == 0:
                    time.sleep(0.002)

        thread = threading.Thread(target=load)
        thread.start()
        try:
            wait_until(lambda: len(placed) > 2_000)
            cluster.kill(node)
            acknowledged = len(placed)
            wait_until(lambda: len(placed) > acknowledged + 5_000)
            cluster.restart(node)
            wait_full_isr(admin, "survivor")
        finally:
            over.set()
            thread.join(120)
        producer.flush(180)
    assert failed == []
    assert len(placed) == count
    found = read_all(cluster.bootstrap, "survivor")
    values = [value for partition in found.values() for value in partition]
    assert Counter(values) == Counter({b"%07d" % n: 1 for n in range(count)})
    for partition, in_order in found.items():
        assert in_order == sorted(in_order), f"partition {partition} changed the order"
    for value, (partition, offset) in placed.items():
        assert offset is not None
        assert found[partition][offset] == value


def test_a_consumer_continues_across_a_leader_change(cluster: LocalCluster, admin: Admin) -> None:
    admin.create_topics([NewTopic("follow", 1, 3, configs=MIN_ISR_2)])
    tp = TopicPartition("follow", 0)
    with Producer(cluster.bootstrap, linger_ms=0) as producer, Consumer(cluster.bootstrap) as consumer:
        consumer.assign([tp])
        seen: list[bytes] = []

        def read_until(total: int) -> None:
            deadline = time.monotonic() + 180
            while len(seen) < total:
                assert time.monotonic() < deadline, f"{len(seen)} of {total} records"
                for records in consumer.poll(timeout_ms=500).values():
                    seen.extend(record.value or b"" for record in records)

        for number in range(20):
            producer.send("follow", b"%d" % number)
        read_until(20)
        leader = admin.describe_topics(["follow"])[0].partitions[0].leader
        assert leader is not None
        node = cluster.broker(leader)
        cluster.kill(node)
        try:
            for number in range(20, 40):
                producer.send("follow", b"%d" % number)
            read_until(40)
        finally:
            cluster.restart(node)
        wait_full_isr(admin, "follow")
        assert seen == [b"%d" % number for number in range(40)]
        new_leader = admin.describe_topics(["follow"])[0].partitions[0]
        assert new_leader.leader_epoch > 0


def test_admin_errors_are_typed(admin: Admin) -> None:
    admin.create_topics({"typed": (1, 1)})
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics({"typed": (1, 1)})
    with pytest.raises(InvalidReplicationFactorError):
        admin.create_topics({"too-many": (1, 9)})
    with pytest.raises(InvalidTopicError):
        admin.create_topics({"not/a/name": (1, 1)})
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.describe_topics(["nowhere"])
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics(["nowhere"])
    admin.create_topics({"checked": (1, 1)}, validate_only=True)
    admin.delete_topics(["typed"])
    wait_until(lambda: "typed" not in admin.list_topics())
    assert "checked" not in admin.list_topics()


def test_controllers_are_bootstrap_servers_and_dead_addresses_are_skipped(cluster: LocalCluster) -> None:
    addresses = ["127.0.0.1:1", *cluster.controller_addresses]
    for order in (cluster.controller_addresses, cluster.controller_addresses[::-1]):
        with Admin(order) as admin:
            assert [broker.broker_id for broker in admin.describe_cluster().brokers] == [1, 2, 3]
    with Admin(addresses) as admin:
        found = admin.describe_cluster()
        assert [broker.broker_id for broker in found.brokers] == [1, 2, 3]
        assert found.controller_address in cluster.controller_addresses
        admin.create_topics({"from-afar": (1, 3)})
        (view,) = admin.describe_replicas("from-afar")
        assert sorted(replica.broker_id for replica in view.replicas) == [1, 2, 3]
    with Producer(addresses, linger_ms=0) as producer:
        assert producer.send("from-afar", b"a").result(180).offset == 0
    assert read_all(",".join(addresses), "from-afar") == {0: [b"a"]}


def test_offsets_are_found_by_time(cluster: LocalCluster, admin: Admin) -> None:
    admin.create_topics({"timed": (1, 3)})
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        for number in range(5):
            producer.send("timed", b"x", timestamp_ms=1_000 * (number + 1)).result(180)
    tp = TopicPartition("timed", 0)
    with Consumer(cluster.bootstrap) as consumer:
        found = consumer.offsets_for_times({tp: 2_500})[tp]
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (2, 3_000)
        assert consumer.offsets_for_times({tp: 6_000}) == {tp: None}
        assert (consumer.beginning_offsets([tp]), consumer.end_offsets([tp])) == ({tp: 0}, {tp: 5})


def wait_until(condition: Callable[[], bool], timeout_s: float = 180.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.02)
