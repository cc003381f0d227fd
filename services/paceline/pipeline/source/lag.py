"""Compute the lag of a streaming query behind the end of its topics, from the offsets in its progress events.

Spark shows the metrics ``minOffsetsBehindLatest``, ``avgOffsetsBehindLatest`` and ``maxOffsetsBehindLatest`` only for
sources that run in the JVM. `offsets_behind_latest` computes the lag from the offsets of a progress event.
"""

import json
from typing import Any

from paceline.model.identifiers import TopicPartition
from paceline.pipeline.errors import InvalidOptionError
from paceline.pipeline.source.stream_offset import StreamOffset


def offsets_behind_latest(end_offset: Any, latest_offset: Any) -> dict[TopicPartition, int] | None:
    """Return the records behind the end, by partition; None unless both are offsets of the paceline source.

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
    return {
        tp: max(0, offset - (ends.offsets.get(tp, 0) if _same_topic(ends, latest, tp) else 0))
        for tp, offset in latest.offsets.items()
    }


def _parse(value: Any) -> StreamOffset | None:
    parsed = json.loads(value) if isinstance(value, str) else value
    return StreamOffset.from_json(parsed) if isinstance(parsed, dict) and parsed else None


def _same_topic(ends: StreamOffset, latest: StreamOffset, tp: TopicPartition) -> bool:
    return ends.topic_ids.get(tp.topic) == latest.topic_ids.get(tp.topic)
