"""The replication lens of `paceline console` for the page: a partition before, during and after its leader's death."""

from dataclasses import dataclass
from pathlib import Path

from examples.flights.story import Facts
from paceline.console.lens import Frame, frame_at
from paceline.console.recording import SAMPLE_MS, read_recording
from paceline.console.timeline import Timeline
from paceline.model.identifiers import TopicPartition


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of the run."""

    heading: str
    frame: Frame


def read_moments(recording: Path, topic: str, facts: Facts, began_t: int) -> list[Moment]:
    """Return three moments of the first partition that the killed broker led; none if it led none.

    Args:
        recording: file of the run.
        topic: topic of the partition.
        facts: times of the kill, in seconds since the stream began.
        began_t: the beginning of the stream as a time of the recording, in milliseconds.
    """
    down = [band for band in facts.bands if band.kind == "down"]
    if not facts.leaderless_ms or not down:
        return []
    with recording.open(encoding="utf-8") as lines:
        read = read_recording(lines)
    timeline = Timeline(read.header, read.entries)
    killed, restarted = (began_t + round(at_s * 1000) for at_s in (down[0].from_s, down[0].to_s))
    in_sync = restarted + facts.full_isr_after_restart_ms
    where = TopicPartition(topic, min(facts.leaderless_ms))
    times = {
        f"Before broker {facts.killed_broker} is killed": killed,
        "While it is dead": restarted,
        "When it is in sync again": min(in_sync + 2 * SAMPLE_MS, timeline.end),
    }
    return [Moment(heading, frame_at(timeline, where, t)) for heading, t in times.items()]
