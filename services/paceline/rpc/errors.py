"""Convert error classes to gRPC statuses on servers, and statuses back to error classes on clients.

A servicer raises a `PacelineError`, and the interceptor converts it to a status. The status carries a
``google.rpc.ErrorInfo`` with domain "paceline" and the error's enum name as reason, so every language reads it with the
helpers of its gRPC library. Trailers are limited, often to 8 KiB, so messages and metadata are short.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, Protocol

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2

from paceline.model.errors import (
    BrokerNotAvailableError,
    ErrorCode,
    OffsetOutOfRangeError,
    PacelineError,
    RequestTimedOutError,
    ThrottledError,
    error_for,
)
from paceline.model.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE
from paceline.v1 import errors_pb2

DOMAIN: Final = "paceline"
DETAILS_KEY: Final = "grpc-status-details-bin"
MAX_MESSAGE_CHARACTERS: Final = 1_024
MAX_METADATA_CHARACTERS: Final = 256
THROTTLE_RETRY_DELAY_MS: Final = 200

_STATUS = grpc.StatusCode

STATUS_OF_CODE: Final[dict[ErrorCode, grpc.StatusCode]] = {
    ErrorCode(value.number): grpc.StatusCode[value.GetOptions().Extensions[errors_pb2.grpc_status]]
    for value in errors_pb2.ErrorCode.DESCRIPTOR.values
    if value.number
}
"""gRPC status of every error code, from the options in errors.proto."""


def status_code_of(error: PacelineError) -> grpc.StatusCode:
    """Return the gRPC status of an error, INTERNAL for an error code that `STATUS_OF_CODE` does not contain."""
    return STATUS_OF_CODE.get(error.code, _STATUS.INTERNAL)


def to_rpc_status(error: PacelineError) -> status_pb2.Status:
    """Return the ``google.rpc.Status`` of an error with ErrorInfo, and with RetryInfo if it is a `ThrottledError`."""
    status = status_pb2.Status(
        code=_number(status_code_of(error)), message=str(error)[:MAX_MESSAGE_CHARACTERS] or error.code.name
    )
    metadata = error.metadata
    if isinstance(error, OffsetOutOfRangeError):
        metadata.setdefault("log_start_offset", str(error.log_start_offset))
        metadata.setdefault("high_watermark", str(error.end_offset))
    info = error_details_pb2.ErrorInfo(
        reason=error.code.name,
        domain=DOMAIN,
        metadata={key: value[:MAX_METADATA_CHARACTERS] for key, value in metadata.items()},
    )
    status.details.append(_packed(info))
    if isinstance(error, ThrottledError):
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(int(metadata.get("retry_delay_ms", THROTTLE_RETRY_DELAY_MS)))
        status.details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    return status


class ConnectionBrokenError(BrokerNotAvailableError):
    """The connection broke before the response: the server may or may not have executed the request."""

    definite = False


class _Failure(Protocol):
    """The part of `grpc.RpcError` that carries the status, for blocking and asyncio calls."""

    def code(self) -> grpc.StatusCode: ...

    def details(self) -> str | None: ...

    def trailing_metadata(self) -> Sequence[tuple[str, str | bytes]] | None: ...


def from_rpc_error(failure: Any) -> PacelineError:
    """Return the `PacelineError` for a failed call; its ``__cause__`` is the RpcError.

    With Paceline's ErrorInfo it is the class that the server raised, with its metadata. Otherwise the status comes from
    gRPC itself:

    * an expired deadline becomes `RequestTimedOutError`; the outcome is unknown;
    * a connection that could not be made becomes `BrokerNotAvailableError`;
    * a connection that broke becomes `ConnectionBrokenError`; the outcome is unknown;
    * any other status becomes the class in `_BARE_STATUS`, or `UnknownServerError`.
    """
    call: _Failure = failure
    error = _from_details(call) or _from_bare_status(call)
    error.__cause__ = failure if isinstance(failure, BaseException) else None
    return error


def error_info(failure: Any) -> error_details_pb2.ErrorInfo | None:
    """Return Paceline's ErrorInfo from the trailers of a failed call, None when it is missing or does not parse."""
    for detail in _details(failure):
        info = error_details_pb2.ErrorInfo()
        try:
            if detail.Unpack(info) and info.domain == DOMAIN:
                return info
        except DecodeError:
            return None
    return None


def _details(failure: Any) -> list[any_pb2.Any]:
    """Return the status details in the trailers of a failed call, an empty list when they are malformed."""
    call: _Failure = failure
    for key, value in call.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return list(status_pb2.Status.FromString(value).details)
            except DecodeError:
                return []
    return []


def _from_details(call: _Failure) -> PacelineError | None:
    info = error_info(call)
    if info is None or info.reason not in ErrorCode.__members__:
        return None
    error = error_for(ErrorCode[info.reason], call.details() or "")
    metadata = dict(info.metadata)
    if isinstance(error, OffsetOutOfRangeError):
        error.log_start_offset = _integer(metadata.get("log_start_offset"))
        error.end_offset = _integer(metadata.get("high_watermark"))
    delay_ms = retry_delay_ms(call)
    if delay_ms is not None:
        metadata["retry_delay_ms"] = str(delay_ms)
    return error.with_metadata(**metadata)


def retry_delay_ms(failure: Any) -> int | None:
    """Return the shortest pause before a retry from a failed call's RetryInfo, None when it has no RetryInfo."""
    for detail in _details(failure):
        retry = error_details_pb2.RetryInfo()
        try:
            if detail.Unpack(retry):
                return int(retry.retry_delay.ToMilliseconds())
        except DecodeError:
            return None
    return None


_BARE_STATUS: Final[dict[grpc.StatusCode, ErrorCode]] = {
    _STATUS.DEADLINE_EXCEEDED: ErrorCode.REQUEST_TIMED_OUT,
    _STATUS.UNAVAILABLE: ErrorCode.BROKER_NOT_AVAILABLE,
    _STATUS.RESOURCE_EXHAUSTED: ErrorCode.THROTTLED,
    _STATUS.INVALID_ARGUMENT: ErrorCode.INVALID_REQUEST,
    _STATUS.UNIMPLEMENTED: ErrorCode.INVALID_REQUEST,
}
"""Error codes of statuses without ErrorInfo, which gRPC itself sends.

RESOURCE_EXHAUSTED means too many concurrent calls, unless its message is about a size.
"""

_TOO_LARGE: Final = "larger than max"
"""Part of gRPC's status message when a message exceeds the size limit, before or after decompression."""


def _from_bare_status(call: _Failure) -> PacelineError:
    status = call.code()
    name = status.name if isinstance(status, grpc.StatusCode) else str(status)
    said = call.details() or "no details"
    code = _BARE_STATUS.get(status, ErrorCode.UNKNOWN_SERVER_ERROR)
    if status is _STATUS.RESOURCE_EXHAUSTED and _TOO_LARGE in said:
        code = ErrorCode.MESSAGE_TOO_LARGE
    refused = said if not said.endswith("Connection refused") else "connection refused"  # gRPC repeats the address
    message = f"{name}: {_tls_advice(said) or refused}"
    if status is _STATUS.UNAVAILABLE and not _never_sent(said):
        return ConnectionBrokenError(message)
    return error_for(code, message)


_TLS_ADVICE: Final = (
    (
        re.compile(r"CERTIFICATE_VERIFY_FAILED(: [\w -]+)?", re.IGNORECASE),
        f"{CA_FILE} does not name the authority of the server's certificate, or the certificate has expired or is for "
        "another host name",
    ),
    (
        re.compile("WRONG_VERSION_NUMBER", re.IGNORECASE),
        f"the server does not use TLS on this port: unset {CA_FILE}, or use another port",
    ),
    (
        re.compile("Socket closed", re.IGNORECASE),
        "an SSL listener ends connections without TLS, and those whose certificate is missing, expired or of another "
        f"authority: check {CA_FILE}, {CERTIFICATE_FILE} and {KEY_FILE}",
    ),
)


def _tls_advice(said: str) -> str | None:
    """Return advice when a TLS setting probably made the connection fail, None for other failures.

    The advice omits the other parts of gRPC's message: addresses and names of OpenSSL functions.
    """
    if "failed to connect" in said.lower():
        for words, advice in _TLS_ADVICE:
            found = words.search(said)
            if found:
                return f"{found[0]}: {advice}"
    return None


def _never_sent(said: str) -> bool:
    """Whether gRPC's status message says that no connection was made, so the request was not sent."""
    said = said.lower()
    return any(words in said for words in ("failed to connect", "connection refused", "errors resolving"))


def is_unconnected(failure: Any) -> bool:
    """Whether a call failed because no connection was made: refused, unknown host name, or a failed TLS handshake."""
    call: _Failure = failure
    return call.code() is _STATUS.UNAVAILABLE and error_info(failure) is None and _never_sent(call.details() or "")


def is_retriable(failure: BaseException) -> bool:
    """Whether the same call may succeed later: a retriable `PacelineError`, or an RpcError that converts to one."""
    if isinstance(failure, PacelineError):
        return failure.retriable
    if isinstance(failure, grpc.RpcError):
        return from_rpc_error(failure).retriable
    return False


def is_timeout(failure: BaseException) -> bool:
    """Whether the failure is only an expired deadline, which does not name the cause."""
    if isinstance(failure, grpc.RpcError):
        failure = from_rpc_error(failure)
    return isinstance(failure, RequestTimedOutError)


def _number(code: grpc.StatusCode) -> int:
    return int(code_pb2.Code.Value(code.name))


def _packed(message: Any) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def _integer(text: str | None) -> int:
    try:
        return int(text or "-1")
    except ValueError:
        return -1
