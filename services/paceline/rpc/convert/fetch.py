"""Client fetches: `model.client_io` <-> ``paceline.v1``. `rpc/wire.py` encodes the batches.

An absent field has the default that the protos document; an unknown enum value is refused.
"""

from typing import Final

from paceline.model.client_io import FetchRequest, FetchResult
from paceline.model.errors import InvalidRequestError
from paceline.model.fetch_position import FetchPosition
from paceline.rpc.convert.common import (
    MAX_CLIENT_PARTITIONS,
    at_least,
    bounded,
    epoch_end_to_proto,
    message_of,
    partition_of,
    refuse_duplicates,
    topic_id_of,
)
from paceline.rpc.convert.failures import AddressOf, no_address, optional_failure
from paceline.v1 import log_service_pb2 as pb

MAX_WAIT_MS: Final = 60_000
MAX_RACK_CHARACTERS: Final = 256
DEFAULT_FETCH_BYTES: Final = 1024 * 1024
OPENING_EPOCH: Final = 0
"""Session epoch in the model of a full fetch that opens a session, as in Kafka's protocol and between brokers."""
CLOSING_EPOCH: Final = -1
"""Session epoch in the model of a full fetch without a session; it closes the session of its session id, if any."""


def check_isolation(number: int) -> None:
    """Check an isolation level; while there are no transactions, all levels read the same records.

    Raises:
        InvalidRequestError: the number is unknown.
    """
    if number not in pb.IsolationLevel.values():
        raise InvalidRequestError(f"isolation level {number} is not known")


def fetch_from_proto(message: pb.FetchRequest) -> FetchRequest:
    """Decode a client's fetch; the wait is limited to 60 s, a size of 0 means 1 MiB. The log checks the offsets.

    Raises:
        InvalidRequestError: a partition is listed twice, or a number is out of range.
        InvalidTopicError: a topic name is invalid.
    """
    partitions = [
        FetchPosition(
            topic_partition=partition_of(one),
            topic_id=topic_id_of(one.topic_id),
            fetch_offset=one.fetch_offset,
            max_bytes=at_least(one.max_bytes, 0, "max bytes") or DEFAULT_FETCH_BYTES,
            current_leader_epoch=one.current_leader_epoch if one.HasField("current_leader_epoch") else None,
            last_fetched_epoch=one.last_fetched_epoch if one.HasField("last_fetched_epoch") else None,
        )
        for one in bounded(message.partitions, MAX_CLIENT_PARTITIONS, "partitions")
    ]
    refuse_duplicates([one.topic_partition for one in partitions])
    check_isolation(message.isolation_level)
    return FetchRequest(
        max_wait_ms=min(at_least(message.max_wait_ms, 0, "max wait"), MAX_WAIT_MS),
        min_bytes=at_least(message.min_bytes, 0, "min bytes"),
        max_bytes=at_least(message.max_bytes, 0, "max bytes") or DEFAULT_FETCH_BYTES,
        partitions=partitions,
        session_id=at_least(message.session_id, 0, "session id"),
        session_epoch=_session_epoch(message),
        forgotten=[partition_of(one) for one in bounded(message.forgotten, MAX_CLIENT_PARTITIONS, "partitions")],
        rack=_rack(message.rack_id),
    )


def _session_epoch(message: pb.FetchRequest) -> int:
    """Return the session epoch of the model; `OPENING_EPOCH` and `CLOSING_EPOCH` mark the two kinds of full fetch.

    Raises:
        InvalidRequestError: the epoch is negative, or a fetch in a session asks to open a session.
    """
    epoch = at_least(message.session_epoch, 0, "session epoch")
    if message.open_session:
        if epoch:
            raise InvalidRequestError(f"open_session needs session_epoch 0, not {epoch}")
        return OPENING_EPOCH
    return epoch or CLOSING_EPOCH


def _rack(text: str) -> str:
    if len(text) > MAX_RACK_CHARACTERS:
        raise InvalidRequestError(f"a rack has at most {MAX_RACK_CHARACTERS} characters")
    return text


def fetch_result_to_proto(result: FetchResult, address_of: AddressOf = no_address) -> pb.FetchPartitionResult:
    """Encode the result with record batches; for structured records the servicer converts the same result itself."""
    return message_of(
        pb.FetchPartitionResult,
        result,
        error=optional_failure(result.failure, address_of),
        diverging_epoch=epoch_end_to_proto(result.diverging_epoch),
        batches=bytes(result.batches) or None,
        records=None,
    )
