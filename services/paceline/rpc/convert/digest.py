"""Convert digests of ranges of a replica between `model.client_io` and ``paceline.v1`` DigestRange."""

from paceline.model.client_io import DigestAnswer, DigestQuery
from paceline.rpc.convert.common import at_least, partition_of, topic_id_of
from paceline.rpc.convert.failures import AddressOf, failure_to_proto, no_address
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
    message = pb.DigestRangeResponse(
        first_offset=answer.first_offset,
        last_offset=answer.last_offset,
        record_count=answer.record_count,
        size_bytes=answer.size_bytes,
        leader_epochs=answer.leader_epochs,
        stored_crc32c=answer.stored_crc32c,
        content_crc32c=answer.content_crc32c,
        next_offset=answer.next_offset,
        log_start_offset=answer.log_start_offset,
        log_end_offset=answer.log_end_offset,
        high_watermark=answer.high_watermark,
    )
    if answer.failure is not None:
        message.error.CopyFrom(failure_to_proto(answer.failure, address_of))
    return message
