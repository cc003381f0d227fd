"""The lessons of docs/lessons: three short scripted runs, recorded, with five sentences each.

``python -m tests.simulation.lessons`` writes recordings, pictures and pages. A sentence is tied to an event of the run,
not to a time, so that the lessons survive changes of the services; a run without that event is an error.
"""

import argparse
import gzip
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.console import drawing
from paceline.console.lens import Frame, frame_at
from paceline.console.recording import EVENT, FAULT, Header, Recording, RecordingWriter, read_recording
from paceline.console.timeline import Timeline
from paceline.model.identifiers import TopicPartition
from tests.simulation.fault_schedule import Fault
from tests.simulation.network import LinkQuality
from tests.simulation.profile import Profile, draw_base_profile
from tests.simulation.run import TOPIC, Run
from tests.simulation.world import MILLISECOND, World

FOLDER = Path(__file__).parents[2] / "docs" / "lessons"
TP = TopicPartition(TOPIC, 0)
_COMMAND = "python -m tests.simulation.lessons"


@dataclass(frozen=True, slots=True)
class Step:
    """A sentence about a moment."""

    event: Callable[[dict[str, Any]], bool]
    """The event or fault that it is about."""
    after_ms: int
    """How long after that event."""
    sentence: str
    is_true: Callable[[Frame], bool]
    """Whether the sentence is true of the lens at that moment."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A scripted run of three brokers and one partition."""

    name: str
    title: str
    seed: int
    faults: tuple[Fault, ...]
    panels: tuple[str, ...]
    """Panels whose pictures are in the page."""
    steps: tuple[Step, ...]
    script: Callable[[Run], None] = lambda _run: None
    more: dict[str, Any] = field(default_factory=dict)

    def profile(self) -> Profile:
        """Return a calm profile: nothing happens but the faults of the lesson."""
        calm = {
            "controllers": 2, "brokers": 3, "replication_factor": 3, "min_insync_replicas": 2, "partitions": 1,
            "producers": 2, "readers": 0, "acks_all": 0.0, "send_every_ms": 60, "session_timeout_ms": 2_000,
            "replica_lag_time_max_ms": 2_000, "lease_ms": 0, "log_dirs": 1, "racks": False, "fault_kinds": (),
            "fault_count": 0, "operation_kinds": (), "operation_count": 0, "fault_ms": 10_000, "evictions": 0,
            "lost_segments": 0, "slow_disks": 0, "retention_bytes": -1, "retention_ms": -1, "hidden_listeners": 0,
            "ambushes": 0, "epoch_lookups": False, "in_flight": 1,
        }  # fmt: skip
        return replace(draw_base_profile(World(1)), **{**calm, **self.more})


class LessonError(Exception):
    """A run does not show what its lesson says."""


def recorded(lesson: Lesson) -> Recording:
    """Run a lesson and return its recording, with the times of its sentences in the header.

    Raises:
        LessonError: an event is missing, a sentence is not true, or an invariant was violated.
    """
    lines: list[str] = []
    header = Header(title=lesson.title, origin="simulation", began_ms=0, made_by=_COMMAND)
    run = Run(
        lesson.seed,
        faults=lesson.faults,
        profile=lesson.profile(),
        recording=RecordingWriter(lines.append, header),
    )
    lesson.script(run)
    result = run.run()
    if result.failures:
        raise LessonError(f"{lesson.name}: {result.failures}")
    recording = read_recording(lines)
    return Recording(replace(header, steps=tuple(_steps(lesson, recording))), recording.entries)


def _steps(lesson: Lesson, recording: Recording) -> Iterator[tuple[int, str]]:
    timeline = Timeline(recording.header, recording.entries)
    for number, step in enumerate(lesson.steps, 1):
        told = (one for one in recording.entries if one.kind in (EVENT, FAULT) and step.event(one.value))
        entry = next(told, None)
        if entry is None:
            raise LessonError(f"{lesson.name}: nothing happens for sentence {number}")
        frame = frame_at(timeline, TP, entry.t + step.after_ms)
        if not step.is_true(frame):
            raise LessonError(f"{lesson.name}: sentence {number} is not true at {frame.clock}: {frame.replicas}")
        yield frame.t, step.sentence


def write(lesson: Lesson, folder: Path) -> None:
    """Write recording, pictures and page of a lesson."""
    recording = recorded(lesson)
    lines: list[str] = []
    writer = RecordingWriter(lines.append, recording.header)
    for entry in recording.entries:
        writer.add(entry)
    writer.end()
    (folder / f"{lesson.name}.ndjson.gz").write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    timeline = Timeline(recording.header, recording.entries)
    draws = {"offsets": drawing.offsets_svg, "controllers": drawing.controllers_svg, "requests": drawing.exchange_svg}
    page = [f"# {lesson.title}\n", f"Play it: `paceline console --replay docs/lessons/{lesson.name}.ndjson.gz`\n"]
    for number, (t, sentence) in enumerate(recording.header.steps, 1):
        frame = frame_at(timeline, TP, t)
        page.append(f"{number}. **{frame.clock[3:]}** {sentence}\n")
        for panel in lesson.panels:
            picture = f"{lesson.name}-{number}-{panel}.svg"
            (folder / picture).write_text(drawing.picture(draws[panel](frame), 760), encoding="utf-8")
            page.append(f"   ![{panel} of {TP.topic}/{TP.partition} at {frame.clock}]({picture})\n")
    page.append(f"This page, its pictures and the recording are written by `{_COMMAND}`, from a run of the simulator.")
    (folder / f"{lesson.name}.md").write_text("\n".join(page) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Write all lessons."""
    parser = argparse.ArgumentParser(prog=_COMMAND, description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    for lesson in LESSONS:
        write(lesson, folder)
        print(f"wrote {folder / lesson.name}.md")
    return 0


# Events ---------------------------------------------------------------------------------------------------------------


def _event(kind: str, **fields: Any) -> Callable[[dict[str, Any]], bool]:
    return lambda value: value.get("kind") == kind and all(value.get(name) == each for name, each in fields.items())


def _fault(who: str, what: str) -> Callable[[dict[str, Any]], bool]:
    return lambda value: str(value.get("who")).startswith(who) and str(value.get("what")).startswith(what)


def _refused(value: dict[str, Any]) -> bool:
    return (
        value.get("kind") == "control-request"
        and value.get("request") == "LeaderAndIsr"
        and value.get("known_controller_epoch", 0) > value["controller_epoch"]
    )


def _end(frame: Frame, broker: int | None) -> int:
    return next((one.log_end_offset or 0 for one in frame.replicas if one.broker_id == broker), 0)


def _delay_and_depose(run: Run) -> None:
    """Delay messages when the leader has died, and delete ``/controller`` right after the controller's decision."""
    cluster = run.cluster

    def wait() -> None:
        record = cluster.checks.records.current(TP)
        if record is None or record.zk is None or record.zk.leader_epoch < 1:
            run.world.after(MILLISECOND // 2, wait)
            return
        cluster.record_fault("operator", "deletes /controller")
        evict = Fault(0, "evict-controller", 0, 0)
        run.world.after(3 * MILLISECOND // 2, lambda: run.injector._evict_controller(evict))
        run.world.after(30 * MILLISECOND, lambda: setattr(cluster.network, "quality", LinkQuality()))

    slow = LinkQuality(straggler=0.3, straggler_us=1_800_000)
    run.world.after(3_250 * MILLISECOND, lambda: setattr(cluster.network, "quality", slow))
    run.world.after(3_250 * MILLISECOND, wait)


LESSONS = (
    Lesson(
        "lagging-follower",
        "A follower falls behind, leaves the ISR and returns",
        1,
        (Fault(3_000, "cut-replication", 1, 5_000, 11),),
        ("offsets",),
        (
            Step(
                _event("became-leader"), 2_000,
                "Broker 3 leads; all three replicas have the same records, and the high watermark is at their end.",
                lambda frame: frame.leader == 3 and frame.isr == (1, 2, 3) and _end(frame, 2) >= _end(frame, 3) - 6,
            ),
            Step(
                _fault("network", "is cut"), 1_000,
                "The network between broker 2 and the other brokers is cut: its log stops, and so does the high "
                "watermark, because a record is committed only when every member of the ISR has it.",
                lambda frame: _end(frame, 3) > (frame.high_watermark or 0) >= _end(frame, 2) - 1,
            ),
            Step(
                _event("isr-shrunk"), -100,
                "A producer with acks=1 still gets its records acknowledged, but a producer with acks=all waits: the "
                "green line stands still, and the hatched part of the leader's log grows.",
                lambda frame: frame.acknowledged is not None and frame.acknowledged <= (frame.high_watermark or 0),
            ),
            Step(
                _event("isr-shrunk"), 100,
                "After replica.lag.time.max.ms, two seconds here, the leader takes broker 2 out of the ISR, and the "
                "high watermark jumps to the end of what brokers 1 and 3 have.",
                lambda frame: frame.isr == (1, 3) and (frame.high_watermark or 0) > _end(frame, 2),
            ),
            Step(
                _event("isr-expanded"), 300,
                "The network is back: broker 2 copied what it lacked, reached the leader's log end, and the leader "
                "took it back into the ISR.",
                lambda frame: frame.isr == (1, 2, 3) and _end(frame, 2) >= _end(frame, 3) - 6,
            ),
        ),
    ),
    Lesson(
        "dead-leader",
        "A leader dies with records that no other broker has, and truncates them when it returns",
        1,
        (Fault(3_000, "cut-replication", 2, 2_500, 11), Fault(4_200, "kill-leader", 0, 4_000)),
        ("offsets",),
        (
            Step(
                _event("became-leader"), 2_000,
                "Broker 3 leads in epoch 0; all three replicas have the same records.",
                lambda frame: frame.leader == 3 and frame.leader_epoch == 0,
            ),
            Step(
                _fault("network", "is cut"), 1_000,
                "No follower reaches broker 3 any more; producers do, and the leader writes records that only it has: "
                "the hatched part, above the high watermark.",
                lambda frame: _end(frame, 3) > _end(frame, 1) and _end(frame, 3) > _end(frame, 2),
            ),
            Step(
                _fault("broker-3", "crashes"), 200,
                "Broker 3 dies; the high watermark and the green line say what was promised to acks=all, and every "
                "member of the ISR has that.",
                lambda frame: (frame.acknowledged or 0) <= min(_end(frame, 1), _end(frame, 2)),
            ),
            Step(
                _event("became-leader", leader_epoch=1), 150,
                "Broker 1 leads in epoch 1 from the end of its own log: the records that only broker 3 had are lost, "
                "and none of them was acknowledged to acks=all.",
                lambda frame: frame.leader == 1 and (frame.acknowledged or 0) <= _end(frame, 1) < _end(frame, 3),
            ),
            Step(
                _event("truncated", who="broker-3"), 8,
                "Broker 3 returns, asks the leader where epoch 0 ended, truncates its log to that offset (✂) and "
                "copies the records of epoch 1.",
                lambda frame: (frame.replicas[0].truncated_from or 0) > _end(frame, 3),
            ),
        ),
    ),
    Lesson(
        "deposed-controller",
        "A request of a deposed controller comes late and is refused",
        4,
        (Fault(3_000, "kill-leader", 0, 4_000),),
        ("controllers", "requests"),
        (
            Step(
                _event("became-leader"), 2_000,
                "Controller 1000001 is active with controller epoch 1, and the brokers have applied its requests.",
                lambda frame: frame.controller_epoch == 1 and len(frame.requests) > 0,
            ),
            Step(
                _event("leader-elected", leader_epoch=1), 1,
                "The leader has died, and the controller elects another in leader epoch 1; the network delivers some "
                "of its LeaderAndIsr requests much later.",
                lambda frame: frame.leader_epoch == 1,
            ),
            Step(
                _event("controller-elected", controller_epoch=2), 1,
                "Meanwhile an operator deletes /controller, so controller 1000000 is elected with controller epoch 2.",
                lambda frame: frame.controller == 1_000_000 and frame.controller_epoch == 2,
            ),
            Step(
                _refused, -20,
                "The new controller has read the same state from ZooKeeper and has sent its own requests; the brokers "
                "now know controller epoch 2.",
                lambda frame: any(one.get("controller_epoch") == 2 and not one.get("error") for one in frame.requests),
            ),
            Step(
                _refused, 20,
                "A delayed request of controller epoch 1 arrives, and the broker refuses it, because it knows a newer "
                "epoch: without that number it could not tell an old decision from a new one.",
                lambda frame: any(_refused(one) for one in frame.requests),
            ),
        ),
        _delay_and_depose,
        {"refused_connects": True, "producers": 1, "acks_all": 1.0},
    ),
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
