"""Blocking client for Spark jobs: topics and leaders, offsets, and raw fetches.

Channels are opened on first use and kept per process id: Spark's daemon forks its workers, gRPC does not survive a
fork, and a reused worker keeps its open connections. A constructor opens no channel, because Spark builds each reader a
second time in another process to pickle it.
"""

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Final, Protocol

import grpc

from paceline.model.addresses import address_of
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
from paceline.pipeline.fetch_wire import FETCH_METHOD, parse_fetch_answer
from paceline.rpc.channels import CLIENT_MAX_MESSAGE_BYTES, ChannelCache, Options, open_channel
from paceline.rpc.errors import ConnectionBrokenError, error_info, from_rpc_error, is_timeout
from paceline.rpc.pages import merged_pages
from paceline.rpc.retry import RetryPolicy, call_with_retry
from paceline.rpc.security.client_tls import client_credentials
from paceline.rpc.security.credentials import TlsCredentials
from paceline.v1 import log_service_pb2, log_service_pb2_grpc, metadata_service_pb2, metadata_service_pb2_grpc

METADATA_DEADLINE_MS: Final = 30_000
RPC_TIMEOUT_S: Final = 10.0
FRAME_BYTES: Final = 1024 * 1024
"""Maximum size of an HTTP/2 frame that a broker may send, instead of gRPC's 16 KiB.

Measured with single responses on a busy machine: 1 MiB 693 to 950 MB/s, 4 MiB 333 to 917 MB/s, 8 MiB 377 to 430 MB/s.
No effect on the time of a whole read has been measured yet.
"""
MAX_PARTITIONS_PER_LOOKUP: Final = 10_000
MAX_NAMES_PER_LOOKUP: Final = 10_000
"""Brokers refuse requests with more partitions or names."""
MAX_FALLBACK_SERVERS: Final = 8
UNKNOWN_TOPIC_ATTEMPTS: Final = 3
"""Number of look-ups that must all miss a topic before it counts as unknown: a broker may not know a new topic yet."""

EARLIEST: Final = log_service_pb2.OFFSET_SPEC_EARLIEST
LATEST: Final = log_service_pb2.OFFSET_SPEC_LATEST
TIMESTAMP: Final = log_service_pb2.OFFSET_SPEC_TIMESTAMP

_BROKEN_CONNECTION: Final = {grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}

_Lookup = tuple[str, list[TopicPartition], log_service_pb2.ListOffsetsRequest]
"""A leader's address, the partitions to request from it, and the request."""

_channels: dict[tuple[int, str, TlsFiles | None], ChannelCache] = {}
_channels_lock = threading.Lock()


def channels_of_this_process(client_id: str, tls: TlsFiles | None = None) -> ChannelCache:
    """Return the channels of this process; channels inherited through a fork are forgotten, not used or closed."""
    key = (os.getpid(), client_id, tls)
    with _channels_lock:
        if key not in _channels:
            for other in [other for other in _channels if other[0] != key[0]]:
                del _channels[other]
            credentials = client_credentials(tls, {})
            _channels[key] = ChannelCache(lambda address: _open_channel(address, client_id, credentials))
        return _channels[key]


def close_channels() -> None:
    """Close this process's channels; the next call opens new ones."""
    with _channels_lock:
        mine = [key for key in _channels if key[0] == os.getpid()]
        closing = [_channels.pop(key) for key in mine]
    for cache in closing:
        cache.close()


def _open_channel(address: str, client_id: str, credentials: TlsCredentials | None) -> Any:
    ours: Options = [("grpc.primary_user_agent", client_id), ("grpc.http2.max_frame_size", FRAME_BYTES)]
    return open_channel(address, CLIENT_MAX_MESSAGE_BYTES, tls=credentials, more_options=ours)


def named_failure(where: str, failure: grpc.RpcError) -> PacelineError:
    """Return the error of a failed call; its message begins with ``where``.

    A status that gRPC itself set when a connection broke becomes a connection error, which is retriable.
    """
    error = from_rpc_error(failure)
    unclear = error_info(failure) is None and failure.code() in _BROKEN_CONNECTION
    named = ConnectionBrokenError(f"{where}: {error}") if unclear else error_for(error.code, f"{where}: {error}")
    named.__cause__ = failure
    return named


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition's replicas, as described by a broker."""

    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic, as described by a broker."""

    name: str
    topic_id: str
    leaders: Mapping[int, int | None]
    """Leader's broker id per partition, None for a partition without a leader."""
    leader_epochs: Mapping[int, int] = field(default_factory=dict)
    """Leader epoch per partition."""
    described: metadata_service_pb2.TopicDescription = field(
        default_factory=metadata_service_pb2.TopicDescription, compare=False, repr=False
    )

    @property
    def states(self) -> dict[int, PartitionState]:
        """Return the replicas of each partition."""
        return {
            each.partition: PartitionState(each.leader_epoch, tuple(each.replicas), tuple(each.isr))
            for each in self.described.partitions
        }


class ClientOptions(Protocol):
    """The options of reads and writes that a `Cluster` uses."""

    @property
    def bootstrap_servers(self) -> tuple[str, ...]: ...
    @property
    def client_id(self) -> str: ...
    @property
    def metadata_retries(self) -> int | None: ...
    @property
    def metadata_retry_interval_ms(self) -> int: ...
    @property
    def tls(self) -> TlsFiles | None: ...


class Cluster:
    """A cluster, reached through its bootstrap servers. Opens no connection before the first call."""

    def __init__(self, options: ClientOptions, fallback_servers: Sequence[str] = ()) -> None:
        """``fallback_servers`` are tried when no bootstrap server answers."""
        self._bootstrap = (*options.bootstrap_servers, *fallback_servers)
        self._client_id = options.client_id
        self._tls = options.tls
        self._policy = RetryPolicy(
            initial_backoff_ms=options.metadata_retry_interval_ms,
            max_backoff_ms=max(1_000, options.metadata_retry_interval_ms),
            deadline_ms=METADATA_DEADLINE_MS,
            max_attempts=None if options.metadata_retries is None else options.metadata_retries + 1,
        )
        self._addresses: dict[int, str] = {}
        self._topics: dict[str, TopicView] = {}
        self._good_address: str | None = None
        self._prepared: dict[int, tuple[tuple[TopicPartition, ...], list[_Lookup]]] = {}
        """By offset spec: a tuple of partitions, and the requests that look up their offsets."""

    def describe_topics(self, names: Sequence[str] = ()) -> dict[str, TopicView]:
        """Return the named topics that exist, all topics without names, and cache leaders and brokers.

        A missing name is looked up again a few times, then omitted.

        Raises:
            PacelineError: no bootstrap server answered in time.
        """
        policy = RetryPolicy(initial_backoff_ms=50, max_backoff_ms=200, max_attempts=UNKNOWN_TOPIC_ATTEMPTS)

        def ask(_: float | None) -> dict[str, TopicView]:
            found = self.refresh(names)
            missing = sorted(set(names) - set(found))
            if missing:
                raise UnknownTopicOrPartitionError(", ".join(missing))
            return found

        try:
            return call_with_retry(policy, ask, should_retry=lambda e: isinstance(e, UnknownTopicOrPartitionError))
        except UnknownTopicOrPartitionError:
            return {name: self._topics[name] for name in names if name in self._topics}

    def refresh(
        self, names: Sequence[str], seconds: float | None = None, over: threading.Event | None = None
    ) -> dict[str, TopicView]:
        """Refresh brokers and topics from the first server that answers.

        Args:
            names: topics to describe; all when empty.
            seconds: shorter deadline, for a caller that has less time left.
            over: ends the retries when it is set.

        Raises:
            PacelineError: no server answered in time, or a topic failed for another reason than being unknown.
        """
        policy = self._policy
        if seconds is not None:
            policy = replace(policy, deadline_ms=min(METADATA_DEADLINE_MS, int(seconds * 1000)))
        over = over or threading.Event()
        return call_with_retry(policy, lambda left: self._refresh_once(names, left), is_over=over.is_set, wake=over)

    def _refresh_once(self, names: Sequence[str], seconds: float | None) -> dict[str, TopicView]:
        failure: PacelineError = BrokerNotAvailableError("no server is known")
        until = time.monotonic() + (RPC_TIMEOUT_S if seconds is None else seconds)
        for address in self._servers():
            try:
                return self._describe(address, names, min(RPC_TIMEOUT_S, max(until - time.monotonic(), 0.001)))
            except grpc.RpcError as error:
                last = named_failure(address, error)
                # Keep the earlier error if this server only timed out: a refusal tells the user more than a timeout.
                failure = failure if failure.__cause__ is not None and is_timeout(last) else last
            if time.monotonic() >= until:
                break
        raise failure

    def _servers(self) -> list[str]:
        """Return the server that answered last, the bootstrap servers, then every known broker."""
        known = [self._good_address] if self._good_address else []
        return list(dict.fromkeys([*known, *self._bootstrap, *sorted(self._addresses.values())]))

    def _describe(self, address: str, names: Sequence[str], seconds: float) -> dict[str, TopicView]:
        stub = metadata_service_pb2_grpc.MetadataServiceStub(self._channel(address))
        cluster = stub.DescribeCluster(metadata_service_pb2.DescribeClusterRequest(), timeout=seconds)
        described: list[metadata_service_pb2.TopicDescription] = []
        for first in range(0, max(len(names), 1), MAX_NAMES_PER_LOOKUP):
            asked = metadata_service_pb2.DescribeTopicsRequest(topics=names[first : first + MAX_NAMES_PER_LOOKUP])
            answer = merged_pages(asked, lambda page: stub.DescribeTopics(page, timeout=seconds), "topics")
            described.extend(answer.topics)
        found: dict[str, TopicView] = {}
        for topic in described:
            if topic.HasField("error"):
                error = error_for(topic.error.code, f"{topic.name}: {topic.error.message}")
                if not isinstance(error, UnknownTopicOrPartitionError):
                    raise error
                self._topics.pop(topic.name, None)
                continue
            leaders = {p.partition: p.leader if p.HasField("leader") else None for p in topic.partitions}
            epochs = {p.partition: p.leader_epoch for p in topic.partitions if p.leader_epoch >= 0}
            found[topic.name] = TopicView(topic.name, topic.topic_id, leaders, epochs, topic)
        for name in names:
            if name not in found:
                self._topics.pop(name, None)
        self._addresses = {broker.id: address_of(broker.host, broker.port) for broker in cluster.brokers}
        self._topics.update(found)
        self._prepared.clear()
        self._good_address = address
        return found

    def fallback_servers(self) -> tuple[str, ...]:
        """Return a few known brokers, for readers that may find all bootstrap servers dead."""
        return tuple(sorted(self._addresses.values())[:MAX_FALLBACK_SERVERS])

    def topic(self, name: str) -> TopicView | None:
        """Return the topic as last described, None if it was never described or did not exist then."""
        return self._topics.get(name)

    def leader_address(self, tp: TopicPartition) -> str | None:
        """Return ``host:port`` of the partition's leader as last described, None without a leader or its address."""
        topic = self._topics.get(tp.topic)
        leader = topic.leaders.get(tp.partition) if topic else None
        return None if leader is None else self._addresses.get(leader)

    def leader_epoch(self, tp: TopicPartition, address: str) -> int | None:
        """Return the partition's leader epoch if the leader as last described is at ``address``, else None."""
        topic = self._topics.get(tp.topic)
        if topic is None or self.leader_address(tp) != address:
            return None
        return topic.leader_epochs.get(tp.partition)

    def list_offsets(
        self, partitions: Iterable[TopicPartition], spec: int, timestamps_ms: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return an offset per partition; None where all records are older than the requested time.

        Follows moved leaders and waits for missing leaders, within the metadata deadline. The requests for a tuple of
        partitions are reused until topics are described again, because a stream over 10,000 partitions looks up the
        same tuple for every batch.

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
            failure = self._list_offsets_once(left, spec, timestamps_ms or {}, found, seconds or RPC_TIMEOUT_S)
            if failure is not None:
                left = [tp for tp in left if tp not in found]
                raise failure

        call_with_retry(self._policy, ask, is_over=lambda: times_missing >= UNKNOWN_TOPIC_ATTEMPTS)
        return found

    def list_offsets_once(self, partitions: Sequence[TopicPartition], spec: int) -> dict[TopicPartition, int | None]:
        """Return the offsets that leaders answer in a single attempt; omits partitions whose leader fails.

        Raises:
            PacelineError: a partition failed with an error that is not retriable.
        """
        found: dict[TopicPartition, int | None] = {}
        self._list_offsets_once(partitions, spec, {}, found, RPC_TIMEOUT_S)
        return found

    def _list_offsets_once(
        self,
        partitions: Sequence[TopicPartition],
        spec: int,
        timestamps_ms: Mapping[TopicPartition, int],
        found: dict[TopicPartition, int | None],
        seconds: float,
    ) -> PacelineError | None:
        """Ask every leader once; add results to ``found`` and return a failure if a partition has no result."""
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
                chunk = owned[at : at + MAX_PARTITIONS_PER_LOOKUP]
                calls.append((address, chunk, self._lookup_request(address, chunk, spec, timestamps_ms)))
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
        answers = []
        for address, _, request in calls:
            stub = log_service_pb2_grpc.LogServiceStub(self._channel(address))
            answers.append(stub.ListOffsets.future(request, timeout=min(RPC_TIMEOUT_S, seconds)))
        for (address, chunk, _), answer in zip(calls, answers, strict=True):
            failure = _take_offsets(address, chunk, answer, found) or failure
        return failure

    def _lookup_request(
        self, address: str, partitions: Sequence[TopicPartition], spec: int, timestamps_ms: Mapping[TopicPartition, int]
    ) -> log_service_pb2.ListOffsetsRequest:
        request = log_service_pb2.ListOffsetsRequest()
        for tp in partitions:
            request.partitions.add(
                topic=tp.topic,
                partition=tp.partition,
                spec=spec,
                timestamp_ms=timestamps_ms.get(tp, 0),
                current_leader_epoch=self.leader_epoch(tp, address),
            )
        return request

    def start_fetch(self, address: str, request: log_service_pb2.FetchRequest, seconds: float) -> Any:
        """Send a fetch and return its call: a future whose result is a `fetch_wire.FetchAnswer`."""
        fetch = self._channel(address).unary_unary(
            FETCH_METHOD,
            request_serializer=log_service_pb2.FetchRequest.SerializeToString,
            response_deserializer=parse_fetch_answer,
        )
        return fetch.future(request, timeout=seconds)

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
        return named_failure(f"{address}: {partitions[0]}", error)
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
