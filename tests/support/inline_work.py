"""Background work of a broker without threads."""

from collections.abc import Callable

from paceline.model.scheduler import Scheduler


class InlineWork:
    """Runs background work in the foreground, or when the test calls `run_next`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.is_held = False
        """Whether work waits in ``jobs`` for `run_next`."""
        self.jobs: list[tuple[Callable[[], None], Callable[[Exception | None], None]]] = []

    def run_next(self) -> None:
        """Run the job that has waited longest."""
        self._run(*self.jobs.pop(0))

    def run(self, work: Callable[[], None], on_done: Callable[[Exception | None], None]) -> None:
        """Run ``work`` now or later; the scheduler calls ``on_done`` afterwards."""
        if self.is_held:
            self.jobs.append((work, on_done))
        else:
            self._run(work, on_done)

    def _run(self, work: Callable[[], None], on_done: Callable[[Exception | None], None]) -> None:
        try:
            work()
        except Exception as error:
            failure = error
            self._scheduler.call_soon(lambda: on_done(failure))
        else:
            self._scheduler.call_soon(lambda: on_done(None))
