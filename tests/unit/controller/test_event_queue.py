"""Events run one at a time, in order, each to its end; and preemption of the running and the queued events."""

from dataclasses import dataclass, field

from paceline.controller.event_queue import EventQueue
from paceline.controller.events import Event
from paceline.coordination.flow import Flow, Sleep
from tests.support.virtual_time import VirtualTime


@dataclass(frozen=True)
class Task(Event):
    """An event that takes time and records whether it was handled or preempted."""

    number: int
    log: list[str] = field(hash=False)
    fails: bool = False

    def preempt(self) -> None:
        self.log.append(f"preempted {self.number}")

    def abort(self) -> None:
        self.log.append(f"aborted {self.number}")


def handle(event: Event) -> Flow[None]:
    assert isinstance(event, Task)
    event.log.append(f"begin {event.number}")
    yield Sleep(10)
    if event.fails:
        raise ValueError("broken")
    event.log.append(f"end {event.number}")


def queue_and_log() -> tuple[EventQueue, VirtualTime, list[str], list[tuple[str, int, int]]]:
    time = VirtualTime()
    handled: list[tuple[str, int, int]] = []
    queue = EventQueue(
        time,
        None,  # type: ignore[arg-type]
        handle,
        lambda event, queued_ms, handled_ms: handled.append((event.name, queued_ms, handled_ms)),
    )
    return queue, time, [], handled


def test_an_event_runs_to_its_end_before_the_next_begins() -> None:
    queue, time, log, handled = queue_and_log()
    for number in (1, 2, 3):
        queue.put(Task(number, log))
    assert log == [], "put runs no handler"
    time.run_for(1)
    assert (queue.size, queue.idle) == (2, False)
    time.run_for(100)
    assert log == ["begin 1", "end 1", "begin 2", "end 2", "begin 3", "end 3"]
    assert handled == [("Task", 0, 10), ("Task", 10, 10), ("Task", 20, 10)]
    assert queue.idle


def test_an_event_that_raises_does_not_stop_the_queue() -> None:
    queue, time, log, _ = queue_and_log()
    queue.put(Task(1, log, fails=True))
    queue.put(Task(2, log))
    time.run_for(100)
    assert log == ["begin 1", "begin 2", "end 2"]


def test_clearing_aborts_the_running_event_and_preempts_queued_events() -> None:
    queue, time, log, _ = queue_and_log()
    for number in (1, 2, 3):
        queue.put(Task(number, log))
    time.run_for(15)
    assert log == ["begin 1", "end 1", "begin 2"]
    queue.clear()
    queue.put(Task(9, log))
    time.run_for(100)
    assert log[3:] == ["aborted 2", "preempted 3", "begin 9", "end 9"]


def test_a_closed_queue_preempts_every_new_event() -> None:
    queue, time, log, _ = queue_and_log()
    queue.put(Task(1, log))
    queue.close()
    queue.put(Task(2, log))
    time.run_for(100)
    assert log == ["preempted 1", "preempted 2"]
