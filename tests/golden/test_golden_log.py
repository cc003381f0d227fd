"""Our log against files that real Kafka wrote: read, look up, rebuild byte for byte, recover."""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from paceline.log.checkpoint import (
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
    encode_meta_properties,
    encode_offsets,
    encode_partition_metadata,
)
from paceline.log.compression import Codec
from paceline.log.directory_names import parse_directory_name
from paceline.log.leader_epoch_cache import LeaderEpochCache
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.producer_state import ProducerStateManager
from paceline.log.record_batch import (
    BatchHeader,
    control_record_type,
    crc_of,
    decode_batch,
    iterate_headers,
    parse_header,
)
from paceline.log.segment import Segment
from paceline.log.snapshots import EARLIER_SUFFIX, SNAPSHOT_SUFFIX
from paceline.log.transaction_index import read_rows
from paceline.model.identifiers import TopicPartition
from tests.golden.reference_decoder import decode as reference_decode
from tests.unit.log.memory_files import MemoryFiles

GOLDEN = Path(__file__).resolve().parent
LOGS = sorted(path for path in (GOLDEN / "log").glob("*/*") if path.is_dir())
IDS = [f"{path.parent.name}/{path.name}" for path in LOGS]
CONFIG = LogConfig(segment_bytes=3000, index_interval_bytes=300, segment_index_bytes=4096)


def facts(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.with_name(path.name + ".expected.ndjson").read_text().splitlines()]


def text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def as_line(header: BatchHeader, batch: bytes) -> dict[str, Any]:
    """Return a batch as this code decodes it, in the form of an expected line."""
    records = []
    for record in decode_batch(batch):
        sequence = -1 if header.base_sequence < 0 else (header.base_sequence + record.offset - header.base_offset)
        headers = [[key, text(value)] for key, value in record.headers]
        records.append(
            {
                "offset": record.offset,
                "timestamp": record.timestamp,
                "sequence": sequence & 0x7FFFFFFF if sequence >= 0 else -1,
                "key": text(record.key),
                "value": text(record.value),
                "headers": headers,
            }
        )
    return {
        "size": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "leader_epoch": header.leader_epoch,
        "magic": header.magic,
        "crc": header.crc,
        "crc_valid": crc_of(batch, 0, len(batch)) == header.crc,
        "attributes": header.attributes,
        "codec": header.codec.name.lower(),
        "transactional": header.is_transactional,
        "control": header.is_control,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "count": header.record_count,
        "records": records,
    }


def memory_copy(path: Path, root: str = "/data") -> MemoryFiles:
    """The files of one golden log in a disk in memory."""
    files = MemoryFiles()
    files.make_directory(f"{root}/{path.name}")
    for source in path.iterdir():
        files.contents[f"{root}/{path.name}/{source.name}"] = bytearray(source.read_bytes())
    return files


def open_segment(files: MemoryFiles, path: Path, name: str) -> Segment:
    segment = Segment(files, f"/data/{path.name}", int(name[:20]), index_interval_bytes=300, max_index_bytes=4096)
    segment.open()
    return segment


@pytest.mark.parametrize("path", LOGS, ids=IDS)
def test_every_batch_reads_as_kafka_reads_it(path: Path) -> None:
    expected = [fact for fact in facts(path) if "records" in fact]
    found = []
    for file in sorted(path.glob("*.log")):
        data = file.read_bytes()
        for position, header in iterate_headers(data):
            batch = data[position : position + header.size]
            line = {"file": file.name, "position": position, **as_line(header, batch)}
            if header.is_control and header.record_count:
                kind, coordinator_epoch = control_record_type(batch)
                line["marker"] = (("ABORT", "COMMIT")[kind], coordinator_epoch)
            found.append(line)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        for record in theirs["records"]:
            marker = record.pop("control_type", None), record.pop("coordinator_epoch", None)
            assert ours.get("marker") == (marker if marker[0] else None)
        ours.pop("marker", None)
        assert ours == {key: theirs[key] for key in ours}


@pytest.mark.parametrize("path", LOGS, ids=IDS)
def test_the_compiled_codec_agrees_with_the_reference_decoder(path: Path) -> None:
    for file in path.glob("*.log"):
        data = file.read_bytes()
        for position, header in iterate_headers(data):
            batch = data[position : position + header.size]
            assert reference_decode(batch) == decode_batch(batch)


@pytest.mark.parametrize("path", LOGS, ids=IDS)
def test_lookups_by_offset_find_the_same_batch_as_kafka(path: Path) -> None:
    files = memory_copy(path)
    for fact in facts(path):
        if "lookup_offset" in fact:
            segment = open_segment(files, path, fact["file"])
            entry = segment.offset_index.lookup(fact["lookup_offset"])
            assert (entry.offset, entry.position) == (fact["index_offset"], fact["index_position"])
            batch = segment.locate(fact["lookup_offset"])
            found = (batch.position, batch.header.size) if batch else (None, None)
            assert found == (fact["batch_position"], fact["batch_size"])


@pytest.mark.parametrize("path", LOGS, ids=IDS)
def test_lookups_by_timestamp_find_the_same_record_as_kafka(path: Path) -> None:
    files = memory_copy(path)
    for fact in facts(path):
        if "lookup_timestamp" in fact:
            segment = open_segment(files, path, fact["file"])
            entry = segment.time_index.lookup(fact["lookup_timestamp"])
            assert (entry.timestamp, entry.offset) == (fact["index_timestamp"], fact["index_offset"])
            record = segment.find_timestamp(fact["lookup_timestamp"], segment.base_offset)
            found = (record.offset, record.timestamp) if record else (None, None)
            assert found == (fact["found_offset"], fact["found_timestamp"])


@pytest.mark.parametrize("path", LOGS, ids=IDS)
def test_index_entries_read_as_kafka_reads_them(path: Path) -> None:
    files = memory_copy(path)
    for fact in facts(path):
        if "entries" not in fact or path.parent.name == "killed":
            continue
        if fact["file"].endswith(".snapshot"):
            manager = ProducerStateManager()
            manager.load(bytes(files.contents[f"/data/{path.name}/{fact['file']}"]))
            assert [e.producer_id for e in manager.entries] == [e["producer_id"] for e in fact["entries"]]
            continue
        if fact["file"].endswith(".txnindex"):
            rows = read_rows(files, f"/data/{path.name}/{fact['file']}")
            assert [(r.producer_id, r.last_offset) for r in rows] == [
                (e["producer_id"], e["last_offset"]) for e in fact["entries"]
            ]
            continue
        segment = open_segment(files, path, fact["file"])
        index = segment.offset_index if fact["file"].endswith(".index") else segment.time_index
        entries = [index.entry(i)._asdict() for i in range(index.entry_count)]
        assert entries == fact["entries"]


BATCHES = sorted((GOLDEN / "batches").glob("*.bin"))


@pytest.mark.parametrize("path", BATCHES, ids=[path.stem for path in BATCHES])
def test_batches_of_other_clients_read_as_kafka_reads_them(path: Path) -> None:
    batch = path.read_bytes()
    expected = json.loads(path.with_suffix(".json").read_text())
    ours = as_line(parse_header(batch), batch)
    assert ours == {key: expected[key] for key in ours if key in expected}
    assert reference_decode(batch) == decode_batch(batch)


# -- rebuilding ----------------------------------------------------------------------------------------------------

REBUILT_AS_LEADER = {
    "append_time-0": {"message.timestamp.type": "LogAppendTime"},
    "codecs-0": {},
    "compact_drop-0": {"cleanup.policy": "compact", "delete.retention.ms": "0"},
    "compact_keep-0": {"cleanup.policy": "compact"},
    "empty-0": {},
    "idempotent-0": {},
    "recompressed-0": {"compression.type": "lz4"},
    "time_roll-0": {"segment.ms": "60000", "segment.bytes": "100000"},
    "trimmed-0": {},
}


def as_producer_sent_it(batch: bytes, header: BatchHeader) -> bytes:
    """The batch before the leader stamped it; the client's own timestamp type is always create time."""
    raw = bytearray(batch)
    struct.pack_into(">q", raw, 0, 0)
    struct.pack_into(">i", raw, 12, -1)
    struct.pack_into(">h", raw, 21, header.attributes & ~8)
    struct.pack_into(">I", raw, 17, google_crc32c.value(bytes(raw[21:])))
    return bytes(raw)


@pytest.mark.parametrize("name", sorted(REBUILT_AS_LEADER))
def test_appending_the_same_batches_gives_the_same_directory(name: str) -> None:
    path = GOLDEN / "log" / "clean" / name
    files = MemoryFiles()
    config = LogConfig.from_properties(REBUILT_AS_LEADER[name], CONFIG)
    manager = LogManager(files, ["/data"], config, on_dir_failure=lambda *_: None)
    manager.load(0)
    tp = parse_directory_name(name)
    assert tp is not None
    log = manager.get_or_create(tp, decode_partition_metadata((path / "partition.metadata").read_bytes()), True)
    log.assign_leader_epoch(0, 0)
    for file in sorted(path.glob("*.log")):
        data = file.read_bytes()
        for position, header in iterate_headers(data):
            sent = as_producer_sent_it(data[position : position + header.size], header)
            log.append_as_leader(sent, header.leader_epoch, header.max_timestamp)
    if name == "trimmed-0":
        log.increment_log_start_offset(37)
    manager.shutdown()
    ours = {p.rpartition("/")[2]: bytes(c) for p, c in files.contents.items() if p.startswith(f"/data/{name}/")}
    theirs = {source.name: source.read_bytes() for source in path.iterdir()}
    beside = {file_name for file_name in ours if file_name.endswith(EARLIER_SUFFIX)}
    assert {file_name.replace(EARLIER_SUFFIX, SNAPSHOT_SUFFIX) for file_name in beside} <= theirs.keys()
    assert sorted(ours.keys() - beside) == sorted(theirs)
    for file_name in sorted(theirs):
        assert ours[file_name] == theirs[file_name], file_name


FOLLOWED = ["orders-eu.v1-0", "txn-0", "compact_txn-0", "idempotent-0"]


@pytest.mark.parametrize("chunk_bytes", [1, 700, 100_000])
@pytest.mark.parametrize("name", FOLLOWED)
def test_replicating_the_same_batches_gives_the_same_log_files(name: str, chunk_bytes: int) -> None:
    path = GOLDEN / "log" / "clean" / name
    files = MemoryFiles()
    manager = LogManager(files, ["/data"], CONFIG, on_dir_failure=lambda *_: None)
    manager.load(0)
    tp = parse_directory_name(name)
    assert tp is not None
    log = manager.get_or_create(tp, None, True)
    data = b"".join(file.read_bytes() for file in sorted(path.glob("*.log")))
    position = 0
    while position < len(data):
        size = max(chunk_bytes, parse_header(data, position).size)
        log.append_as_follower(data[position : position + size])
        end = [p + h.size for p, h in iterate_headers(data[position : position + size])][-1]
        position += end
    if name == "orders-eu.v1-0":
        log.assign_leader_epoch(8, 192)  # the last leader never wrote a record
    manager.shutdown()
    ours = {p.rpartition("/")[2]: bytes(c) for p, c in files.contents.items() if p.startswith(f"/data/{name}/")}
    for source in sorted(path.iterdir()):
        exact = (".log", ".txnindex", ".snapshot", "leader-epoch-checkpoint")
        if source.name.endswith(exact) or (name != "orders-eu.v1-0" and source.name.endswith(".index")):
            assert ours.get(source.name) == source.read_bytes(), source.name


@pytest.mark.parametrize("path", LOGS, ids=IDS)
def test_recovery_keeps_every_byte_of_a_sound_log(path: Path) -> None:
    files = memory_copy(path)
    before = {name: bytes(data) for name, data in files.contents.items()}
    manager = LogManager(files, ["/data"], CONFIG, on_dir_failure=lambda *_: None)
    report = manager.load(0)
    tp = parse_directory_name(path.name)
    assert tp is not None
    log = manager.get(tp)
    assert log is not None
    batches = [fact for fact in facts(path) if "records" in fact]
    assert report.truncated_bytes == 0
    assert report.recovered == [tp]
    assert log.log_end_offset == (batches[-1]["last_offset"] + 1 if batches else 0)
    for name, data in before.items():
        if name.endswith((".log", ".txnindex")):
            assert bytes(files.contents.get(name, b"")) == data, name


@pytest.mark.parametrize("settings", [LogConfig.from_properties({"cleanup.policy": "compact"}, CONFIG), None])
@pytest.mark.parametrize("name", ["compact_keep-0", "compact_drop-0", "compact_txn-0"])
def test_a_loss_of_power_costs_a_compacted_log_no_segment_after_a_gap(name: str, settings: LogConfig | None) -> None:
    """The broker's default is to delete; only the topic's settings say that gaps are compaction's. Unknown ones may."""
    path = GOLDEN / "log" / "cleaned" / name
    files = memory_copy(path)
    files.contents["/data/.kernel_boot_id"] = bytearray(b"an-earlier-boot\n")
    before = {name: bytes(data) for name, data in files.contents.items() if name.endswith(".log")}
    manager = LogManager(files, ["/data"], LogConfig(), on_dir_failure=lambda *_: None, boot_id="this-boot")
    report = manager.load(0, lambda _topic: settings)
    tp = parse_directory_name(name)
    assert tp is not None
    log = manager.get(tp)
    assert log is not None and report.truncated_bytes == 0
    assert {name: bytes(files.contents.get(name, b"")) for name in before} == before
    batches = [fact for fact in facts(path) if "records" in fact]
    assert log.log_end_offset == batches[-1]["last_offset"] + 1


@pytest.mark.parametrize("name", sorted(REBUILT_AS_LEADER.keys() - {"empty-0"}))
def test_rebuilt_indexes_have_the_entries_of_the_topics_settings(name: str) -> None:
    path = GOLDEN / "log" / "clean" / name
    files = memory_copy(path)
    lost = [name for name in files.contents if name.endswith(".index")]
    for index in lost:
        del files.contents[index]
    settings = LogConfig.from_properties(REBUILT_AS_LEADER[name], CONFIG)
    manager = LogManager(files, ["/data"], LogConfig(), on_dir_failure=lambda *_: None)
    manager.load(0, lambda _topic: settings)
    manager.shutdown()
    for index in lost:
        assert bytes(files.contents[index]) == (path / index.rpartition("/")[2]).read_bytes(), index


@pytest.mark.parametrize("name", ["idempotent-0", "orders-eu.v1-0", "txn-0"])
def test_recovery_after_a_kill_rebuilds_the_files_of_a_clean_stop(name: str) -> None:
    path = GOLDEN / "log" / "killed" / name
    files = memory_copy(path)
    for checkpoint in (GOLDEN / "checkpoints" / "killed").iterdir():
        if checkpoint.name != "meta.properties":
            files.contents[f"/data/{checkpoint.name}"] = bytearray(checkpoint.read_bytes())
    manager = LogManager(files, ["/data"], CONFIG, on_dir_failure=lambda *_: None)
    manager.load(0)
    tp = parse_directory_name(name)
    assert tp is not None
    log = manager.get(tp)
    assert log is not None
    last = [fact for fact in facts(path) if "records" in fact][-1]
    assert log.log_end_offset == last["last_offset"] + 1
    watermark = decode_offsets((GOLDEN / "checkpoints/killed/replication-offset-checkpoint").read_bytes())[tp]
    assert log.high_watermark == watermark
    recovered = {entry.producer_id: entry for entry in log.producers.entries}

    again = MemoryFiles()
    fresh = LogManager(again, ["/data"], CONFIG, on_dir_failure=lambda *_: None)
    fresh.load(0)
    replica = fresh.get_or_create(tp, None, True)
    for file in sorted(path.glob("*.log")):
        replica.append_as_follower(file.read_bytes())
    replayed = {entry.producer_id: entry for entry in replica.producers.entries}
    assert {k: (v.epoch, v.last_sequence, v.current_txn_first_offset) for k, v in recovered.items()} == {
        k: (v.epoch, v.last_sequence, v.current_txn_first_offset) for k, v in replayed.items()
    }
    assert log.epochs.entries == replica.epochs.entries
    for segment in log.segments[:-1]:
        for fact in facts(path):
            if fact.get("file") == segment.offset_index.path.rpartition("/")[2]:
                index = segment.offset_index
                assert [index.entry(i)._asdict() for i in range(index.entry_count)] == fact["entries"]


@pytest.mark.parametrize("stage", ["clean", "follower", "cleaned", "kafka-3.9.1"])
def test_list_offsets_by_timestamp_agrees_with_the_running_leader(stage: str) -> None:
    checked = 0
    for path in [path for path in LOGS if path.parent.name == stage]:
        files = memory_copy(path)
        files.contents["/data/.kafka_cleanshutdown"] = bytearray()
        root = GOLDEN / "checkpoints" / stage / "log-start-offset-checkpoint"
        if root.exists():
            files.contents["/data/log-start-offset-checkpoint"] = bytearray(root.read_bytes())
        manager = LogManager(files, ["/data"], CONFIG, on_dir_failure=lambda *_: None)
        manager.load(0)
        tp = parse_directory_name(path.name)
        assert tp is not None
        log = manager.get(tp)
        assert log is not None
        for fact in facts(path):
            asked = fact.get("list_offsets")
            if asked is not None and asked["timestamp"] >= 0:
                found = log.offset_for_timestamp(asked["timestamp"], log.log_end_offset)
                assert (found or (-1, -1)) == (asked["offset"], asked.get("found_timestamp", -1)), asked
                checked += 1
    assert checked or stage != "clean"


# -- small files ---------------------------------------------------------------------------------------------------

CHECKPOINTS = sorted((GOLDEN / "checkpoints").glob("*/*-offset-checkpoint"))


@pytest.mark.parametrize("path", CHECKPOINTS, ids=[f"{p.parent.name}/{p.name}" for p in CHECKPOINTS])
def test_offset_checkpoints_survive_reading_and_writing(path: Path) -> None:
    data = path.read_bytes()
    offsets = decode_offsets(data)
    assert encode_offsets(offsets) == data or (data == b"" and offsets == {})
    assert all(isinstance(tp, TopicPartition) for tp in offsets)


EPOCHS = sorted((GOLDEN / "log").glob("*/*/leader-epoch-checkpoint"))


@pytest.mark.parametrize("path", EPOCHS, ids=[f"{p.parent.parent.name}/{p.parent.name}" for p in EPOCHS])
def test_epoch_files_survive_reading_and_writing(path: Path) -> None:
    files = MemoryFiles()
    files.contents["/epochs"] = bytearray(path.read_bytes())
    cache = LeaderEpochCache(files, "/epochs")
    cache.load()
    assert cache.encode() == path.read_bytes()


SNAPSHOTS = sorted((GOLDEN / "log").glob("*/*/*.snapshot"))


@pytest.mark.parametrize("path", SNAPSHOTS, ids=[str(p.relative_to(GOLDEN / "log")) for p in SNAPSHOTS])
def test_producer_snapshots_survive_reading_and_writing(path: Path) -> None:
    manager = ProducerStateManager()
    manager.load(path.read_bytes())
    assert manager.encode() == path.read_bytes()


def test_partition_metadata_survives_reading_and_writing() -> None:
    for path in (GOLDEN / "log").glob("*/*/partition.metadata"):
        assert encode_partition_metadata(decode_partition_metadata(path.read_bytes())) == path.read_bytes()


@pytest.mark.parametrize("stage", ["clean", "cleaned", "killed"])
def test_meta_properties_survive_reading_and_writing(stage: str) -> None:
    data = (GOLDEN / "checkpoints" / stage / "meta.properties").read_bytes()
    meta = decode_meta_properties(data)
    assert meta.broker_id == 1
    assert encode_meta_properties(meta, data.decode().splitlines()[1].removeprefix("#")) == data


def test_transaction_markers_of_kafka_are_understood() -> None:
    kinds = set()
    for file in (GOLDEN / "log/clean/txn-0").glob("*.log"):
        data = file.read_bytes()
        for position, header in iterate_headers(data):
            if header.is_control:
                kinds.add(control_record_type(data[position : position + header.size])[0])
    assert kinds == {0, 1}


def test_all_codecs_are_among_the_golden_batches() -> None:
    codecs = {parse_header(path.read_bytes()).codec for path in BATCHES}
    assert codecs == set(Codec)
