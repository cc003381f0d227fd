"""Exit code for container health checks: `python -m paceline.runtime.healthcheck [ADDRESS]`.

Asks grpc.health.v1 at ADDRESS (HOST:PORT, default 127.0.0.1:9092) for the service ``readiness`` and exits 0 when it is
SERVING, 1 when it is not or nothing answers in time, 2 on bad arguments. Imports gRPC and the standard library only,
since it runs every few seconds in every container.
"""

import argparse
import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

DEFAULT_ADDRESS = "127.0.0.1:9092"
DEFAULT_SERVICE = "readiness"


def check(address: str, service: str, timeout_s: float) -> str | None:
    """Return None when the service at the address is SERVING, otherwise one line that says what it is instead."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call):
                return f"{address} {error.code().name}: {error.details()}"
            return f"{address} {error}"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return f"{address} {service} {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check and return the exit code."""
    parser = argparse.ArgumentParser(prog="paceline.runtime.healthcheck", description=__doc__.split("\n")[0])
    parser.add_argument("address", nargs="?", default=DEFAULT_ADDRESS, help="HOST:PORT of a listener (%(default)s)")
    parser.add_argument("--service", default=DEFAULT_SERVICE, help="health service to ask for (%(default)s)")
    parser.add_argument("--timeout", type=float, default=3.0, help="longest wait in seconds (%(default)s)")
    options = parser.parse_args(arguments)
    problem = check(options.address, options.service, options.timeout)
    if problem is None:
        return 0
    sys.stderr.write(f"{problem}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
