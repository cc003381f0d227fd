"""Ask the leaders for the start offsets of partitions that have no position."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import grpc

from paceline.model.errors import FencedLeaderEpochError, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.rpc.channels import ChannelCache
from paceline.v1.errors_pb2 import PartitionError
from paceline.v1.log_service_pb2 import ListOffsetsRequest
from paceline.v1.log_service_pb2_grpc import LogServiceStub
from paceline_client.call_errors import named_error
from paceline_client.errors import NoOffsetError
from paceline_client.metadata import Broker
from paceline_client.metadata_refresher import MetadataRefresher
from paceline_client.offsets import fence, query_end, read_result
from paceline_client.partition_errors import LONGEST_SLEEP_MS, PartitionErrors
from paceline_client.subscription import Assignment, OffsetReset, PartitionState

_TIMEOUT_S: Final = 5.0


class PositionLookup:
    """Looks up positions without blocking; the caller holds the consumer's lock."""

    def __init__(
        self,
        assignment: Assignment,
        metadata: MetadataRefresher,
        channels: ChannelCache,
        errors: PartitionErrors,
        post: Callable[[Callable[[], None]], None],
        on_news: Callable[[], None],
    ) -> None:
        """``post`` runs a function on the fetcher's thread, ``on_news`` wakes the poller."""
        self._assignment = assignment
        self._metadata = metadata
        self._channels = channels
        self._errors = errors
        self._post = post
        self._on_news = on_news
        self._asked: set[TopicPartition] = set()
        """Partitions with a lookup in flight."""

    def look_up(self, now_ms: int) -> int:
        """Send the lookups of partitions without a position; return the time until the next check, in ms."""
        wait_ms = LONGEST_SLEEP_MS
        by_leader: dict[int, tuple[Broker, list[PartitionState]]] = {}
        for state in self._assignment.states():
            tp = state.topic_partition
            if state.position is not None or state.awaits_committed or state.error is not None or tp in self._asked:
                continue
            if state.reset is None or state.reset is OffsetReset.ERROR:
                state.error = NoOffsetError(tp, 'no position and auto_offset_reset is "error"; call seek first')
                self._on_news()
                continue
            if now_ms < state.retry_at_ms:
                wait_ms = min(wait_ms, state.retry_at_ms - now_ms)
                continue
            leader = self._metadata.cluster.leader_of(tp)
            if leader is None:
                wait_ms = min(wait_ms, self._errors.leaderless(state, now_ms))
                continue
            by_leader.setdefault(leader.broker_id, (leader, []))[1].append(state)
        for leader, states in by_leader.values():
            self._ask_ends(leader, states)
        return wait_ms

    def _ask_ends(self, leader: Broker, states: list[PartitionState]) -> None:
        asked = {
            state.topic_partition: (state.generation, self._metadata.cluster.topic_id(state.topic_partition.topic))
            for state in states
        }
        queries = [
            fence(
                query_end(state.topic_partition, state.reset or OffsetReset.EARLIEST),
                self._metadata.cluster.partition(state.topic_partition),
            )
            for state in states
        ]
        self._asked.update(asked)
        call = LogServiceStub(self._channels.get(leader.address)).ListOffsets.future(
            ListOffsetsRequest(partitions=queries), timeout=_TIMEOUT_S
        )
        call.add_done_callback(lambda done: self._post(lambda: self._take_ends(leader, asked, done)))

    def _take_ends(self, leader: Broker, asked: dict[TopicPartition, tuple[int, str]], call: Any) -> None:
        self._asked.difference_update(asked)
        failure = None if call.cancelled() else call.exception()
        if call.cancelled() or failure is not None:
            if isinstance(failure, grpc.RpcError):
                self._failed(asked, named_error(leader, failure))
            self._delay(asked)
            return
        for result in call.result().partitions:
            tp = TopicPartition(result.topic, result.partition)
            state = self._assignment.find(tp)
            generation, topic_id = asked.get(tp, (-1, ""))
            if state is None or generation != state.generation or state.position is not None:
                continue
            try:
                place = read_result(result)
            except PacelineError as error:
                self._refused(state, error, result.error)
            else:
                if place is not None:
                    state.seek_found(place.offset, topic_id)

    def _failed(self, asked: dict[TopicPartition, tuple[int, str]], error: PacelineError) -> None:
        for tp, (generation, _) in asked.items():
            state = self._assignment.find(tp)
            if state is not None and state.generation == generation:
                self._errors.call_failed(state, error)

    def _refused(self, state: PartitionState, error: PacelineError, wire: PartitionError) -> None:
        if not error.retriable and not isinstance(error, FencedLeaderEpochError):
            state.error = error
            return
        self._errors.record(state, error)
        if not self._metadata.apply_hint(state.topic_partition, wire):
            self._delay([state.topic_partition])

    def _delay(self, partitions: Iterable[TopicPartition]) -> None:
        self._metadata.request()
        for tp in partitions:
            state = self._assignment.find(tp)
            if state is not None:
                self._errors.try_later(state)
