"""Settings of an ingest, checked before anything connects."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from paceline.model.errors import InvalidConfigError, InvalidTopicError
from paceline.model.identifiers import validate_topic_name
from paceline.model.tls import TlsFiles
from paceline.pipeline.jobs.certificates import ssl_options

TABLE_FORMATS: Final = ("delta", "parquet")
COMPRESSIONS: Final = ("snappy", "zstd", "lz4", "none")
PARTITION_COLUMNS: Final = ("topic", "date")
MIB: Final = 1024 * 1024
MANIFESTS: Final = "_paceline"
"""Folder of the manifests in Parquet tables of earlier versions."""


@dataclass(frozen=True, slots=True)
class IngestConfig:
    """Source and target of an ingest. Picklable, because Spark sends it to the executors."""

    bootstrap_servers: tuple[str, ...]
    topics: tuple[str, ...]
    table: str
    """Directory that the driver and every worker can reach.

    For Delta also a URL of an object store that delta-rs knows, such as ``s3://bucket/table``; for Parquet any path
    that Spark can write.
    """
    table_format: str = "delta"
    dead_letters: str = ""
    """Delta: directory of the dead-letter table; empty: the table's directory with the suffix ``_dead_letters``."""
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Delta: settings of delta-rs for the object store, with credentials, which are never printed."""
    partition_by: tuple[str, ...] = PARTITION_COLUMNS
    """Parquet: the columns that become folders; a Delta table has the default."""
    checkpoint: str = ""
    """Parquet: Spark's checkpoint of the query; empty: ``_checkpoint`` in the table's directory."""
    start_at_latest: bool = False
    """Read new partitions from their end instead of their start."""
    allow_data_loss: bool = False
    """Skip records that were deleted before they were copied; otherwise the job fails."""
    continuous: bool = False
    interval_s: float = 10.0
    """Continuous mode: shortest time between the starts of two batches."""
    max_batch_bytes: int = 1024 * MIB
    """Stored bytes of a batch, estimated from the mean record size of each topic."""
    target_file_bytes: int = 256 * MIB
    """Delta: a new file starts at this size."""
    fetch_max_bytes: int = 8 * MIB
    include_headers: bool = True
    compression: str = "zstd"
    max_tasks: int = 0
    """Tasks per batch; 0: the number of Spark's cores."""
    attempts: int = 5
    """Attempts per batch before a run without ``continuous`` fails; continuous runs retry until stopped."""
    tls: TlsFiles | None = None
    """Certificate files, at the same paths wherever tasks run; None: the files that the driver's environment names."""

    @property
    def dead_letter_table(self) -> str:
        """Directory of the dead-letter table."""
        return self.dead_letters or self.table.rstrip("/") + "_dead_letters"

    def source_options(self, cores: int) -> dict[str, str]:
        """Return the options of the data source for a streaming read; ``cores`` is the number of tasks by default."""
        return {
            "paceline.bootstrap.servers": ",".join(self.bootstrap_servers),
            "subscribe": ",".join(self.topics),
            "startingOffsets": "latest" if self.start_at_latest else "earliest",
            "failOnDataLoss": str(not self.allow_data_loss).lower(),
            "includeHeaders": str(self.include_headers).lower(),
            "maxBytesPerTrigger": str(self.max_batch_bytes),
            "maxTasks": str(self.max_tasks or cores),
            "targetTaskBytes": str(self.fetch_max_bytes),
            "paceline.fetch.max.bytes": str(self.fetch_max_bytes),
            "groupIdPrefix": "paceline-ingest",
            **ssl_options(self.tls),
        }


def check_config(config: IngestConfig) -> None:
    """Refuse invalid settings.

    Raises:
        InvalidConfigError: a setting is unknown, out of range, or contradicts another setting or the content of the
            table's directory; the message names it.
    """
    if not config.topics:
        raise InvalidConfigError("ingest needs at least one topic")
    for topic in config.topics:
        try:
            validate_topic_name(topic)
        except InvalidTopicError as error:
            raise InvalidConfigError(str(error)) from error
    _one_of("table format", config.table_format, TABLE_FORMATS)
    _one_of("compression", config.compression, COMPRESSIONS)
    for name in ("max_batch_bytes", "target_file_bytes", "fetch_max_bytes", "attempts"):
        if getattr(config, name) < 1:
            raise InvalidConfigError(f"{name} must be at least 1, not {getattr(config, name)}")
    if config.interval_s < 0 or config.max_tasks < 0:
        raise InvalidConfigError("interval and number of tasks cannot be negative")
    if config.table_format == "parquet":
        if config.dead_letters:
            raise InvalidConfigError("dead letters are for Delta tables: Spark fails at a record that it cannot decode")
        if config.storage_options:
            raise InvalidConfigError("storage options are for Delta tables; Parquet takes Spark's settings")
    elif config.partition_by != PARTITION_COLUMNS or config.checkpoint:
        raise InvalidConfigError("partition columns and a checkpoint are for Parquet; a Delta table has its own")
    else:
        table, dead = Path(table_path(config.table)), Path(table_path(config.dead_letter_table))
        if _inside(table, dead) or _inside(dead, table):
            raise InvalidConfigError(f"the table {table} and the dead letters {dead} need separate directories")
    _check_directory(config)


def _one_of(what: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise InvalidConfigError(f"{what} must be one of {', '.join(known)}, not {given!r}")


def _inside(inner: Path, outer: Path) -> bool:
    return inner == outer or outer in inner.parents


def _check_directory(config: IngestConfig) -> None:
    """Refuse a directory that has a table of another kind."""
    if not is_local(config.table):
        return
    roots = [Path(table_path(path)) for path in (config.table, config.dead_letter_table) if is_local(path)]
    old = [str(root) for root in roots if (root / MANIFESTS).is_dir()]
    if old:
        raise InvalidConfigError(
            f"{old[0]} is a Parquet table of an earlier version, which is no longer written. This command makes it a "
            f"Delta table, which ingest continues: paceline pipeline migrate {' '.join(old)}"
        )
    kind, marker = ("Delta", "_delta_log") if config.table_format == "parquet" else ("Parquet", "_spark_metadata")
    if (roots[0] / marker).is_dir():
        raise InvalidConfigError(f"{roots[0]} has a {kind} table; use --format {kind.lower()} or another directory")


def is_local(path: str) -> bool:
    """Return whether the path is a directory of this machine and not a URL of another file system."""
    return "://" not in path.removeprefix("file://")


def table_path(path: str) -> str:
    """Return the absolute path of a directory; a URL of another file system is returned unchanged."""
    return str(Path(path.removeprefix("file://")).absolute()) if is_local(path) else path
