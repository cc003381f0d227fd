"""Fetches of structured records from a compacted log: a reader must pass batches that have no record for it."""

from types import SimpleNamespace
from typing import Any

from paceline.broker.service.calls_in_progress import ByteBudget, FetchWaits
from paceline.broker.service.log_servicer import LogServicer
from paceline.broker.service.node_handle import NodeHandle
from paceline.broker.service.record_codec import RecordCodec
from paceline.broker.service.response_memory import AnswerBudget
from paceline.log.log_config import LogConfig
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.model.client_io import ProduceData, ProduceResult, RequiredAcks
from paceline.rpc.admission.listener_limits import ListenerLimits
from paceline.v1 import log_service_pb2 as pb
from tests.support.broker_cluster import TP, BrokerCluster

CONFIG = LogConfig(segment_bytes=300, cleanup_policy=frozenset({"compact"}), file_delete_delay_ms=500)
RECORDS = 30


def compacted_log() -> BrokerCluster:
    """Return a cluster whose leader has a compacted log; the last batch of each written segment has no records."""
    cluster = BrokerCluster(log_config=CONFIG, log_cleaner_backoff_ms=1_000)
    cluster.decide(1, 4, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    for number in range(RECORDS):
        if number == RECORDS // 2:
            cluster.decide(1, 5, (1, 2, 3))
            cluster.time.run_for(50)
        answers: list[ProduceResult] = []
        batch = encode_batch([NewRecord(cluster.time.wall_ms(), b"key %d" % (number % 3), b"value %d" % number)])
        cluster[1].node.produce(RequiredAcks.LEADER, 1_000, [ProduceData(TP, None, batch)], answers.extend)
        cluster.time.run_until(lambda answers=answers: bool(answers), 1_000)  # type: ignore[misc]
    cluster.until_in_sync(1, 2, 3)
    before = cluster[1].log().size_bytes
    cluster.time.run_until(lambda: cluster[1].log().size_bytes < before * 2 // 3, 30_000)
    cluster.time.run_for(1_000)
    return cluster


def servicer_of(cluster: BrokerCluster) -> LogServicer:
    handle = NodeHandle()
    handle.set(cluster[1].node)
    budget, answers = ByteBudget(1 << 30), AnswerBudget(1 << 30)
    return LogServicer(
        handle, "CLIENT", cluster.time, budget, answers, 1 << 20, RecordCodec(), FetchWaits(1), ListenerLimits()
    )


async def fetch(servicer: LogServicer, offset: int, epoch: int | None = None) -> pb.FetchPartitionResult:
    request = pb.FetchRequest(format=pb.FETCH_FORMAT_RECORDS, max_bytes=1 << 20, min_bytes=1)
    request.partitions.add(
        topic=TP.topic, partition=TP.partition, fetch_offset=offset, max_bytes=1 << 20, last_fetched_epoch=epoch
    )
    context: Any = SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:1")
    (result,) = pb.FetchResponse.FromString(await servicer.fetch(request.SerializeToString(), context)).partitions
    return result


async def test_a_reader_of_a_compacted_log_reaches_its_end() -> None:
    cluster = compacted_log()
    servicer = servicer_of(cluster)
    found: list[int] = []
    offset = 0
    while offset < RECORDS:
        result = await fetch(servicer, offset)
        assert not result.HasField("error"), result.error
        assert result.records.records, f"a reader stays at offset {offset}"
        found += [record.offset for record in result.records.records]
        offset = found[-1] + 1
    assert found[-1] == RECORDS - 1 and len(found) < RECORDS


async def test_batches_without_records_of_a_later_epoch_are_no_divergence() -> None:
    servicer = servicer_of(compacted_log())
    result = await fetch(servicer, 0, epoch=4)
    assert result.records.records and not result.HasField("diverging_epoch") and not result.HasField("error")
