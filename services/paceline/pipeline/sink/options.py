"""Options of the sink, named as in Spark's Kafka sink and checked before any connection is opened."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from paceline.log.compression import Codec
from paceline.model.tls import TlsFiles
from paceline.pipeline.errors import InvalidOptionError
from paceline.pipeline.given_options import MAX_INT32, MAX_INT64, GivenOptions, check_topics

if TYPE_CHECKING:
    from paceline_client.cluster_view import ClusterView

KNOWN: Final = (
    "paceline.bootstrap.servers",
    "paceline.ssl.ca.file",
    "paceline.ssl.certificate.file",
    "paceline.ssl.key.file",
    "topic",
    "includeHeaders",
    "deliveryGuarantee",
    "txnAppId",
    "txnVersion",
    "paceline.partitioner",
    "paceline.acks",
    "paceline.compression.type",
    "paceline.batch.size",
    "paceline.linger.ms",
    "paceline.request.timeout.ms",
    "paceline.delivery.timeout.ms",
    "paceline.client.id",
    "stagingTopic",
    "stagingPartitions",
    "stagingRetentionMs",
    "checkpointLocation",
)
"""Every option in its documented spelling; names are compared without case, as in Spark."""

REFUSED: Final[Mapping[str, str]] = {
    "paceline.key.serializer": "keys are strings or binary; cast the column in the query",
    "paceline.value.serializer": "values are strings or binary; cast the column in the query",
    "paceline.enable.idempotence": "use deliveryGuarantee",
    "paceline.transactional.id": "there are no transactions; use deliveryGuarantee",
    "paceline.max.in.flight.requests.per.connection": "a partition has one request in flight, which keeps the order",
    "subscribe": "it names topics to read; name the one to write to with the option topic or in a column topic",
    "path": "save() takes no path; name the topic with the option topic or in a column topic",
}
"""Known options that the sink refuses, in lower case, each with advice."""

MAX_BATCH_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Checked options of a write. Picklable, because Spark sends them to the executors."""

    bootstrap_servers: tuple[str, ...]
    topic: str | None = None
    """Topic of all rows; overrides the column ``topic``."""
    include_headers: bool = True
    exactly_once: bool = False
    txn: tuple[str, int] | None = None
    """Id of the application and version of a batch write; a repeated write of the same version appends nothing."""
    partitioner: str = "default"
    acks_all: bool = True
    codec: Codec = Codec.NONE
    batch_bytes: int = 512 * 1024
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    """Maximum time without progress."""
    client_id: str = "spark-paceline-sink"
    staging_topic: str = "__paceline_staging"
    staging_partitions: int = 8
    staging_retention_ms: int = 86_400_000
    tls: TlsFiles | None = None
    """Certificate files, at the same path on every machine that runs tasks; None for plaintext."""

    def view(self, more_servers: Sequence[str] = ()) -> "ClusterView":
        """Return a view of the cluster; ``more_servers`` are tried when no bootstrap server answers."""
        from paceline_client.cluster_view import ClusterView

        servers = (*self.bootstrap_servers, *more_servers)
        return ClusterView(servers, client_id=self.client_id, tls=self.tls)


_DEFAULTS: Final = WriteOptions(())


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Return the checked options of a write.

    Raises:
        InvalidOptionError: an option is unknown, refused, malformed, or contradicts another; the message names it.
    """
    given = GivenOptions(options, KNOWN, REFUSED)
    topic = given.text("topic")
    if topic is not None:
        check_topics("topic", [topic])
    exactly_once = given.choice("deliveryGuarantee", ("at-least-once", "exactly-once")) == "exactly-once"
    acks = given.choice("paceline.acks", ("all", "-1", "1"))
    if exactly_once and acks == "1":
        raise InvalidOptionError("deliveryGuarantee=exactly-once needs paceline.acks=all")
    txn_id, txn_version = given.text("txnAppId"), given.count("txnVersion", MAX_INT64)
    if (txn_id is None) != (txn_version is None):
        raise InvalidOptionError("txnAppId and txnVersion must be given together")
    if txn_id is not None and not exactly_once:
        raise InvalidOptionError("txnAppId needs deliveryGuarantee=exactly-once")
    codec = given.choice("paceline.compression.type", ("none", "gzip", "snappy", "lz4", "zstd"))
    staging_topic = given.text("stagingTopic") or _DEFAULTS.staging_topic
    check_topics("stagingTopic", [staging_topic])
    if topic == staging_topic:
        raise InvalidOptionError(f"topic: {topic} is the staging topic, whose records are the sink's own")
    given.count("paceline.linger.ms")
    return WriteOptions(
        bootstrap_servers=given.servers(),
        tls=given.tls(),
        topic=topic,
        include_headers=given.flag("includeHeaders", True),
        exactly_once=exactly_once,
        txn=None if txn_id is None or txn_version is None else (txn_id, txn_version),
        partitioner=given.choice("paceline.partitioner", ("default", "sticky", "roundrobin")),
        acks_all=acks != "1",
        codec=Codec[codec.upper()],
        batch_bytes=given.number("paceline.batch.size", MAX_BATCH_BYTES) or _DEFAULTS.batch_bytes,
        request_timeout_ms=given.number("paceline.request.timeout.ms", MAX_INT32) or _DEFAULTS.request_timeout_ms,
        delivery_timeout_ms=given.number("paceline.delivery.timeout.ms", MAX_INT32) or _DEFAULTS.delivery_timeout_ms,
        client_id=given.text("paceline.client.id") or _DEFAULTS.client_id,
        staging_topic=staging_topic,
        staging_partitions=given.number("stagingPartitions", 10_000) or _DEFAULTS.staging_partitions,
        staging_retention_ms=given.number("stagingRetentionMs", MAX_INT32 * 1000) or _DEFAULTS.staging_retention_ms,
    )
