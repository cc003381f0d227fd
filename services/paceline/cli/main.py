"""Entry point of the ``paceline`` command.

Everything else is imported after Ctrl-C has got an answer of its own: in the first tenth of a second there is nothing
to clean up, and a traceback of half-made imports helps nobody.
"""

import os
import signal
from typing import Any

INTERRUPTED = 130
"""As in `failures.py`, which is not imported here because gRPC comes with it."""


def main(*arguments: Any) -> None:
    """Run the command line."""
    before = signal.signal(signal.SIGINT, _end)
    from paceline.cli.commands import cli

    # From here on an interrupt is an exception: commands close what they have opened.
    cli(*arguments, obj=lambda: signal.signal(signal.SIGINT, before))


def _end(_number: int, _frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
