"""`python -m paceline.controller --config FILE --controller-id 1000001 ...`; `--help` lists all options."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paceline.runtime.early_stop import end_at_stop_signal

if TYPE_CHECKING:
    from paceline.runtime.settings import ControllerSettings


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a controller and return the exit code (`runtime.lifecycle.ExitCode`)."""
    end_at_stop_signal()  # before the imports, which take most of the start time
    from paceline.runtime.lifecycle import ExitCode
    from paceline.runtime.process_settings import settings_or_exit
    from paceline.runtime.settings import load_controller
    from paceline.runtime.settings.keys import ControllerKeys

    settings = settings_or_exit("controller", ControllerKeys, load_controller, arguments, environment)
    return settings if isinstance(settings, ExitCode) else run(settings)


def run(settings: "ControllerSettings") -> int:
    """Run a controller with these settings."""
    import asyncio

    from paceline.controller.service.process import ControllerProcess
    from paceline.runtime.lifecycle import ExitCode, StartupError, raise_open_file_limit
    from paceline.runtime.logging import configure_logging

    keys = settings.keys
    node = {"controller": keys.controller_id}
    configure_logging(keys.logging_format, keys.logging_level, keys.state_change_log_path, bound=node)
    raise_open_file_limit()

    async def process() -> ExitCode:
        return await ControllerProcess(settings, asyncio.get_running_loop()).run()

    try:
        return asyncio.run(process())
    except StartupError as failure:
        sys.stderr.write(f"paceline controller: {failure}\n")
        return failure.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
