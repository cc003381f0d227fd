"""Produce: acks, min.insync.replicas checked twice, timeouts and refusals.

Source: docs/protocol/replication.md#produce.
"""

import pytest

from paceline.broker.metadata_cache import MetadataCache
from paceline.log.log_config import LogConfig
from paceline.model.client_io import ProduceData, ProduceResult, RequiredAcks
from paceline.model.errors import ERROR_CLASSES, ErrorCode
from paceline.model.identifiers import NO_LEADER, TopicPartition
from tests.support.broker_cluster import TP, BrokerCluster, batch

OTHER = TopicPartition("payments", 0)


def make(min_insync_replicas: int = 1, isr: tuple[int, ...] = (1, 2, 3), **config: object) -> BrokerCluster:
    cluster = BrokerCluster(log_config=LogConfig(min_insync_replicas=min_insync_replicas), **config)
    cluster.decide(1, 0, isr, isr, is_new=True)
    cluster.time.run_for(50)
    return cluster


def code(answer: list[ProduceResult], index: int = 0) -> ErrorCode:
    failure = answer[index].failure
    return ErrorCode.NONE if failure is None else failure.code


@pytest.mark.parametrize("acks", [RequiredAcks.NONE, RequiredAcks.LEADER])
def test_acks_0_and_1_are_answered_after_the_leaders_append(acks: RequiredAcks) -> None:
    cluster = make()
    cluster.cuts |= {(2, 1), (3, 1)}
    answer = cluster[1].produce(b"a", b"b", acks=acks)
    assert code(answer) is ErrorCode.NONE
    assert (answer[0].base_offset, answer[0].log_start_offset) == (0, 0)
    assert cluster[1].log().log_end_offset == 2


def test_acks_all_waits_for_every_isr_member() -> None:
    cluster = make()
    cluster.cuts.add((3, 1))
    answer = cluster[1].produce(b"a")
    cluster.time.run_for(500)
    assert not answer and cluster[2].log().log_end_offset == 1
    cluster.cuts.clear()
    cluster.time.run_until(lambda: bool(answer), 5_000)
    assert code(answer) is ErrorCode.NONE and cluster[3].values() == [b"a"]


def test_acks_all_with_the_leader_alone_in_the_isr_is_answered_at_once() -> None:
    cluster = make(isr=(1,))
    assert code(cluster[1].produce(b"a")) is ErrorCode.NONE


def test_unknown_acks_are_refused_for_all() -> None:
    cluster = make()
    answer = cluster[1].produce(b"a", acks=2)  # type: ignore[arg-type]
    assert code(answer) is ErrorCode.INVALID_REQUIRED_ACKS
    assert cluster[1].log().log_end_offset == 0


def test_acks_all_is_refused_below_min_insync_replicas_and_appends_nothing() -> None:
    cluster = make(min_insync_replicas=2, isr=(1,))
    assert code(cluster[1].produce(b"a")) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert cluster[1].log().log_end_offset == 0
    assert code(cluster[1].produce(b"a", acks=RequiredAcks.LEADER)) is ErrorCode.NONE


def test_the_minimum_counts_the_leader() -> None:
    cluster = make(min_insync_replicas=2, isr=(1, 2))
    answer = cluster[1].produce(b"a")
    cluster.time.run_until(lambda: bool(answer), 1_000)
    assert code(answer) is ErrorCode.NONE


def test_the_minimum_is_checked_again_after_replication() -> None:
    cluster = make(min_insync_replicas=2, isr=(1, 2))
    cluster.cuts |= {(2, 1), (3, 1)}
    answer = cluster[1].produce(b"a")
    assert not answer
    # The ISR shrinks to the leader, and the offset is committed as seen by a leader that counts only itself.
    partition = cluster[1].node.replica_manager.hosted.online[TP]
    partition.isr = (1,)
    cluster[1].log().update_high_watermark(1)
    cluster[1].node.replica_manager.hosted.waiting_produces.check_and_complete(TP)
    assert code(answer) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert cluster[1].log().log_end_offset == 1


def test_a_batch_that_is_not_replicated_in_time_times_out_and_stays_in_the_log() -> None:
    cluster = make()
    cluster.cuts.add((3, 1))
    answer = cluster[1].produce(b"a", timeout_ms=700)
    cluster.time.run_for(699)
    assert not answer
    cluster.time.run_for(1)
    assert code(answer) is ErrorCode.REQUEST_TIMED_OUT and answer[0].base_offset == -1
    cluster.time.run_for(5_000)
    assert cluster[1].values() == [b"a"] and len(answer) == 1
    assert cluster[1].node.metrics_snapshot()["produce_expirations_total"] == 1


def test_some_partitions_may_fail_while_others_wait() -> None:
    cluster = make()
    answer: list[ProduceResult] = []
    data = [ProduceData(OTHER, None, batch(b"x")), ProduceData(TP, None, batch(b"a"))]
    cluster[1].node.produce(RequiredAcks.ALL, 5_000, data, answer.extend)
    assert not answer
    cluster.time.run_until(lambda: bool(answer), 1_000)
    assert [one.topic_partition for one in answer] == [OTHER, TP]
    assert (code(answer, 0), code(answer, 1)) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE)


def test_a_follower_refuses_and_names_the_leader() -> None:
    cluster = make()
    answer = cluster[2].produce(b"a")
    assert code(answer) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer[0].failure is not None and answer[0].failure.leader is not None
    assert (answer[0].failure.leader.leader_id, answer[0].failure.leader.leader_epoch) == (1, 0)


@pytest.mark.parametrize("broker_id", [2, 4])
def test_a_produce_to_a_partition_without_a_leader_is_refused(broker_id: int) -> None:
    cluster = make()
    cluster.boot(4)
    cluster.time.run_until(lambda: cluster[4].node.ready, 5_000)
    cluster.decide(NO_LEADER, 1, (1,), to=())
    answer = cluster[broker_id].produce(b"a")
    assert code(answer) is ErrorCode.LEADER_NOT_AVAILABLE
    assert answer[0].failure is not None and answer[0].failure.leader is None
    (fetched,) = cluster[broker_id].consume(0)
    assert fetched.results[0].failure is not None
    assert fetched.results[0].failure.code is ErrorCode.LEADER_NOT_AVAILABLE


def test_a_broker_without_a_replica_refuses_and_names_the_leader_from_its_metadata() -> None:
    cluster = make()
    cluster.boot(4)
    cluster.time.run_until(lambda: cluster[4].node.ready, 5_000)
    cluster.update_metadata()
    answer = cluster[4].produce(b"a")
    assert code(answer) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer[0].failure is not None and answer[0].failure.leader is not None
    assert answer[0].failure.leader.leader_id == 1


def test_the_leader_of_a_deleted_topic_of_the_same_name_is_not_named() -> None:
    """Its epoch may be far above the present one; a client that accepted it would ignore the present leader."""
    cluster = make()
    cluster.boot(4)
    cluster.time.run_until(lambda: cluster[4].node.ready, 5_000)
    cluster.update_metadata()
    for broker_id, refused in ((4, ErrorCode.NOT_LEADER_OR_FOLLOWER), (2, ErrorCode.INCONSISTENT_TOPIC_ID)):
        answer: list[ProduceResult] = []
        cluster[broker_id].node.produce(
            RequiredAcks.LEADER, 1_000, [ProduceData(TP, "another-id", batch(b"a"))], answer.extend
        )
        assert code(answer) is refused
        assert answer[0].failure is not None and answer[0].failure.leader is None


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_clients_may_not_write_to_internal_topics_but_brokers_may(topic: str) -> None:
    cluster = make()
    tp = TopicPartition(topic, 0)
    cluster.decide(1, 0, (1,), (1,), tp=tp, is_new=True)
    assert code(cluster[1].produce(b"a", tp=tp)) is ErrorCode.INVALID_TOPIC
    answer: list[ProduceResult] = []
    data = [ProduceData(tp, None, batch(b"a"))]
    cluster[1].node.produce(RequiredAcks.ALL, 1_000, data, answer.extend, from_client=False)
    assert code(answer) is ErrorCode.NONE


def test_a_different_topic_id_is_refused() -> None:
    cluster = make()
    answer: list[ProduceResult] = []
    data = [ProduceData(TP, "another-id", batch(b"a"))]
    cluster[1].node.produce(RequiredAcks.LEADER, 1_000, data, answer.extend)
    assert code(answer) is ErrorCode.INCONSISTENT_TOPIC_ID


def test_a_damaged_batch_is_refused_and_nothing_is_appended() -> None:
    cluster = make()
    data = bytearray(batch(b"a"))
    data[-1] ^= 1
    answer: list[ProduceResult] = []
    cluster[1].node.produce(RequiredAcks.ALL, 1_000, [ProduceData(TP, None, bytes(data))], answer.extend)
    assert code(answer) is ErrorCode.CORRUPT_MESSAGE and cluster[1].log().log_end_offset == 0


def test_a_produce_that_waits_is_answered_once_when_the_leader_changes_and_changes_back() -> None:
    cluster = make()
    cluster.cuts |= {(2, 1), (3, 1)}
    answer = cluster[1].produce(b"a")
    cluster.decide(2, 1, (2, 3))
    assert code(answer) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    cluster.decide(1, 2, (1,))
    cluster.time.run_for(60_000)
    assert len(answer) == 1


def test_a_new_epoch_of_the_same_leader_does_not_fail_waiting_produces() -> None:
    cluster = make()
    cluster.cuts |= {(2, 1), (3, 1)}
    answer = cluster[1].produce(b"a")
    assert not answer
    cluster.decide(1, 1, (1,))
    assert code(answer) is ErrorCode.NONE


def test_a_record_with_acks_1_is_not_visible_before_the_isr_has_it() -> None:
    cluster = make()
    cluster.cuts.add((3, 1))
    waiting = cluster[1].produce(b"all")
    cluster[1].produce(b"one", acks=RequiredAcks.LEADER)
    cluster.time.run_for(400)
    assert cluster[1].log().high_watermark == 0 and not waiting
    (response,) = cluster[1].consume(0)
    assert response.results[0].batches == b"" and response.results[0].high_watermark == 0


@pytest.mark.parametrize("fate", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
def test_an_error_that_can_follow_an_append_is_not_definite(fate: ErrorCode) -> None:
    """With acks=all the leader may be deposed, or its replica deleted, after the append."""
    cluster = make()
    cluster.cuts |= {(2, 1), (3, 1)}
    answer = cluster[1].produce(b"a")
    log = cluster[1].log()
    assert not answer and log.log_end_offset == 1
    if fate is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        cluster.decide(2, 1, (2, 3), to=[1])
    else:
        cluster[1].node.replica_manager.hosted.metadata = MetadataCache()
        cluster.stop_replica(1, -2, delete=True)
    assert code(answer) is fate and log.size_bytes
    assert not ERROR_CLASSES[fate].definite
    assert ERROR_CLASSES[fate].retriable
