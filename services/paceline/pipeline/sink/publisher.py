"""Commit a micro-batch on the driver: record one decision for its staged batches, then append the missing batches.

See docs/decisions/0013-exactly-once-sink.md for the procedure and the reason why it is exactly-once.
"""

import hashlib
import json
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import grpc

from paceline.log.compression import Codec
from paceline.log.record_batch import check_crc, decode_batch, iterate_headers
from paceline.model.errors import (
    CorruptMessageError,
    ErrorCode,
    InvalidProducerEpochError,
    LeaderNotAvailableError,
    OffsetNotAvailableError,
    PacelineError,
    error_for,
)
from paceline.model.identifiers import TopicPartition
from paceline.pipeline.errors import PublishFencedError, StagedDataLostError
from paceline.pipeline.sink.options import WriteOptions
from paceline.pipeline.sink.staging import (
    Staged,
    StagedBatch,
    ensure_staging_topic,
    producer_of_this_process,
    staging_partition,
)
from paceline.rpc.retry import RetryPolicy, call_with_retry
from paceline_client import Producer, ProducerFatalError, RecordFuture
from paceline_client.call_errors import named_error
from paceline_client.cluster_view import LATEST, ClusterView
from paceline_client.codec import finish, new_encoder, set_producer_state
from paceline_client.fetch_session import WantedPartition
from paceline_client.wire import FetchAnswer

EPOCHS: Final = 1 << 15
"""Number of producer epochs, which have 15 bits; after this many micro-batches a query changes its producer id."""
FETCH_BYTES: Final = 1024 * 1024
FETCH_TIMEOUT_S: Final = 30.0
MAX_WAIT_MS: Final = 500


@dataclass(frozen=True, slots=True)
class Decision:
    """The staged batches that make up a micro-batch; only the first decision for a micro-batch counts."""

    token: str
    """Identifies the call of `Publisher.publish` that made the decision."""
    batches: Mapping[TopicPartition, Sequence[StagedBatch]]
    from_offsets: Mapping[TopicPartition, int]
    """End offsets of the target partitions before any batch of the micro-batch was published."""
    owner: str = ""
    """Id of the streaming query that made the decision, empty for other jobs and in decisions of earlier versions."""

    def encode(self) -> bytes:
        """Return the decision as the value of a record."""
        content = {
            "token": self.token,
            "owner": self.owner,
            "targets": [
                [tp.topic, tp.partition, self.from_offsets[tp], batches] for tp, batches in sorted(self.batches.items())
            ],
        }
        return zlib.compress(json.dumps(content, separators=(",", ":")).encode())

    @classmethod
    def decode(cls, value: bytes) -> "Decision":
        """Parse the decision in the value of a record."""
        content = json.loads(zlib.decompress(value))
        batches: dict[TopicPartition, list[StagedBatch]] = {}
        from_offsets: dict[TopicPartition, int] = {}
        for topic, partition, offset, places in content["targets"]:
            tp = TopicPartition(topic, partition)
            batches[tp] = [StagedBatch(*place) for place in places]
            from_offsets[tp] = offset
        return cls(content["token"], batches, from_offsets, content.get("owner", ""))


@dataclass(frozen=True, slots=True)
class Published:
    """Result of a publish."""

    records: int
    """Number of records in the micro-batch."""
    appended: int
    """Number of records that this call appended; the other records were already in their partitions."""
    repeated: bool
    """Whether an earlier call made the decision."""


def producer_of(query_id: str, batch_id: int) -> tuple[int, int]:
    """Return the producer id and epoch of a query's micro-batch.

    Brokers assign producer ids from 0 upwards, so the upper half is free for ids made from a hash.
    """
    digest = hashlib.sha256(f"{query_id}/{batch_id // EPOCHS}".encode()).digest()
    return (1 << 62) | int.from_bytes(digest[:8], "big") >> 2, batch_id % EPOCHS


class Publisher:
    """Publishes micro-batches; all state between calls is in the cluster."""

    def __init__(
        self, cluster: ClusterView, options: WriteOptions, at_step: Callable[[str], None] = lambda _: None
    ) -> None:
        """``at_step`` is called before each step with its name, so that tests can end the process there."""
        self._cluster = cluster
        self._options = options
        self._at_step = at_step
        self._policy = RetryPolicy(deadline_ms=options.delivery_timeout_ms)

    def publish(self, query_id: str, batch_id: int, staged: Staged, owner: str = "") -> Published:
        """Record a decision for the staged batches, unless the micro-batch has a decision; append the missing batches.

        Raises:
            PublishFencedError: a later micro-batch of the query has a decision, or another ``owner`` has decided.
            StagedDataLostError: staged batches of the decision were deleted before they were published.
            PacelineError: the publish is incomplete; another call continues it.
        """
        producer_id, epoch = producer_of(query_id, batch_id)
        count = ensure_staging_topic(self._cluster, self._options)
        control = TopicPartition(self._options.staging_topic, staging_partition(query_id, count))
        self._describe(staged.batches)
        self._at_step("list")
        ends = self._cluster.list_offsets(staged.batches, LATEST)
        mine = Decision(str(uuid.uuid4()), staged.batches, {tp: ends[tp] or 0 for tp in staged.batches}, owner)
        self._at_step("decide")
        try:
            # One batch in flight, because a producer that is not idempotent does not restore the order.
            with producer_of_this_process(
                self._options, self._cluster, enable_idempotence=False, max_in_flight=1
            ) as producer:
                return self._publish(producer, control, mine, producer_id, epoch)
        except ProducerFatalError as error:
            if isinstance(error.cause, InvalidProducerEpochError):
                raise PublishFencedError(f"a later batch of this query has been published: {error}") from error
            raise

    def _publish(
        self, producer: Producer, control: TopicPartition, mine: Decision, producer_id: int, epoch: int
    ) -> Published:
        offset = self._decide(producer, control, mine, producer_id, epoch)
        self._at_step("read decision")
        decision = Decision.decode(self._read_value(control, offset))
        repeated = decision.token != mine.token
        there: dict[TopicPartition, int] = {}
        if mine.owner and decision.owner and mine.owner != decision.owner:
            raise PublishFencedError(
                f"query {decision.owner} has written this version of txnAppId, and this is query {mine.owner}; give "
                "each query an id of its own"
            )
        if repeated:
            self._describe(decision.batches)
            self._at_step("scan")
            with ThreadPoolExecutor(max_workers=8, thread_name_prefix="paceline-scan") as pool:
                found = pool.map(
                    lambda tp: self._published_records(tp, decision.from_offsets[tp], producer_id, epoch),
                    decision.batches,
                )
                there = dict(zip(decision.batches, found, strict=True))
        self._at_step("append")
        appended = self._append(producer, decision, there, producer_id, epoch)
        self._at_step("done")
        total = sum(place.records for places in decision.batches.values() for place in places)
        return Published(total, appended, repeated)

    def _describe(self, partitions: Iterable[TopicPartition]) -> None:
        if topics := sorted({tp.topic for tp in partitions}):  # No name would mean every topic.
            self._cluster.describe_topics(topics)

    def _decide(
        self, producer: Producer, control: TopicPartition, decision: Decision, producer_id: int, epoch: int
    ) -> int:
        """Append the decision; return the offset of the first decision, which an earlier call may have made."""
        encoder = new_encoder(self._options.batch_bytes)
        encoder.append(0, time.time_ns() // 1_000_000, None, decision.encode(), [])
        batch = finish(encoder, Codec.NONE, producer_id, epoch, 0)
        offset = producer.send_batch(control.topic, control.partition, batch).result().offset
        assert offset is not None
        return offset

    def _append(
        self, producer: Producer, decision: Decision, there: Mapping[TopicPartition, int], producer_id: int, epoch: int
    ) -> int:
        """Append the missing batches of the decision, in order; return the number of their records."""
        sent: list[tuple[RecordFuture, int]] = []
        # Alternate between the partitions: finishing a partition first would leave the other leaders idle.
        for turn in range(max(map(len, decision.batches.values()), default=0)):
            for tp, places in decision.batches.items():
                if turn >= len(places):
                    continue
                sequence = sum(place.records for place in places[:turn])
                if sequence < there.get(tp, 0):
                    continue
                place = places[turn]
                batch = self._read_batch(TopicPartition(self._options.staging_topic, place.partition), place)
                batch[0:8] = bytes(8)  # A producer's batch has base offset 0.
                set_producer_state(batch, producer_id, epoch, sequence)
                self._at_step(f"append {turn}")
                sent.append((producer.send_batch(*tp, batch), place.records))
        for future, _ in sent:
            future.result()
        return sum(records for _, records in sent)

    def _published_records(self, tp: TopicPartition, offset: int, producer_id: int, epoch: int) -> int:
        """Return the number of the micro-batch's records in the partition, from the headers of its batches."""
        end = self._cluster.list_offsets([tp], LATEST)[tp] or 0
        published = 0
        while offset < end:
            data = self._fetch(tp, offset, FETCH_BYTES, skip_deleted=True)
            for _, header in iterate_headers(data):
                if header.producer_id == producer_id and header.producer_epoch == epoch:
                    published = max(published, header.base_sequence + header.record_count)
                offset = max(offset, header.last_offset + 1)
        return published

    def _read_value(self, tp: TopicPartition, offset: int) -> bytes:
        batch = self._read_batch(tp, StagedBatch(tp.partition, offset, 1))
        (record,) = decode_batch(bytes(batch))
        return record.value or b""

    def _read_batch(self, tp: TopicPartition, place: StagedBatch) -> bytearray:
        """Return the complete batch at the offset of ``place``.

        Raises:
            StagedDataLostError: the batch was deleted.
            CorruptMessageError: the offset holds a different batch, or the checksum is wrong.
        """
        data = self._fetch(tp, place.base_offset, FETCH_BYTES)
        position, header = next(iterate_headers(data))
        if (header.base_offset, header.record_count) != (place.base_offset, place.records):
            raise CorruptMessageError(f"{tp} has another batch at offset {place.base_offset} than the one staged there")
        check_crc(data, position, header)
        return bytearray(data[position : position + header.size])

    def _fetch(self, tp: TopicPartition, offset: int, max_bytes: int, skip_deleted: bool = False) -> bytes:
        """Return stored batches from ``offset`` on, at least one complete batch.

        ``skip_deleted`` starts at the log start offset when ``offset`` was deleted.

        Raises:
            StagedDataLostError: ``offset`` was deleted and ``skip_deleted`` is false.
        """
        at = offset

        def attempt(seconds: float | None) -> bytes:
            nonlocal at
            timeout_s = FETCH_TIMEOUT_S if seconds is None else min(FETCH_TIMEOUT_S, max(seconds, 0.001))
            try:
                return self._fetch_once(tp, at, max_bytes, timeout_s)
            except _DeletedError as error:
                if not skip_deleted:
                    raise StagedDataLostError(
                        f"{tp} starts at offset {error.first}; the batch staged at {offset} was deleted by retention"
                    ) from error
                at = error.first
                raise OffsetNotAvailableError(f"{tp} starts at {at}") from error
            except PacelineError:
                self._cluster.refresh([tp.topic], timeout_s)
                raise

        return call_with_retry(self._policy, attempt)

    def _fetch_once(self, tp: TopicPartition, offset: int, max_bytes: int, seconds: float) -> bytes:
        address = self._cluster.leader_address(tp)
        if address is None:
            raise LeaderNotAvailableError(f"{tp} has no leader")
        wanted = {tp: WantedPartition("", offset, max_bytes)}
        try:
            answer: FetchAnswer = self._cluster.fetch(address, wanted, max_bytes, seconds, MAX_WAIT_MS).result()
        except grpc.RpcError as error:
            raise named_error(f"{address}: {tp}", error) from error
        for part in answer.partitions:
            if part.error is not None:
                first = part.error.log_start_offset if part.error.HasField("log_start_offset") else -1
                if int(part.error.code) == ErrorCode.OFFSET_OUT_OF_RANGE:
                    if offset < first:
                        raise _DeletedError(first)
                    # A newly elected leader may not know yet that the batch is committed.
                    raise OffsetNotAvailableError(f"{tp} does not have offset {offset} yet")
                raise error_for(part.error.code, f"{tp}: {part.error.message}")
            if part.stop > part.begin:
                return answer.data[part.begin : part.stop]
        raise OffsetNotAvailableError(f"{tp} has no batch at offset {offset} yet")


class _DeletedError(Exception):
    def __init__(self, first: int) -> None:
        super().__init__(f"the log starts at {first}")
        self.first = first
