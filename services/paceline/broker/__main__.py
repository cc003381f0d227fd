"""`python -m paceline.broker --config FILE --broker-id 1 --log-dirs DIR ...`; `--help` lists all options."""

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
    import asyncio

    from paceline.broker.service.process import BrokerProcess
    from paceline.runtime.lifecycle import ExitCode, StartupError, raise_open_file_limit
    from paceline.runtime.logging import configure_logging
    from paceline.runtime.memory import keep_large_buffers

    raise_open_file_limit()
    keep_large_buffers()
    keys = settings.keys
    node = {"broker": keys.broker_id} if keys.broker_id >= 0 else {}
    configure_logging(keys.logging_format, keys.logging_level, keys.state_change_log_path, bound=node)

    async def process() -> ExitCode:
        return await BrokerProcess(settings, asyncio.get_running_loop()).run()

    try:
        return asyncio.run(process())
    except StartupError as failure:
        sys.stderr.write(f"paceline broker: {failure}\n")
        return failure.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
