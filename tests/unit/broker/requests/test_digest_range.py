"""DigestRange: equal replicas have equal digests; ranges, limits and errors."""

from dataclasses import replace

import google_crc32c

from paceline.log.record_batch import stamp
from paceline.model.client_io import DigestQuery, RangeDigest
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import TP, BrokerCluster

EVERYTHING = 1 << 40


def replicated(batches: int = 5) -> BrokerCluster:
    cluster = BrokerCluster()
    cluster.decide(1, 0, (1, 2, 3), (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    for number in range(batches):
        cluster[1].produce(b"a%d" % number, b"bb")
        cluster.time.run_for(500)
    return cluster


def digest(cluster: BrokerCluster, broker_id: int, start: int = 0, end: int = EVERYTHING, size: int = 0) -> RangeDigest:
    return cluster[broker_id].node.digest_range(DigestQuery(TP, None, start, end, size)).digest


def test_leader_and_followers_return_the_same_digest_of_the_stored_batches() -> None:
    cluster = replicated()
    leader, second, third = (digest(cluster, broker_id) for broker_id in (1, 2, 3))
    assert replace(leader, high_watermark=0) == replace(second, high_watermark=0) == replace(third, high_watermark=0)
    assert (leader.first_offset, leader.last_offset, leader.record_count) == (0, 9, 10)
    stored = cluster[1].log().read(0, 1 << 20, EVERYTHING)
    assert leader.stored_crc32c == google_crc32c.value(stored) and leader.size_bytes == len(stored)
    content = bytearray(stored)
    position = 0
    for _ in range(5):
        size = int.from_bytes(content[position + 8 : position + 12], "big") + 12
        stamp(content, int.from_bytes(content[position : position + 8], "big"), 0, position)
        position += size
    assert leader.content_crc32c == google_crc32c.value(bytes(content))


def test_a_range_has_the_batches_inside_it_and_the_next_range_has_the_rest() -> None:
    cluster = replicated()
    part = digest(cluster, 2, 3, 7)
    assert (part.first_offset, part.last_offset, part.record_count, part.next_offset) == (4, 5, 2, 6)
    rest = digest(cluster, 2, part.next_offset)
    assert (rest.first_offset, rest.last_offset) == (6, 9)


def test_a_limit_of_bytes_ends_the_answer_and_returns_the_next_offset() -> None:
    cluster = replicated()
    first = digest(cluster, 1, size=1)
    assert (first.first_offset, first.last_offset, first.next_offset) == (0, 1, 2)
    rest = digest(cluster, 1, first.next_offset)
    assert (rest.first_offset, rest.last_offset, rest.next_offset) == (2, 9, 10)


def test_an_empty_range_has_no_batches() -> None:
    empty = digest(replicated(), 1, 10, 20)
    assert (empty.first_offset, empty.record_count, empty.stored_crc32c, empty.next_offset) == (None, 0, 0, 10)
    assert (empty.log_start_offset, empty.log_end_offset) == (0, 10)


def test_a_partition_that_is_not_hosted_is_an_error() -> None:
    cluster = replicated()
    found = cluster[1].node.digest_range(DigestQuery(TopicPartition("absent", 0), None, 0, 10))
    assert found.failure is not None and found.failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_leader_reports_the_first_commit_of_its_epoch_once() -> None:
    cluster = replicated(3)
    assert [change.leader_epoch for change in cluster[1].said(StateChangeKind.FIRST_COMMIT)] == [0]
    cluster.decide(2, 1, (2, 3), (1, 2, 3))
    cluster.time.run_for(500)
    assert cluster[2].said(StateChangeKind.FIRST_COMMIT) == []
    cluster[2].produce(b"c")
    cluster.time.run_for(2_000)
    assert [change.leader_epoch for change in cluster[2].said(StateChangeKind.FIRST_COMMIT)] == [1]
