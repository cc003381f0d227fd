"""The staging topic, to which tasks append batches that the driver publishes later, and the places of those batches.

See docs/decisions/0013-exactly-once-sink.md for the whole procedure.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from paceline.log.log_config import MAX_TOPIC_MESSAGE_BYTES
from paceline.model.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from paceline.pipeline.cluster import Cluster, TopicView
from paceline.pipeline.sink.options import WriteOptions
from paceline.rpc.retry import RetryPolicy, call_with_retry


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


def ensure_staging_topic(cluster: Cluster, options: WriteOptions) -> int:
    """Create the staging topic unless it exists; return its number of partitions.

    Raises:
        PacelineError: the cluster did not answer, or refused to create the topic.
    """
    from paceline_client import Admin, NewTopic

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
    return len(topic.leaders)


def _described(cluster: Cluster, name: str) -> TopicView:
    topic = cluster.describe_topics([name]).get(name)
    if topic is None:
        raise UnknownTopicOrPartitionError(f"topic {name} was created, but it is not in the metadata of a broker yet")
    return topic


def raise_size_limit(options: WriteOptions) -> None:
    """Let the staging topic take as large batches as any target: topics of earlier versions took 1 MB.

    Raises:
        PacelineError: the cluster did not answer, or refused to change the topic.
    """
    from paceline_client import Admin

    with Admin(",".join(options.bootstrap_servers), tls=options.tls) as admin:
        admin.alter_configs({options.staging_topic: {"max.message.bytes": str(MAX_TOPIC_MESSAGE_BYTES)}})


def staging_partition(name: str, count: int) -> int:
    """Return the staging partition for a target partition or a query."""
    return zlib.crc32(name.encode()) % count
