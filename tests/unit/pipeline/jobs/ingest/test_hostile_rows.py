"""The table of hostile records in docs/pipeline.md, read from the document and run.

Every cell of the table is a test: the records of its line are ingested between good ones in the value format of its
column, and reach the dead-letter table with the reason that the cell names, or the table. The good ones always do.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from paceline.pipeline.jobs.ingest import job
from paceline.pipeline.jobs.ingest.config import IngestConfig
from paceline.pipeline.jobs.ingest.rows import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from paceline.pipeline.jobs.lake.parquet_table import read_table
from tests.support.inline_spark import InlineSpark
from tests.unit.pipeline.batches import encode, with_payload
from tests.unit.pipeline.golden import Expected
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition

FORMATS = ("raw", "text", "json", "protobuf")
MEGABYTE = 1 << 20
Field = descriptor_pb2.FieldDescriptorProto


def descriptors() -> bytes:
    """A FileDescriptorSet of proto2, which knows required fields and does not check strings while it parses."""
    file = descriptor_pb2.FileDescriptorProto(name="rows.proto", package="rows", syntax="proto2")
    file.dependency.append("google/protobuf/timestamp.proto")
    row = file.message_type.add(name="Row")
    for number, (name, kind, label, type_name) in enumerate(
        [
            ("id", Field.TYPE_INT64, Field.LABEL_REQUIRED, None),
            ("name", Field.TYPE_STRING, Field.LABEL_OPTIONAL, None),
            ("total", Field.TYPE_UINT64, Field.LABEL_OPTIONAL, None),
            ("ratio", Field.TYPE_DOUBLE, Field.LABEL_OPTIONAL, None),
            ("at", Field.TYPE_MESSAGE, Field.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
            ("part", Field.TYPE_MESSAGE, Field.LABEL_OPTIONAL, ".rows.Row"),
            ("tags", Field.TYPE_STRING, Field.LABEL_REPEATED, None),
        ],
        start=1,
    ):
        row.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)
    known = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(known)
    return descriptor_pb2.FileDescriptorSet(file=[known, file]).SerializeToString()


def message(**fields: Any) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(file)
    made: bytes = message_factory.GetMessageClass(pool.FindMessageTypeByName("rows.Row"))(**fields).SerializeToString()
    return made


def nested_messages(levels: int) -> bytes:
    value = message(id=1)
    for _ in range(levels):
        size, varint = len(value), b""
        while size > 0x7F:
            varint += bytes([size & 0x7F | 0x80])
            size >>= 7
        value = b"\x08\x01\x32" + varint + bytes([size]) + value
    return value


GOOD = {"raw": b"good", "text": b"good", "json": b'{"id": 1}', "protobuf": message(id=1)}
ID = b"\x08\x01"
"""The field ``id`` on the wire."""


@dataclass(frozen=True)
class Hostile:
    """The records of a line: values by format, or one thing that has nothing to do with the value."""

    any_format: tuple[bytes | None, ...] = ()
    json: tuple[bytes, ...] = ()
    protobuf: tuple[bytes, ...] = ()
    timestamps_ms: tuple[int, ...] = ()
    keys: tuple[bytes | None, ...] = ()
    headers: tuple[tuple[tuple[str, bytes | None], ...], ...] = ()
    batches: tuple[bytes, ...] = field(default=())

    def values(self, value_format: str) -> tuple[bytes | None, ...]:
        own: tuple[bytes, ...] = {"json": self.json, "protobuf": self.protobuf}.get(value_format, ())
        return own or self.any_format


def bad_codec(codec: int, payload: bytes) -> bytes:
    return with_payload(payload, 2, attributes=codec)


LINES = {
    "a timestamp outside the years 1 to 9999": Hostile(
        timestamps_ms=(MIN_TIMESTAMP_MS - 1, MAX_TIMESTAMP_MS + 1, 2**63 - 1, -(2**63))
    ),
    "invalid UTF-8 in the value": Hostile(
        any_format=(b"\xff\xfe", b"\xc3\x28", b"\xf8\x88\x80\x80\x80"),
        json=(b'{"id": 1, "name": "\xff"}', b"\xff\xfe", b'{"id": 1, "\xc0\xaf": 1}'),
        protobuf=(ID + b"\x12\x02\xff\xfe", ID + b"\x3a\x01\xff", ID + b"\x32\x05" + ID + b"\x12\x01\xff"),
    ),
    "a null value": Hostile(any_format=(None,)),
    "an empty value": Hostile(any_format=(b"",)),
    "half a surrogate pair": Hostile(
        any_format=(b"\xed\xa0\x80",),
        json=(b'{"id": 1, "name": "\\ud800"}', b'{"id": 1, "any": ["\\udfff"]}', b'{"id": 1, "name": "\xed\xa0\x80"}'),
        protobuf=(ID + b"\x12\x03\xed\xa0\x80",),
    ),
    "a cut value, or another format": Hostile(
        any_format=(b'{"id": 3', b"\x00", b"\x08"),
        json=(b'{"id": 3', b"\x00", b'{"id": 1} {"id": 2}', b'\xef\xbb\xbf{"id": 1}', b"<id>1</id>", b'{"id": 01}'),
        protobuf=(b"\x08", message(id=1, name="name")[:-1], b'{"id": 1}', b"\x08" + b"\xff" * 11, b"\x0b" * 200),
    ),
    "a field twice, at any depth": Hostile(
        json=(b'{"id": 1, "id": 2}', b'{"id": 1, "other": [{"a": 1, "a": 1}]}', b'{"id": 1, "\\u0069d": 1}'),
        protobuf=(ID + ID,),
    ),
    "a missing or null required field": Hostile(
        json=(b"{}", b'{"id": null}', b'{"ID": 1}'), protobuf=(message(id=1, name="n")[2:],)
    ),
    "a field of another type": Hostile(
        json=(b'{"id": "1"}', b'{"id": 1.0}', b'{"id": true}', b'{"id": 1, "name": 7}', b'{"id": 1, "ratio": "0.5"}'),
        protobuf=(ID + b"\x10\x01", ID + b"\x22\x01\x00"),
    ),
    "fields that the schema lacks": Hostile(json=(b'{"id": 1, "new": {"a": 1}}',), protobuf=(ID + b"\xf8\x06\x01",)),
    "a 64-bit extreme": Hostile(
        json=(b'{"id": 9223372036854775807}', b'{"id": -9223372036854775808}'),
        protobuf=(message(id=2**63 - 1), message(id=-(2**63)), message(id=1, total=2**63 - 1)),
    ),
    "a number beyond its type": Hostile(
        json=(
            b'{"id": 9223372036854775808}',
            b'{"id": -9223372036854775809}',
            b'{"id": 1, "ratio": 1e999}',
            b'{"id": 1, "any": [1e999]}',
        ),
        protobuf=(
            message(id=1, total=2**63),
            ID + b"\x2a\x0a" + timestamp_pb2.Timestamp(seconds=2**62).SerializeToString(),
        ),
    ),
    "a whole number of thousands of digits": Hostile(json=(b'{"id": ' + b"9" * 5_000 + b"}",)),
    "NaN or Infinity": Hostile(
        json=(b'{"id": NaN}', b'{"id": 1, "ratio": -Infinity}', b'{"id": 1, "any": [Infinity]}'),
        protobuf=(message(id=1, ratio=float("nan")), message(id=1, ratio=float("inf"))),
    ),
    "nesting deeper than 64 levels": Hostile(
        any_format=(b"[" * 100_000,),
        json=(b"[" * 100_000, b'{"id": 1, "deep": ' + b"[" * 64 + b"]" * 64 + b"}"),
        protobuf=(nested_messages(200), nested_messages(3_000)),
    ),
    "another JSON value than an object": Hostile(json=(b"[1]", b"1", b'"text"', b"null", b"true")),
    "megabytes of value": Hostile(
        any_format=(b"x" * MEGABYTE,),
        json=(b'{"id": 2, "name": "' + b"x" * MEGABYTE + b'"}',),
        protobuf=(message(id=2, name="x" * MEGABYTE),),
    ),
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
    """Return the cells of the table by line and format."""
    document = (Path(__file__).resolve().parents[5] / "docs" / "pipeline.md").read_text(encoding="utf-8")
    table = document.split("| A record that has |")[1].split("\n\n")[0].splitlines()
    assert [cell.strip(" `") for cell in table[0].split("|")[:-1]] == list(FORMATS)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
    return {row[0]: dict(zip(FORMATS, row[1:], strict=True)) for row in rows}


DOCUMENTED = documented()


def log_of(value_format: str) -> tuple[bytes, dict[str, list[int]], list[int]]:
    """Return a log of every line's records between good ones, offsets by line, and those of the good records."""
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
        value: bytes | None,
        key: bytes | None = b"k",
        timestamp_ms: int = 1_000,
        headers: tuple[tuple[str, bytes | None], ...] = (),
    ) -> bytes:
        batch = bytearray(encode([Expected(key, value, 0, 1_000, 0, headers)]))
        struct.pack_into(">qq", batch, 27, timestamp_ms, timestamp_ms)
        struct.pack_into(">I", batch, 17, google_crc32c.value(bytes(batch[21:])))
        return bytes(batch)

    add(one(GOOD[value_format]), 1, good)
    for name, hostile in LINES.items():
        owner = lines.setdefault(name, [])
        for value in hostile.values(value_format):
            add(one(value), 1, owner)
        for timestamp_ms in hostile.timestamps_ms:
            add(one(GOOD[value_format], timestamp_ms=timestamp_ms), 1, owner)
        for key in hostile.keys:
            add(one(GOOD[value_format], key=key), 1, owner)
        for headers in hostile.headers:
            add(one(GOOD[value_format], headers=headers), 1, owner)
        for batch in hostile.batches:
            add(batch, 2, owner)
        add(one(GOOD[value_format]), 1, good)
    return bytes(data), lines, good


@dataclass(frozen=True)
class Ingested:
    """Table and dead letters after an ingest of `log_of`."""

    lines: dict[str, list[int]]
    good: list[int]
    rows: dict[int, dict[str, Any]]
    letters: dict[int, dict[str, Any]]


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Ingest the log of a format once, when its first test asks."""
    made: dict[str, Ingested | None] = {}

    def get(value_format: str) -> Ingested:
        if value_format not in made:
            made[value_format] = None  # an ingest that fails is not repeated by every test
            data, lines, good = log_of(value_format)
            table = tmp_path_factory.mktemp(value_format) / "table"
            more: dict[str, Any] = {}
            if value_format == "json":
                more["columns"] = "id:long, name:string?, ratio:double?, any:json?"
            if value_format == "protobuf":
                more |= {"descriptor_set": descriptors(), "message": "rows.Row"}
            with ServedCluster({("t", 0): ServedPartition(data)}) as served:
                config = IngestConfig((served.bootstrap,), ("t",), str(table), value_format=value_format, **more)
                assert job.run(InlineSpark(), config).exit_code == 0
            rows, letters = (
                {row["offset"]: row for row in read_table(path).to_table().to_pylist()}
                for path in (config.table, config.dead_letter_table)
            )
            made[value_format] = Ingested(lines, good, rows, letters)
        found = made[value_format]
        assert found is not None, "the ingest failed"
        return found

    yield get


def test_the_document_lists_exactly_the_tested_lines() -> None:
    assert list(DOCUMENTED) == list(LINES)


@pytest.mark.parametrize("value_format", FORMATS)
def test_good_records_between_hostile_ones_arrive(ingested: Any, value_format: str) -> None:
    found = ingested(value_format)
    assert len(found.good) == len(LINES) + 1
    assert [offset for offset in found.good if offset not in found.rows] == []


@pytest.mark.parametrize("value_format", FORMATS)
@pytest.mark.parametrize("name", LINES)
def test_a_hostile_record_goes_where_the_document_says(ingested: Any, name: str, value_format: str) -> None:
    said, found = DOCUMENTED[name][value_format], ingested(value_format)
    offsets = found.lines[name]
    assert bool(offsets) == bool(said), "a cell has a text exactly where records test it"
    for offset in offsets:
        if "`" not in said:
            assert offset in found.rows and offset not in found.letters
            continue
        reasons = [word for number, word in enumerate(said.split("`")) if number % 2]
        letter = found.letters[offset]
        assert letter["reason"] in reasons and letter["error"] and offset not in found.rows
