"""Settings of an ingest, checked before anything connects."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from paceline.model.errors import InvalidConfigError, InvalidTopicError
from paceline.model.identifiers import validate_topic_name
from paceline.model.tls import TlsFiles
from paceline.pipeline.jobs.lake.table import local_root
from paceline.pipeline.jobs.values.columns import parse_columns
from paceline.pipeline.jobs.values.json_values import JsonParser
from paceline.pipeline.jobs.values.parser import ValueParser
from paceline.pipeline.jobs.values.protobuf_values import ProtobufParser
from paceline.pipeline.jobs.values.text_values import TextParser

TABLE_FORMATS: Final = ("parquet", "delta")
VALUE_FORMATS: Final = ("raw", "text", "json", "protobuf")
COMPRESSIONS: Final = ("snappy", "zstd", "lz4", "none")
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class IngestConfig:
    """Source, target and format of an ingest. Picklable, because Spark sends it to the executors."""

    bootstrap_servers: tuple[str, ...]
    topics: tuple[str, ...]
    table: str
    """Directory of the table, accessible to the driver and every worker."""
    table_format: str = "parquet"
    value_format: str = "raw"
    columns: str = ""
    """For JSON: ``"id:long, name:string?"``."""
    descriptor_set: bytes = b""
    """For protobuf: a FileDescriptorSet with imports."""
    message: str = ""
    """For protobuf: full name of the message."""
    allow_unknown_fields: bool = False
    dead_letters: str = ""
    """Directory of the dead-letter table; empty: the table's directory with the suffix ``_dead_letters``."""
    start_at_latest: bool = False
    """Read new partitions from their end instead of their start."""
    allow_data_loss: bool = False
    """Skip records that were deleted before they were copied; otherwise the job fails."""
    continuous: bool = False
    interval_s: float = 10.0
    """Continuous mode: shortest time between the starts of two batches."""
    max_batch_bytes: int = 1024 * MIB
    """Stored bytes of a batch, estimated from previous batches."""
    target_file_bytes: int = 256 * MIB
    fetch_max_bytes: int = 8 * MIB
    include_headers: bool = True
    compression: str = "zstd"
    max_tasks: int = 0
    """Tasks per batch; 0: the number of Spark's cores."""
    orphan_age_s: float = 24 * 3600.0
    attempts: int = 5
    """Attempts per batch before a run without ``continuous`` fails; continuous runs retry until stopped."""
    tls: TlsFiles | None = None
    """Certificate files, at the same paths wherever tasks run; None: the files that the driver's environment names."""

    @property
    def dead_letter_table(self) -> str:
        """Directory of the dead-letter table."""
        return self.dead_letters or self.table.rstrip("/") + "_dead_letters"


def check_config(config: IngestConfig) -> None:
    """Refuse invalid settings.

    Raises:
        InvalidConfigError: a setting is unknown, out of range, or contradicts another setting; the message names it.
    """
    if not config.topics:
        raise InvalidConfigError("ingest needs at least one topic")
    for topic in config.topics:
        try:
            validate_topic_name(topic)
        except InvalidTopicError as error:
            raise InvalidConfigError(str(error)) from error
    _one_of("table format", config.table_format, TABLE_FORMATS)
    _one_of("value format", config.value_format, VALUE_FORMATS)
    _one_of("compression", config.compression, COMPRESSIONS)
    for name in ("max_batch_bytes", "target_file_bytes", "fetch_max_bytes", "attempts"):
        if getattr(config, name) < 1:
            raise InvalidConfigError(f"{name} must be at least 1, not {getattr(config, name)}")
    if config.interval_s < 0 or config.orphan_age_s < 0 or config.max_tasks < 0:
        raise InvalidConfigError("interval, orphan age and number of tasks cannot be negative")
    table, dead = local_root(config.table), local_root(config.dead_letter_table)
    if _inside(table, dead) or _inside(dead, table):
        raise InvalidConfigError(f"the table {table} and the dead letters {dead} need separate directories")
    make_parser(config)


def _one_of(what: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise InvalidConfigError(f"{what} must be one of {', '.join(known)}, not {given!r}")


def _inside(inner: Path, outer: Path) -> bool:
    return inner == outer or outer in inner.parents


def make_parser(config: IngestConfig) -> ValueParser | None:
    """Return the parser of the values, None for raw values.

    Raises:
        InvalidConfigError: columns or descriptors are missing or wrong.
    """
    if config.value_format == "json":
        if not config.columns:
            raise InvalidConfigError('JSON values need columns, for example "id:long, name:string?"')
        return JsonParser(parse_columns(config.columns))
    if config.columns:
        raise InvalidConfigError(f"columns are for JSON values, not for {config.value_format}")
    if config.value_format == "protobuf":
        if not config.descriptor_set or not config.message:
            raise InvalidConfigError("protobuf values need a descriptor set and the name of the message")
        return ProtobufParser(config.descriptor_set, config.message, config.allow_unknown_fields)
    return TextParser() if config.value_format == "text" else None
