"""Background work of a broker without threads."""

from collections.abc import Callable

from paceline.model.scheduler import Scheduler


class InlineWork:
    """Runs background work in the foreground."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def run(self, work: Callable[[], None], on_done: Callable[[Exception | None], None]) -> None:
        """Run ``work`` now; the scheduler calls ``on_done`` afterwards."""
        try:
            work()
        except Exception as error:
            failure = error
            self._scheduler.call_soon(lambda: on_done(failure))
        else:
            self._scheduler.call_soon(lambda: on_done(None))
