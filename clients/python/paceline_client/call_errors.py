"""What a failed call to a broker means, with the broker named; the producer and the consumer say it alike."""

from typing import Final

import grpc

from paceline.model.errors import PacelineError, UnknownServerError
from paceline.rpc.errors import ConnectionBrokenError, error_info, from_rpc_error
from paceline_client.metadata import Broker

_REFUSALS: Final = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED}


def named_error(broker: Broker, failure: BaseException) -> PacelineError:
    """Return the error behind a failed call, or a request on a stream, with the broker named.

    Statuses that gRPC makes itself when a connection breaks (CANCELLED, INTERNAL, UNKNOWN) count as just that, so they
    are retried; the ones that would only come again are not.
    """
    if not isinstance(failure, grpc.RpcError):
        if isinstance(failure, PacelineError):
            return type(failure)(f"{broker}: {failure}")
        return UnknownServerError(f"{broker}: the request failed: {failure!r}")
    error = from_rpc_error(failure)
    unclear = error_info(failure) is None and isinstance(error, UnknownServerError) and failure.code() not in _REFUSALS
    named = (ConnectionBrokenError if unclear else type(error))(f"{broker}: {error}")
    named.__cause__ = failure
    return named
