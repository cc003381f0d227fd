"""The query of docs/spark.md#values on hostile values: which rows fit, and which become dead letters."""

from pathlib import Path
from typing import Any

import pytest

from paceline.pipeline.jobs.ingest import job
from paceline.pipeline.jobs.ingest.config import IngestConfig
from tests.support.inline_spark import InlineSpark
from tests.support.spark import spark  # noqa: F401
from tests.unit.pipeline.batches import encode
from tests.unit.pipeline.golden import Expected
from tests.unit.pipeline.jobs.ingest.test_hostile_rows import DOCUMENTED, hostile_log
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition

pytestmark = pytest.mark.spark

DOCUMENT = Path(__file__).parents[2] / "docs" / "spark.md"

EARLIER = [
    b'{"id": 1}', None, b"", b"\xff\xfe", b'{"id": 9223372036854775808}', b'{"id": 9223372036854775807}',
    b'{"id": -9223372036854775808}', b'{"id": 1, "id": 2}', b"{}", b'{"id": "1"}', b'{"id": NaN}', b"[" * 100_000,
    b'{"id": 2, "name": "' + b"x" * (1 << 20) + b'"}', b'{"id": 3', b"\x00", b'{"id": 1, "name": "\\ud800"}',
]  # fmt: skip
"""Values on which the parser of JSON values in earlier versions of the ingest was tested."""
EARLIER_ROWS = [0, 5, 6, 12]


def test_values_that_do_not_fit_become_dead_letters_as_the_documents_say(spark: Any, tmp_path: Path) -> None:  # noqa: F811
    log = hostile_log()
    earlier = encode([Expected(None, value, at, 1_000, 0, ()) for at, value in enumerate(EARLIER)])
    with ServedCluster({("t", 0): ServedPartition(log.data), ("t", 1): ServedPartition(earlier)}) as served:
        assert job.run(InlineSpark(), IngestConfig((served.bootstrap,), ("t",), f"{tmp_path}/rides")).exit_code == 0
    query = DOCUMENT.read_text(encoding="utf-8").split("## Values\n")[1].split("```python\n")[1].split("```")[0]
    exec(query.replace("/lake/", f"{tmp_path}/"), {"spark": spark})
    typed = spark.read.parquet(f"{tmp_path}/rides_typed").collect()
    dead = spark.read.parquet(f"{tmp_path}/rides_bad_values").collect()
    found = {row.offset: "kept" for row in typed if row.partition == 0}
    found |= {row.offset: "dead letter" for row in dead if row.partition == 0}
    for name, offsets in log.lines.items():
        assert {found.get(offset, "") for offset in offsets} == {DOCUMENTED[name]["from_json"]}, name
    assert {found[offset] for offset in log.good} == {"kept"}
    assert sorted(row.offset for row in typed if row.partition == 1) == EARLIER_ROWS
    assert len([row for row in dead if row.partition == 1]) == len(EARLIER) - len(EARLIER_ROWS)
    assert len(typed) + len(dead) == len(found) + len(EARLIER)
    by_offset = {row.offset: row for row in dead if row.partition == 0}
    (cut,) = (row for offset, row in by_offset.items() if bytes(row.value or b"") == b'{"id": 3')
    assert (cut.topic, str(cut.date), cut.corrupt, bytes(cut.key)) == ("t", "1970-01-01", '{"id": 3', b"k")
