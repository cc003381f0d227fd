"""The table of hostile records in docs/pipeline.md, read from the document and run.

The records of each line are ingested between good ones. Each reaches the dead-letter table with the reason in the
column of the ingest, or the table; the good ones always do. The other column is shown by
tests/integration/test_spark_values.py.
"""

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deltalake
import google_crc32c
import pytest

from paceline.pipeline.jobs.ingest import job
from paceline.pipeline.jobs.ingest.config import IngestConfig
from paceline.pipeline.jobs.ingest.rows import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from tests.support.inline_spark import InlineSpark
from tests.unit.pipeline.batches import encode, with_payload
from tests.unit.pipeline.golden import Expected
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition

COLUMNS = ("ingest", "from_json")
MEGABYTE = 1 << 20
GOOD = b'{"id": 1}'


@dataclass(frozen=True)
class Hostile:
    """The records of a line: values, or one thing that has nothing to do with the value."""

    values: tuple[bytes | None, ...] = ()
    timestamps_ms: tuple[int, ...] = ()
    keys: tuple[bytes | None, ...] = ()
    headers: tuple[tuple[tuple[str, bytes | None], ...], ...] = ()
    batches: tuple[bytes, ...] = field(default=())


def bad_codec(codec: int, payload: bytes) -> bytes:
    return with_payload(payload, 2, attributes=codec)


LINES = {
    "a timestamp outside the years 1 to 9999": Hostile(
        timestamps_ms=(MIN_TIMESTAMP_MS - 1, MAX_TIMESTAMP_MS + 1, 2**63 - 1, -(2**63))
    ),
    "invalid UTF-8 in the value": Hostile(
        values=(b'{"id": 1, "name": "\xff"}', b"\xff\xfe", b'{"id": 1, "\xc0\xaf": 1}')
    ),
    "a null value": Hostile(values=(None,)),
    "an empty value": Hostile(values=(b"",)),
    "half a surrogate pair": Hostile(
        values=(b'{"id": 1, "name": "\\ud800"}', b'{"id": 1, "any": ["\\udfff"]}', b'{"id": 1, "name": "\xed\xa0\x80"}')
    ),
    "a cut value, or another format": Hostile(
        values=(b'{"id": 3', b"\x00", b'{"id": 1} {"id": 2}', b'\xef\xbb\xbf{"id": 1}', b"<id>1</id>", b'{"id": 01}')
    ),
    "a field twice, at any depth": Hostile(
        values=(b'{"id": 1, "id": 2}', b'{"id": 1, "other": [{"a": 1, "a": 1}]}', b'{"id": 1, "\\u0069d": 1}')
    ),
    "a missing or null required field": Hostile(values=(b"{}", b'{"id": null}', b'{"ID": 1}')),
    "a field of another type": Hostile(
        values=(b'{"id": "1"}', b'{"id": 1.0}', b'{"id": true}', b'{"id": 1, "name": 7}', b'{"id": 1, "ratio": "0.5"}')
    ),
    "fields that the schema lacks": Hostile(values=(b'{"id": 1, "new": {"a": 1}}', b'{"id": 1, "any": [1e999]}')),
    "a 64-bit extreme": Hostile(values=(b'{"id": 9223372036854775807}', b'{"id": -9223372036854775808}')),
    "a number beyond its type": Hostile(
        values=(
            b'{"id": 9223372036854775808}',
            b'{"id": -9223372036854775809}',
            b'{"id": 1, "ratio": 1e999}',
        )
    ),
    "a whole number of thousands of digits": Hostile(values=(b'{"id": ' + b"9" * 5_000 + b"}",)),
    "NaN or Infinity": Hostile(
        values=(b'{"id": NaN}', b'{"id": 1, "ratio": -Infinity}', b'{"id": 1, "any": [Infinity]}')
    ),
    "nesting of 65 levels": Hostile(values=(b'{"id": 1, "deep": ' + b"[" * 64 + b"]" * 64 + b"}",)),
    "nesting deeper than 1,000 levels": Hostile(
        values=(b"[" * 100_000, b'{"id": 1, "deep": ' + b"[" * 1_000 + b"]" * 1_000 + b"}")
    ),
    "another JSON value than an object": Hostile(values=(b"[1]", b"1", b'"text"', b"null", b"true")),
    "megabytes of value": Hostile(values=(b'{"id": 2, "name": "' + b"x" * MEGABYTE + b'"}',)),
    "megabytes of headers, or hundreds": Hostile(
        headers=((("big", bytes(MEGABYTE)),), tuple((f"h{n}", None) for n in range(500)))
    ),
    "a header twice, without a name, with a null value or bytes": Hostile(
        headers=((("h", b"1"), ("h", b"2"), ("", b""), ("null", None), ("bytes", b"\xff")),)
    ),
    "a key that is null, empty or not text": Hostile(keys=(None, b"", b"\xff\x00")),
    "a batch that contradicts itself under a valid checksum": Hostile(
        batches=(with_payload(b"\xff" * 40, 2), with_payload(b"\x00" * 14, 2))
    ),
    "a batch in an unknown or damaged compression": Hostile(
        batches=(bad_codec(7, b"x" * 20), bad_codec(1, b"no gzip"), bad_codec(4, b"\x28\xb5\x2f\xfdjunk"))
    ),
}


def documented() -> dict[str, dict[str, str]]:
    """Return the cells of the table by line and column."""
    document = (Path(__file__).resolve().parents[5] / "docs" / "pipeline.md").read_text(encoding="utf-8")
    table = document.split("| A record that has |")[1].split("\n\n")[0].splitlines()
    assert [cell.strip(" `") for cell in table[0].split("|")[:-1]] == list(COLUMNS)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
    return {row[0]: dict(zip(COLUMNS, row[1:], strict=True)) for row in rows}


DOCUMENTED = documented()


@dataclass(frozen=True)
class HostileLog:
    """A log with every line's records between good ones."""

    data: bytes
    lines: dict[str, list[int]]
    """Offsets by line."""
    good: list[int]


def hostile_log() -> HostileLog:
    data = bytearray()
    lines: dict[str, list[int]] = {}
    good: list[int] = []
    offset = 0

    def add(batch: bytes, records: int, owner: list[int]) -> None:
        nonlocal offset
        placed = bytearray(batch)
        struct.pack_into(">q", placed, 0, offset)
        data.extend(placed)
        owner.append(offset)
        offset += records

    def one(
        value: bytes | None = GOOD,
        key: bytes | None = b"k",
        timestamp_ms: int = 1_000,
        headers: tuple[tuple[str, bytes | None], ...] = (),
    ) -> bytes:
        batch = bytearray(encode([Expected(key, value, 0, 1_000, 0, headers)]))
        struct.pack_into(">qq", batch, 27, timestamp_ms, timestamp_ms)
        struct.pack_into(">I", batch, 17, google_crc32c.value(bytes(batch[21:])))
        return bytes(batch)

    add(one(), 1, good)
    for name, hostile in LINES.items():
        owner = lines.setdefault(name, [])
        for value in hostile.values:
            add(one(value), 1, owner)
        for timestamp_ms in hostile.timestamps_ms:
            add(one(timestamp_ms=timestamp_ms), 1, owner)
        for key in hostile.keys:
            add(one(key=key), 1, owner)
        for headers in hostile.headers:
            add(one(headers=headers), 1, owner)
        for batch in hostile.batches:
            add(batch, 2, owner)
        add(one(), 1, good)
    return HostileLog(bytes(data), lines, good)


def ingest_log(log: HostileLog, table: Path) -> IngestConfig:
    """Ingest the log into a Delta table."""
    with ServedCluster({("t", 0): ServedPartition(log.data)}) as served:
        config = IngestConfig((served.bootstrap,), ("t",), str(table))
        assert job.run(InlineSpark(), config).exit_code == 0
    return config


@dataclass(frozen=True)
class Ingested:
    """Log, table and dead letters after an ingest."""

    log: HostileLog
    rows: dict[int, dict[str, Any]]
    letters: dict[int, dict[str, Any]]


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Ingested:
    log = hostile_log()
    config = ingest_log(log, tmp_path_factory.mktemp("hostile") / "table")
    rows, letters = (
        {row["offset"]: row for row in deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()}
        for path in (config.table, config.dead_letter_table)
    )
    return Ingested(log, rows, letters)


def test_the_document_lists_exactly_the_tested_lines() -> None:
    assert list(DOCUMENTED) == list(LINES)


def test_good_records_between_hostile_ones_arrive(ingested: Ingested) -> None:
    assert len(ingested.log.good) == len(LINES) + 1
    assert [offset for offset in ingested.log.good if offset not in ingested.rows] == []


@pytest.mark.parametrize("name", LINES)
def test_a_hostile_record_goes_where_the_document_says(ingested: Ingested, name: str) -> None:
    said = DOCUMENTED[name]["ingest"]
    for offset in ingested.log.lines[name]:
        if said == "kept":
            assert offset in ingested.rows and offset not in ingested.letters
        else:
            letter = ingested.letters[offset]
            assert f"`{letter['reason']}`" == said and letter["error"] and offset not in ingested.rows
