"""Rows S3-2, S3-3, S3-7 and S3-8: brokers that die while topics are deleted, and partitions with a single replica."""

import json

import pytest

from paceline.controller.context import PartitionState, Replica, ReplicaState
from paceline.coordination import znodes
from paceline.coordination.interface import Create, GetData
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.model.admin import NewTopic
from paceline.model.client_io import ProduceData, ProduceResult, RequiredAcks
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import TP, BrokerUnderTest
from tests.unit.controller.cluster import Cluster, tp
from tests.unit.origins.whole_cluster import WholeCluster


@pytest.mark.origin("S3-2", "S3-3")
def test_one_event_halts_deletions_and_elects_leaders_of_other_partitions() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    for name, replicas in (("gone", (1, 2)), ("led", (1, 3)), ("followed", (2, 1)), ("elsewhere", (2, 3))):
        cluster.create(NewTopic(name, assignments=(replicas,)))
    cluster.brokers.silent.add(1)
    cluster.zk(Create(znodes.delete_topic_path("gone")))
    cluster.settle()
    cluster.told()
    cluster.state_changes.clear()
    cluster.kill_broker(1)
    cluster.settle()
    context = cluster.controller._components.context
    moved = [(c.topic_partition, c.replica, c.to_state) for c in cluster.state_changes]
    assert (tp("gone-0"), 1, ReplicaState.DELETION_INELIGIBLE.value) in moved
    assert context.deletion_ineligible == {"gone"}
    assert context.replica_state(Replica(tp("led-0"), 1)) is ReplicaState.OFFLINE
    offline = [c.topic_partition for c in cluster.state_changes if c.to_state == PartitionState.OFFLINE.value]
    assert offline == [tp("led-0")], "only partitions that the dead broker led and that are not being deleted"
    assert cluster.state("led-0") == "3/1 isr [3] ce 1 v1"
    assert cluster.state("followed-0") == "2/1 isr [2] ce 1 v1", "this partition only lost an ISR member"
    assert cluster.state("elsewhere-0") == "2/0 isr [2, 3] ce 1 v0"
    causes = {c.cause for c in cluster.state_changes if c.kind is not StateChangeKind.BROKER_DOWN}
    assert causes == {"session: the broker's registration has ended"}, "one event handles all partitions"


@pytest.mark.origin("S3-7")
def test_a_single_replica_that_goes_down_leaves_leader_minus_1_and_leads_again_when_it_returns() -> None:
    cluster = WholeCluster()
    cluster.create("orders", (1,))
    cluster.write(TP, b"a")
    cluster.kill(1)
    cluster.time.run_until(lambda: cluster.partition_of(TP).leader is None, 5_000)
    data = cluster.zk(GetData(znodes.partition_state_path(TP))).data  # type: ignore[attr-defined]
    expected = {"version": 1, "leader": -1, "leader_epoch": 1, "controller_epoch": 2, "isr": [1]}
    assert json.loads(data) == expected
    # Any broker's metadata has no leader: clients get LEADER_NOT_AVAILABLE and retry.
    cluster.time.run_for(50)
    for broker_id in (2, 3):
        known = cluster[broker_id].node.metadata.snapshot.partition(TP)
        assert known is not None
        assert (known.leader, known.isr, known.offline_replicas) == (-1, (1,), (1,))
        (refused,) = cluster[broker_id].produce(b"b")
        assert refused.failure is not None and refused.failure.leader is None
        assert refused.failure.code is ErrorCode.LEADER_NOT_AVAILABLE
    cluster.restart(1)
    cluster.time.run_until(lambda: cluster.partition_of(TP).leader == 1, 10_000)
    found = json.loads(cluster.zk(GetData(znodes.partition_state_path(TP))).data)  # type: ignore[attr-defined]
    assert found == {**expected, "leader": 1, "leader_epoch": 2}
    cluster.write(TP, b"c")
    assert cluster[1].values() == [b"a", b"c"]


IN_FLIGHT = 5
FETCH_MAX_BYTES = 2_000
ROUND_TRIP_MS = 10
RETRIED = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


class Load:
    """An idempotent producer with several writes in flight; after a refusal it repeats the unanswered ones, in order.

    It begins a write every millisecond, as far as `IN_FLIGHT` allows, until `over`.
    """

    def __init__(self, cluster: WholeCluster, tp: TopicPartition) -> None:
        self.cluster = cluster
        self.tp = tp
        self.values: list[bytes] = []
        """Every value, in the order of its first send."""
        self.acknowledged: list[bytes] = []
        self.refusals: list[ErrorCode] = []
        self.most_in_flight = 0
        self.over = False
        self._unacknowledged: dict[int, bytes] = {}
        self._in_flight: set[int] = set()
        self._backs_off = False
        self._tick()

    @property
    def has_ended(self) -> bool:
        """Whether every write is acknowledged, or one got an error after which a client gives up."""
        return (self.over and not self._unacknowledged) or not set(self.refusals) <= RETRIED

    def _tick(self) -> None:
        self._backs_off = self._backs_off and bool(self._in_flight)
        leader = self.cluster.leader(self.tp)
        if leader is not None and not self._backs_off:
            if not self.over and len(self._unacknowledged) < IN_FLIGHT:
                self._unacknowledged[len(self.values)] = b"%d" % len(self.values)
                self.values.append(b"%d" % len(self.values))
            for number in [one for one in self._unacknowledged if one not in self._in_flight]:
                self._send(leader, number)
        if not self.has_ended:
            self.cluster.time.call_later(1, self._tick)

    def _send(self, leader: BrokerUnderTest, number: int) -> None:
        value = self._unacknowledged[number]
        data = encode_batch([NewRecord(1_000, None, value)], producer_id=7, producer_epoch=0, base_sequence=number)

        def answered(results: list[ProduceResult]) -> None:
            self._in_flight.discard(number)
            failure = results[0].failure
            if failure is None:
                self.acknowledged.append(self._unacknowledged.pop(number))
            else:
                self.refusals.append(failure.code)
                self._backs_off = True

        self._in_flight.add(number)
        leader.node.produce(RequiredAcks.ALL, 5_000, [ProduceData(self.tp, None, data)], answered)
        self.most_in_flight = max(self.most_in_flight, len(self._in_flight))


@pytest.mark.origin("S3-8")
def test_a_partition_with_one_replica_moves_under_load_and_every_record_arrives_once() -> None:
    cluster = WholeCluster(replica_fetch_max_bytes=FETCH_MAX_BYTES)
    cluster.create("orders", (1,))
    old = [b"%d" % number + b"x" * 1_000 for number in range(60)]
    for value in old:
        cluster.write(TP, value)
    load = Load(cluster, TP)
    cluster.time.run_for(100)
    before = len(load.acknowledged)
    transport = cluster[2].transport
    transport.delay_ms = ROUND_TRIP_MS / 2
    cluster.reassign(TP, 2)
    cluster.time.run_until(lambda: 2 in cluster.partition_of(TP).isr, 30_000)
    fetches = len(transport.fetches)
    cluster.time.run_until(lambda: cluster.partition_of(TP).replicas == (2,), 30_000)
    moved = len(load.acknowledged)
    cluster.time.run_for(100)
    load.over = True
    cluster.time.run_until(lambda: load.has_ended, 30_000)
    assert set(load.refusals) <= RETRIED, "every error is one that a client retries"
    assert load.acknowledged == load.values
    assert cluster[2].values() == old + load.values, "every record arrived once, in order"
    # The move was not trivial: many fetches, many writes, and some that the new leader lacked were answered as lost.
    assert fetches > len(old) / 2, "the new replica joined after it had copied the log"
    assert before > 10 and moved > before and len(load.values) > moved
    assert load.most_in_flight == IN_FLIGHT and load.refusals
    # Now the broker may be stopped: nothing is left on it.
    cluster.time.run_until(lambda: cluster[1].logs.get(TP) is None, 5_000)
    cluster.kill(1)
    cluster.time.run_for(1_000)
    cluster.write(TP, b"after")
    assert cluster.partition_of(TP).leader == 2
