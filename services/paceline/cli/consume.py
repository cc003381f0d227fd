"""`paceline consume`: print records."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import click

from paceline.cli.completion import topic_names
from paceline.cli.connection import bootstrap_option, open_admin, parse_partition
from paceline.cli.failures import check_partition, reported
from paceline.cli.numbers import MAX_INT64, parse_number
from paceline.cli.record_text import FORMAT_HELP, parse_filters, parse_format, to_json
from paceline.model.errors import PacelineError, UnknownTopicOrPartitionError
from paceline.operations.times import parse_moment

_QUIET_POLLS = 4
"""Number of polls without records after which the topics are described."""
_MISSES = 2
"""Number of consecutive descriptions that must miss a topic before it counts as deleted."""


@click.command()
@click.argument("which", metavar="TOPIC[/PARTITION]...", nargs=-1, required=True, shell_complete=topic_names)
@click.option(
    "--from",
    "start",
    default="start",
    show_default=True,
    metavar="start|end|OFFSET|-N|TIME",
    help="start position; -N is N offsets before the end of each partition;"
    " TIME is 90s, 10m, 2h ago, or a time such as 2026-11-21T17:00",
)
@click.option(
    "--to",
    "stop",
    metavar="end|OFFSET|-N|TIME",
    help="stop before this position of each partition; end, -N and TIME count from the log end at the start of the"
    " command, OFFSET may lie in the future",
)
@click.option("-n", "--num", type=click.IntRange(min=1), help="stop after this many printed records")
@click.option("-e", "--exit-at-end", is_flag=True, help="stop at the log end at the start of the command")
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="FIELD=TEXT",
    help="print only records whose key, value or header.NAME equals (=), differs from (!=) the text, or matches (~) the"
    " regular expression somewhere; may be repeated, all must match",
)
@click.option("-f", "--format", "template", default="%v\\n", show_default=True, help=FORMAT_HELP)
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
    which: tuple[str, ...],
    start: str,
    stop: str | None,
    num: int | None,
    exit_at_end: bool,
    filters: tuple[str, ...],
    template: str,
    output: str,
    group: str | None,
    rack: str,
    bootstrap: str,
) -> None:
    """Print the records of topics or partitions until interrupted, or until --to, --num or --exit-at-end.

    With --group, reading starts at the group's committed offsets; --from applies to partitions without a committed
    offset, and records that --filter hides are committed, too.
    """
    wanted = [parse_partition(text) for text in dict.fromkeys(which)]
    topics = list(dict.fromkeys(topic for topic, _ in wanted))
    has_partition = any(partition is not None for _, partition in wanted)
    if group is not None and (has_partition or exit_at_end or stop or start not in {"start", "end"}):
        raise click.UsageError(
            "--group cannot be combined with a partition, --to, --exit-at-end, or an offset or time in --from"
        )
    begin, end = _parse_position(start, "--from"), None if stop is None else _parse_position(stop, "--to")
    formatted = parse_format(template)
    matches = parse_filters(filters)

    def show(record: Any) -> bool:
        """Print a record if the filters match it; return whether it was the last record to print."""
        nonlocal num
        if not matches(record):
            return False
        click.echo(formatted(record) if output == "text" else to_json(record), nl=output != "text")
        if num is not None:
            num -= 1
        return num == 0

    with reported("ndjson" if output == "ndjson" else "table"):
        if group is not None:
            _consume_in_group(topics, group, start, rack, bootstrap, show)
            return
        from paceline_client import Consumer

        with open_admin(bootstrap) as admin, Consumer(bootstrap, client_rack=rack) as consumer:
            partitions = _partitions(admin, wanted)
            consumer.assign(partitions)
            if begin.kind == "start":
                consumer.seek_to_beginning()
            elif begin.kind == "end":
                consumer.seek_to_end()
            bounded = exit_at_end or end is not None
            ends = consumer.end_offsets(partitions) if bounded or begin.kind not in {"start", "end"} else {}
            if begin.kind not in {"start", "end"}:
                firsts = {} if begin.kind == "time" else consumer.beginning_offsets(partitions)
                for tp, offset in _offsets(consumer, begin, ends).items():
                    if begin.kind == "offset":
                        offset = _within(tp, offset, firsts[tp], ends[tp])
                    consumer.seek(tp, max(firsts.get(tp, 0), offset))
            if end is not None:
                stops = _offsets(consumer, end, ends)
                ends = {tp: min(stops[tp], ends[tp]) if exit_at_end else stops[tp] for tp in partitions}
            watch = _TopicWatch(admin, topics)
            while not bounded or any(consumer.position(tp) < ends[tp] for tp in partitions):
                polled = consumer.poll(timeout_ms=500)
                watch.polled(bool(polled))
                for tp, records in polled.items():
                    for record in records:
                        if not (bounded and record.offset >= ends[tp]) and show(record):
                            return


def _consume_in_group(
    topics: list[str], group: str, start: str, rack: str, bootstrap: str, show: Callable[[Any], bool]
) -> None:
    """Print records as a member of a group; commits only records that were read."""
    from paceline_client import Consumer

    with open_admin(bootstrap) as admin:  # reports an unknown topic at once, unlike a join of the group
        admin.describe_topics(topics)
    reset: Literal["earliest", "latest"] = "earliest" if start == "start" else "latest"
    with Consumer(bootstrap, group_id=group, auto_offset_reset=reset, client_rack=rack) as consumer:
        consumer.subscribe(topics)
        for record in consumer:
            if show(record):
                return


class _Position(NamedTuple):
    """A place in every partition: ``kind`` is start, end, offset, before end, or time (``number`` is in ms)."""

    kind: str
    number: int = 0


def _parse_position(text: str, option: str) -> _Position:
    if text == "end" or (text == "start" and option == "--from"):
        return _Position(text)
    offset = parse_number(text, MAX_INT64)
    before_end = parse_number(text[1:], MAX_INT64) if text.startswith("-") else None
    since_ms = parse_moment(text) if offset is None and before_end is None else None
    for kind, number in (("offset", offset), ("before end", before_end), ("time", since_ms)):
        if number is not None:
            return _Position(kind, number)
    raise click.BadParameter(
        f"{text!r} is neither {'start, ' if option == '--from' else ''}end, an offset, a number of offsets before the"
        " end like -10, a time ago like 10m nor a time like 2026-11-21T17:00",
        param_hint=option,
    )


def _offsets(consumer: Any, position: _Position, ends: Mapping[Any, int]) -> Mapping[Any, int]:
    """Return the offset of a position in each partition; ``ends`` are the log ends."""
    if position.kind == "offset":
        return dict.fromkeys(ends, position.number)
    if position.kind == "time":
        # Without a record at or after that time, return the end read before, so that no later record is skipped.
        found = consumer.offsets_for_times(dict.fromkeys(ends, position.number))
        return {tp: end if found[tp] is None else found[tp].offset for tp, end in ends.items()}
    return {tp: max(0, end - position.number) for tp, end in ends.items()}


def _partitions(admin: Any, wanted: list[tuple[str, int | None]]) -> list[Any]:
    """Return the partitions; a bare topic stands for all of its partitions."""
    from paceline_client import TopicPartition

    chosen: list[Any] = []
    waiting = []
    for topic, index in wanted:
        (found,) = admin.describe_topics([topic])
        check_partition(topic, [each.partition for each in found.partitions], index)
        for each in found.partitions:
            if index in (None, each.partition):
                chosen.append(TopicPartition(topic, each.partition))
                waiting += [f"{topic}/{each.partition}"] if each.leader is None else []
    if waiting:
        click.echo(f"waiting for a leader: {', '.join(waiting)}", err=True)
    return list(dict.fromkeys(chosen))


def _within(tp: Any, offset: int, first: int, end: int) -> int:
    """Return the offset limited to the range of the log; print a warning if it is outside."""
    if offset > end:
        click.echo(f"{tp}: offset {offset} is beyond the end, continuing at {end}", err=True)
    elif offset < first:
        click.echo(f"{tp}: offset {offset} was deleted, continuing at {first}", err=True)
    return min(max(offset, first), end)


class _TopicWatch:
    """Checks whether idle topics still exist: a consumer would wait forever for a deleted topic to come back."""

    def __init__(self, admin: Any, topics: list[str]) -> None:
        self._admin, self._topics = admin, topics
        self._quiet_polls = self._misses = 0

    def polled(self, found: bool) -> None:
        """Record a poll.

        Raises:
            UnknownTopicOrPartitionError: a topic was deleted, according to `_MISSES` descriptions in a row.
        """
        self._quiet_polls = 0 if found else self._quiet_polls + 1
        if self._quiet_polls < _QUIET_POLLS:
            self._misses = 0 if found else self._misses
            return
        self._quiet_polls = 0
        try:
            self._admin.describe_topics(self._topics)
            self._misses = 0
        except UnknownTopicOrPartitionError:
            self._misses += 1
            if self._misses >= _MISSES:
                raise
        except PacelineError:
            pass  # no broker answers; the consumer continues when a broker answers again
