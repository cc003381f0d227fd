"""The moments of a recording at which a partition got a new finding."""

import re
from dataclasses import dataclass
from typing import Final

from paceline.console.lens import clock_text, frame_at
from paceline.console.timeline import Timeline
from paceline.findings.explain import Severity
from paceline.model.identifiers import TopicPartition

_NUMBER: Final = re.compile(r"\d[\d,.:]*")
_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class Moment:
    """A finding that the sample before did not have."""

    t: int
    clock: str
    severity: str
    """``warning``, ``critical`` or ``broken``."""
    sentence: str


def moments(timeline: Timeline, topic_partition: TopicPartition) -> tuple[Moment, ...]:
    """Return the moments at which a warning or a worse finding began, in the order of time, at most 100.

    A finding whose numbers alone have changed is not new.
    """
    found: list[Moment] = []
    before: set[str] = set()
    for t in sorted({one.t for one in timeline.track(topic_partition).samples.entries}):
        now = set()
        for severity, sentence, _ in frame_at(timeline, topic_partition, t).findings:
            if Severity[severity.upper()] < Severity.WARNING:
                continue
            shape = _NUMBER.sub("", sentence)
            now.add(shape)
            if shape not in before and len(found) < _SHOWN:
                found.append(Moment(t, clock_text(timeline.header.began_ms, t), severity, sentence))
        before = now
    return tuple(found)


def worst(found: tuple[Moment, ...]) -> Moment | None:
    """Return the first of the worst moments; None without any."""
    return max(found, key=lambda one: Severity[one.severity.upper()], default=None)
