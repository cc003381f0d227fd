"""Options of the data source: Spark's Kafka source's names, checked before anything connects.

`parse_options` is the one entry. Unknown names are errors that suggest the nearest, refused ones say what
to do instead. Source: spec/pipeline.md section 3.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from paceline.model.errors import InvalidTopicError
from paceline.model.identifiers import TopicPartition, validate_topic_name
from paceline.pipeline.errors import InvalidOptionError
from paceline.pipeline.source.offset_specs import (
    EARLIEST_MARK,
    LATEST_MARK,
    MAX_INT64,
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

ALL_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
DEFAULT_COLUMNS: Final = ALL_COLUMNS[:-1]

MAX_INT32: Final = 2**31 - 1
MAX_FETCH_BYTES: Final = 32 * 1024 * 1024
"""Half of what our channels accept in one message."""

_STREAM_ONLY = "only a streaming query has it; use maxRecordsPerPartition or endingOffsets in a batch query"
_NO_TABLE = (
    "CREATE TABLE is refused: Spark keeps a table's options to itself when the table is read; use CREATE TEMPORARY VIEW"
)
_PLAINTEXT = "connections are plaintext in this version; remove it"
REFUSED: Final[Mapping[str, str]] = {
    "paceline.auto.offset.reset": "use startingOffsets instead; what happens to lost records is failOnDataLoss",
    "paceline.key.deserializer": "keys are always binary; cast the column in the query",
    "paceline.value.deserializer": "values are always binary; cast the column in the query",
    "paceline.key.serializer": "keys are always binary; cast the column in the query",
    "paceline.value.serializer": "values are always binary; cast the column in the query",
    "paceline.enable.auto.commit": "a read commits no offsets; Spark's checkpoint keeps them",
    "paceline.interceptor.classes": "there are no interceptors; transform the DataFrame",
    "paceline.group.id": "a read joins no consumer group; name it with groupIdPrefix",
    "maxoffsetspertrigger": _STREAM_ONLY,
    "minoffsetspertrigger": _STREAM_ONLY,
    "maxtriggerdelay": _STREAM_ONLY,
    "maxbytespertrigger": _STREAM_ONLY,
    "path": "load() takes no path; name topics with subscribe",
}
"""Options that are understood and refused, lower case, with advice."""

_REFUSED_PREFIXES: Final = ("paceline.security.", "paceline.ssl.", "paceline.sasl.")

KNOWN: Final = (
    "paceline.bootstrap.servers",
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
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
"""Every option, as documented; names are compared without case, as Spark does."""

_CANONICAL: Final = {name.lower(): name for name in KNOWN}


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions to read: exactly one of three ways."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of one batch read, checked. Picklable: it travels to the executors."""

    bootstrap_servers: tuple[str, ...]
    subscription: Subscription
    starting: OffsetSpec = field(default_factory=Earliest)
    ending: OffsetSpec = field(default_factory=Latest)
    timestamp_strategy_latest: bool = False
    """With a starting time after the last record: True starts at the end, False is an error."""
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    pushdown: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_tasks: int = 8
    target_task_bytes: int = 64 * 1024 * 1024
    fetch_max_bytes: int = 4 * 1024 * 1024
    """Size of one answer. Not settled: a single answer of 4 MiB travels faster than one of 8, yet fetch and decode of a
    whole log took 0.69 s of client CPU at 8 MiB and 0.80 s at 4. To be measured on a quiet machine."""
    client_id: str = "spark-paceline-source"
    poll_timeout_ms: int = 120_000
    """Longest time without progress in one task."""
    metadata_retries: int | None = None
    """Further attempts of a metadata call; None: as many as fit its deadline, so that an election is waited out."""
    metadata_retry_interval_ms: int = 100


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the checked options of a batch read.

    Raises:
        InvalidOptionError: an option is unknown, refused, malformed, or contradicts another; the message names it.
    """
    given = _Given(options)
    defaults = ReadOptions(given.servers(), given.subscription())
    starting, ending = given.starting(), given.ending()
    _check_same_partitions(starting, ending, defaults.subscription)
    return ReadOptions(
        bootstrap_servers=defaults.bootstrap_servers,
        subscription=defaults.subscription,
        starting=starting,
        ending=ending,
        timestamp_strategy_latest=given.choice("startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        columns=given.columns(),
        pushdown=given.flag("pushdown", False),
        min_partitions=given.number("minPartitions", MAX_INT32),
        max_records_per_partition=given.number("maxRecordsPerPartition", MAX_INT64),
        max_tasks=given.number("maxTasks", MAX_INT32) or defaults.max_tasks,
        target_task_bytes=given.number("targetTaskBytes", MAX_INT64) or defaults.target_task_bytes,
        fetch_max_bytes=given.number("paceline.fetch.max.bytes", MAX_FETCH_BYTES) or defaults.fetch_max_bytes,
        client_id=given.text("groupIdPrefix") or defaults.client_id,
        poll_timeout_ms=given.number("kafkaConsumer.pollTimeoutMs", MAX_INT64) or defaults.poll_timeout_ms,
        metadata_retries=given.count("fetchOffset.numRetries"),
        metadata_retry_interval_ms=given.number("fetchOffset.retryIntervalMs", 60_000)
        or defaults.metadata_retry_interval_ms,
    )


class _Given:
    """The given options under their canonical names, with readers for each kind of value."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values: dict[str, str] = {}
        if "provider" in {given.lower() for given in options}:
            # Spark adds properties of the table when one is created, "provider" always; reading it, it gives nothing.
            raise InvalidOptionError(_NO_TABLE)
        for given, value in options.items():
            name = _canonical_name(given)
            if name in self._values and self._values[name] != value:
                raise InvalidOptionError(f"{name} is given twice with different values, once as {given}")
            self._values[name] = value
        if self.choice("paceline.isolation.level", ("read_uncommitted", "read_committed")) == "read_committed":
            raise InvalidOptionError("paceline.isolation.level=read_committed needs transactions, which are not served")

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def flag(self, name: str, default: bool) -> bool:
        text = self._values.get(name)
        if text is None:
            return default
        if text.strip().lower() not in {"true", "false"}:
            raise InvalidOptionError(f"{name} must be true or false, not {text!r}")
        return text.strip().lower() == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return the given choice in lower case, the first one when not given."""
        text = self._values.get(name, choices[0]).strip().lower()
        if text not in choices:
            raise InvalidOptionError(f"{name} must be one of {', '.join(choices)}, not {self._values[name]!r}")
        return text

    def count(self, name: str) -> int | None:
        """Return a number of at least 0, None when not given."""
        return None if name not in self._values else self._integer(name, 0, MAX_INT32)

    def number(self, name: str, largest: int) -> int | None:
        """Return a positive number, None when not given."""
        return None if name not in self._values else self._integer(name, 1, largest)

    def _integer(self, name: str, smallest: int, largest: int) -> int:
        text = self._values[name]
        try:
            number = int(text.strip())
        except ValueError:
            raise InvalidOptionError(f"{name} must be a whole number, not {text!r}") from None
        if not smallest <= number <= largest:
            raise InvalidOptionError(f"{name} must be {smallest} to {largest}, not {number}")
        return number

    def servers(self) -> tuple[str, ...]:
        text = self._values.get("paceline.bootstrap.servers", "")
        servers = tuple(part.strip() for part in text.split(",") if part.strip())
        if not servers:
            raise InvalidOptionError("paceline.bootstrap.servers must be given: host:port, comma separated")
        for server in servers:
            host, colon, port = server.rpartition(":")
            if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
                raise InvalidOptionError(f"paceline.bootstrap.servers: {server!r} is not host:port")
        return servers

    def subscription(self) -> Subscription:
        ways = [name for name in ("subscribe", "subscribePattern", "assign") if name in self._values]
        if len(ways) != 1:
            got = "none is" if not ways else f"{' and '.join(ways)} are"
            raise InvalidOptionError(f"exactly one of subscribe, subscribePattern and assign must be given; {got}")
        text = self._values[ways[0]]
        if ways[0] == "subscribe":
            return Subscription(topics=_topics(text))
        if ways[0] == "assign":
            partitions = parse_assignment("assign", text)
            _check_topics("assign", (tp.topic for tp in partitions))
            return Subscription(partitions=partitions)
        return Subscription(pattern=_pattern(text))

    def starting(self) -> OffsetSpec:
        if (text := self._values.get("startingTimestamp")) is not None:
            return parse_timestamp("startingTimestamp", text)
        if (text := self._values.get("startingOffsetsByTimestamp")) is not None:
            return parse_timestamps("startingOffsetsByTimestamp", text)
        return parse_offsets("startingOffsets", self._values.get("startingOffsets", "earliest"), "latest", LATEST_MARK)

    def ending(self) -> OffsetSpec:
        if (text := self._values.get("endingTimestamp")) is not None:
            return parse_timestamp("endingTimestamp", text)
        if (text := self._values.get("endingOffsetsByTimestamp")) is not None:
            return parse_timestamps("endingOffsetsByTimestamp", text)
        return parse_offsets("endingOffsets", self._values.get("endingOffsets", "latest"), "earliest", EARLIEST_MARK)

    def columns(self) -> tuple[str, ...]:
        text = self._values.get("columns")
        with_headers = self.flag("includeHeaders", False)
        if text is None:
            return ALL_COLUMNS if with_headers else DEFAULT_COLUMNS
        by_lower = {name.lower(): name for name in ALL_COLUMNS}
        names = [part.strip() for part in text.split(",") if part.strip()]
        for name in names:
            if name.lower() not in by_lower:
                raise InvalidOptionError(f"columns: there is no {name!r}{_nearest(name, ALL_COLUMNS)}")
        columns = tuple(by_lower[name.lower()] for name in names)
        if not columns or len(set(columns)) != len(columns):
            raise InvalidOptionError(f"columns must name at least one column, each once, not {text!r}")
        if "headers" in columns and not with_headers and "includeHeaders" in self._values:
            raise InvalidOptionError("columns names headers, but includeHeaders is false")
        return columns


def _canonical_name(given: str) -> str:
    lower = given.lower()
    if lower.startswith("kafka."):
        lower = "paceline." + lower.removeprefix("kafka.")
    if lower in _CANONICAL:
        return _CANONICAL[lower]
    if lower in REFUSED:
        raise InvalidOptionError(f"option {given} is refused: {REFUSED[lower]}")
    if lower.startswith(_REFUSED_PREFIXES):
        raise InvalidOptionError(f"option {given} is refused: {_PLAINTEXT}")
    raise InvalidOptionError(f"there is no option {given!r}{_nearest(lower, KNOWN)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else f"; there are {', '.join(by_lower.values())}"


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(sorted({part.strip() for part in text.split(",") if part.strip()}))
    if not topics:
        raise InvalidOptionError("subscribe names no topic; give names, comma separated")
    _check_topics("subscribe", topics)
    return topics


def _check_topics(option: str, topics: Iterable[str]) -> None:
    for topic in topics:
        try:
            validate_topic_name(topic)
        except InvalidTopicError as error:
            raise InvalidOptionError(f"{option}: {error}") from error


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
    """JSON must name the same partitions at both ends, and those of ``assign``; planning checks those of a topic."""
    start, end = _named_partitions(starting), _named_partitions(ending)
    if start is not None and end is not None and start != end:
        odd = ", ".join(str(tp) for tp in sorted(start ^ end))
        raise InvalidOptionError(f"start and end must name the same partitions; only one of them names {odd}")
    for named in (start, end):
        if named is not None and subscription.partitions and named != set(subscription.partitions):
            odd = ", ".join(str(tp) for tp in sorted(named ^ set(subscription.partitions)))
            raise InvalidOptionError(f"offsets and assign must name the same partitions; only one of them names {odd}")
