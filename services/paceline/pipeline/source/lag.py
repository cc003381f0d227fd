"""Compute the lag of a streaming query behind the end of its topics, from the offsets in its progress events.

Spark shows the metrics ``minOffsetsBehindLatest``, ``avgOffsetsBehindLatest`` and ``maxOffsetsBehindLatest`` only for
sources that run in the JVM. `offsets_behind_latest` computes them from the offsets of a progress event; `LagListener`
does so for every progress event of every query of a session.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from paceline.model.identifiers import TopicPartition
from paceline.pipeline.errors import InvalidOptionError
from paceline.pipeline.source.stream_offset import StreamOffset


@dataclass(frozen=True, slots=True)
class Lag:
    """Records between the end of the last batch and the end of the topics."""

    by_partition: Mapping[TopicPartition, int]

    @property
    def total(self) -> int:
        return sum(self.by_partition.values())

    @property
    def smallest(self) -> int:
        return min(self.by_partition.values(), default=0)

    @property
    def largest(self) -> int:
        return max(self.by_partition.values(), default=0)

    @property
    def average(self) -> float:
        return self.total / len(self.by_partition) if self.by_partition else 0.0

    def metrics(self) -> dict[str, str]:
        """Return the metrics under the names, and in the text form, of Spark's Kafka source."""
        return {
            "minOffsetsBehindLatest": str(self.smallest),
            "maxOffsetsBehindLatest": str(self.largest),
            "avgOffsetsBehindLatest": str(self.average),
        }


def offsets_behind_latest(end_offset: Any, latest_offset: Any) -> Lag | None:
    """Return the lag between two offsets of a progress event; None unless both are offsets of the paceline source.

    Args:
        end_offset: ``endOffset`` of a source in a progress event, as JSON text or parsed.
        latest_offset: ``latestOffset`` of the same source.
    """
    try:
        ends, latest = _parse(end_offset), _parse(latest_offset)
    except (ValueError, InvalidOptionError):
        return None
    if ends is None or latest is None:
        return None
    return Lag(
        {
            tp: max(0, offset - (ends.offsets.get(tp, 0) if _same_topic(ends, latest, tp) else 0))
            for tp, offset in latest.offsets.items()
        }
    )


def _parse(value: Any) -> StreamOffset | None:
    parsed = json.loads(value) if isinstance(value, str) else value
    return StreamOffset.from_json(parsed) if isinstance(parsed, dict) and parsed else None


def _same_topic(ends: StreamOffset, latest: StreamOffset, tp: TopicPartition) -> bool:
    return ends.topic_ids.get(tp.topic) == latest.topic_ids.get(tp.topic)


class LagListener(StreamingQueryListener):  # type: ignore[misc]
    """Stores the last lag of every running query; add it with ``spark.streams.addListener``."""

    def __init__(self, on_lag: Callable[[str, list[Lag]], None] | None = None) -> None:
        """``on_lag`` receives the query's id and the lag of each of its paceline sources, on Spark's thread."""
        super().__init__()
        self._on_lag = on_lag
        self._lock = threading.Lock()
        self._lags: dict[str, list[Lag]] = {}

    def lag(self, query_id: str) -> list[Lag]:
        """Return the last lag of each paceline source of a running query; empty before its first progress."""
        with self._lock:
            return list(self._lags.get(str(query_id), []))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Store the lag of the query's paceline sources, and pass it to ``on_lag`` if there are any."""
        found = [
            lag
            for source in event.progress.sources
            if (lag := offsets_behind_latest(source.endOffset, source.latestOffset)) is not None
        ]
        query_id = str(event.progress.id)
        with self._lock:
            self._lags[query_id] = found
        if self._on_lag is not None and found:
            self._on_lag(query_id, found)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Remove the lag of the query."""
        with self._lock:
            self._lags.pop(str(event.id), None)
