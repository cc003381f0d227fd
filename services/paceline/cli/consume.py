"""`paceline consume`: print records."""

import base64
import functools
import json
from collections.abc import Callable
from typing import Any, Literal

import click

from paceline.cli.completion import topic_names
from paceline.cli.connection import bootstrap_option, open_admin, parse_partition
from paceline.cli.failures import check_partition, reported
from paceline.cli.numbers import MAX_INT64, parse_number
from paceline.cli.times import parse_moment
from paceline.model.errors import PacelineError, UnknownTopicOrPartitionError

_QUIET_POLLS = 4
"""Number of polls without records after which the topic is described."""
_MISSES = 2
"""Number of consecutive descriptions that must miss the topic before it counts as deleted."""
_FIELDS = frozenset("kvhpotT%")
_ESCAPES = {"\\n": "\n", "\\t": "\t"}


@click.command()
@click.argument("which", metavar="TOPIC[/PARTITION]", shell_complete=topic_names)
@click.option(
    "--from",
    "start",
    default="start",
    show_default=True,
    metavar="start|end|OFFSET|-N|TIME",
    help="start position; -N is N offsets before the end of each partition;"
    " TIME is 90s, 10m, 2h ago, or a time such as 2026-11-21T17:00",
)
@click.option("-n", "--num", type=click.IntRange(min=1), help="stop after this many records")
@click.option("-e", "--exit-at-end", is_flag=True, help="stop at the log end at the start of the command")
@click.option(
    "-f",
    "--format",
    "template",
    default="%v\\n",
    show_default=True,
    help="%k key, %v value, %h headers, %p partition, %o offset, %t topic, %T timestamp in ms, %% percent",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "ndjson", "json"]),
    default="text",
    show_default=True,
    help="json and ndjson both print one JSON object per line, because the output may never end",
)
@click.option("-g", "--group", help="join this consumer group, share its partitions and commit printed records")
@click.option("--rack", default="", help="read from a replica in this rack if there is one")
@bootstrap_option
def consume(
    which: str,
    start: str,
    num: int | None,
    exit_at_end: bool,
    template: str,
    output: str,
    group: str | None,
    rack: str,
    bootstrap: str,
) -> None:
    """Print the records of a topic or partition until interrupted, or until --num or --exit-at-end.

    With --group, reading starts at the group's committed offsets; --from applies to partitions without a committed
    offset.
    """
    topic, partition = parse_partition(which)
    if group is not None and (partition is not None or exit_at_end or start not in {"start", "end"}):
        raise click.UsageError(
            "--group cannot be combined with a partition, with --exit-at-end, or with an offset or time in --from"
        )
    offset = None if start in {"start", "end"} else parse_number(start, MAX_INT64)
    before_end = parse_number(start[1:], MAX_INT64) if start.startswith("-") else None
    since_ms = None if start in {"start", "end"} or offset is not None else parse_moment(start)
    if start not in {"start", "end"} and offset is None and before_end is None and since_ms is None:
        raise click.BadParameter(
            f"{start!r} is neither start, end, an offset, a number of offsets before the end like -10, a time ago"
            " like 10m nor a time like 2026-11-21T17:00",
            param_hint="--from",
        )
    if unknown := _unknown_escape(template):
        raise click.BadParameter(f"{unknown} is not a field; %% is a percent sign", param_hint="--format")
    for escape, character in _ESCAPES.items():
        template = template.replace(escape, character)
    printed = 0
    if group is not None:
        with reported("ndjson" if output == "ndjson" else "table"):
            _consume_in_group(topic, group, start, num, rack, bootstrap, functools.partial(_print, template, output))
        return
    with reported("ndjson" if output == "ndjson" else "table"):
        from paceline_client import Consumer, TopicPartition

        with open_admin(bootstrap) as admin, Consumer(bootstrap, client_rack=rack) as consumer:
            (found,) = admin.describe_topics([topic])
            there = [p.partition for p in found.partitions]
            check_partition(topic, there, partition)
            indexes = there if partition is None else [partition]
            partitions = [TopicPartition(topic, index) for index in indexes]
            consumer.assign(partitions)
            if start == "start":
                consumer.seek_to_beginning()
            elif start == "end":
                consumer.seek_to_end()
            waiting = [
                f"{topic}/{p.partition}" for p in found.partitions if p.leader is None and p.partition in indexes
            ]
            if waiting:
                click.echo(f"waiting for a leader: {', '.join(waiting)}", err=True)
            ends = consumer.end_offsets(partitions) if exit_at_end or start not in {"start", "end"} else {}
            if offset is not None:
                first = consumer.beginning_offsets(partitions)
                for tp in partitions:
                    consumer.seek(tp, _within(tp, offset, first[tp], ends[tp]))
            if before_end is not None:
                first = consumer.beginning_offsets(partitions)
                for tp in partitions:
                    consumer.seek(tp, max(first[tp], ends[tp] - before_end))
            if since_ms is not None:
                # Without a record at or after that time, start at the end read above, to skip no later record.
                for tp, found_at in consumer.offsets_for_times(dict.fromkeys(partitions, since_ms)).items():
                    consumer.seek(tp, ends[tp] if found_at is None else found_at.offset)
            watch = _TopicWatch(admin, topic)
            while not exit_at_end or any(consumer.position(tp) < ends[tp] for tp in partitions):
                polled = consumer.poll(timeout_ms=500)
                watch.polled(bool(polled))
                for tp, records in polled.items():
                    for record in records:
                        if exit_at_end and record.offset >= ends[tp]:
                            continue
                        _print(template, output, tp, record)
                        printed += 1
                        if num is not None and printed >= num:
                            return


def _consume_in_group(
    topic: str,
    group: str,
    start: str,
    num: int | None,
    rack: str,
    bootstrap: str,
    show: Callable[[Any, Any], None],
) -> None:
    """Print records as a member of a group; commits only printed records."""
    from paceline_client import Consumer, TopicPartition

    with open_admin(bootstrap) as admin:  # reports an unknown topic at once, unlike a join of the group
        admin.describe_topics([topic])
    reset: Literal["earliest", "latest"] = "earliest" if start == "start" else "latest"
    with Consumer(bootstrap, group_id=group, auto_offset_reset=reset, client_rack=rack) as consumer:
        consumer.subscribe([topic])
        for printed, record in enumerate(consumer, 1):
            show(TopicPartition(record.topic, record.partition), record)
            if printed == num:
                return


def _print(template: str, output: str, tp: Any, record: Any) -> None:
    if output != "text":
        click.echo(_as_json(tp, record))
    else:
        click.echo(_render(template, tp, record), nl=False)


def _within(tp: Any, offset: int, first: int, end: int) -> int:
    """Return the offset limited to the range of the log; print a warning if it is outside."""
    if offset > end:
        click.echo(f"{tp.topic}/{tp.partition}: offset {offset} is beyond the end, continuing at {end}", err=True)
    elif offset < first:
        click.echo(f"{tp.topic}/{tp.partition}: offset {offset} was deleted, continuing at {first}", err=True)
    return min(max(offset, first), end)


class _TopicWatch:
    """Checks whether an idle topic still exists: a consumer would wait forever for a deleted topic to come back."""

    def __init__(self, admin: Any, topic: str) -> None:
        self._admin, self._topic = admin, topic
        self._quiet_polls = self._misses = 0

    def polled(self, found: bool) -> None:
        """Record a poll.

        Raises:
            UnknownTopicOrPartitionError: the topic was deleted, according to `_MISSES` descriptions in a row.
        """
        self._quiet_polls = 0 if found else self._quiet_polls + 1
        if self._quiet_polls < _QUIET_POLLS:
            self._misses = 0 if found else self._misses
            return
        self._quiet_polls = 0
        try:
            self._admin.describe_topics([self._topic])
            self._misses = 0
        except UnknownTopicOrPartitionError:
            self._misses += 1
            if self._misses >= _MISSES:
                raise
        except PacelineError:
            pass  # no broker answers; the consumer continues when a broker answers again


def _unknown_escape(template: str) -> str:
    """Return the first ``%`` escape of a template that is not defined, with its character."""
    position = 0
    while position < len(template):
        if template[position] != "%":
            position += 1
        elif template[position + 1 : position + 2] in _FIELDS:
            position += 2
        else:
            return template[position : position + 2]
    return ""


def _render(template: str, tp: Any, record: Any) -> bytes:
    """Return a record formatted by the template; keys and values are inserted as raw bytes."""
    values = {
        "%k": bytes(record.key or b""),
        "%v": bytes(record.value or b""),
        "%h": b",".join(name.encode() + b"=" + bytes(value or b"") for name, value in record.headers),
        "%p": b"%d" % tp.partition,
        "%o": b"%d" % record.offset,
        "%t": tp.topic.encode(),
        "%T": b"%d" % record.timestamp_ms,
        "%%": b"%",
    }
    parts: list[bytes] = []
    position = 0
    while position < len(template):
        token = template[position : position + 2]
        if token in values:
            parts.append(values[token])
            position += 2
        else:
            parts.append(template[position].encode("utf-8", errors="surrogateescape"))
            position += 1
    return b"".join(parts)


def _as_json(tp: Any, record: Any) -> str:
    return json.dumps(
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": _value(record.key),
            "value": _value(record.value),
            "headers": [[name, _value(value)] for name, value in record.headers],
        }
    )


def _value(data: bytes | None) -> Any:
    """Return UTF-8 as text, other bytes as ``{"base64": ...}``, so that no byte is lost."""
    if data is None:
        return None
    try:
        return bytes(data).decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(bytes(data)).decode()}
