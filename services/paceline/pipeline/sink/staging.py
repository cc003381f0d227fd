"""The staging topic, to which tasks append batches that the driver publishes later, and the places of those batches.

See docs/decisions/0013-exactly-once-sink.md for the whole procedure.
"""

import logging
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from paceline.log.log_config import MAX_TOPIC_MESSAGE_BYTES
from paceline.model.errors import (
    MessageTooLargeError,
    PacelineError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition
from paceline.pipeline.sink.options import WriteOptions
from paceline.rpc.retry import RetryPolicy, call_with_retry
from paceline_client import Admin, NewTopic, Producer, RecordMetadata, TopicDescription
from paceline_client.cluster_view import ClusterView

LOG: Final = logging.getLogger(__name__)
BUFFER_BYTES: Final = 8 * 1024 * 1024
"""Size of the batches without an answer at which a task or a commit waits."""
MAX_REQUEST_BYTES: Final = 3 * 1024 * 1024
"""Maximum size of the batches in a request; brokers refuse requests above 4 MiB (``socket.request.max.bytes``)."""


LARGEST_BATCH_BYTES: Final = MAX_TOPIC_MESSAGE_BYTES - 1024
"""The rest of its request has some bytes, too."""
LIMIT_VALID_S: Final = 60.0
LIMIT_TIMEOUT_MS: Final = 3_000
NEW_LIMIT_MS: Final = 10_000
"""Time for which brokers may not know a changed size limit yet."""


class StagedBatch(NamedTuple):
    """Place and number of records of a staged record batch."""

    partition: int
    """Partition of the staging topic."""
    base_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class Staged:
    """The staged batches of a task or of a micro-batch by target partition, in the order of their rows."""

    batches: Mapping[TopicPartition, list[StagedBatch]]


_limits: dict[tuple[tuple[str, ...], str], tuple[float, int]] = {}
"""Until when a size limit is valid, and the limit, by bootstrap servers and topic."""
_producers: dict[tuple[Any, ...], Producer] = {}


@contextmanager
def producer_of_this_process(options: WriteOptions, cluster: ClusterView, **more: Any) -> Iterator[Producer]:
    """Give a producer of finished batches, idempotent with acks=all; ``more`` are further settings of `Producer`.

    Spark reuses its Python workers, and brokers remember each producer id for days: the next task of the process gets
    the same producer, unless this one fails. A failure ends the producer with the batches that are not delivered.
    """
    settings = {
        "acks": "all" if options.acks_all else "leader",
        "delivery_timeout_ms": options.delivery_timeout_ms,
        "max_block_ms": options.delivery_timeout_ms,
        "request_timeout_ms": options.request_timeout_ms,
        "client_id": options.client_id,
        "tls": options.tls,
        **more,
    }
    key = (os.getpid(), options.bootstrap_servers, *settings.values())
    if key not in _producers:
        servers = (*options.bootstrap_servers, *cluster.fallback_servers())
        _producers[key] = Producer(
            servers, linger_ms=0, buffer_memory=BUFFER_BYTES, max_request_bytes=MAX_REQUEST_BYTES, **settings
        )
    try:
        yield _producers[key]
    except BaseException:
        _producers.pop(key).close(timeout_s=0.0)
        raise


def size_limit(options: WriteOptions, topic: str, wanted: int = 0) -> int:
    """Return the size of the largest batch that a topic takes; one of at least ``wanted`` is kept for `LIMIT_VALID_S`.

    Without an answer of a controller, return the largest size that any topic takes.
    """
    key = (options.bootstrap_servers, topic)
    until, limit = _limits.get(key, (0.0, 0))
    if time.monotonic() >= until or limit < wanted:
        limit = LARGEST_BATCH_BYTES
        try:
            with Admin(",".join(options.bootstrap_servers), tls=options.tls) as admin:
                found = admin.describe_configs(topic, ["max.message.bytes"], timeout_ms=LIMIT_TIMEOUT_MS)
            limit = min(limit, int(found[topic][0].value))
        except PacelineError as error:
            LOG.warning("size limit of topic is not known: topic=%s error=%s", topic, error)
        _limits[key] = (time.monotonic() + LIMIT_VALID_S, limit)
    return limit


def ensure_staging_topic(cluster: ClusterView, options: WriteOptions) -> int:
    """Create the staging topic unless it exists; return its number of partitions.

    Raises:
        PacelineError: the cluster did not answer, or refused to create the topic.
    """
    topic = cluster.describe_topics([options.staging_topic]).get(options.staging_topic)
    if topic is None:
        with Admin(",".join(options.bootstrap_servers), tls=options.tls) as admin:
            brokers = len(admin.describe_cluster().brokers)
            replicas = min(3, brokers)
            new = NewTopic(
                options.staging_topic,
                options.staging_partitions,
                replicas,
                configs={
                    "retention.ms": str(options.staging_retention_ms),
                    "segment.ms": str(max(60_000, options.staging_retention_ms // 8)),
                    "min.insync.replicas": str(max(1, replicas - 1)),
                    "max.message.bytes": str(MAX_TOPIC_MESSAGE_BYTES),
                },
            )
            try:
                admin.create_topics([new])
            except TopicAlreadyExistsError:
                pass
        topic = call_with_retry(
            RetryPolicy(deadline_ms=options.delivery_timeout_ms), lambda _: _described(cluster, options.staging_topic)
        )
    return len(topic.partitions)


def _described(cluster: ClusterView, name: str) -> TopicDescription:
    topic = cluster.describe_topics([name]).get(name)
    if topic is None:
        raise UnknownTopicOrPartitionError(f"topic {name} was created, but it is not in the metadata of a broker yet")
    return topic


def stage_large(
    producer: Producer, options: WriteOptions, target: TopicPartition, batch: bytes | bytearray, where: TopicPartition
) -> RecordMetadata:
    """Stage a batch that the staging topic refused: raise its size limit, because topics of earlier versions took 1 MB.

    Raises:
        MessageTooLargeError: the limit cannot be raised, or the batch is larger than any topic takes.
    """
    try:
        with Admin(",".join(options.bootstrap_servers), tls=options.tls) as admin:
            admin.alter_configs({options.staging_topic: {"max.message.bytes": str(MAX_TOPIC_MESSAGE_BYTES)}})
        return call_with_retry(
            RetryPolicy(deadline_ms=NEW_LIMIT_MS),
            lambda _: producer.send_batch(*where, batch).result(),
            should_retry=lambda error: isinstance(error, MessageTooLargeError),
        )
    except PacelineError as error:
        raise MessageTooLargeError(f"{target}: a batch of {len(batch)} bytes cannot be staged: {error}") from error


def staging_partition(name: str, count: int) -> int:
    """Return the staging partition for a target partition or a query."""
    return zlib.crc32(name.encode()) % count
