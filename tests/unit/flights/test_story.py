"""A slow machine: the producer of `make run` slows down while the kill of a leader waits for Spark's first rows."""

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from examples.flights.story import Story
from examples.flights.stream import Stream
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline_client import Producer, RecordMetadata


class ImmediateProducer:
    """Acknowledges each record at once."""

    def __init__(self) -> None:
        self._offsets = itertools.count()

    def send(self, _topic: str, _value: bytes, *, key: bytes, on_delivery: Callable[[Any, None], None]) -> None:
        on_delivery(RecordMetadata("flights", len(key) % 2, next(self._offsets), None), None)

    def flush(self, timeout_s: float) -> None: ...


def story(tmp_path: Path, said: list[str], is_reading: Iterator[bool], is_ending: Iterator[bool]) -> Story:
    cluster = LocalCluster(tmp_path, CONFIG_FILE)
    return Story(cluster, "flights", 6, random.Random(1), 2_000, said.append, is_reading.__next__, is_ending.__next__)


def test_the_kill_waits_for_the_reader_as_long_as_there_are_records(tmp_path: Path) -> None:
    said: list[str] = []
    late = story(tmp_path, said, iter([False, False, False, True]), iter([False, False]))
    late.await_reader()
    assert said == ["producer slows down until Spark's first micro-batch", "Spark's first micro-batch"]
    assert [mark.label for mark in late.facts.marks] == said and not late.waits_for_reader


def test_a_kill_without_the_reader_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    story(tmp_path, said, iter([False, False, False]), iter([False, True])).await_reader()
    assert said[1:] == ["Spark has read nothing after 0 s; killing a leader without it"]


def test_the_stream_is_slower_while_the_kill_waits_and_counts_its_records() -> None:
    records = [(b"AA", b"{}")] * 2_000
    stream = Stream(cast(Producer, ImmediateProducer()), "flights", len(records), duration_s=0.2)
    totals = stream.run(records, lambda _started: None, is_slow=lambda: stream.sent <= 1_000)
    assert totals.stream_s >= 0.6, "half of the records at a fifth of the pace"
    assert stream.acked_ends == {0: 2_000}
