"""`paceline log dump`, `verify` and `offsets` against files of Kafka and against Kafka's own DumpLogSegments."""

import base64
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.cli.commands import cli
from tests.golden.test_golden_log import GOLDEN, IDS, LOGS, facts
from tests.golden.test_kafka_reads_our_log import dump as kafka_dump
from tests.golden.test_kafka_reads_our_log import jars

__all__ = ["jars"]

NOT_STORED = {"version", "last_timestamp"}
"""Fields that Kafka prints but that are constant, or the same as another field of the file."""
STAGES = sorted(path.name for path in (GOLDEN / "checkpoints").iterdir())


def dumped(*arguments: object) -> list[dict[str, Any]]:
    ended = CliRunner().invoke(cli, ["log", *map(str, arguments), "-o", "ndjson"])
    assert ended.exit_code == 0, ended.output
    return [json.loads(line) for line in ended.stdout.splitlines()]


def as_base64(text: Any) -> str | None:
    if text is None or isinstance(text, dict):
        return None if text is None else text["base64"]
    return base64.b64encode(text.encode()).decode()


def as_fact(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of our dump with the names and values of a line in ``*.expected.ndjson``."""
    found = {"count": row["record_count"], **{name: value for name, value in row.items() if name != "kind"}}
    for record in found["records"]:
        record["key"], record["value"] = as_base64(record["key"]), as_base64(record["value"])
        record["headers"] = [[name, as_base64(value)] for name, value in record["headers"]]
        record.setdefault("sequence", -1)
    return found


def as_number(value: Any) -> Any:
    """Return -1 for Kafka's ``None`` and ``OptionalLong.empty``, the number for ``Some(1)`` and ``OptionalLong[1]``."""
    if not isinstance(value, str):
        return value
    number = re.search(r"\d+", value)
    return int(number[0]) if number else -1


def entries_of(rows: list[dict[str, Any]], file: str) -> list[dict[str, Any]]:
    """Return the entries of an index or a snapshot with the names of an ``entries`` fact."""
    found = []
    for row in rows:
        if row["file"] != file or row["kind"] == "zeros":
            continue
        row = {
            name: value for name, value in row.items() if name not in ("file", "kind", "position", "earlier_batches")
        }
        if "batch_position" in row:
            row["position"] = row.pop("batch_position")
        found.append(row)
    return found


@pytest.mark.parametrize("path", LOGS, ids=IDS)
def test_dump_has_every_fact_of_a_golden_log(path: Path) -> None:
    rows = dumped("dump", path, "--records")
    batches = iter([row for row in rows if row["kind"] == "batch"])
    for fact in facts(path):
        if "records" in fact:
            ours = as_fact(next(batches))
            assert {name: ours[name] for name in fact} == fact
        elif "entries" in fact:
            expected = [
                {name: as_number(entry[name]) for name in entry.keys() - NOT_STORED} for entry in fact["entries"]
            ]
            assert entries_of(rows, fact["file"]) == expected, fact["file"]
        elif fact.get("file") == "leader-epoch-checkpoint":
            epochs = "".join(f"{row['leader_epoch']} {row['start_offset']}\n" for row in rows if row["kind"] == "epoch")
            assert fact["text"].split("\n", 2)[2] == epochs
        elif fact.get("file") == "partition.metadata":
            (topic_id,) = [row["topic_id"] for row in rows if row["kind"] == "topic id"]
            assert fact["text"].endswith(topic_id)
    assert next(batches, None) is None


@pytest.mark.parametrize("stage", STAGES)
def test_verify_finds_no_damage_in_a_log_directory_of_kafka(stage: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "checkpoints" / stage, tmp_path, dirs_exist_ok=True)
    shutil.copytree(GOLDEN / "log" / stage, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.ndjson"))
    if (marker := tmp_path / "kafka_cleanshutdown").exists():
        marker.rename(tmp_path / ".kafka_cleanshutdown")
    rows = dumped("verify", tmp_path)
    assert {row["rule"] for row in rows} == ({"index to rebuild"} if stage == "killed" else set())
    assert not any(row["broken"] for row in rows)
    checkpoint = (tmp_path / "replication-offset-checkpoint").read_text().splitlines()[2:]
    ours = [row for row in dumped("dump", tmp_path) if row["kind"] == "high watermark"]
    assert [f"{row['topic']} {row['partition']} {row['offset']}" for row in ours] == checkpoint


# -- the real tool -------------------------------------------------------------------------------------------------

NUMBERS = re.compile(r"(\w+): (OptionalLong\.empty|OptionalLong\[-?\d+\]|\[.*?\]|\S+)")
NAMES = {
    "batch": {
        "baseOffset": "base_offset", "lastOffset": "last_offset", "count": "record_count",
        "baseSequence": "base_sequence", "lastSequence": "last_sequence", "producerId": "producer_id",
        "producerEpoch": "producer_epoch", "partitionLeaderEpoch": "leader_epoch", "isTransactional": "transactional",
        "isControl": "control", "deleteHorizonMs": "delete_horizon", "position": "position", "size": "size",
        "magic": "magic", "compresscodec": "codec", "crc": "crc", "isvalid": "crc_valid",
        "CreateTime": "max_timestamp", "LogAppendTime": "max_timestamp",
    },
    "offset index": {"offset": "offset", "position": "batch_position"},
    "time index": {"timestamp": "timestamp", "offset": "offset"},
    "aborted transaction": {
        "producerId": "producer_id", "firstOffset": "first_offset", "lastOffset": "last_offset",
        "lastStableOffset": "last_stable_offset",
    },
    "producer": {
        "producerId": "producer_id", "producerEpoch": "producer_epoch", "coordinatorEpoch": "coordinator_epoch",
        "currentTxnFirstOffset": "current_txn_first_offset", "firstSequence": "first_sequence",
        "lastSequence": "last_sequence", "lastOffset": "last_offset", "offsetDelta": "offset_delta",
        "timestamp": "timestamp",
    },
    "record": {
        "offset": "offset", "CreateTime": "timestamp", "LogAppendTime": "timestamp", "sequence": "sequence",
        "endTxnMarker": "control_type", "coordinatorEpoch": "coordinator_epoch",
    },
}  # fmt: skip
"""Kafka's name of each field, by the kind of our row, and our name."""


def printed(value: Any) -> str:
    """Return a value of our row as Kafka prints it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def our_lines(rows: list[dict[str, Any]]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield (file, kind, the values that Kafka prints) of each row and record that DumpLogSegments prints."""
    for row in rows:
        if row["kind"] in NAMES:
            yield row["file"], row["kind"], {name: printed(row[name]) for name in set(NAMES[row["kind"]].values())}
        for record in row.get("records", ()):
            known = {"sequence": -1, **record}
            kept = {name: printed(known[name]) for name in set(NAMES["record"].values()) if name in known}
            yield row["file"], "record", kept


def kafka_lines(output: str, root: Path) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield the same from the output of DumpLogSegments; keys and payloads, which may have any bytes, are left out."""
    file, kind = "", ""
    kinds = {
        "log": "batch", "index": "offset index", "timeindex": "time index", "txnindex": "aborted transaction",
        "snapshot": "producer",
    }  # fmt: skip
    for line in output.split("\n"):
        if line.startswith("Dumping "):
            file = str(Path(line.removeprefix("Dumping ")).relative_to(root))
            suffix = file.rpartition(".")[2]
            kind = kinds[suffix]
        found = "record" if line.startswith("| offset: ") else kind
        starts = {"batch": "baseOffset: ", "aborted transaction": "version: ", "producer": "producerId: "}
        if line.startswith(starts.get(found, ("offset: ", "timestamp: ", "| offset: "))):
            pairs = dict(NUMBERS.findall(re.split(r" (?:key|payload): ", line, maxsplit=1)[0]))
            values = {ours: pairs[name] for name, ours in NAMES[found].items() if name in pairs}
            for name, value in values.items():
                if value.startswith("Optional"):
                    values[name] = (
                        "None" if value == "OptionalLong.empty" and found == "batch" else str(as_number(value))
                    )
            yield file, found, values


@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_dump_prints_the_values_that_dump_log_segments_prints(jars: Path, tmp_path: Path) -> None:
    """Every segment, index and snapshot among the golden files, with all batches, records and entries."""
    shutil.copytree(GOLDEN / "log", tmp_path / "log", ignore=shutil.ignore_patterns("*.ndjson"))
    files = sorted(path for path in tmp_path.glob("log/*/*/*") if path.name[:20].isdigit())
    theirs = list(kafka_lines(kafka_dump(jars, files, "--deep-iteration", "--print-data-log"), tmp_path))
    ours = [
        (f"{path.relative_to(tmp_path)}/{file}", kind, values)
        for path in sorted(tmp_path.glob("log/*/*"))
        for file, kind, values in our_lines(dumped("dump", path, "--records"))
    ]
    assert len(files) > 250 and len(ours) > 3000
    assert sorted(ours, key=lambda line: line[0]) == sorted(theirs, key=lambda line: line[0])
