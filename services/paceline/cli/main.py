"""Entry point of the ``paceline`` command.

The handler of Ctrl-C is set before other modules are imported, so that Ctrl-C during the imports prints no traceback.
"""

import os
import signal
import sys
from typing import Any

from paceline.cli.exit_codes import INTERRUPTED


def main(*arguments: Any) -> None:
    """Run the command line."""
    before = signal.signal(signal.SIGINT, _end)
    if sys.argv[1:2] != ["dev"]:  # Servers of `dev` inherit the variable, and their logs need gRPC's lines.
        # Without it gRPC prints a line per failed handshake, beside the error of the command. gRPC reads the variable
        # when it is imported.
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        from paceline.cli.commands import cli
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.stderr.write(
            "the command line is not installed: pip install 'paceline[cli]', with servers 'paceline[services]'\n"
        )
        raise SystemExit(1) from None

    # From here on an interrupt raises an exception, so that commands close their resources.
    during = _interrupt if before is signal.default_int_handler else before
    cli(*arguments, obj=lambda: signal.signal(signal.SIGINT, during))


def _interrupt(_number: int, _frame: object) -> None:
    """Raise the exception of the first Ctrl-C; the second Ctrl-C ends the process, whatever the first waits for."""
    signal.signal(signal.SIGINT, _end)
    raise KeyboardInterrupt


def _end(_number: int, _frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
