"""Convert a failed call into an error that names the broker, for the producer and the consumer."""

from typing import Final

import grpc

from paceline.model.errors import PacelineError, UnknownServerError
from paceline.rpc.errors import ConnectionBrokenError, error_info, from_rpc_error
from paceline_client.metadata import Broker

_BROKEN_CONNECTION: Final = {grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}


def named_error(broker: Broker | str, failure: BaseException) -> PacelineError:
    """Return the error of a failed call, or of a failed request on a stream, with the broker's name.

    Statuses that gRPC sets itself when a connection breaks (CANCELLED, INTERNAL, UNKNOWN) count as connection errors
    and are retried; other statuses without details are not.
    """
    if not isinstance(failure, grpc.RpcError):
        if isinstance(failure, PacelineError):
            return type(failure)(f"{broker}: {failure}")
        return UnknownServerError(f"{broker}: the request failed: {failure!r}")
    error = from_rpc_error(failure)
    unclear = error_info(failure) is None and failure.code() in _BROKEN_CONNECTION
    named = (ConnectionBrokenError if unclear else type(error))(f"{broker}: {error}")
    named.__cause__ = failure
    return named
