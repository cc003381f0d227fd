"""A client on generated stubs, with which tests read a cluster independently of the client library.

It finds the controller and leaders, follows hints, and retries until a deadline.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import grpc
from google.rpc import error_details_pb2, status_pb2

from paceline.model.tls import TlsFiles
from paceline.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    errors_pb2,
    log_service_pb2,
    log_service_pb2_grpc,
    metadata_service_pb2,
    metadata_service_pb2_grpc,
    record_pb2,
)

T = TypeVar("T")

_PAUSE_S = 0.1
_CALL_TIMEOUT_S = 20.0
_CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]
_RETRIABLE = {
    errors_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION,
    errors_pb2.ERROR_CODE_LEADER_NOT_AVAILABLE,
    errors_pb2.ERROR_CODE_NOT_LEADER_OR_FOLLOWER,
    errors_pb2.ERROR_CODE_REQUEST_TIMED_OUT,
    errors_pb2.ERROR_CODE_BROKER_NOT_AVAILABLE,
    errors_pb2.ERROR_CODE_REPLICA_NOT_AVAILABLE,
    errors_pb2.ERROR_CODE_NOT_ENOUGH_REPLICAS,
    errors_pb2.ERROR_CODE_NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    errors_pb2.ERROR_CODE_NOT_CONTROLLER,
    errors_pb2.ERROR_CODE_KAFKA_STORAGE_ERROR,
    errors_pb2.ERROR_CODE_LOG_DIR_FULL,
    errors_pb2.ERROR_CODE_FENCED_LEADER_EPOCH,
    errors_pb2.ERROR_CODE_UNKNOWN_LEADER_EPOCH,
    errors_pb2.ERROR_CODE_OFFSET_NOT_AVAILABLE,
    errors_pb2.ERROR_CODE_SHUTTING_DOWN,
    errors_pb2.ERROR_CODE_THROTTLED,
}
_NOTHING_APPENDED = {
    errors_pb2.ERROR_CODE_LOG_DIR_FULL,
    errors_pb2.ERROR_CODE_NOT_ENOUGH_REPLICAS,
    errors_pb2.ERROR_CODE_LEADER_NOT_AVAILABLE,
    errors_pb2.ERROR_CODE_UNKNOWN_LEADER_EPOCH,
    errors_pb2.ERROR_CODE_THROTTLED,
}


class StubClientError(Exception):
    """A call failed with an error that is not retriable, or was still failing at its deadline."""


class ResultError(Exception):
    """An error in a response body."""

    def __init__(self, error: Any) -> None:
        super().__init__(f"{errors_pb2.ErrorCode.Name(error.code)}: {error.message}")
        self.code: int = error.code
        self.hint: errors_pb2.LeaderHint | None = None
        if isinstance(error, errors_pb2.PartitionError) and error.HasField("current_leader"):
            self.hint = error.current_leader


class StubClient:
    """Calls a cluster through the addresses of one listener. Not thread-safe; use one client per thread."""

    def __init__(
        self,
        bootstrap: Sequence[str],
        give_up: Callable[[], bool] = lambda: False,
        tls: TlsFiles | None = None,
        call_timeout_s: float = _CALL_TIMEOUT_S,
    ) -> None:
        self._bootstrap = list(bootstrap)
        self._call_timeout_s = call_timeout_s
        self._credentials = None if tls is None else _credentials(tls)
        self._give_up = give_up
        self._channels: dict[str, grpc.Channel] = {}
        self._leaders: dict[tuple[str, int], str] = {}
        self.unknown_outcomes = 0
        """Number of produce calls with an error after which records may have been appended."""

    def close(self) -> None:
        """Close every connection."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def __enter__(self) -> "StubClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def describe_cluster(self, timeout_s: float = 120.0) -> metadata_service_pb2.DescribeClusterResponse:
        """Return the first response of a bootstrap address."""
        return self._until(timeout_s, "describing the cluster", lambda: self._any(self._cluster_of))

    def describe_topic(self, topic: str, timeout_s: float = 120.0) -> metadata_service_pb2.TopicDescription:
        """Return the topic from the metadata of the first bootstrap address that answers."""
        return self._until(timeout_s, f"describing {topic}", lambda: self._any(lambda to: self._topic_of(to, topic)))

    def describe_topics(self, timeout_s: float = 120.0) -> list[metadata_service_pb2.TopicDescription]:
        """Return every topic from the metadata of the first bootstrap address that answers."""

        def ask(address: str) -> list[metadata_service_pb2.TopicDescription]:
            stub = metadata_service_pb2_grpc.MetadataServiceStub(self._channel(address))
            topics: list[metadata_service_pb2.TopicDescription] = []
            token = ""
            while True:
                request = metadata_service_pb2.DescribeTopicsRequest(page_token=token)
                answer = stub.DescribeTopics(request, timeout=5.0)
                topics += answer.topics
                token = answer.next_page_token
                if not token:
                    return topics

        return self._until(timeout_s, "describing all topics", lambda: self._any(ask))

    def topic_on(self, address: str, topic: str) -> metadata_service_pb2.TopicDescription:
        """Return the topic as one process knows it, without a retry.

        Raises:
            grpc.RpcError: the call failed.
            ResultError: the process does not know the topic.
        """
        return self._topic_of(address, topic)

    def create_topic(
        self, topic: str, partitions: int = 1, replication_factor: int = 3, timeout_s: float = 180.0, **configs: str
    ) -> None:
        """Create a topic at the active controller; underscores in ``configs`` stand for dots."""
        request = admin_service_pb2.CreateTopicsRequest(
            topics=[
                admin_service_pb2.NewTopic(
                    name=topic,
                    partitions=partitions,
                    replication_factor=replication_factor,
                    configs={key.replace("_", "."): value for key, value in configs.items()},
                )
            ],
            timeout_ms=int(self._call_timeout_s * 1000) - 1000,
        )
        tries = 0

        def attempt() -> None:
            nonlocal tries
            tries += 1
            (result,) = self._at_controller(
                lambda admin: admin.CreateTopics(request, timeout=self._call_timeout_s)
            ).topics
            again = tries > 1 and result.error.code == errors_pb2.ERROR_CODE_TOPIC_ALREADY_EXISTS
            if result.HasField("error") and not again:
                raise ResultError(result.error)

        self._until(timeout_s, f"creating {topic}", attempt)

    def init_producer_id(self, timeout_s: float = 120.0) -> tuple[int, int]:
        """Return a new producer id and its epoch."""

        def ask(address: str) -> tuple[int, int]:
            stub = log_service_pb2_grpc.LogServiceStub(self._channel(address))
            answer = stub.InitProducerId(log_service_pb2.InitProducerIdRequest(), timeout=self._call_timeout_s)
            return answer.producer_id, answer.producer_epoch

        return self._until(timeout_s, "asking for a producer id", lambda: self._any(ask))

    def produce(
        self,
        topic: str,
        partition: int,
        values: Iterable[bytes],
        timeout_s: float = 180.0,
        producer: tuple[int, int, int] | None = None,
    ) -> int:
        """Append records with acks=all and return the offset of the first record.

        ``producer`` is the producer id, its epoch and the sequence of the first record; a repeated call then appends no
        duplicate.
        """
        records = record_pb2.RecordList(records=[record_pb2.Record(key=value, value=value) for value in values])
        if producer is not None:
            records.producer_id, records.producer_epoch, records.base_sequence = producer
        request = log_service_pb2.ProduceRequest(
            acks=log_service_pb2.ACKS_ALL,
            timeout_ms=int(self._call_timeout_s * 1000) - 2000,
            partitions=[log_service_pb2.ProducePartition(topic=topic, partition=partition, records=records)],
        )

        def attempt(log: log_service_pb2_grpc.LogServiceStub) -> int:
            try:
                (result,) = log.Produce(request, timeout=self._call_timeout_s).partitions
                if result.HasField("error"):
                    raise ResultError(result.error)
            except (grpc.RpcError, ResultError) as failure:
                if _code_of(failure) not in _NOTHING_APPENDED:
                    self.unknown_outcomes += 1
                raise
            return result.base_offset

        what = f"writing to {topic}/{partition}"
        return self._until(timeout_s, what, lambda: self._at_leader(topic, partition, attempt))

    def read_all(self, topic: str, partition: int, end: int = 0, timeout_s: float = 180.0) -> dict[int, bytes]:
        """Return values by offset, from the first record to the high watermark, which must reach ``end``."""
        found: dict[int, bytes] = {}
        position = 0
        deadline = time.monotonic() + timeout_s

        def attempt(log: log_service_pb2_grpc.LogServiceStub) -> log_service_pb2.FetchPartitionResult:
            request = log_service_pb2.FetchRequest(
                max_wait_ms=200,
                format=log_service_pb2.FETCH_FORMAT_RECORDS,
                partitions=[log_service_pb2.FetchPartition(topic=topic, partition=partition, fetch_offset=position)],
            )
            (result,) = log.Fetch(request, timeout=self._call_timeout_s).partitions
            if result.HasField("error"):
                raise ResultError(result.error)
            return result

        what = f"reading {topic}/{partition}"
        while True:
            left = deadline - time.monotonic()
            result = self._until(left, what, lambda: self._at_leader(topic, partition, attempt))
            for record in result.records.records:
                assert record.offset == position, f"{what}: offset {record.offset} instead of offset {position}"
                found[record.offset] = record.value
                position = record.offset + 1
            if position >= max(result.high_watermark, end):
                return found
            if left <= 0:
                raise StubClientError(f"{what}: reached offset {position}, not {max(result.high_watermark, end)}")

    def end_offset(self, topic: str, partition: int, timeout_s: float = 180.0) -> int:
        """Return the high watermark, the exclusive end of the committed records."""
        query = log_service_pb2.ListOffsetsPartition(topic=topic, partition=partition)

        def attempt(log: log_service_pb2_grpc.LogServiceStub) -> int:
            request = log_service_pb2.ListOffsetsRequest(partitions=[query])
            (result,) = log.ListOffsets(request, timeout=self._call_timeout_s).partitions
            if result.HasField("error"):
                raise ResultError(result.error)
            return result.offset

        what = f"the end of {topic}/{partition}"
        return self._until(timeout_s, what, lambda: self._at_leader(topic, partition, attempt))

    # Routing

    def _channel(self, address: str) -> grpc.Channel:
        if address not in self._channels:
            if self._credentials is None:
                self._channels[address] = grpc.insecure_channel(address, _CHANNEL_OPTIONS)
            else:
                self._channels[address] = grpc.secure_channel(address, self._credentials, _CHANNEL_OPTIONS)
        return self._channels[address]

    def _cluster_of(self, address: str) -> metadata_service_pb2.DescribeClusterResponse:
        stub = metadata_service_pb2_grpc.MetadataServiceStub(self._channel(address))
        return stub.DescribeCluster(metadata_service_pb2.DescribeClusterRequest(), timeout=5.0)

    def _topic_of(self, address: str, topic: str) -> metadata_service_pb2.TopicDescription:
        stub = metadata_service_pb2_grpc.MetadataServiceStub(self._channel(address))
        (description,) = stub.DescribeTopics(
            metadata_service_pb2.DescribeTopicsRequest(topics=[topic]), timeout=5.0
        ).topics
        if description.HasField("error"):
            raise ResultError(description.error)
        return description

    def _any(self, ask: Callable[[str], T]) -> T:
        """Return the first response; an address that failed is tried last the next time."""
        failure: Exception | None = None
        for address in list(self._bootstrap):
            try:
                return ask(address)
            except (grpc.RpcError, ResultError) as error:
                failure = error
                self._bootstrap.remove(address)
                self._bootstrap.append(address)
        assert failure is not None
        raise failure

    def _at_controller(self, call: Callable[[admin_service_pb2_grpc.AdminServiceStub], T]) -> T:
        cluster = self._any(self._cluster_of)
        if not cluster.controller_host:
            raise ResultError(errors_pb2.TopicError(code=errors_pb2.ERROR_CODE_NOT_CONTROLLER, message="none active"))
        address = f"{cluster.controller_host}:{cluster.controller_port}"
        try:
            return call(admin_service_pb2_grpc.AdminServiceStub(self._channel(address)))
        except grpc.RpcError as failure:
            info = _error_info(failure)
            if info is None or info.reason != "NOT_CONTROLLER" or not info.metadata.get("address"):
                raise
            return call(admin_service_pb2_grpc.AdminServiceStub(self._channel(info.metadata["address"])))

    def _at_leader(self, topic: str, partition: int, call: Callable[[log_service_pb2_grpc.LogServiceStub], T]) -> T:
        address = self._leaders.pop((topic, partition), None) or self.find_leader(topic, partition)
        try:
            result = call(log_service_pb2_grpc.LogServiceStub(self._channel(address)))
        except ResultError as failure:
            if failure.hint is not None and failure.hint.host:
                self._leaders[topic, partition] = f"{failure.hint.host}:{failure.hint.port}"
            raise
        self._leaders[topic, partition] = address
        return result

    def find_leader(self, topic: str, partition: int) -> str:
        brokers = {broker.id: f"{broker.host}:{broker.port}" for broker in self._any(self._cluster_of).brokers}
        for description in self._any(lambda to: self._topic_of(to, topic)).partitions:
            if description.partition == partition and description.HasField("leader") and description.leader in brokers:
                return brokers[description.leader]
        raise ResultError(errors_pb2.PartitionError(code=errors_pb2.ERROR_CODE_LEADER_NOT_AVAILABLE, message="none"))

    def _until(self, timeout_s: float, what: str, attempt: Callable[[], T]) -> T:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return attempt()
            except (grpc.RpcError, ResultError) as failure:
                late = time.monotonic() >= deadline
                if late or self._give_up() or not _retriable(failure):
                    why = "out of time, " if late else ""
                    raise StubClientError(f"{what}: {why}{_text(failure)}") from failure
            # A broker that is cut off from ZooKeeper answers with old metadata: ask another broker.
            self._bootstrap.append(self._bootstrap.pop(0))
            time.sleep(_PAUSE_S)


def _credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    key, certificate = (path.read_bytes() if path is not None else None for path in (files.key, files.certificate))
    return grpc.ssl_channel_credentials(files.ca.read_bytes(), key, certificate)


def _error_info(failure: Any) -> error_details_pb2.ErrorInfo | None:
    for key, value in failure.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info) and info.domain == "paceline":
                    return info
    return None


def _code_of(failure: Exception) -> int | None:
    if isinstance(failure, ResultError):
        return failure.code
    info = _error_info(failure)
    if info is None:
        return None
    return dict(errors_pb2.ErrorCode.items()).get(f"ERROR_CODE_{info.reason}")


def _retriable(failure: Any) -> bool:
    code = _code_of(failure)
    if code is not None:
        return code in _RETRIABLE
    return failure.code() in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.CANCELLED,
    )


def _text(failure: Any) -> str:
    return str(failure) if isinstance(failure, ResultError) else f"{failure.code().name}: {failure.details()}"
