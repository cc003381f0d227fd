"""Fetch offset ranges from their leaders, one response of each at a time, and index the batches of each response.

A request lists as many ranges of a leader as fit one response. When a leader moves, the request goes to the new leader;
when a broker fails, the request is retried with fresh metadata until ``kafkaConsumer.pollTimeoutMs`` have passed
without progress. Records that are no longer in the log raise an error or are skipped, depending on ``failOnDataLoss``
(docs/spark.md#options).
"""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final

import grpc

from paceline.model.addresses import address_of
from paceline.model.errors import (
    ErrorCode,
    LeaderNotAvailableError,
    OffsetNotAvailableError,
    PacelineError,
    error_for,
)
from paceline.model.identifiers import TopicPartition
from paceline.pipeline.decode.batch_index import BatchIndex, FetchedSlice, index_batches
from paceline.pipeline.errors import DataLossError
from paceline.pipeline.source.offset_ranges import OffsetRange
from paceline.pipeline.source.options import ReadOptions
from paceline.rpc.retry import RetryPolicy, call_with_retry
from paceline.v1.errors_pb2 import PartitionError
from paceline_client.call_errors import named_error
from paceline_client.cluster_view import UNKNOWN_TOPIC_ATTEMPTS, ClusterView
from paceline_client.fetch_session import WantedPartition
from paceline_client.wire import FetchAnswer, FetchedPartition

FETCH_TIMEOUT_S: Final = 30.0
MAX_WAIT_MS: Final = 500
MAX_RANGES_PER_FETCH: Final = 2_000
MAX_LEADERS: Final = 4
"""Leaders that a task fetches from at the same time; with more, several leaders take turns."""
SMALLEST_PARTITION_BYTES: Final = 64 * 1024
"""Minimum ``max_bytes`` of a range: its estimate may be too low, and a smaller limit saves nothing."""
SURPLUS: Final = 1.25
"""Factor between the estimated size of a range and its ``max_bytes``."""


@dataclass(slots=True)
class _Cursor:
    """Read position in a range, and the leader to fetch from."""

    range: OffsetRange
    position: int
    address: str

    @property
    def estimated_bytes(self) -> float:
        return (self.range.end - self.position) * self.range.bytes_per_record


class RangeFetcher:
    """Reads ranges of a task, one response at a time. `next_index` and `stop` may be called from different threads."""

    def __init__(self, cluster: ClusterView, ranges: Sequence[OffsetRange], options: ReadOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._cursors = [_Cursor(each, each.start, each.leader) for each in ranges if each.records > 0]
        self._policy = RetryPolicy(deadline_ms=options.poll_timeout_ms)
        self._stale_metadata = False
        self._times_missing: dict[str, int] = {}
        self._stopped = threading.Event()
        self._call: Any = None
        self._resume_s = 0.0
        """End of the pause that a broker has requested, because the caller is above a quota."""

    def next_index(self) -> BatchIndex | None:
        """Return the batches of the next response; None after the end of every range, or after `stop`.

        Raises:
            DataLossError: offsets are not in the log any more and ``failOnDataLoss`` is true.
            CorruptMessageError: the batches of a response are malformed.
            PacelineError: there was no progress within the poll timeout; the error of the last attempt.
        """
        if not self._cursors or self._stopped.wait(max(0.0, self._resume_s - time.monotonic())):
            return None
        return call_with_retry(
            self._policy,
            self._attempt,
            is_over=self._stopped.is_set,
            wake=self._stopped,
        )

    def stop(self) -> None:
        """Cancel the fetch in flight; `next_index` raises or returns soon after."""
        self._stopped.set()
        call = self._call
        if call is not None:
            call.cancel()

    def _attempt(self, seconds: float | None) -> BatchIndex | None:
        """Fetch once; return None when all remaining ranges were lost and ``failOnDataLoss`` is false."""
        until = time.monotonic() + (FETCH_TIMEOUT_S if seconds is None else seconds)
        if self._stale_metadata or any(not cursor.address for cursor in self._cursors):
            self._refresh(seconds)
        if not self._cursors:
            return None
        address, asked = self._next_request()
        answer = self._fetch(address, asked, min(FETCH_TIMEOUT_S, max(until - time.monotonic(), 0.001)))
        self._resume_s = time.monotonic() + answer.throttle_ms / 1_000
        before = [cursor.position for cursor in asked]
        index, failure = self._take_in(asked, answer)
        self._cursors = [cursor for cursor in self._cursors if cursor.position < cursor.range.end]
        if before != [cursor.position for cursor in asked]:
            return index
        raise failure or OffsetNotAvailableError(f"{address} has no records yet for {self._describe(asked)}")

    def _describe(self, asked: Sequence[_Cursor]) -> str:
        first = asked[0]
        more = f" and {len(asked) - 1} more" if len(asked) > 1 else ""
        return f"{first.range.topic_partition} at offset {first.position}{more}"

    def _next_request(self) -> tuple[str, list[_Cursor]]:
        """Choose the leader of the first remaining range, and more ranges of that leader while they fit a response."""
        address = next((cursor.address for cursor in self._cursors if cursor.address), "")
        if not address:
            self._stale_metadata = True
            raise LeaderNotAvailableError(f"no leader for {self._describe(self._cursors)}")
        asked: list[_Cursor] = []
        expected = 0.0
        for cursor in self._cursors:
            if cursor.address == address:
                asked.append(cursor)
                expected += cursor.estimated_bytes
                if expected > self._options.fetch_max_bytes or len(asked) == MAX_RANGES_PER_FETCH:
                    break
        return address, asked

    def _fetch(self, address: str, asked: Sequence[_Cursor], seconds: float) -> FetchAnswer:
        most = self._options.fetch_max_bytes
        wanted = {
            cursor.range.topic_partition: WantedPartition(
                cursor.range.topic_id,
                cursor.position,
                int(min(most, max(SMALLEST_PARTITION_BYTES, SURPLUS * cursor.estimated_bytes))),
                self._cluster.leader_epoch(cursor.range.topic_partition, address),
            )
            for cursor in asked
        }
        self._call = self._cluster.fetch(address, wanted, most, seconds, MAX_WAIT_MS)
        if self._stopped.is_set():
            self._call.cancel()
        try:
            answer: FetchAnswer = self._call.result()
            return answer
        except grpc.RpcError as error:
            self._stale_metadata = True
            raise named_error(f"{address}: {self._describe(asked)}", error) from error
        except grpc.FutureCancelledError as error:
            raise OffsetNotAvailableError("the read was stopped") from error
        finally:
            self._call = None

    def _take_in(self, asked: Sequence[_Cursor], answer: FetchAnswer) -> tuple[BatchIndex, PacelineError | None]:
        """Index the response and advance the cursors; return the index and a partition's retriable error, if any."""
        failure: PacelineError | None = None
        owners: list[_Cursor] = []
        slices: list[FetchedSlice] = []
        by_partition = {cursor.range.topic_partition: cursor for cursor in asked}
        for part in answer.partitions:
            cursor = by_partition.pop(TopicPartition(part.topic, part.partition), None)
            if cursor is None:
                continue
            if part.error is not None:
                failure = self._handle_error(cursor, part, part.error) or failure
                continue
            owners.append(cursor)
            slices.append(
                FetchedSlice(part.topic, part.partition, part.begin, part.stop, cursor.position, cursor.range.end)
            )
        index = index_batches(answer.data, slices)
        for cursor, next_offset in zip(owners, index.next_offsets, strict=True):
            cursor.position = next_offset
        return index, failure

    def _handle_error(self, cursor: _Cursor, part: FetchedPartition, error: PartitionError) -> PacelineError | None:
        """Raise a partition's error, or return it when a retry may help; return None when lost offsets were skipped."""
        tp, code = cursor.range.topic_partition, int(error.code)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._skip_lost(cursor, part, error)
            return None
        failure = error_for(code, f"{tp} at offset {cursor.position}: {error.message}")
        # Retry: the broker may have old metadata, and only fresh metadata shows which topic of this name exists now.
        behind = code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INCONSISTENT_TOPIC_ID)
        if not failure.retriable and not behind:
            raise failure
        hint = error.current_leader
        address = address_of(hint.host, hint.port) if hint.host and hint.port else cursor.address
        is_ours = not (hint.topic_id and cursor.range.topic_id) or hint.topic_id == cursor.range.topic_id
        if is_ours and address != cursor.address:
            cursor.address = address
        else:
            self._stale_metadata = True
        return LeaderNotAvailableError(str(failure)) if behind else failure

    def _skip_lost(self, cursor: _Cursor, part: FetchedPartition, error: PartitionError) -> None:
        """Move to the log start offset, or end the range when the log ends before the position.

        Raises:
            DataLossError: ``failOnDataLoss`` is true.
        """
        first = error.log_start_offset if error.HasField("log_start_offset") else part.log_start_offset
        if cursor.position >= first:
            last = error.high_watermark if error.HasField("high_watermark") else part.high_watermark
            self._give_up(cursor, f"offset {cursor.position} does not exist, the log ends at {last}")
            return
        if self._options.fail_on_data_loss:
            raise _data_loss(
                cursor, f"offsets {cursor.position} to {first - 1} were deleted, the log starts at {first}"
            )
        cursor.position = first

    def _give_up(self, cursor: _Cursor, why: str) -> None:
        if self._options.fail_on_data_loss:
            raise _data_loss(cursor, why)
        cursor.position = cursor.range.end

    def _refresh(self, seconds: float | None) -> None:
        """Refresh the leaders; give up ranges of a topic that stays missing or has another topic id."""
        names = sorted({cursor.range.topic for cursor in self._cursors})
        found = self._cluster.refresh(names, seconds)
        for name in names:
            self._times_missing[name] = 0 if name in found else self._times_missing.get(name, 0) + 1
        for cursor in self._cursors:
            topic = found.get(cursor.range.topic)
            if topic is None:
                if self._times_missing[cursor.range.topic] >= UNKNOWN_TOPIC_ATTEMPTS:
                    self._give_up(cursor, f"topic {cursor.range.topic} no longer exists")
            elif cursor.range.topic_id and topic.topic_id != cursor.range.topic_id:
                self._give_up(cursor, f"topic {cursor.range.topic} was deleted and re-created")
            else:
                cursor.address = self._cluster.leader_address(cursor.range.topic_partition) or ""
        self._cursors = [cursor for cursor in self._cursors if cursor.position < cursor.range.end]
        self._stale_metadata = False


def _data_loss(cursor: _Cursor, why: str) -> DataLossError:
    return DataLossError(
        f"{cursor.range.topic_partition}: {why}; set failOnDataLoss to false to read the remaining records"
    )


def prefetched(cluster: ClusterView, ranges: Sequence[OffsetRange], options: ReadOptions) -> Iterator[BatchIndex]:
    """Yield the batches of each response for the ranges of a task, of different leaders in any order.

    The next responses are fetched while the caller decodes the previous one, from up to `MAX_LEADERS` leaders at once:
    gRPC, numpy and Arrow release the interpreter lock. Closing the iterator cancels the fetches in flight.
    """
    leaders = sorted({each.leader for each in ranges})
    shares = [{*leaders[first::MAX_LEADERS]} for first in range(min(MAX_LEADERS, len(leaders)))]
    fetchers = [RangeFetcher(cluster, [each for each in ranges if each.leader in share], options) for share in shares]
    pool = ThreadPoolExecutor(max_workers=MAX_LEADERS, thread_name_prefix="paceline-fetch")
    try:
        upcoming = {pool.submit(fetcher.next_index): fetcher for fetcher in fetchers}
        while upcoming:
            for done in wait(upcoming, return_when=FIRST_COMPLETED).done:
                fetcher, index = upcoming.pop(done), done.result()
                if index is not None:
                    upcoming[pool.submit(fetcher.next_index)] = fetcher
                    yield index
    finally:
        for fetcher in fetchers:
            fetcher.stop()
        pool.shutdown(wait=True)
