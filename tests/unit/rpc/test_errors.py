"""Errors survive the wire: the client raises the class that the server raised."""

import pickle
from copy import copy

import grpc
import pytest
from google.protobuf.descriptor import EnumValueDescriptor

from paceline.model.errors import (
    ERROR_CLASSES,
    BrokerNotAvailableError,
    ErrorCode,
    MessageTooLargeError,
    NotControllerError,
    OffsetOutOfRangeError,
    PacelineError,
    RequestTimedOutError,
    ThrottledError,
    UnknownServerError,
    error_for,
)
from paceline.rpc.errors import (
    DETAILS_KEY,
    STATUS_OF_CODE,
    ConnectionBrokenError,
    error_info,
    from_rpc_error,
    is_retriable,
    is_timeout,
    status_code_of,
    to_rpc_status,
)
from paceline.v1 import errors_pb2


class FakeCall(grpc.RpcError):
    """A failed call as a gRPC client receives it."""

    def __init__(self, code: grpc.StatusCode, details: str = "", trailers: tuple[tuple[str, bytes], ...] = ()) -> None:
        super().__init__()
        self._code, self._details, self._trailers = code, details, trailers

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return self._trailers


def sent(error: PacelineError) -> FakeCall:
    status = to_rpc_status(error)
    return FakeCall(status_code_of(error), status.message, ((DETAILS_KEY, status.SerializeToString()),))


@pytest.mark.parametrize("code", sorted(ERROR_CLASSES))
def test_every_error_class_has_a_status_and_survives_the_round_trip(code: ErrorCode) -> None:
    error = error_for(code, "what happened").with_metadata(leader_epoch=7)
    back = from_rpc_error(sent(error))
    assert type(back) is type(error)
    assert str(back) == "what happened"
    assert back.metadata["leader_epoch"] == "7"
    assert STATUS_OF_CODE[code] is status_code_of(error)
    assert STATUS_OF_CODE[code] is not grpc.StatusCode.OK


def _options(value: EnumValueDescriptor) -> tuple[bool, bool, bool]:
    options = value.GetOptions().Extensions
    return options[errors_pb2.retriable], options[errors_pb2.definite], options[errors_pb2.refresh_metadata]


def test_the_options_of_the_protos_equal_those_of_the_error_classes() -> None:
    values = errors_pb2.ErrorCode.DESCRIPTOR.values
    said = {value.number: _options(value) for value in values if value.number}
    assert said == {
        int(code): (cls.retriable, cls.definite, cls.refresh_metadata) for code, cls in ERROR_CLASSES.items()
    }


def test_a_client_reads_the_retry_delay_of_a_throttled_call() -> None:
    assert from_rpc_error(sent(ThrottledError("full").with_metadata(retry_delay_ms=250))).retry_delay_ms == 250
    assert from_rpc_error(sent(NotControllerError("not me"))).retry_delay_ms == 0


def test_the_error_info_names_domain_reason_and_metadata() -> None:
    info = error_info(sent(NotControllerError("not me").with_metadata(address="127.0.0.1:9082")))
    assert info is not None
    assert (info.domain, info.reason, dict(info.metadata)) == (
        "paceline",
        "NOT_CONTROLLER",
        {"address": "127.0.0.1:9082"},
    )


def test_an_offset_out_of_range_contains_both_ends_of_the_log() -> None:
    back = from_rpc_error(sent(OffsetOutOfRangeError("too far", log_start_offset=5, end_offset=9)))
    assert isinstance(back, OffsetOutOfRangeError)
    assert (back.log_start_offset, back.end_offset) == (5, 9)


def test_a_throttled_status_contains_the_retry_delay() -> None:
    from google.rpc import error_details_pb2

    status = to_rpc_status(ThrottledError("full").with_metadata(retry_delay_ms=250))
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in status.details)
    assert retry.retry_delay.ToMilliseconds() == 250


def test_trailers_stay_small_for_any_length_of_the_message() -> None:
    error = UnknownServerError("x" * 1_000_000).with_metadata(detail="y" * 1_000_000)
    assert to_rpc_status(error).ByteSize() < 4_096


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, RequestTimedOutError),
        (grpc.StatusCode.UNAVAILABLE, ConnectionBrokenError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ThrottledError),
        (grpc.StatusCode.CANCELLED, UnknownServerError),
        (grpc.StatusCode.INTERNAL, UnknownServerError),
    ],
)
def test_a_status_created_by_grpc_becomes_the_nearest_error_class(
    status: grpc.StatusCode, expected: type[PacelineError]
) -> None:
    failure = FakeCall(status, "said by gRPC")
    error = from_rpc_error(failure)
    assert type(error) is expected
    assert "said by gRPC" in str(error)
    assert error.__cause__ is failure


@pytest.mark.parametrize(
    ("details", "definite"),
    [
        ("failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: connection refused", True),
        ("Connection refused", True),
        ("Socket closed", False),
        ("Connection reset by peer", False),
        ("", False),
    ],
)
def test_only_a_failed_connect_is_a_definite_failure(details: str, definite: bool) -> None:
    error = from_rpc_error(FakeCall(grpc.StatusCode.UNAVAILABLE, details))
    assert isinstance(error, BrokerNotAvailableError) and is_retriable(error)
    assert error.definite is definite
    assert from_rpc_error(sent(BrokerNotAvailableError("still starting"))).definite, "the status is the server's own"


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        (
            "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"
            "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate: OK",
            "UNAVAILABLE: CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate: PACELINE_SSL_CA_FILE ",
        ),
        ("Socket closed", "UNAVAILABLE: Socket closed: "),
        (
            "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:100000f7:SSL routines:OPENSSL_internal:"
            "WRONG_VERSION_NUMBER: Invalid certificate verification context",
            "UNAVAILABLE: WRONG_VERSION_NUMBER: ",
        ),
    ],
)
def test_a_failed_handshake_is_told_in_a_sentence_without_addresses(details: str, expected: str) -> None:
    text = f"failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:19091: {details}"
    error = from_rpc_error(FakeCall(grpc.StatusCode.UNAVAILABLE, text))
    assert str(error).startswith(expected)
    assert "PACELINE_SSL_CA_FILE" in str(error)
    assert "127.0.0.1" not in str(error) and "OPENSSL_internal" not in str(error)
    assert is_retriable(error) and isinstance(error, BrokerNotAvailableError) and error.definite


@pytest.mark.parametrize(
    "details",
    ["SERVER: Received message larger than max (9 vs. 4)", "Decompressed message larger than max"],
)
def test_a_message_above_grpcs_own_limit_is_too_large_and_not_worth_a_retry(details: str) -> None:
    error = from_rpc_error(FakeCall(grpc.StatusCode.RESOURCE_EXHAUSTED, details))
    assert type(error) is MessageTooLargeError and not is_retriable(error)


def test_a_malformed_trailer_is_ignored() -> None:
    failure = FakeCall(grpc.StatusCode.INTERNAL, "odd", ((DETAILS_KEY, b"\xff\xff\xff"),))
    assert error_info(failure) is None
    assert isinstance(from_rpc_error(failure), UnknownServerError)


def test_a_reason_of_a_newer_server_is_an_unknown_server_error() -> None:
    status = to_rpc_status(NotControllerError("x"))
    call = FakeCall(
        grpc.StatusCode.INTERNAL,
        "new",
        ((DETAILS_KEY, status.SerializeToString().replace(b"NOT_CONTROLLER", b"NOT_CONTRALTOR")),),
    )
    assert isinstance(from_rpc_error(call), UnknownServerError)


def test_retriable_and_timeout_are_read_from_the_rpc_error() -> None:
    assert is_retriable(sent(NotControllerError("x")))
    assert not is_retriable(sent(MessageTooLargeError("x")))
    assert is_retriable(FakeCall(grpc.StatusCode.UNAVAILABLE))
    assert not is_retriable(ValueError("a bug"))
    assert is_timeout(FakeCall(grpc.StatusCode.DEADLINE_EXCEEDED))
    assert not is_timeout(FakeCall(grpc.StatusCode.UNAVAILABLE))


def test_a_timeout_is_also_the_timeout_of_the_standard_library() -> None:
    call = FakeCall(grpc.StatusCode.DEADLINE_EXCEEDED, "30 s")
    with pytest.raises(TimeoutError, match=r"^DEADLINE_EXCEEDED: 30 s$"):
        raise from_rpc_error(call)
    told = RequestTimedOutError("no answer").with_metadata(address="a:1")
    for same in (pickle.loads(pickle.dumps(told)), copy(told)):
        assert (type(same), str(same), same.metadata) == (RequestTimedOutError, "no answer", {"address": "a:1"})
        assert isinstance(same, PacelineError) and same.retriable and not same.definite
    assert [cls for cls in ERROR_CLASSES.values() if issubclass(cls, OSError)] == [RequestTimedOutError]
