"""Flows: multi-step operations on ZooKeeper, written as generators that do no I/O.

A flow yields a step and is resumed with its result, so that the same code runs with a real ensemble and in the
simulator (the pattern of psycopg's generators). A flow runs on its node's scheduler and is never re-entered.

    def read_topic(topic: str) -> Flow[bytes | None]:
        (response,) = yield Zk([GetData(topic_path(topic))])
        return response.data
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from paceline.coordination.interface import Request, Response, ZooKeeper
from paceline.model.scheduler import Cancellable, Scheduler

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Zk:
    """Send these requests, pipelined, and resume with the list of responses in the same order."""

    requests: Sequence[Request]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Resume with None after this many milliseconds."""

    delay_ms: float


Step = Zk | Sleep
Flow = Generator[Step, Any, T]


class FlowRun(Generic[T]):
    """A run of a flow. `cancel` closes the generator; no callback is made afterwards."""

    def __init__(
        self,
        flow: Flow[T],
        zookeeper: ZooKeeper,
        scheduler: Scheduler,
        on_done: Callable[[T], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._flow = flow
        self._zookeeper = zookeeper
        self._scheduler = scheduler
        self._on_done = on_done
        self._on_error = on_error
        self._timer: Cancellable | None = None
        self._over = False

    def start(self) -> "FlowRun[T]":
        """Run the flow up to its first wait and return the run."""
        self._advance(None)
        return self

    def cancel(self) -> None:
        """Stop the flow at its present step."""
        if self._over:
            return
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        self._flow.close()

    def _advance(self, value: Any) -> None:
        if self._over:
            return
        try:
            step = self._flow.send(value)
        except StopIteration as stop:
            self._over = True
            self._on_done(stop.value)
            return
        except Exception as error:
            self._over = True
            self._on_error(error)
            return
        if isinstance(step, Zk):
            if step.requests:
                self._zookeeper.submit(step.requests, self._responses)
            else:
                self._scheduler.call_soon(lambda: self._advance([]))
        else:
            self._timer = self._scheduler.call_later(step.delay_ms, lambda: self._advance(None))

    def _responses(self, responses: list[Response]) -> None:
        self._advance(responses)
