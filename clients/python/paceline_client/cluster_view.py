"""`ClusterView`: topics, offsets and raw fetches, for programs that read partitions without a `Consumer`."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any, Final

import grpc

from paceline.model.admin import PartitionDescription
from paceline.model.errors import (
    BrokerNotAvailableError,
    LeaderNotAvailableError,
    PacelineError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
    error_for,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.tls import TlsFiles
from paceline.rpc.errors import is_timeout
from paceline.rpc.pages import merged_pages
from paceline.rpc.retry import RetryPolicy, call_with_retry
from paceline.v1.log_service_pb2 import (
    FETCH_FORMAT_BATCHES,
    OFFSET_SPEC_EARLIEST,
    OFFSET_SPEC_LATEST,
    OFFSET_SPEC_TIMESTAMP,
    FetchRequest,
    ListOffsetsRequest,
)
from paceline.v1.log_service_pb2_grpc import LogServiceStub
from paceline.v1.metadata_service_pb2 import DescribeClusterRequest, DescribeTopicsRequest, TopicDescription
from paceline.v1.metadata_service_pb2_grpc import MetadataServiceStub
from paceline_client.call_errors import named_error
from paceline_client.fetch_request import add_partitions
from paceline_client.fetch_session import WantedPartition
from paceline_client.metadata import TopicDescription as Topic
from paceline_client.metadata import broker_of, topic_of
from paceline_client.process_channels import channels_of_this_process
from paceline_client.wire import FETCH_METHOD, decode_fetch_answer

METADATA_DEADLINE_MS: Final = 30_000
RPC_TIMEOUT_S: Final = 10.0
MAX_PARTITIONS_PER_LOOKUP: Final = 10_000
MAX_NAMES_PER_LOOKUP: Final = 10_000
"""Brokers refuse requests with more partitions or names."""
MAX_FALLBACK_SERVERS: Final = 8
UNKNOWN_TOPIC_ATTEMPTS: Final = 3
"""Number of look-ups that must all miss a topic before it counts as unknown: a broker may not know a new topic yet."""

EARLIEST: Final = OFFSET_SPEC_EARLIEST
LATEST: Final = OFFSET_SPEC_LATEST
TIMESTAMP: Final = OFFSET_SPEC_TIMESTAMP

_Lookup = tuple[str, list[TopicPartition], ListOffsetsRequest]
"""A leader's address, the partitions to request from it, and the request."""


class ClusterView:
    """A cluster as its brokers describe it. Not thread-safe, except `fetch`.

    It has no background thread and needs no `close`: its channels are those of the process (`process_channels`). So it
    may be pickled, and used in a child after a fork. The constructor opens no connection.
    """

    def __init__(
        self,
        bootstrap: Sequence[str],
        *,
        client_id: str,
        tls: TlsFiles | None = None,
        retries: int | None = None,
        retry_interval_ms: int = 100,
    ) -> None:
        """Create a view of the cluster behind the ``bootstrap`` addresses.

        Args:
            bootstrap: ``host:port`` addresses of brokers, tried in this order.
            client_id: the name that brokers see.
            tls: certificate files; None for plaintext.
            retries: of a metadata call; None: as many as fit its deadline of 30 s.
            retry_interval_ms: shortest pause before a retry.
        """
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._tls = tls
        self._policy = RetryPolicy(
            initial_backoff_ms=retry_interval_ms,
            max_backoff_ms=max(1_000, retry_interval_ms),
            deadline_ms=METADATA_DEADLINE_MS,
            max_attempts=None if retries is None else retries + 1,
        )
        self._addresses: dict[int, str] = {}
        self._topics: dict[str, Topic] = {}
        self._good_address: str | None = None
        self._prepared: dict[int, tuple[tuple[TopicPartition, ...], list[_Lookup]]] = {}
        """By offset spec: a tuple of partitions, and the requests that look up their offsets."""

    def describe_topics(self, names: Sequence[str] = ()) -> dict[str, Topic]:
        """Return the named topics that exist, all topics without names, and cache leaders and brokers.

        A missing name is looked up again a few times, then omitted.

        Raises:
            PacelineError: no bootstrap server answered in time.
        """
        policy = RetryPolicy(initial_backoff_ms=50, max_backoff_ms=200, max_attempts=UNKNOWN_TOPIC_ATTEMPTS)

        def ask(_: float | None) -> dict[str, Topic]:
            found = self.refresh(names)
            missing = sorted(set(names) - set(found))
            if missing:
                raise UnknownTopicOrPartitionError(", ".join(missing))
            return found

        try:
            return call_with_retry(policy, ask, should_retry=lambda e: isinstance(e, UnknownTopicOrPartitionError))
        except UnknownTopicOrPartitionError:
            return {name: self._topics[name] for name in names if name in self._topics}

    def refresh(self, names: Sequence[str], seconds: float | None = None) -> dict[str, Topic]:
        """Refresh brokers and topics from the first server that answers.

        Args:
            names: topics to describe; all when empty.
            seconds: shorter deadline, for a caller that has less time left.

        Raises:
            PacelineError: no server answered in time, or a topic failed for another reason than being unknown.
        """
        policy = self._policy
        if seconds is not None:
            policy = replace(policy, deadline_ms=min(METADATA_DEADLINE_MS, int(seconds * 1000)))
        return call_with_retry(policy, lambda left: self._refresh_once(names, left))

    def _refresh_once(self, names: Sequence[str], seconds: float | None) -> dict[str, Topic]:
        failure: PacelineError = BrokerNotAvailableError("no server is known")
        until = time.monotonic() + (RPC_TIMEOUT_S if seconds is None else seconds)
        known = [self._good_address] if self._good_address else []
        for address in dict.fromkeys([*known, *self._bootstrap, *sorted(self._addresses.values())]):
            try:
                return self._describe(address, names, min(RPC_TIMEOUT_S, max(until - time.monotonic(), 0.001)))
            except grpc.RpcError as error:
                last = named_error(address, error)
                # Keep the earlier error if this server only timed out: a refusal tells the user more than a timeout.
                failure = failure if failure.__cause__ is not None and is_timeout(last) else last
            if time.monotonic() >= until:
                break
        raise failure

    def _describe(self, address: str, names: Sequence[str], seconds: float) -> dict[str, Topic]:
        stub = MetadataServiceStub(self._channel(address))
        cluster = stub.DescribeCluster(DescribeClusterRequest(), timeout=seconds)
        described: list[TopicDescription] = []
        for first in range(0, max(len(names), 1), MAX_NAMES_PER_LOOKUP):
            asked = DescribeTopicsRequest(topics=names[first : first + MAX_NAMES_PER_LOOKUP])
            described += merged_pages(asked, lambda page: stub.DescribeTopics(page, timeout=seconds), "topics").topics
        found: dict[str, Topic] = {}
        for topic in described:
            if topic.HasField("error"):
                error = error_for(topic.error.code, f"{topic.name}: {topic.error.message}")
                if not isinstance(error, UnknownTopicOrPartitionError):
                    raise error
            else:
                found[topic.name] = topic_of(topic)
        for name in names:
            self._topics.pop(name, None)
        self._addresses = {info.id: broker_of(info).address for info in cluster.brokers}
        self._topics.update(found)
        self._prepared.clear()
        self._good_address = address
        return found

    def fallback_servers(self) -> tuple[str, ...]:
        """Return a few known brokers, for views that may find all bootstrap servers dead."""
        return tuple(sorted(self._addresses.values())[:MAX_FALLBACK_SERVERS])

    def topic(self, name: str) -> Topic | None:
        """Return the topic as last described, None if it was never described or did not exist then."""
        return self._topics.get(name)

    def _partition(self, tp: TopicPartition) -> PartitionDescription | None:
        topic = self._topics.get(tp.topic)
        # Partitions are numbered from 0 without gaps.
        return topic.partitions[tp.partition] if topic and tp.partition < len(topic.partitions) else None

    def leader_address(self, tp: TopicPartition) -> str | None:
        """Return ``host:port`` of the partition's leader as last described, None without a leader or its address."""
        known = self._partition(tp)
        return None if known is None or known.leader is None else self._addresses.get(known.leader)

    def leader_epoch(self, tp: TopicPartition, address: str) -> int | None:
        """Return the partition's leader epoch if the leader as last described is at ``address``, else None."""
        known = self._partition(tp)
        if known is None or known.leader_epoch < 0 or self.leader_address(tp) != address:
            return None
        return known.leader_epoch

    def list_offsets(
        self, partitions: Iterable[TopicPartition], spec: int, timestamps_ms: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return an offset per partition; None where all records are older than the requested time.

        Follows moved leaders and waits for missing leaders, within the metadata deadline. The requests for a tuple of
        partitions are reused until topics are described again, because a stream over 10,000 partitions looks up the
        same tuple for every batch.

        Args:
            partitions: the partitions.
            spec: `EARLIEST`, `LATEST`, or `TIMESTAMP`: the first record at or after a time.
            timestamps_ms: the times, for `TIMESTAMP`.

        Raises:
            UnknownTopicOrPartitionError: a topic no longer exists.
            PacelineError: a partition failed permanently, or the deadline expired; the last cause.
        """
        found: dict[TopicPartition, int | None] = {}
        is_prepared = not timestamps_ms and self._prepared_calls(partitions, spec) is not None
        left: Sequence[TopicPartition] = partitions if isinstance(partitions, tuple) else sorted(set(partitions))
        first = True
        times_missing = 0

        def ask(seconds: float | None) -> None:
            nonlocal left, first, times_missing
            if not first or (not is_prepared and any(self.leader_address(tp) is None for tp in left)):
                names = {tp.topic for tp in left}
                missing = names - set(self.refresh(sorted(names), seconds))
                times_missing = times_missing + 1 if missing else 0
                if missing:
                    raise UnknownTopicOrPartitionError(f"topic {', '.join(sorted(missing))} does not exist")
            first = False
            failure = self._ask_offsets(left, spec, found, timestamps_ms, seconds or RPC_TIMEOUT_S)
            if failure is not None:
                left = [tp for tp in left if tp not in found]
                raise failure

        call_with_retry(self._policy, ask, is_over=lambda: times_missing >= UNKNOWN_TOPIC_ATTEMPTS)
        return found

    def _ask_offsets(
        self,
        partitions: Sequence[TopicPartition],
        spec: int,
        found: dict[TopicPartition, int | None],
        timestamps_ms: Mapping[TopicPartition, int] | None = None,
        seconds: float = RPC_TIMEOUT_S,
    ) -> PacelineError | None:
        """Ask every leader once; add offsets to ``found`` and return a failure if a partition has no result.

        Raises:
            PacelineError: a partition failed with an error that is not retriable.
        """
        prepared = None if timestamps_ms else self._prepared_calls(partitions, spec)
        if prepared is not None:
            return self._ask_leaders(prepared, found, seconds)
        failure: PacelineError | None = None
        by_leader: dict[str, list[TopicPartition]] = {}
        for tp in partitions:
            address = self.leader_address(tp)
            if address is None:
                failure = LeaderNotAvailableError(f"{tp} has no leader")
            else:
                by_leader.setdefault(address, []).append(tp)
        calls: list[_Lookup] = []
        for address, owned in by_leader.items():
            for at in range(0, len(owned), MAX_PARTITIONS_PER_LOOKUP):
                request = ListOffsetsRequest()
                for tp in owned[at : at + MAX_PARTITIONS_PER_LOOKUP]:
                    request.partitions.add(
                        topic=tp.topic,
                        partition=tp.partition,
                        spec=spec,
                        timestamp_ms=timestamps_ms.get(tp, 0) if timestamps_ms else 0,
                        current_leader_epoch=self.leader_epoch(tp, address),
                    )
                calls.append((address, owned[at : at + MAX_PARTITIONS_PER_LOOKUP], request))
        failure = self._ask_leaders(calls, found, seconds) or failure
        if failure is None and not timestamps_ms and isinstance(partitions, tuple):
            self._prepared[spec] = (partitions, calls)
        return failure

    def _prepared_calls(self, partitions: Iterable[TopicPartition], spec: int) -> list[_Lookup] | None:
        prepared = self._prepared.get(spec)
        return prepared[1] if prepared is not None and prepared[0] is partitions else None

    def _ask_leaders(
        self, calls: Sequence[_Lookup], found: dict[TopicPartition, int | None], seconds: float
    ) -> PacelineError | None:
        """Ask the leaders in parallel; add results to ``found`` and return a failure if a partition has no result."""
        failure: PacelineError | None = None
        timeout_s = min(RPC_TIMEOUT_S, seconds)
        answers = [
            LogServiceStub(self._channel(address)).ListOffsets.future(request, timeout=timeout_s)
            for address, _, request in calls
        ]
        for (address, chunk, _), answer in zip(calls, answers, strict=True):
            failure = _take_offsets(address, chunk, answer, found) or failure
        return failure

    def fetch(
        self,
        address: str,
        wanted: Mapping[TopicPartition, WantedPartition],
        max_bytes: int,
        timeout_s: float,
        max_wait_ms: int = 0,
    ) -> Any:
        """Send a fetch of stored batches to a leader; return its call: a future whose result is a `wire.FetchAnswer`.

        The batches of a partition stay in ``data`` of the answer, from ``begin`` to ``stop``. The first partition with
        records is answered with at least one complete batch, whatever ``max_bytes`` is.
        """
        request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=max_bytes, format=FETCH_FORMAT_BATCHES)
        add_partitions(request, wanted)
        call = self._channel(address).unary_unary(
            FETCH_METHOD,
            request_serializer=FetchRequest.SerializeToString,
            response_deserializer=partial(decode_fetch_answer, copy=False),
        )
        return call.future(request, timeout=timeout_s)

    def _channel(self, address: str) -> Any:
        return channels_of_this_process(self._client_id, self._tls).get(address)


def _take_offsets(
    address: str, partitions: Sequence[TopicPartition], call: Any, found: dict[TopicPartition, int | None]
) -> PacelineError | None:
    """Wait for a leader's response, add results to ``found``, and return a failure if a partition has no result.

    Raises:
        PacelineError: the leader refused a partition with an error that is not retriable.
    """
    try:
        answer = call.result()
    except grpc.RpcError as error:
        return named_error(f"{address}: {partitions[0]}", error)
    failure: PacelineError | None = None
    for asked, result in zip_longest(partitions, answer.partitions):
        if result is None:
            break
        # Brokers answer in the order of the request.
        is_same = asked is not None and asked.partition == result.partition and asked.topic == result.topic
        tp = asked if is_same else TopicPartition(result.topic, result.partition)
        if result.HasField("error"):
            failure = error_for(result.error.code, f"{tp}: {result.error.message}")
            if not failure.retriable:
                raise failure
        else:
            found[tp] = result.offset if result.HasField("offset") else None
    if failure is None and any(tp not in found for tp in partitions):
        failure = UnknownServerError(f"{address} did not answer for every partition")
    return failure
