"""The executor side of an ingest: fetch offset ranges, separate rows from dead letters, write the files.

Spark's ``mapInArrow`` calls `IngestTasks`; each input row is a task number, each output row a pickled
`TaskReport`. Only the driver commits to the tables.
"""

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from paceline.model.identifiers import TopicPartition
from paceline.pipeline.jobs.ingest.config import IngestConfig, table_path
from paceline.pipeline.jobs.ingest.parquet_files import PartitionedWriter, WrittenFile
from paceline.pipeline.jobs.ingest.rows import DEAD_LETTER_FIELDS, DeadLetters, Rows, make_rows, table_fields
from paceline.pipeline.source.offset_ranges import OffsetRange
from paceline.pipeline.source.options import ReadOptions

REPORT_SCHEMA = "report binary"


@dataclass(frozen=True, slots=True)
class TaskReport:
    """Files written by a task, with counts."""

    files: list[WrittenFile]
    dead_letter_files: list[WrittenFile]
    rows: int
    dead_letters: int
    stored_bytes: int
    """Stored size of the records that were read: the size of a record batch that was read in part counts in part."""
    reasons: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IngestTasks:
    """The tasks of one batch."""

    config: IngestConfig
    options: ReadOptions
    ranges: Sequence[Sequence[OffsetRange]]
    """Offset ranges of each task, by task number."""
    dead_letters_from: Mapping[TopicPartition, int]
    """First offset of each partition whose dead letter is not committed yet."""
    servers: tuple[str, ...] = ()
    """Brokers known to the driver, in addition to the bootstrap servers."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the tasks whose numbers are in the input."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                report = self.run(number)
                yield pa.RecordBatch.from_pydict({"report": [pickle.dumps(report)]})

    def run(self, number: int) -> TaskReport:
        """Copy the ranges of a task into files and return a report."""
        from paceline.pipeline.source.range_fetcher import prefetched

        config = self.config
        schema = table_fields(config.include_headers)
        compression = config.compression.upper()
        name = f"part-{number:05}"
        how = (config.target_file_bytes, compression, config.storage_options)
        table = PartitionedWriter(table_path(config.table), name, schema, *how)
        dead = PartitionedWriter(table_path(config.dead_letter_table), name, DEAD_LETTER_FIELDS, *how)
        reasons: Counter[str] = Counter()
        rows = dead_letters = 0
        stored_bytes = 0.0
        cluster = self.options.view(self.servers)
        answers = prefetched(cluster, self.ranges[number], self.options)
        try:
            for index in answers:
                stored_bytes += index.wanted_bytes
                for made in make_rows(index, config.include_headers):
                    if isinstance(made, Rows):
                        table.write(made.partition, made.batch)
                        rows += made.batch.num_rows
                        continue
                    fresh = self._not_yet_kept(made)
                    dead.write((("topic", made.topic),), fresh)
                    dead_letters += fresh.num_rows
                    reasons.update(fresh.column("reason").to_pylist())
            return TaskReport(table.close(), dead.close(), rows, dead_letters, round(stored_bytes), dict(reasons))
        except BaseException:
            table.discard()
            dead.discard()
            raise
        finally:
            answers.close()  # type: ignore[attr-defined]

    def _not_yet_kept(self, letters: DeadLetters) -> pa.RecordBatch:
        """Remove dead letters that an earlier attempt of this batch has committed.

        The dead letters are committed before the table. If the driver dies in between, the batch is repeated, and the
        same records become dead letters again.
        """
        positions = zip(
            letters.batch.column("partition").to_pylist(), letters.batch.column("offset").to_pylist(), strict=True
        )
        kept = [
            offset >= self.dead_letters_from.get(TopicPartition(letters.topic, partition), 0)
            for partition, offset in positions
        ]
        return letters.batch if all(kept) else letters.batch.filter(pa.array(kept))
