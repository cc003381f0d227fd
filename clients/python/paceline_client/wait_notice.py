"""Log the cause of a long wait: first after about two seconds, then every ten seconds."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

LOG = logging.getLogger("paceline.client")

FIRST_NOTICE_S: Final = 1.8
NEXT_NOTICE_S: Final = 10.0


class Wait:
    """A wait in progress; ``cause`` is the text of the last failure, empty before the first failure."""

    def __init__(self) -> None:
        self.cause = ""

    def failed(self, failure: BaseException, _pause_s: float = 0.0) -> None:
        """Record the cause of a failed attempt."""
        self.cause = str(failure)


@contextmanager
def wait_notice(waits_for: str, first_s: float = FIRST_NOTICE_S, next_s: float = NEXT_NOTICE_S) -> Iterator[Wait]:
    """Log a warning with the last cause after ``first_s``, and then every ``next_s``."""
    wait = Wait()
    ended = threading.Event()

    def tell() -> None:
        pause_s = first_s
        while not ended.wait(pause_s):
            LOG.warning("waiting for %s%s", waits_for, f": {wait.cause}" if wait.cause else "")
            pause_s = next_s

    threading.Thread(target=tell, name="paceline-wait", daemon=True).start()
    try:
        yield wait
    finally:
        ended.set()
