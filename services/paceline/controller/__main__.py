"""`python -m paceline.controller --config FILE --controller-id 1000001 ...`; `--help` lists all options."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paceline import __version__
from paceline.runtime.early_stop import end_at_stop_signal

if TYPE_CHECKING:
    from paceline.runtime.settings import ControllerSettings


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a controller and return the exit code (`runtime.lifecycle.ExitCode`)."""
    end_at_stop_signal()  # before the imports, which take most of the start time
    from paceline.runtime.lifecycle import ExitCode, die_with_parent
    from paceline.runtime.settings import SettingsError, load_controller, print_unchecked, process_options
    from paceline.runtime.settings.help import help_text
    from paceline.runtime.settings.keys import ControllerKeys

    options = None
    try:
        options, _ = process_options(arguments)
        if options.show_help:
            sys.stdout.write(help_text("controller", ControllerKeys))
            return ExitCode.OK
        if options.show_version:
            sys.stdout.write(f"paceline {__version__}\n")
            return ExitCode.OK
        settings = load_controller(arguments, environment)
    except SettingsError as failure:
        if options is not None and options.print_config:
            sys.stdout.write(f"{print_unchecked(ControllerKeys, arguments, environment)}\n")
        sys.stderr.write(f"{failure}\n")
        return ExitCode.USAGE
    if options.print_config:
        sys.stdout.write(f"{settings.print_config()}\n")
        return ExitCode.OK
    if options.die_with_parent:
        die_with_parent()
    return run(settings)


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
