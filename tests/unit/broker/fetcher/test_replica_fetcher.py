"""The fetcher alone; the test answers its requests: stale responses, delays, failures, sessions."""

import itertools
from collections.abc import Callable

import pytest

from paceline.broker.fetcher.fetch_state import FetchState
from paceline.broker.fetcher.fetcher_manager import fetcher_id_for
from paceline.model.client_io import RequiredAcks
from paceline.model.control import LiveBroker
from paceline.model.errors import ErrorCode, RequestTimedOutError
from paceline.model.identifiers import TopicPartition
from paceline.model.java_hash import java_string_hash
from paceline.model.replica_fetch import (
    EpochEnd,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaFetchResult,
)
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import TP, BrokerCluster
from tests.unit.log.helpers import batch as stored_batch

OTHER = TopicPartition("payments", 0)
Answer = Callable[[ReplicaFetchResponse | Exception], None]


class Follower:
    """Broker 1 of a cluster, which follows broker 2; the test answers for broker 2."""

    def __init__(self, **config: object) -> None:
        self.cluster = BrokerCluster((1, 2), **config)
        self.broker = self.cluster[1]
        self.calls: list[tuple[LiveBroker, ReplicaFetchRequest, Answer]] = []

        def replica_fetch(
            leader: LiveBroker, fetcher_id: int, request: ReplicaFetchRequest, timeout_ms: int, on_done: Answer
        ) -> None:
            self.calls.append((leader, request, on_done))

        self.broker.transport.replica_fetch = replica_fetch  # type: ignore[method-assign]

    def follow(self, epoch: int = 0, tp: TopicPartition = TP, leader: int = 2) -> None:
        self.cluster.send(1, self.cluster.partition(leader, epoch, (2,), tp=tp))
        # The first records wait for the topic's settings.
        manager = self.broker.node.replica_manager
        self.cluster.time.run_until(lambda: manager.hosted.topic_configs.get(tp.topic) is not None, 1_000)

    @property
    def request(self) -> ReplicaFetchRequest:
        """The latest request."""
        return self.calls[-1][1]

    def named(self) -> list[TopicPartition]:
        return [one.topic_partition for one in self.request.partitions]

    def answer(self, *results: ReplicaFetchResult, session_id: int = 77, call: int = -1) -> None:
        self.calls[call][2](ReplicaFetchResponse(session_id, list(results)))

    def state(self, tp: TopicPartition = TP) -> FetchState | None:
        return self.broker.node.replica_manager.fetchers.state(tp)

    @property
    def failed(self) -> list[TopicPartition]:
        return list(self.broker.node.replica_manager.fetchers.failed)

    def run_for(self, ms: float) -> None:
        self.cluster.time.run_for(ms)


def result(
    tp: TopicPartition = TP,
    error: ErrorCode = ErrorCode.NONE,
    batches: bytes = b"",
    epoch: int = 0,
    hw: int = 0,
    start: int = 0,
    end: int = 0,
    diverging: EpochEnd | None = None,
) -> ReplicaFetchResult:
    return ReplicaFetchResult(tp, error, epoch, hw, start, end, diverging, batches)


def records(offset: int, *values: bytes, epoch: int = 0) -> bytes:
    """A batch as a leader stores it."""
    return stored_batch(*values, base_offset=offset, leader_epoch=epoch)


def test_one_request_is_in_flight_at_a_time() -> None:
    follower = Follower()
    follower.follow()
    follower.follow(tp=OTHER)
    follower.run_for(5_000)
    assert len(follower.calls) == 1
    follower.answer()
    assert len(follower.calls) == 2 and follower.named() == [OTHER]


def test_the_first_request_opens_a_session_and_later_ones_name_changes_only() -> None:
    follower = Follower()
    follower.follow()
    assert (follower.request.session_id, follower.request.session_epoch) == (0, 0)
    follower.answer(result(batches=records(0, b"a")))
    assert (follower.request.session_id, follower.request.session_epoch) == (77, 1)
    (named,) = follower.request.partitions
    assert (named.fetch_offset, named.last_fetched_epoch) == (1, 0)
    follower.answer(result(hw=1))
    assert follower.request.partitions == [] and follower.broker.log().high_watermark == 1


def test_without_a_session_every_request_names_all_partitions() -> None:
    follower = Follower()
    follower.follow()
    follower.follow(tp=OTHER)
    for _ in range(3):
        follower.answer(session_id=0)
    assert sorted(follower.named()) == sorted([TP, OTHER])
    assert (follower.request.session_id, follower.request.session_epoch) == (0, 0)


def test_every_fetch_carries_epochs_and_log_start() -> None:
    follower = Follower()
    follower.follow(epoch=4)
    (named,) = follower.request.partitions
    assert follower.request.broker_epoch == follower.broker.node.broker_epoch
    assert (named.current_leader_epoch, named.last_fetched_epoch, named.log_start_offset) == (4, None, 0)


@pytest.mark.parametrize("error", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH])
def test_a_lost_session_is_replaced_at_once_by_a_full_fetch(error: ErrorCode) -> None:
    follower = Follower()
    follower.follow()
    follower.answer()
    follower.calls[-1][2](ReplicaFetchResponse(0, [], error))
    assert follower.named() == [TP] and follower.request.session_epoch == 0


def test_a_failed_request_is_followed_by_a_full_one_after_the_back_off() -> None:
    follower = Follower()
    follower.follow()
    follower.answer()
    follower.calls[-1][2](RequestTimedOutError("no answer"))
    follower.run_for(999)
    assert len(follower.calls) == 2
    follower.run_for(1)
    assert follower.named() == [TP]
    assert (follower.request.session_id, follower.request.session_epoch) == (77, 0)


def test_an_answer_in_another_leader_epoch_is_dropped() -> None:
    follower = Follower()
    follower.follow(epoch=3)
    follower.answer(result(batches=records(0, b"zombie", epoch=2), epoch=2))
    assert follower.broker.log().log_end_offset == 0


def test_an_answer_to_a_request_before_the_role_change_is_dropped() -> None:
    follower = Follower()
    follower.follow(epoch=0)
    follower.follow(epoch=1)
    follower.answer(result(batches=records(0, b"late"), epoch=0))
    assert follower.broker.log().log_end_offset == 0
    assert follower.named() == [TP]


def test_an_answer_for_another_offset_is_dropped() -> None:
    follower = Follower()
    follower.follow()
    log = follower.broker.log()
    log.append_as_follower(records(0, b"a"))
    state = follower.state()
    assert state is not None
    state.take_position(log)
    follower.answer(result(batches=records(0, b"late")))
    assert log.log_end_offset == 1


def test_an_answer_for_a_stopped_partition_is_dropped() -> None:
    follower = Follower()
    follower.follow()
    follower.follow(tp=OTHER)
    follower.cluster.stop_replica(1, 0, delete=False)
    follower.answer(result(batches=records(0, b"late")))
    assert follower.broker.log().log_end_offset == 0
    assert follower.named() == [OTHER]


def test_a_second_answer_to_the_same_request_is_dropped() -> None:
    follower = Follower()
    follower.follow()
    follower.answer(result(batches=records(0, b"a")))
    sent = len(follower.calls)
    follower.answer(result(batches=records(1, b"again")), call=0)
    assert follower.broker.values() == [b"a"] and len(follower.calls) == sent


def test_an_answer_after_the_fetcher_was_closed_is_dropped() -> None:
    follower = Follower()
    follower.follow()
    follower.cluster.send(1, follower.cluster.partition(1, 1, (1, 2)))
    follower.answer(result(batches=records(0, b"late")))
    assert follower.broker.log().log_end_offset == 0 and len(follower.calls) == 1


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.STALE_BROKER_EPOCH,
    ],
)
def test_an_error_delays_its_partition_and_leaves_it_out_of_the_session(error: ErrorCode) -> None:
    follower = Follower()
    follower.follow()
    follower.follow(tp=OTHER)
    follower.answer()
    follower.answer(result(error=error))
    assert follower.request.forgotten == [TP] and follower.named() == []
    follower.run_for(1_000)
    follower.answer()
    assert follower.named() == [TP] and follower.request.forgotten == []
    assert follower.failed == []


def test_no_request_is_sent_while_every_partition_is_delayed() -> None:
    follower = Follower()
    follower.follow()
    follower.answer(result(error=ErrorCode.CORRUPT_MESSAGE))
    follower.run_for(999)
    assert len(follower.calls) == 1
    follower.run_for(1)
    assert follower.named() == [TP]


def test_a_temporary_error_is_retried_soon_and_then_with_growing_pauses() -> None:
    follower = Follower(replica_fetch_backoff_ms=1_600)
    follower.follow()
    sent_ms = []
    while len(follower.calls) < 9:
        sent_ms.append(follower.cluster.time.now_ms())
        before = len(follower.calls)
        follower.answer(result(error=ErrorCode.UNKNOWN_LEADER_EPOCH))
        follower.cluster.time.run_until(lambda known=before: len(follower.calls) > known, 5_000)
    gaps = [later - earlier for earlier, later in itertools.pairwise(sent_ms)]
    assert gaps == [100, 200, 400, 800, 1_600, 1_600, 1_600]
    follower.answer(result())
    follower.answer(result(error=ErrorCode.UNKNOWN_LEADER_EPOCH))
    before = len(follower.calls)
    follower.run_for(100)
    assert len(follower.calls) == before + 1


def test_a_delay_does_not_outlive_a_new_leader_epoch() -> None:
    follower = Follower()
    follower.follow()
    follower.answer(result(error=ErrorCode.CORRUPT_MESSAGE))
    follower.run_for(400)
    follower.follow(epoch=1)
    assert follower.named() == [TP] and len(follower.calls) == 2
    follower.run_for(700)
    assert len(follower.calls) == 2
    follower.answer(result(epoch=1))
    assert len(follower.calls) == 3


def test_a_fenced_epoch_stops_the_partition_until_the_next_leader_and_isr() -> None:
    follower = Follower()
    follower.follow()
    follower.follow(tp=OTHER)
    follower.answer(result(error=ErrorCode.FENCED_LEADER_EPOCH))
    assert follower.failed == [TP] and follower.state() is None
    assert follower.broker.node.metrics_snapshot()["failed_partitions"] == 1
    (change,) = follower.broker.said(StateChangeKind.FETCHER_FAILED)
    assert change.topic_partition == TP
    follower.follow(epoch=1)
    follower.answer()
    assert follower.failed == [] and follower.named() == [TP]


def test_a_partition_that_fails_does_not_stop_the_others() -> None:
    follower = Follower()
    tps = [TopicPartition("many", index) for index in range(50)]
    for tp in tps:
        follower.follow(tp=tp)
    follower.answer(session_id=0)
    poison = tps[17]
    log = follower.broker.log(poison)

    def explode(*_: object, **__: object) -> None:
        raise ZeroDivisionError("poison")

    log.append_as_follower = explode  # type: ignore[method-assign, assignment]
    follower.answer(*(result(tp, batches=records(0, b"a")) for tp in tps))
    assert follower.failed == [poison]
    assert all(follower.broker.values(tp) == [b"a"] for tp in tps if tp != poison)


def test_damaged_batches_are_not_written_and_fetched_again() -> None:
    follower = Follower()
    follower.follow()
    damaged = bytearray(records(0, b"a"))
    damaged[-1] ^= 1
    follower.answer(result(batches=bytes(damaged)))
    assert follower.broker.log().log_end_offset == 0
    follower.run_for(1_000)
    follower.answer(result(batches=records(0, b"a")))
    assert follower.broker.values() == [b"a"]


def test_a_response_that_does_not_follow_the_log_end_fails_the_partition() -> None:
    follower = Follower()
    follower.follow()
    follower.broker.log().append_as_follower(records(0, b"from elsewhere"))
    follower.answer(result(batches=records(0, b"a")))
    assert follower.failed == [TP]


def test_out_of_range_above_the_leaders_end_truncates_to_it() -> None:
    follower = Follower()
    follower.follow()
    follower.answer(result(batches=records(0, b"a", b"b", b"c")))
    follower.answer(result(error=ErrorCode.OFFSET_OUT_OF_RANGE, start=0, end=2))
    # Offsets 0 to 2 are one batch: only whole batches below the leader's end stay.
    assert follower.broker.log().log_end_offset <= 2
    assert follower.named() == [TP]


def test_out_of_range_below_the_leaders_start_restarts_the_log_there() -> None:
    follower = Follower()
    follower.follow()
    follower.answer(result(batches=records(0, b"a")))
    follower.answer(result(error=ErrorCode.OFFSET_OUT_OF_RANGE, start=100, end=120))
    log = follower.broker.log()
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (100, 100, 100)
    (named,) = follower.request.partitions
    assert (named.fetch_offset, named.last_fetched_epoch, named.log_start_offset) == (100, None, 100)


@pytest.mark.parametrize(("deleted_to", "leaders_end"), [(3, 2), (2, 2)], ids=["nothing is left", "the end is left"])
def test_a_log_that_begins_at_or_above_the_leaders_end_is_replaced_by_the_leaders_log(
    deleted_to: int, leaders_end: int
) -> None:
    follower = Follower()
    follower.follow()
    follower.answer(result(batches=records(0, b"a") + records(1, b"b") + records(2, b"c"), hw=3))
    follower.broker.log().increment_log_start_offset(deleted_to)
    follower.answer(result(error=ErrorCode.OFFSET_OUT_OF_RANGE, start=1, end=leaders_end))
    log = follower.broker.log()
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (1, 1, 1)
    (named,) = follower.request.partitions
    assert (named.fetch_offset, named.last_fetched_epoch, named.log_start_offset) == (1, None, 1)


def test_out_of_range_without_bounds_only_delays() -> None:
    follower = Follower()
    follower.follow()
    follower.answer(result(batches=records(0, b"a")))
    follower.answer(result(error=ErrorCode.OFFSET_OUT_OF_RANGE, start=-1, end=-1))
    assert follower.broker.values() == [b"a"]
    assert len(follower.calls) == 2


def test_a_divergence_truncates_and_the_next_fetch_continues_there() -> None:
    follower = Follower()
    follower.follow()
    follower.answer(result(batches=records(0, b"a", epoch=0) + records(1, b"b", epoch=0)))
    follower.follow(epoch=2)
    follower.answer(result(epoch=0))
    follower.answer(result(epoch=2, diverging=EpochEnd(0, 1)))
    assert follower.broker.values() == [b"a"]
    (named,) = follower.request.partitions
    assert (named.fetch_offset, named.last_fetched_epoch) == (1, 0)


def test_a_divergence_that_truncates_nothing_delays_the_next_fetch() -> None:
    follower = Follower()
    follower.follow()
    follower.answer(result(batches=records(0, b"a")))
    sent = len(follower.calls)
    follower.answer(result(diverging=EpochEnd(0, 1)))
    assert follower.broker.values() == [b"a"] and len(follower.calls) == sent


def test_a_leader_at_another_address_gets_a_new_connection() -> None:
    follower = Follower()
    follower.follow()
    follower.follow(tp=OTHER)
    follower.answer()
    broker = follower.cluster[2]
    broker.endpoints = tuple(one.__class__(one.listener, "elsewhere", one.port) for one in broker.endpoints)
    follower.cluster.update_metadata()
    follower.follow(epoch=1)
    assert follower.broker.transport.closed == [(2, 0)]
    leader, request, _ = follower.calls[-1]
    assert leader.endpoints[0].host == "elsewhere"
    assert {one.topic_partition for one in request.partitions} == {TP, OTHER}
    assert follower.broker.node.metrics_snapshot()["replica_fetchers"] == 1


def test_an_idle_fetcher_is_closed() -> None:
    follower = Follower()
    follower.follow()
    follower.cluster.stop_replica(1, 0, delete=False)
    assert follower.broker.transport.closed == [(2, 0)]
    assert follower.broker.node.metrics_snapshot()["replica_fetchers"] == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("a", 97), ("orders", -1008770331), ("polygenelubricants", -(2**31)), ("é€", 233 * 31 + 0x20AC)],
)
def test_strings_are_hashed_as_in_java(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


@pytest.mark.parametrize("count", [1, 3, 4])
def test_the_fetcher_of_a_partition_is_chosen_by_its_hash(count: int) -> None:
    assert fetcher_id_for(TopicPartition("a", 5), count) == (31 * 97 + 5) % count
    assert 0 <= fetcher_id_for(TopicPartition("polygenelubricants", 0), count) < count


def test_partitions_of_one_leader_are_distributed_over_its_fetchers() -> None:
    follower = Follower(num_replica_fetchers=2)
    for index in range(4):
        follower.follow(tp=TopicPartition("a", index))
    assert follower.broker.node.metrics_snapshot()["replica_fetchers"] == 2
    assert len(follower.calls) == 2


def test_the_lag_is_the_number_of_committed_records_that_this_log_lacks() -> None:
    follower = Follower()
    follower.follow()
    follower.answer(result(batches=records(0, b"a"), hw=9))
    assert follower.broker.node.metrics_snapshot()["replica_lag_records"] == 8


def test_a_follower_that_truncated_receives_the_high_watermark_again() -> None:
    cluster = BrokerCluster((1, 2))
    leader, follower = cluster[1], cluster[2]
    cluster.decide(1, 0, (1, 2), is_new=True)
    cluster.time.run_for(50)
    leader.produce(b"a")
    cluster.time.run_until(lambda: follower.log().log_end_offset == 1, 1_000)
    follower.transport.hold = lambda _leader, _answer: True
    cluster.time.run_until(lambda: leader.log().high_watermark == 1, 1_000)
    cluster.cuts |= {(1, 2), (2, 1)}
    cluster.decide(2, 1, (2, 1), to=(2,))
    follower.produce(b"b", acks=RequiredAcks.LEADER)
    decision = cluster.decide(1, 2, (1,), to=(1,))
    assert (follower.log().high_watermark, follower.log().log_end_offset) == (0, 2)
    follower.transport.hold = lambda _leader, _answer: False
    cluster.cuts.clear()
    cluster.send(2, decision)
    cluster.time.run_for(2_000)
    assert (follower.log().high_watermark, follower.values()) == (1, [b"a"])
