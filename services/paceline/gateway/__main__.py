"""`python -m paceline.gateway --bootstrap-servers host:port ...`; `--help` lists all options."""

import os
import sys
from collections.abc import Mapping, Sequence

from paceline.runtime.early_stop import end_at_stop_signal


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a gateway and return the exit code (`runtime.lifecycle.ExitCode`)."""
    end_at_stop_signal()  # before the imports, which take most of the start time
    from paceline.runtime.lifecycle import ExitCode
    from paceline.runtime.process_settings import settings_or_exit
    from paceline.runtime.settings import load_gateway
    from paceline.runtime.settings.keys import GatewayKeys

    settings = settings_or_exit("gateway", GatewayKeys, load_gateway, arguments, environment)
    if isinstance(settings, ExitCode):
        return settings
    from paceline.runtime.grpc_environment import wait_for_sockets_directly

    wait_for_sockets_directly()
    from paceline.gateway.service.process import run_gateway

    return run_gateway(settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
