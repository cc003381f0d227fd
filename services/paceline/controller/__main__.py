"""`python -m paceline.controller --config FILE --controller-id 1000001 ...`; `--help` lists all options."""

import gc
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
    gc.disable()  # imports leave nothing to collect; `NodeProcess.run` enables it
    from paceline.runtime.lifecycle import ExitCode
    from paceline.runtime.process_settings import settings_or_exit
    from paceline.runtime.settings import load_controller
    from paceline.runtime.settings.keys import ControllerKeys

    settings = settings_or_exit("controller", ControllerKeys, load_controller, arguments, environment)
    return settings if isinstance(settings, ExitCode) else run(settings)


def run(settings: "ControllerSettings") -> int:
    """Run a controller with these settings."""
    from paceline.controller.service.process import ControllerProcess
    from paceline.runtime.node_process import run_process

    return run_process(ControllerProcess, settings, {"controller": settings.keys.controller_id})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
