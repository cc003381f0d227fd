"""Convert digests of ranges of a replica between `model.client_io` and ``paceline.v1`` DigestRange."""

from paceline.model.client_io import DigestAnswer, DigestQuery
from paceline.rpc.convert.common import at_least, message_of, partition_of, topic_id_of
from paceline.rpc.convert.failures import AddressOf, no_address, optional_failure
from paceline.v1 import log_service_pb2 as pb


def digest_query_from_proto(message: pb.DigestRangeRequest) -> DigestQuery:
    """Decode the request.

    Raises:
        InvalidRequestError: an offset or a size is negative, or the range ends before it starts.
        InvalidTopicError: the topic name is invalid.
    """
    start = at_least(message.start_offset, 0, "start offset")
    return DigestQuery(
        partition_of(message),
        topic_id_of(message.topic_id),
        start,
        at_least(message.end_offset, start, "end offset"),
        at_least(message.max_bytes, 0, "max bytes"),
    )


def digest_answer_to_proto(answer: DigestAnswer, address_of: AddressOf = no_address) -> pb.DigestRangeResponse:
    """Encode the response."""
    return message_of(pb.DigestRangeResponse, answer.digest, error=optional_failure(answer.failure, address_of))
