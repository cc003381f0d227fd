"""The gateway on real processes: publish and subscribe through deaths, bad input, leases, drain."""

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, Node
from paceline.dev.ports import free_plan
from paceline.rpc.errors import error_info
from paceline.v1 import gateway_service_pb2 as pb
from paceline.v1.gateway_service_pb2_grpc import GatewayServiceStub
from paceline.v1.log_service_pb2 import InitProducerIdRequest
from paceline.v1.log_service_pb2_grpc import LogServiceStub
from paceline_client import Admin, Consumer, NewTopic, TopicPartition
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    running = LocalCluster(
        tmp_path_factory.mktemp("gateway"), CONFIG_FILE, ports=free_plan(1, 3), controllers=1, heap_mib=64
    )
    running.start()
    for index in (1, 2):
        running.start_gateway(index)
    yield running
    running.stop(force=True)


@pytest.fixture
def gateway(cluster: LocalCluster) -> Node:
    return running(cluster, 1)


def running(cluster: LocalCluster, index: int) -> Node:
    node = cluster.nodes[f"gateway-{index}"]
    if not node.running:
        cluster.restart(node)
    return node


def stub(node: Node) -> GatewayServiceStub:
    return GatewayServiceStub(grpc.insecure_channel(node.client_address, [("grpc.use_local_subchannel_pool", 1)]))


def soon(condition: Callable[[], object], timeout_s: float) -> None:
    eventually(condition, timeout_s, "the condition in this line of the test")


def topic(cluster: LocalCluster, name: str, partitions: int = 4) -> str:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions=partitions, replication_factor=3)])
    return name


def reason(failure: grpc.RpcError) -> str:
    info = error_info(failure)
    return "" if info is None else info.reason


class Subscriber:
    """One subscription on its own thread; acknowledges everything unless ``acknowledge`` is False."""

    def __init__(self, node: Node, topics: list[str], group: str = "", acknowledge: bool = True, **more: Any) -> None:
        self.requests: queue.Queue[pb.SubscribeRequest | None] = queue.Queue()
        self.records: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self.assigned: set[int] = set()
        self.refused: list[pb.AcknowledgementRefused] = []
        self.committed: dict[int, int] = {}
        self.failure: grpc.RpcError | None = None
        self.last_s = 0.0
        self.reading = threading.Event()
        self.reading.set()
        self._acknowledge = acknowledge
        self.requests.put(pb.SubscribeRequest(subscribe=pb.Subscription(topics=topics, group=group, **more)))
        self.call = stub(node).Subscribe(iter(self.requests.get, None))
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            for response in self.call:
                self.reading.wait()
                match response.WhichOneof("event"):
                    case "records":
                        batch = response.records
                        self.records[batch.partition] += [(one.offset, one.value) for one in batch.records]
                        self.last_s = time.monotonic()
                        if self._acknowledge:
                            self.acknowledge(batch.next)
                    case "assigned":
                        self.assigned |= {one.partition for one in response.assigned.positions}
                    case "revoked":
                        self.assigned -= {one.partition for one in response.revoked.positions}
                    case "committed":
                        self.committed |= {one.partition: one.offset for one in response.committed.positions}
                    case "refused":
                        self.refused.append(response.refused)
        except grpc.RpcError as failure:
            self.failure = failure

    def acknowledge(self, *positions: pb.Position) -> None:
        self.requests.put(pb.SubscribeRequest(acknowledge=pb.Positions(positions=positions)))

    def count(self) -> int:
        return sum(map(len, self.records.values()))

    def values(self) -> list[bytes]:
        return [value for rows in self.records.values() for _, value in rows]

    def close(self) -> None:
        self.requests.put(None)
        self.thread.join(20)


def publish_all(
    node: Node, name: str, count: int, on_answer: Callable[[int], None] = lambda _: None
) -> dict[int, bytes]:
    """Publish on one stream; return the values whose answers had no error, by number."""
    requests = (
        pb.PublishStreamRequest(
            number=number, publish=pb.PublishRequest(topic=name, key=b"%d" % (number % 16), value=b"%d" % number)
        )
        for number in range(count)
    )
    done = {}
    for answer in stub(node).PublishStream(requests):
        assert not answer.HasField("error"), answer
        done[answer.number] = b"%d" % answer.number
        on_answer(len(done))
    return done


def check_order(subscriber: Subscriber) -> None:
    for rows in subscriber.records.values():
        offsets = [offset for offset, _ in rows]
        assert offsets == sorted(set(offsets))


def test_records_survive_a_killed_leader_in_order(cluster: LocalCluster, gateway: Node) -> None:
    name = topic(cluster, "through-a-death")
    subscriber = Subscriber(gateway, [name], "through-a-death")
    victim = cluster.broker(2)

    def kill_once(answers: int) -> None:
        if answers == 1_000:
            cluster.kill(victim)

    try:
        done = publish_all(gateway, name, 4_000, kill_once)
    finally:
        cluster.restart(victim)
    assert len(done) == 4_000
    soon(lambda: subscriber.count() >= 4_000, 60)
    assert sorted(map(int, subscriber.values())) == list(range(4_000))
    check_order(subscriber)
    for rows in subscriber.records.values():  # the records of a key have kept the order of the requests
        by_key: dict[int, list[int]] = defaultdict(list)
        for _, value in rows:
            by_key[int(value) % 16].append(int(value))
        assert all(numbers == sorted(numbers) for numbers in by_key.values())
    subscriber.close()
    assert subscriber.failure is None
    assert subscriber.committed == {index: rows[-1][0] + 1 for index, rows in subscriber.records.items()}


def test_the_partitions_of_a_killed_gateway_continue_elsewhere_within_12_s(cluster: LocalCluster) -> None:
    name = topic(cluster, "killed-gateway")
    first = Subscriber(running(cluster, 1), [name], "killed-gateway")
    soon(lambda: len(first.assigned) == 4, 30)
    second = Subscriber(running(cluster, 2), [name], "killed-gateway")
    soon(lambda: len(first.assigned) == 2 and len(second.assigned) == 2, 30)
    sent = publish_all(running(cluster, 2), name, 400)
    soon(lambda: first.count() + second.count() >= 400, 30)
    cluster.kill(cluster.nodes["gateway-1"])
    killed = time.monotonic()
    soon(lambda: first.failure is not None, 5)
    assert first.failure is not None and first.failure.code() is grpc.StatusCode.UNAVAILABLE
    soon(lambda: len(second.assigned) == 4, 15)
    assert time.monotonic() - killed < 12
    more = publish_all(running(cluster, 2), name, 400)
    soon(lambda: first.count() + second.count() >= 800, 20)
    got = first.values() + second.values()
    assert set(got) == set(sent.values()) | set(more.values())
    check_order(second)
    second.close()
    running(cluster, 1)


def test_a_subscriber_that_stops_reading_does_not_stop_its_neighbour(cluster: LocalCluster, gateway: Node) -> None:
    name = topic(cluster, "slow-beside-fast", partitions=2)
    slow = Subscriber(gateway, [name], "slow-beside-fast", credit_records=10)
    fast = Subscriber(gateway, [name], "slow-beside-fast")
    soon(lambda: len(slow.assigned) == 1 and len(fast.assigned) == 1, 30)
    slow.reading.clear()
    value = b"v" * 10_000
    for index in (0, 1):
        answer = stub(gateway).Publish(
            pb.PublishRequest(topic=name, partition=index, records=[pb.PublishRecord(value=value)] * 300)
        )
        assert len(answer.results) == 300
    (mine,) = fast.assigned
    soon(lambda: len(fast.records[mine]) == 300, 20)
    slow.reading.set()
    (other,) = slow.assigned
    soon(lambda: len(slow.records[other]) == 300, 20)
    slow.close()
    fast.close()


def test_acknowledged_records_are_not_delivered_again_and_others_are(cluster: LocalCluster, gateway: Node) -> None:
    name = topic(cluster, "again", partitions=1)
    publish_all(gateway, name, 10)
    first = Subscriber(gateway, [name], "again", acknowledge=False)
    soon(lambda: first.count() == 10, 30)
    first.acknowledge(pb.Position(topic=name, partition=0, offset=4))
    soon(lambda: first.committed == {0: 4}, 10)
    first.close()
    second = Subscriber(gateway, [name], "again")
    soon(lambda: second.count() == 6, 30)
    assert second.records[0][0][0] == 4
    query = stub(gateway).Query(pb.QueryRequest(topic=name, group="again"))
    assert query.partitions[0].end_offset == 10
    second.close()


def test_bad_acknowledgements_are_refused_and_change_nothing(cluster: LocalCluster, gateway: Node) -> None:
    name = topic(cluster, "bad-acknowledgements", partitions=1)
    publish_all(gateway, name, 3)
    one = Subscriber(gateway, [name], "bad-acknowledgements", acknowledge=False)
    soon(lambda: one.count() == 3, 30)
    for position in ((0, 4), (0, -1), (7, 1)):
        one.acknowledge(pb.Position(topic=name, partition=position[0], offset=position[1]))
    soon(lambda: len(one.refused) == 3, 10)
    assert {each.error for each in one.refused} == {pb.ACKNOWLEDGEMENT_ERROR_NOT_DELIVERED}
    two = Subscriber(gateway, [name], "bad-acknowledgements")
    time.sleep(0.5)  # one partition: the second stream waits
    assert not two.assigned
    one.acknowledge(pb.Position(topic=name, partition=0, offset=3))
    soon(lambda: one.committed == {0: 3}, 10)
    one.close()
    soon(lambda: two.assigned == {0}, 10)
    two.close()
    assert two.count() == 0


@pytest.mark.parametrize(
    ("subscription", "expected"),
    [
        (pb.Subscription(topics=["no-such-topic"], group="bad"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (pb.Subscription(group="bad"), "INVALID_REQUEST"),
        (pb.Subscription(topics=["t"], topic_pattern="t", group="bad"), "INVALID_REQUEST"),
        (pb.Subscription(topic_pattern="t"), "INVALID_REQUEST"),
        (pb.Subscription(topic_pattern="(", group="bad"), "INVALID_REQUEST"),
        (pb.Subscription(topics=["t"], group="bad", credit_records=0), "INVALID_REQUEST"),
        (pb.Subscription(topics=["t"], group="bad", credit_bytes=2**31), "INVALID_REQUEST"),
    ],
)
def test_a_bad_subscription_has_a_typed_error(gateway: Node, subscription: pb.Subscription, expected: str) -> None:
    with pytest.raises(grpc.RpcError) as failure:
        list(stub(gateway).Subscribe(iter([pb.SubscribeRequest(subscribe=subscription)])))
    assert reason(failure.value) == expected


def test_two_subscriptions_on_a_stream_are_refused_and_acknowledgements_before_count(
    cluster: LocalCluster, gateway: Node
) -> None:
    name = topic(cluster, "two-subscriptions", partitions=1)
    publish_all(gateway, name, 3)
    one = Subscriber(gateway, [name], "two-subscriptions", acknowledge=False)
    soon(lambda: one.count() == 3, 30)
    one.acknowledge(pb.Position(topic=name, partition=0, offset=2))
    one.requests.put(pb.SubscribeRequest(subscribe=pb.Subscription(topics=[name])))
    one.thread.join(10)
    assert one.failure is not None and reason(one.failure) == "INVALID_REQUEST"
    query = stub(gateway).Query(pb.QueryRequest(topic=name, group="two-subscriptions"))
    assert query.partitions[0].committed_offset == 2


def test_a_group_with_members_of_another_protocol_is_refused(cluster: LocalCluster, gateway: Node) -> None:
    name = topic(cluster, "other-protocol")
    with Consumer(cluster.bootstrap, group_id="other-protocol") as consumer:
        consumer.subscribe([name])
        soon(lambda: consumer.poll(200) is not None and consumer.generation >= 0, 30)
        one = Subscriber(gateway, [name], "other-protocol")
        one.thread.join(20)
        assert one.failure is not None and reason(one.failure) == "INCONSISTENT_GROUP_PROTOCOL"


def test_bad_records_have_typed_errors_and_the_stream_continues(cluster: LocalCluster, gateway: Node) -> None:
    name = topic(cluster, "bad-records")
    answers = {}
    requests = [
        pb.PublishRequest(topic="no-such-topic", value=b"v"),
        pb.PublishRequest(topic=name, value=b"v" * 1_000_001),
        pb.PublishRequest(topic=name, value=b"v", partition=99),
        pb.PublishRequest(topic=name, value=b"v", records=[pb.PublishRecord(value=b"w")]),
        pb.PublishRequest(topic=name, value=b"v", producer=pb.IdempotentProducer(producer_id=1)),
        pb.PublishRequest(value=b"v"),
        pb.PublishRequest(topic=name, value=b"good", key=b"k"),
        pb.PublishRequest(topic=name, key=b"k", value=b"L" * 300_000),
        pb.PublishRequest(topic=name, key=b"k", value=b"after"),
        pb.PublishRequest(
            topic=name, records=[pb.PublishRecord(key=b"k", value=bytes(size)) for size in (300_000, 999_990, 300_000)]
        ),
    ]
    stream = (pb.PublishStreamRequest(number=number, publish=one) for number, one in enumerate(requests))
    for answer in stub(gateway).PublishStream(stream):
        answers[answer.number] = answer
    assert len(answers) == len(requests)
    from paceline.v1.errors_pb2 import ErrorCode

    names = [ErrorCode.Name(answers[number].error.code)[len("ERROR_CODE_") :] for number in range(6)]
    assert names == [
        "UNKNOWN_TOPIC_OR_PARTITION", "MESSAGE_TOO_LARGE", "UNKNOWN_TOPIC_OR_PARTITION", "INVALID_REQUEST",
        "INVALID_REQUEST", "INVALID_REQUEST",
    ]  # fmt: skip
    # A large record travels on another path, and keeps its place among the records of its partition.
    assert [answers[number].published.offset for number in (6, 7, 8)] == [0, 1, 2]
    before, refused, after = answers[9].published.results
    assert (before.offset, ErrorCode.Name(refused.error.code), after.offset) == (3, "ERROR_CODE_MESSAGE_TOO_LARGE", 4)
    with pytest.raises(grpc.RpcError) as failure:
        stub(gateway).Publish(pb.PublishRequest(topic="no-such-topic", value=b"v"))
    assert reason(failure.value) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_numbered_request_that_is_sent_twice_is_appended_once(cluster: LocalCluster) -> None:
    name = topic(cluster, "numbered", partitions=1)
    channel = grpc.insecure_channel(running(cluster, 1).client_address)
    identity = LogServiceStub(channel).InitProducerId(InitProducerIdRequest(), timeout=20)
    request = pb.PublishRequest(
        topic=name,
        partition=0,
        records=[pb.PublishRecord(value=b"a"), pb.PublishRecord(value=b"b")],
        producer=pb.IdempotentProducer(producer_id=identity.producer_id, producer_epoch=identity.producer_epoch),
    )
    answers = [stub(running(cluster, index)).Publish(request) for index in (1, 2, 1)]
    assert [[one.offset for one in answer.results] for answer in answers] == [[0, 1]] * 3
    request.producer.base_sequence = 7
    with pytest.raises(grpc.RpcError) as failure:
        stub(running(cluster, 1)).Publish(request)
    assert reason(failure.value) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert stub(running(cluster, 1)).Query(pb.QueryRequest(topic=name)).partitions[0].end_offset == 2


def test_a_lease_is_acknowledged_at_any_gateway_and_bad_tokens_are_refused(cluster: LocalCluster) -> None:
    name = topic(cluster, "leases", partitions=1)
    first, second = (stub(running(cluster, index)) for index in (1, 2))
    publish_all(running(cluster, 1), name, 10)
    wanted = pb.Subscription(topics=[name], group="leases", credit_records=4)

    def pull(lease_ms: int = 30_000, wait_ms: int = 2_000) -> list[pb.PulledBatch]:
        answer = first.Pull(pb.PullRequest(subscription=wanted, lease_ms=lease_ms, wait_ms=wait_ms), timeout=60)
        return list(answer.batches)

    (batch,) = pull(lease_ms=3_000)
    assert [one.offset for one in batch.records.records] == [0, 1, 2, 3]
    assert pull(wait_ms=0) == []  # the partition is leased
    forged = bytes([batch.token[0] ^ 1]) + batch.token[1:]
    changed = batch.token[:-2] + (b"8}" if batch.token.endswith(b"9}") else b"9}")
    results = second.Acknowledge(pb.AcknowledgeRequest(tokens=[forged, changed, batch.token]), timeout=20).results
    assert [one.error for one in results] == [
        pb.ACKNOWLEDGEMENT_ERROR_INVALID_TOKEN, pb.ACKNOWLEDGEMENT_ERROR_INVALID_TOKEN, 0,
    ]  # fmt: skip
    assert results[2].position.offset == 4
    query = second.Query(pb.QueryRequest(topic=name, group="leases"))
    assert query.partitions[0].committed_offset == 4
    # The first gateway learns of the commit at the end of the lease; no committed record comes again.
    (following,) = pull(wait_ms=10_000)
    assert [one.offset for one in following.records.records] == [4, 5, 6, 7]


def test_an_expired_lease_is_refused_and_its_records_come_again(cluster: LocalCluster) -> None:
    name = topic(cluster, "expired-leases", partitions=1)
    gateway = stub(running(cluster, 1))
    publish_all(running(cluster, 1), name, 4)
    wanted = pb.Subscription(topics=[name], group="expired-leases", credit_records=4)
    (batch,) = gateway.Pull(pb.PullRequest(subscription=wanted, lease_ms=1_000, wait_ms=5_000), timeout=60).batches
    again = gateway.Pull(pb.PullRequest(subscription=wanted, wait_ms=10_000), timeout=60).batches
    assert [one.offset for one in again[0].records.records] == [0, 1, 2, 3]
    results = gateway.Acknowledge(pb.AcknowledgeRequest(tokens=[batch.token, again[0].token]), timeout=20).results
    assert [one.error for one in results] == [pb.ACKNOWLEDGEMENT_ERROR_EXPIRED, 0]
    assert gateway.Pull(pb.PullRequest(subscription=wanted, wait_ms=300), timeout=60).batches == []


def test_a_stopped_gateway_ends_its_streams_after_a_commit(cluster: LocalCluster) -> None:
    name = topic(cluster, "drain")
    node = running(cluster, 2)
    publish_all(node, name, 50)
    one = Subscriber(node, [name], "drain")
    soon(lambda: one.count() == 50, 30)
    began = time.monotonic()
    assert cluster.terminate(node) == 0
    assert time.monotonic() - began < 10
    one.thread.join(5)
    assert one.failure is not None and reason(one.failure) == "SHUTTING_DOWN"
    query = stub(running(cluster, 1)).Query(pb.QueryRequest(topic=name, group="drain"))
    assert sum(each.lag for each in query.partitions) == 0


def test_readers_without_a_group_begin_where_they_ask(cluster: LocalCluster, gateway: Node) -> None:
    name = topic(cluster, "starts", partitions=1)
    for number in range(5):
        stub(gateway).Publish(pb.PublishRequest(topic=name, value=b"%d" % number, timestamp_ms=1_000 + number))
    readers = {
        "earliest": Subscriber(gateway, [name]),
        "time": Subscriber(gateway, [name], start_time_ms=1_003),
        "positions": Subscriber(
            gateway, [], start_positions=pb.Positions(positions=[pb.Position(topic=name, partition=0, offset=4)])
        ),
        "latest": Subscriber(gateway, [name], start_at=pb.START_AT_LATEST),
    }
    soon(lambda: all(one.assigned == {0} for one in readers.values()), 30)
    time.sleep(1.0)  # the lookup of LATEST
    stub(gateway).Publish(pb.PublishRequest(topic=name, value=b"5"))
    expected = {"earliest": 6, "time": 3, "positions": 2, "latest": 1}
    soon(lambda: {kind: one.count() for kind, one in readers.items()} == expected, 20)
    for one in readers.values():
        one.close()


def test_message_ids_and_headers_arrive(cluster: LocalCluster, gateway: Node) -> None:
    name = topic(cluster, "headers", partitions=1)
    stub(gateway).Publish(pb.PublishRequest(topic=name, value=b"v", message_id="id-7", headers=[{"key": "a"}]))  # type: ignore[list-item]
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition(name, 0)])
        (record,) = consumer.poll(10_000)[TopicPartition(name, 0)]
    assert record.headers == (("a", None), ("message-id", b"id-7"))


def test_ensure_topic_creates_once_and_refuses_a_bad_name(gateway: Node) -> None:
    call = stub(gateway).EnsureTopic
    request = pb.EnsureTopicRequest(topic="ensured", partitions=3, replication_factor=3)
    assert [call(request, timeout=60).created for _ in range(2)] == [True, False]
    with pytest.raises(grpc.RpcError) as failure:
        call(pb.EnsureTopicRequest(topic="no/slash"), timeout=60)
    assert reason(failure.value) == "INVALID_TOPIC"


def test_the_help_of_the_command_lists_the_settings(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from paceline.cli.commands import cli

    shown = CliRunner().invoke(cli, ["gateway", "--help"])
    assert shown.exit_code == 0 and "--gateway-revocation-ms" in shown.output
