"""Compaction against Kafka's: the same records stay at the same offsets, and Kafka's tools read the result."""

import re
from pathlib import Path

import pytest

from paceline.log.compression import Codec
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.os_files import OsFiles
from paceline.log.partition_log import PartitionLog
from paceline.log.record_batch import NewRecord, Record, decode_batch, encode_batch, iterate_headers
from paceline.model.identifiers import TopicPartition
from tests.golden.test_golden_log import GOLDEN, memory_copy
from tests.golden.test_kafka_reads_our_log import BATCH, RECORD, dump, jars

__all__ = ["jars"]

NOW_MS = 1_800_000_000_000
CONFIG = LogConfig(
    segment_bytes=3000, index_interval_bytes=300, segment_index_bytes=4096, cleanup_policy=frozenset({"compact"})
)
CLEANED_TO = {"compact_keep": 286, "compact_drop": 274}
"""First dirty offset of ``log/cleaned`` in Kafka's cleaner-offset-checkpoint."""


def batches(directory: Path) -> list[tuple[int, bytes]]:
    """The data batches of a log by base offset."""
    found = []
    for file in sorted(directory.glob("*.log")):
        data = file.read_bytes()
        for position, header in iterate_headers(data):
            found.append((header.base_offset, data[position : position + header.size]))
    return found


def compact(log: PartitionLog, wall_ms: int = NOW_MS) -> None:
    log.flush()
    log.update_high_watermark(log.log_end_offset)
    found = log.compaction.find_cleanable(wall_ms)
    assert found is not None
    task = log.compaction.begin(found, wall_ms, 1 << 20, 0.9)
    while not task.is_finished:
        task.run(1 << 20)
        if task.cleaned is not None:
            log.remove_files(log.compaction.replace_segments(task, task.cleaned))
    log.compaction.finish(task)


def records_of(log: PartitionLog) -> list[Record]:
    found: list[Record] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, log.log_end_offset)
        for position, header in iterate_headers(data):
            found.extend(decode_batch(data[position : position + header.size]))
            offset = header.last_offset + 1
    return found


@pytest.mark.parametrize("topic", CLEANED_TO)
def test_the_records_that_kafka_keeps_stay_and_no_others(topic: str) -> None:
    before, after = GOLDEN / "log" / "clean" / f"{topic}-0", GOLDEN / "log" / "cleaned" / f"{topic}-0"
    manager = LogManager(memory_copy(before), ["/data"], CONFIG, on_dir_failure=lambda _path, _error: None)
    manager.load(NOW_MS)
    log = manager.all_logs()[0]
    end, cleaned_to = log.log_end_offset, CLEANED_TO[topic]
    for base_offset, batch in batches(after):
        if end <= base_offset < cleaned_to:
            log.append_as_follower(batch, NOW_MS)
    assert log.compaction.roll_idle_segment(NOW_MS * 2)
    size = log.size_bytes
    compact(log)
    assert log.size_bytes < size
    kafkas = [one for base, batch in batches(after) if base < cleaned_to for one in decode_batch(batch)]
    # Where delete.retention.ms is 0 Kafka has dropped tombstones by its second cleaning; this is our first.
    if topic == "compact_drop":
        assert [one for one in records_of(log) if one.value is not None] == [
            one for one in kafkas if one.value is not None
        ]
    else:
        assert records_of(log) == kafkas


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """A compacted log of ours: every codec, tombstones with a delete horizon, empty batches of producers."""
    root = tmp_path_factory.mktemp("compacted")
    manager = LogManager(OsFiles(), [str(root)], CONFIG, on_dir_failure=lambda _path, _error: None)
    manager.load(NOW_MS)
    log = manager.get_or_create(TopicPartition("compacted", 0), "YEfp66rqS3WxsP2P99t8ZQ", True)
    for number in range(300):
        records = [
            NewRecord(
                NOW_MS + number, b"key%d" % ((number * 7 + i) % 23), None if number % 11 == i else b"value-%d" % i * 9
            )
            for i in range(1 + number % 4)
        ]
        producer = {"producer_id": number % 5, "producer_epoch": number, "base_sequence": 0} if number < 200 else {}
        batch = encode_batch(records, codec=Codec(number % 5), **producer)  # type: ignore[arg-type]
        log.append_as_leader(batch, number // 100, NOW_MS)
        if number == 150:
            compact(log)
    log.config = LogConfig(segment_bytes=20_000, index_interval_bytes=300, cleanup_policy=frozenset({"compact"}))
    compact(log)
    found = records_of(log)
    manager.shutdown()
    return root / "compacted-0", found


@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_kafkas_tool_reads_a_compacted_log(jars: Path, compacted: tuple[Path, list[Record]]) -> None:
    directory, expected = compacted
    output = dump(jars, sorted(directory.glob("*.log")), "--deep-iteration", "--print-data-log")
    found = BATCH.findall(output)
    assert {valid for *_, valid in found} == {"true"}
    assert len(found) == len(re.findall(r"^baseOffset:", output, re.MULTILINE))
    assert any(count == "0" for _, _, count, _ in found) and "deleteHorizonMs: OptionalLong[" in output
    read = [(int(offset), int(timestamp), key) for offset, timestamp, key, _ in RECORD.findall(output)]
    assert read == [(one.offset, one.timestamp, (one.key or b"").decode()) for one in expected if one.value]
    indexes = sorted(directory.glob("*.index"))
    assert sum(index.stat().st_size for index in indexes) > 0
    assert dump(jars, indexes, "--index-sanity-check").count("passed sanity check") == len(indexes)
    for names in (indexes, sorted(directory.glob("*.timeindex"))):
        output = dump(jars, names, "--verify-index-only").lower()
        assert "mismatch" not in output and "out of order" not in output
