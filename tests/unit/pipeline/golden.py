"""Segments and batches written by real Kafka (tests/golden), and their expected records."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


@dataclass(frozen=True)
class Expected:
    """One record as Kafka decoded it."""

    key: bytes | None
    value: bytes | None
    offset: int
    timestamp_ms: int
    timestamp_type: int
    headers: tuple[tuple[str, bytes | None], ...]


def segment_files() -> list[Path]:
    """Every segment that has expected records."""
    return sorted(path for path in (GOLDEN / "log").rglob("*.log") if _expected_file(path).exists())


def partition(name: str) -> bytes:
    """The segments of one partition directory, for example ``clean/codecs-0``, joined."""
    return b"".join(path.read_bytes() for path in sorted((GOLDEN / "log" / name).glob("*.log")))


def partition_records(name: str) -> list[Expected]:
    """The expected records of one partition directory, without control records."""
    return [each for path in sorted((GOLDEN / "log" / name).glob("*.log")) for each in segment_records(path)]


def segment_records(path: Path) -> list[Expected]:
    """The expected records of one segment, without control records."""
    return [
        record for batch in batch_lines(_expected_file(path)) if batch["file"] == path.name for record in records(batch)
    ]


def batch_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of an expected file that describe batches."""
    for line in path.read_text(encoding="utf-8").splitlines():
        parsed = json.loads(line)
        if "records" in parsed:
            yield parsed


def records(batch: dict[str, Any]) -> list[Expected]:
    """The records of a batch line; none for a control batch."""
    if batch["control"]:
        return []
    kind = int(batch["timestamp_type"] == "LogAppendTime")
    return [
        Expected(
            _bytes(record["key"]),
            _bytes(record["value"]),
            record["offset"],
            record["timestamp"],
            kind,
            tuple((key, _bytes(value)) for key, value in record["headers"]),
        )
        for record in batch["records"]
    ]


def _expected_file(segment: Path) -> Path:
    return segment.parent.with_name(segment.parent.name + ".expected.ndjson")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
