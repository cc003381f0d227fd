"""`python -m paceline.broker --config FILE --broker-id 1 --log-dirs DIR ...`; `--help` lists all options."""

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paceline.runtime.early_stop import end_at_stop_signal

if TYPE_CHECKING:
    from paceline.runtime.settings import BrokerSettings


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a broker and return the exit code (`runtime.lifecycle.ExitCode`)."""
    end_at_stop_signal()  # before the imports, which take most of the start time
    gc.disable()  # imports leave nothing to collect; `NodeProcess.run` enables it
    from paceline.runtime.lifecycle import ExitCode
    from paceline.runtime.process_settings import settings_or_exit
    from paceline.runtime.settings import load_broker
    from paceline.runtime.settings.keys import BrokerKeys

    settings = settings_or_exit("broker", BrokerKeys, load_broker, arguments, environment)
    return settings if isinstance(settings, ExitCode) else run(settings)


def run(settings: "BrokerSettings") -> int:
    """Run a broker with these settings."""
    from paceline.runtime.grpc_environment import wait_for_sockets_directly

    wait_for_sockets_directly()
    from paceline.broker.service.process import BrokerProcess
    from paceline.rpc.memory import keep_freed_memory
    from paceline.runtime.node_process import run_process

    keep_freed_memory(128)
    broker_id = settings.keys.broker_id
    return run_process(BrokerProcess, settings, {"broker": broker_id} if broker_id >= 0 else {})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
