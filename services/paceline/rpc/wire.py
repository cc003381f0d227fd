"""Encode and parse Produce and Fetch messages without copying their payload in the protobuf library.

protobuf copies a bytes field when it is parsed, set, read and serialized; for Produce and Fetch that is most of the
cost of a call. The wire format does not change: the generated messages encode and parse the small fields, and this
module appends the payload to their bytes or cuts it out of them. An unusual message (two payloads, groups, bad lengths)
is parsed by the generated parser. tests/unit/rpc/test_wire.py checks that both ways give the same result.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError

from paceline.internal.v1 import replication_service_pb2 as replica_pb
from paceline.model.client_io import FetchResult
from paceline.model.errors import InvalidRequestError
from paceline.model.protobuf_wire import LENGTH, cut_payload, split_list, varint
from paceline.model.replica_fetch import ReplicaFetchResponse, ReplicaFetchResult
from paceline.rpc.admission.message_limits import (
    MAX_CLIENT_FIELDS,
    MAX_ELEMENTS,
    MAX_INTERNAL_FIELDS,
    parsed,
    refuse_too_many_elements,
)
from paceline.rpc.convert.common import (
    MAX_CLIENT_PARTITIONS,
    MAX_INTERNAL_PARTITIONS,
    code_to_proto,
    error_code_of,
)
from paceline.rpc.convert.failures import AddressOf, no_address
from paceline.rpc.convert.fetch import fetch_result_to_proto
from paceline.rpc.convert.replica import replica_fetch_result_from_proto, replica_fetch_result_to_proto
from paceline.v1 import log_service_pb2 as pb

_PRODUCE_PARTITIONS, _PRODUCE_BATCH = 3, 4
_FETCH_PARTITIONS, _FETCH_BATCHES = 2, 8
_REPLICA_PARTITIONS, _REPLICA_BATCHES = 3, 9


@dataclass(slots=True)
class ProducePart:
    """One partition of a produce request, with unchecked values."""

    head: pb.ProducePartition
    """The parsed partition; a batch that was cut out of a large message is only in ``batch``."""
    batch: bytes | None
    """One record batch; None when ``head`` has structured records or no data."""


@dataclass(slots=True)
class ProduceCall:
    """A produce request, with unchecked values."""

    acks: int
    timeout_ms: int
    partitions: list[ProducePart]


# -- Produce ---------------------------------------------------------------------------------------------------


def parse_produce(data: bytes) -> ProduceCall:
    """Parse a produce request.

    Raises:
        InvalidRequestError: the bytes are not a ProduceRequest, or it has too many partitions or elements.
    """
    try:
        rest, parts = split_list(data, _PRODUCE_PARTITIONS, MAX_CLIENT_PARTITIONS)
        cut = [cut_payload(data, start, end, _PRODUCE_BATCH) for start, end in parts]
        if sum(len(head) for head, _ in cut) > MAX_ELEMENTS:  # structured records, not batches, which are not counted
            refuse_too_many_elements(data, pb.ProduceRequest)
        request = pb.ProduceRequest.FromString(rest)
        partitions = [_produce_part(pb.ProducePartition.FromString(head), batch) for head, batch in cut]
    except ValueError:  # the bytes differ from those that Paceline writes
        request = parsed(pb.ProduceRequest, data, MAX_CLIENT_FIELDS, MAX_ELEMENTS)
        partitions = [_produce_part(part, None) for part in request.partitions]
    except DecodeError as failure:
        raise InvalidRequestError(f"the message cannot be parsed: {failure}") from None
    return ProduceCall(request.acks, request.timeout_ms, partitions)


def _produce_part(message: pb.ProducePartition, batch: bytes | None) -> ProducePart:
    data = message.WhichOneof("data")
    if batch is None:
        return ProducePart(message, message.batch if data == "batch" else None)
    if data is not None:
        raise ValueError("has two payloads")
    return ProducePart(message, batch)


# -- Fetch -----------------------------------------------------------------------------------------------------


def fetch_response(session_id: int, results: Iterable[FetchResult], address_of: AddressOf = no_address) -> bytes:
    """Return the bytes of the ``FetchResponse`` to a client, with record batches."""
    pieces = [pb.FetchResponse(session_id=session_id).SerializeToString()]
    for result in results:
        head = fetch_result_to_proto(replace(result, batches=b""), address_of).SerializeToString()
        _append_part(pieces, _FETCH_PARTITIONS, head, _FETCH_BATCHES, result.batches or None)
    return b"".join(pieces)


def replica_fetch_response(response: ReplicaFetchResponse) -> bytes:
    """Return the bytes of the ``FetchResponse`` to a follower."""
    head = replica_pb.FetchResponse(error=code_to_proto(response.error), session_id=response.session_id)
    pieces = [head.SerializeToString()]
    for result in response.results:
        small = replica_fetch_result_to_proto(result, b"").SerializeToString()
        _append_part(pieces, _REPLICA_PARTITIONS, small, _REPLICA_BATCHES, result.batches or None)
    return b"".join(pieces)


def parse_replica_fetch_response(data: bytes) -> ReplicaFetchResponse:
    """Parse the response to a follower's fetch.

    Raises:
        InvalidRequestError: the bytes are not a FetchResponse.
    """
    try:
        rest, parts = split_list(data, _REPLICA_PARTITIONS, MAX_INTERNAL_PARTITIONS)
        results = [_replica_result(data, start, end) for start, end in parts]
        response = replica_pb.FetchResponse.FromString(rest)
    except ValueError:  # the bytes differ from those that Paceline writes
        response = parsed(replica_pb.FetchResponse, data, MAX_INTERNAL_FIELDS)
        results = [replica_fetch_result_from_proto(one) for one in response.partitions]
    except DecodeError as failure:
        raise InvalidRequestError(f"the message cannot be parsed: {failure}") from None
    return ReplicaFetchResponse(response.session_id, results, error_code_of(response))


def _replica_result(data: bytes, start: int, end: int) -> ReplicaFetchResult:
    head, batches = cut_payload(data, start, end, _REPLICA_BATCHES)
    result = replica_fetch_result_from_proto(replica_pb.FetchPartitionResult.FromString(head))
    if batches is not None:
        result.batches = batches
    return result


# -- bytes -----------------------------------------------------------------------------------------------------


def _append_part(pieces: list[bytes], part_field: int, head: bytes, payload_field: int, payload: bytes | None) -> None:
    """Append one element of a repeated message field to ``pieces``: its small fields, then its payload."""
    tag = bytes((part_field << 3 | LENGTH,))
    if payload is None:
        pieces += (tag, varint(len(head)), head)
        return
    size = varint(len(payload))
    pieces += (
        tag,
        varint(len(head) + 1 + len(size) + len(payload)),
        head,
        bytes((payload_field << 3 | LENGTH,)),
        size,
        payload,
    )
