"""Options of the source, named as in Spark's Kafka source and checked before any connection is opened.

`parse_batch_options` and `parse_stream_options` are the entry points: only a streaming query has limits per trigger,
only a batch query has an end.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from paceline.model.identifiers import TopicPartition
from paceline.model.tls import TlsFiles
from paceline.pipeline.errors import InvalidOptionError
from paceline.pipeline.given_options import MAX_INT32, MAX_INT64, GivenOptions, check_topics, nearest
from paceline.pipeline.source.offset_specs import (
    EARLIEST_MARK,
    LATEST_MARK,
    AtOffsets,
    AtTimestamps,
    Earliest,
    Latest,
    OffsetSpec,
    parse_assignment,
    parse_offsets,
    parse_timestamp,
    parse_timestamps,
)

if TYPE_CHECKING:
    from paceline_client.cluster_view import ClusterView

ALL_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
DEFAULT_COLUMNS: Final = ALL_COLUMNS[:-1]

MAX_FETCH_BYTES: Final = 32 * 1024 * 1024
"""Half of the largest message that our gRPC channels accept."""

REFUSED: Final[Mapping[str, str]] = {
    "paceline.auto.offset.reset": "use startingOffsets instead; what happens to lost records is failOnDataLoss",
    "paceline.key.deserializer": "keys are always binary; cast the column in the query",
    "paceline.value.deserializer": "values are always binary; cast the column in the query",
    "paceline.key.serializer": "keys are always binary; cast the column in the query",
    "paceline.value.serializer": "values are always binary; cast the column in the query",
    "paceline.enable.auto.commit": "a read commits no offsets; Spark's checkpoint keeps them",
    "paceline.interceptor.classes": "there are no interceptors; transform the DataFrame",
    "paceline.group.id": "a read joins no consumer group; name it with groupIdPrefix",
    "metadata": "topics and partitions are described by Admin.describe_topics, or paceline topic describe -o json",
    "path": "load() takes no path; name topics with subscribe",
}
"""Known options that the source refuses, in lower case, each with advice."""

STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "metadataRefreshMs",
)
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pushdown")

KNOWN: Final = (
    "paceline.bootstrap.servers",
    "paceline.ssl.ca.file",
    "paceline.ssl.certificate.file",
    "paceline.ssl.key.file",
    "paceline.fetch.max.bytes",
    "paceline.isolation.level",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "includeHeaders",
    "columns",
    "pushdown",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxTasks",
    "targetTaskBytes",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "metadataRefreshMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
"""Every option in its documented spelling; names are compared without case, as in Spark."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The partitions to read; the user sets exactly one of the three fields."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Checked options of a query. Picklable, because Spark sends them to the executors."""

    bootstrap_servers: tuple[str, ...]
    subscription: Subscription
    starting: OffsetSpec = field(default_factory=Earliest)
    ending: OffsetSpec = field(default_factory=Latest)
    timestamp_strategy_latest: bool = False
    """For a starting time after the last record: True starts at the end, False raises an error."""
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    pushdown: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_tasks: int = 8
    target_task_bytes: int = 64 * 1024 * 1024
    fetch_max_bytes: int = 4 * 1024 * 1024
    """Requested maximum size of a fetch response. The default is provisional: a single response of 4 MiB arrives
    faster than a response of 8 MiB, but fetching and decoding a whole log took 0.80 s of client CPU at 4 MiB and 0.69 s
    at 8 MiB. Measure both sizes on an idle machine."""
    client_id: str = "spark-paceline-source"
    poll_timeout_ms: int = 120_000
    """Maximum time without progress in a task."""
    metadata_retries: int | None = None
    """Retries of a metadata call; None: as many as fit its deadline, so that the call can outlast an election."""
    metadata_retry_interval_ms: int = 100
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    """Maximum time for which fewer than ``min_offsets_per_trigger`` records are held back."""
    max_bytes_per_trigger: int | None = None
    metadata_refresh_ms: int | None = None
    """How long a streaming query uses its list of topics and partitions before it describes the topics again.

    None: one second, or ten times the duration of the last description if that is longer.
    """
    tls: TlsFiles | None = None
    """Certificate files, at the same path on every machine that runs tasks; None for plaintext."""

    def view(self, more_servers: Sequence[str] = ()) -> "ClusterView":
        """Return a view of the cluster; ``more_servers`` are tried when no bootstrap server answers."""
        from paceline_client.cluster_view import ClusterView

        return ClusterView(
            (*self.bootstrap_servers, *more_servers),
            client_id=self.client_id,
            tls=self.tls,
            retries=self.metadata_retries,
            retry_interval_ms=self.metadata_retry_interval_ms,
        )


_DEFAULTS: Final = ReadOptions((), Subscription())


def parse_batch_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the checked options of a batch read.

    Raises:
        InvalidOptionError: an option is unknown, refused, malformed, or contradicts another; the message names it.
    """
    given = GivenOptions(options, KNOWN, REFUSED)
    _refuse(given, STREAM_ONLY, "only a streaming query has it; use maxRecordsPerPartition or endingOffsets")
    starting = _starting(given, "earliest", refused="latest")
    ending = _ending(given)
    subscription = _subscription(given)
    _check_same_partitions(starting, ending, subscription)
    return _common(given, subscription, starting, ending=ending, pushdown=given.flag("pushdown", False))


def parse_stream_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the checked options of a streaming read.

    Raises:
        InvalidOptionError: as for a batch read.
    """
    given = GivenOptions(options, KNOWN, REFUSED)
    _refuse(given, BATCH_ONLY, "a streaming query does not have it, only a batch query")
    starting = _starting(given, "latest", refused=None)
    subscription = _subscription(given)
    _check_same_partitions(starting, Latest(), subscription)
    most, least = given.number("maxOffsetsPerTrigger", MAX_INT64), given.number("minOffsetsPerTrigger", MAX_INT64)
    if most is not None and least is not None and least > most:
        raise InvalidOptionError(f"minOffsetsPerTrigger {least} is above maxOffsetsPerTrigger {most}")
    delay_ms = given.duration_ms("maxTriggerDelay")
    return _common(
        given,
        subscription,
        starting,
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=_DEFAULTS.max_trigger_delay_ms if delay_ms is None else delay_ms,
        max_bytes_per_trigger=given.number("maxBytesPerTrigger", MAX_INT64),
        metadata_refresh_ms=given.number("metadataRefreshMs", MAX_INT32),
    )


def parse_schema_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the options when Spark has not said yet whether the query is a batch or a stream.

    Raises:
        InvalidOptionError: neither kind of query can have these options.
    """
    names = {name.lower() for name in options}
    if names & {name.lower() for name in STREAM_ONLY}:
        return parse_stream_options(options)
    try:
        return parse_batch_options(options)
    except InvalidOptionError as error:
        try:
            return parse_stream_options(options)
        except InvalidOptionError:
            raise error from None


def _common(given: GivenOptions, subscription: Subscription, starting: OffsetSpec, **more: Any) -> ReadOptions:
    if given.choice("paceline.isolation.level", ("read_uncommitted", "read_committed")) == "read_committed":
        raise InvalidOptionError("paceline.isolation.level=read_committed needs transactions, which are not supported")
    return ReadOptions(
        bootstrap_servers=given.servers(),
        tls=given.tls(),
        subscription=subscription,
        starting=starting,
        timestamp_strategy_latest=given.choice("startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        columns=_columns(given),
        min_partitions=given.number("minPartitions", MAX_INT32),
        max_records_per_partition=given.number("maxRecordsPerPartition", MAX_INT64),
        max_tasks=given.number("maxTasks", MAX_INT32) or _DEFAULTS.max_tasks,
        target_task_bytes=given.number("targetTaskBytes", MAX_INT64) or _DEFAULTS.target_task_bytes,
        fetch_max_bytes=given.number("paceline.fetch.max.bytes", MAX_FETCH_BYTES) or _DEFAULTS.fetch_max_bytes,
        client_id=given.text("groupIdPrefix") or _DEFAULTS.client_id,
        poll_timeout_ms=given.number("kafkaConsumer.pollTimeoutMs", MAX_INT64) or _DEFAULTS.poll_timeout_ms,
        metadata_retries=given.count("fetchOffset.numRetries"),
        metadata_retry_interval_ms=given.number("fetchOffset.retryIntervalMs", 60_000)
        or _DEFAULTS.metadata_retry_interval_ms,
        **more,
    )


def _refuse(given: GivenOptions, names: Sequence[str], advice: str) -> None:
    for name in names:
        if name in given:
            raise InvalidOptionError(f"option {name} is refused: {advice}")


def _subscription(given: GivenOptions) -> Subscription:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(ways) != 1:
        got = "none is" if not ways else f"{' and '.join(ways)} are"
        raise InvalidOptionError(f"exactly one of subscribe, subscribePattern and assign must be given; {got}")
    text = given.text(ways[0]) or ""
    if ways[0] == "subscribe":
        return Subscription(topics=_topics(text))
    if ways[0] == "assign":
        partitions = parse_assignment("assign", text)
        check_topics("assign", (tp.topic for tp in partitions))
        return Subscription(partitions=partitions)
    return Subscription(pattern=_pattern(text))


def _starting(given: GivenOptions, default: str, refused: str | None) -> OffsetSpec:
    if (text := given.text("startingTimestamp")) is not None:
        return parse_timestamp("startingTimestamp", text)
    if (text := given.text("startingOffsetsByTimestamp")) is not None:
        return parse_timestamps("startingOffsetsByTimestamp", text)
    return parse_offsets("startingOffsets", given.text("startingOffsets") or default, refused, LATEST_MARK)


def _ending(given: GivenOptions) -> OffsetSpec:
    if (text := given.text("endingTimestamp")) is not None:
        return parse_timestamp("endingTimestamp", text)
    if (text := given.text("endingOffsetsByTimestamp")) is not None:
        return parse_timestamps("endingOffsetsByTimestamp", text)
    return parse_offsets("endingOffsets", given.text("endingOffsets") or "latest", "earliest", EARLIEST_MARK)


def _columns(given: GivenOptions) -> tuple[str, ...]:
    text = given.text("columns")
    with_headers = given.flag("includeHeaders", False)
    if text is None:
        return ALL_COLUMNS if with_headers else DEFAULT_COLUMNS
    by_lower = {name.lower(): name for name in ALL_COLUMNS}
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name.lower() not in by_lower:
            raise InvalidOptionError(f"columns: there is no {name!r}{nearest(name, ALL_COLUMNS)}")
    columns = tuple(by_lower[name.lower()] for name in names)
    if not columns or len(set(columns)) != len(columns):
        raise InvalidOptionError(f"columns must name at least one column, each once, not {text!r}")
    if "headers" in columns and not with_headers and "includeHeaders" in given:
        raise InvalidOptionError("columns names headers, but includeHeaders is false")
    return columns


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(sorted({part.strip() for part in text.split(",") if part.strip()}))
    if not topics:
        raise InvalidOptionError("subscribe names no topic; give names, comma separated")
    check_topics("subscribe", topics)
    return topics


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidOptionError(f"subscribePattern is not a Python regular expression: {error}") from error
    if not text.strip():
        raise InvalidOptionError("subscribePattern is empty")
    return text


def _named_partitions(spec: OffsetSpec) -> set[TopicPartition] | None:
    if isinstance(spec, AtOffsets):
        return set(spec.offsets)
    return set(spec.timestamps_ms) if isinstance(spec, AtTimestamps) else None


def _check_same_partitions(starting: OffsetSpec, ending: OffsetSpec, subscription: Subscription) -> None:
    """Check that start and end in JSON name the same partitions, and those of ``assign``.

    Planning compares them with the partitions of the topics.
    """
    start, end = _named_partitions(starting), _named_partitions(ending)
    if start is not None and end is not None and start != end:
        odd = ", ".join(str(tp) for tp in sorted(start ^ end))
        raise InvalidOptionError(f"start and end must name the same partitions; only one of them names {odd}")
    for named in (start, end):
        if named is not None and subscription.partitions and named != set(subscription.partitions):
            odd = ", ".join(str(tp) for tp in sorted(named ^ set(subscription.partitions)))
            raise InvalidOptionError(f"offsets and assign must name the same partitions; only one of them names {odd}")
