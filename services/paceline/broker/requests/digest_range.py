"""DigestRange: return digests of stored batches, so that replicas can be compared without copying their records."""

from typing import Final

from google_crc32c import extend

from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.requests.errors import failure_of
from paceline.broker.requests.leader_hints import refusal
from paceline.log.damage import DamagedLogError
from paceline.log.partition_log import PartitionLog
from paceline.log.record_batch import BatchHeader, iterate_headers
from paceline.model.client_io import DigestAnswer, DigestQuery, RangeDigest
from paceline.model.errors import CorruptMessageError, PacelineError, ReplicaNotAvailableError

MAX_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes per response; more would block the event loop too long."""
_READ_BYTES: Final = 1024 * 1024
_EPOCH_FROM, _EPOCH_TO = 12, 16
"""Position of the leader epoch in a batch header."""
_NO_EPOCH: Final = bytes(_EPOCH_TO - _EPOCH_FROM)


def digest_range(hosted: HostedPartitions, query: DigestQuery) -> DigestAnswer:
    """Return the digest of a range of this broker's replica; a damaged log is reported but not changed."""
    answer = DigestAnswer(query.topic_partition)
    try:
        partition = hosted.lookup(query.topic_partition)
        partition.check_topic_id(query.topic_id)
        if partition.log is None:
            raise ReplicaNotAvailableError(f"this broker has no log of {query.topic_partition}")
        log = partition.log
        digest = answer.digest
        digest.log_start_offset, digest.log_end_offset = log.log_start_offset, log.log_end_offset
        digest.high_watermark = log.high_watermark
        _digest(log, query, digest)
    except DamagedLogError as error:
        answer.failure = failure_of(CorruptMessageError(str(error)))
    except PacelineError as error:
        answer.failure = refusal(hosted, error, query.topic_partition, query.topic_id)
    return answer


def _digest(log: PartitionLog, query: DigestQuery, digest: RangeDigest) -> None:
    end = min(query.end_offset, log.log_end_offset)
    position = max(query.start_offset, log.log_start_offset)
    budget = min(query.max_bytes or MAX_BYTES, MAX_BYTES)
    while position < end and budget > 0:
        data = log.read(position, min(budget, _READ_BYTES), end)
        if not data:
            break
        for at, header in iterate_headers(data):
            position = header.last_offset + 1
            if header.base_offset >= query.start_offset:
                _add(digest, data[at : at + header.size], header)
        budget -= len(data)
    digest.next_offset = position


def _add(digest: RangeDigest, batch: bytes, header: BatchHeader) -> None:
    if digest.first_offset is None:
        digest.first_offset = header.base_offset
    digest.last_offset = header.last_offset
    digest.record_count += header.record_count
    digest.size_bytes += len(batch)
    if not digest.leader_epochs or digest.leader_epochs[-1] != header.leader_epoch:
        digest.leader_epochs.append(header.leader_epoch)
    digest.stored_crc32c = extend(digest.stored_crc32c, batch)
    content = extend(digest.content_crc32c, batch[:_EPOCH_FROM])
    digest.content_crc32c = extend(extend(content, _NO_EPOCH), batch[_EPOCH_TO:])
