"""Refresh `ClusterMetadata` on a background thread: on demand with back-off, and every few minutes."""

import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

import grpc

from paceline.model.errors import (
    BrokerNotAvailableError,
    PacelineError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition, validate_topic_name
from paceline.rpc.channels import ChannelCache
from paceline.rpc.errors import from_rpc_error
from paceline.rpc.pages import merged_pages
from paceline.rpc.retry import RetryPolicy
from paceline.v1.errors_pb2 import PartitionError
from paceline.v1.metadata_service_pb2 import DescribeClusterRequest, DescribeTopicsRequest
from paceline.v1.metadata_service_pb2_grpc import MetadataServiceStub
from paceline_client.addresses import advised, by_cause
from paceline_client.errors import BootstrapError, ClientClosedError, nothing_sent
from paceline_client.metadata import Broker, ClusterMetadata
from paceline_client.wait_notice import FIRST_NOTICE_S, LOG, NEXT_NOTICE_S

METADATA_MAX_AGE_MS: Final = 300_000
ONE_BROKER_TIMEOUT_S: Final = 5.0
"""Longest wait for one address before trying the next."""
MISSING_TOPIC_MAX_MS: Final = 5_000
"""Time to wait for a topic that brokers do not know: the metadata of a new topic takes a moment to reach them."""
MISSING_PARTITION_MAX_MS: Final = 1_000
"""Time to wait for a missing partition of a known topic, which may have been added a moment ago."""
BACKOFF: Final = RetryPolicy(initial_backoff_ms=50, max_backoff_ms=1_000, deadline_ms=None, max_attempts=1)

NO_NEWS_BACKOFF_MS: Final = 250
"""Longest pause between refreshes while responses have no changes: short enough that a client finds a new leader
quickly, long enough that hundreds of clients do not overload the brokers."""
_BACKOFF_RESET_S: Final = 2.0
"""Idle time after which the back-off starts at its shortest pause again."""


class MetadataRefresher:
    """Cluster metadata with the thread that refreshes it. Thread-safe.

    The listeners are called on that thread after every refresh, also after a refresh that failed or changed nothing.
    """

    def __init__(
        self,
        bootstrap: list[str],
        channels: ChannelCache,
        max_age_ms: int = METADATA_MAX_AGE_MS,
        name: str = "paceline-metadata",
    ) -> None:
        self._bootstrap = bootstrap
        self._channels = channels
        self._listeners: list[Callable[[], None]] = []
        self._max_age_ms = max_age_ms
        self.cluster = ClusterMetadata()
        """The metadata. Other threads only read it, without the lock: each read is a look-up in a dictionary."""
        self._topics: set[str] = set()
        self._changed = threading.Condition()
        self._wanted = False
        self._closed = False
        self._last_error: PacelineError | None = None
        self._silent: dict[str, str] = {}
        """Addresses whose last call failed, with the cause; only the refresh thread uses this and `_answered`."""
        self._answered = ""
        self._notice_s = 0.0  # time of the next log line about the silence of all addresses
        self._rng = random.Random()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # For other threads ---------------------------------------------------------------------------------------------

    def add_listener(self, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` after every refresh."""
        with self._changed:
            self._listeners = [*self._listeners, on_change]

    def remove_listener(self, on_change: Callable[[], None]) -> None:
        """Stop calling ``on_change``; a call in progress may end after this method has returned."""
        with self._changed:
            self._listeners = [each for each in self._listeners if each != on_change]

    def leadership(self, topic_partition: TopicPartition) -> tuple[Broker | None, int | None, str]:
        """Return leader, leader epoch and topic id; an unknown leader or epoch is None, an unknown id is empty."""
        with self._changed:
            known = self.cluster.partition(topic_partition)
            epoch = None if known is None or known.leader_epoch < 0 else known.leader_epoch
            return self.cluster.leader_of(topic_partition), epoch, self.cluster.topic_id(topic_partition.topic)

    def brokers(self) -> list[Broker]:
        """Return the live brokers, by id."""
        with self._changed:
            return [broker for _, broker in sorted(self.cluster.brokers.items())]

    @property
    def last_error(self) -> PacelineError | None:
        """Error of the last refresh, None after success."""
        return self._last_error

    def apply_hint(self, topic_partition: TopicPartition, refusal: PartitionError) -> bool:
        """Apply the leader hint of a refusal; return False when it has none, or one that is not newer."""
        with self._changed:
            return refusal.HasField("current_leader") and self.cluster.apply_hint(
                topic_partition, refusal.current_leader
            )

    def request(self) -> None:
        """Request a refresh; returns at once."""
        with self._changed:
            self._wanted = True
            self._changed.notify_all()

    def want(self, topics: Iterable[str]) -> None:
        """Add these topics to all future refreshes; returns at once."""
        with self._changed:
            missing = set(topics) - self._topics
            if missing:
                self._topics |= missing
                self._wanted = True
                self._changed.notify_all()

    def wait_for_topic(self, topic: str, timeout_s: float) -> int:
        """Return the number of partitions of a topic, waiting for its metadata when necessary.

        Raises:
            UnknownTopicOrPartitionError: brokers reported for some seconds that the topic does not exist.
            InvalidTopicError: the name is not valid.
            BootstrapError: no broker answered in time; the message has the last cause.
            ClientClosedError: the client was closed during the wait.
        """
        began = time.monotonic()
        with self._changed:
            while True:
                count = self.cluster.partition_count(topic)
                if count:
                    return count
                waited = time.monotonic() - began
                try:
                    self._raise_unless_worth_waiting(topic, waited, timeout_s)
                except PacelineError as error:
                    self._topics.discard(topic)
                    self.cluster.forget_topics([topic])
                    raise nothing_sent(error) from error.__cause__
                if topic not in self._topics:
                    # A name that cannot be encoded would make the requests for all other topics fail.
                    validate_topic_name(topic)
                if topic not in self._topics or self.cluster.error_of(topic) is not None:
                    self._topics.add(topic)
                    self._wanted = True
                    self._changed.notify_all()
                self._changed.wait(min(0.2, max(0.001, timeout_s - waited)))

    def wait_for_partition(self, topic: str, index: int, timeout_s: float) -> int:
        """Return the number of partitions of a topic; while it lacks partition ``index``, refresh for up to a second.

        Raises:
            PacelineError: as `wait_for_topic`.
        """
        until = time.monotonic() + min(timeout_s, MISSING_PARTITION_MAX_MS / 1000)
        count = self.wait_for_topic(topic, timeout_s)
        with self._changed:
            while index >= count and (left := until - time.monotonic()) > 0 and not self._closed:
                if not self._wanted:
                    self._wanted = True
                    self._changed.notify_all()
                self._changed.wait(left)
                count = self.cluster.partition_count(topic) or count
        return count

    def wait_for_brokers(self, timeout_s: float) -> list[Broker]:
        """Return the live brokers, waiting for the first response.

        Raises:
            BootstrapError: no address answered in time.
            ClientClosedError: the client was closed during the wait.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self.cluster.brokers:
                left = deadline - time.monotonic()
                if self._closed:
                    raise ClientClosedError("the client is closed")
                if left <= 0:
                    raise self._no_answer(timeout_s)
                self._tell_of_silence(timeout_s - left)
                self._wanted = True
                self._changed.notify_all()
                self._changed.wait(min(left, 0.2))
            return [broker for _, broker in sorted(self.cluster.brokers.items())]

    def stop(self) -> None:
        """Stop refreshing. A call in flight ends when the channels are closed; `close` waits for it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop and join the thread."""
        self.stop()
        if threading.current_thread() is not self._thread:
            self._thread.join(ONE_BROKER_TIMEOUT_S + 1.0)

    def _raise_unless_worth_waiting(self, topic: str, waited_s: float, timeout_s: float) -> None:
        if self._closed:
            raise ClientClosedError("the client is closed")
        error = self.cluster.error_of(topic)
        if error is not None and (not error.retriable or waited_s * 1000 >= MISSING_TOPIC_MAX_MS):
            raise error
        if waited_s < timeout_s:
            self._tell_of_silence(waited_s)
            return
        if error is not None:
            raise error
        if self.cluster.brokers:
            raise UnknownTopicOrPartitionError(f"no metadata of topic {topic} within {timeout_s:.1f} s")
        raise self._no_answer(timeout_s)

    def _tell_of_silence(self, waited_s: float) -> None:
        """Log that no address has answered yet, first after about two seconds, for all waiting threads together."""
        now = time.monotonic()
        if waited_s >= FIRST_NOTICE_S and now >= self._notice_s and not self.cluster.brokers:
            self._notice_s = now + NEXT_NOTICE_S
            LOG.warning("waiting for an answer from %s", self._silence())

    def _silence(self) -> str:
        return f"the bootstrap addresses {', '.join(self._bootstrap)}: {self._last_error or 'no answer'}"

    def _no_answer(self, timeout_s: float) -> BootstrapError:
        error = BootstrapError(f"no answer within {timeout_s:.1f} s from {self._silence()}")
        error.__cause__ = self._last_error
        return error

    # The thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failures = no_news = 0
        quiet_until = 0.0
        refreshed = 0.0
        while True:
            with self._changed:
                while not self._closed:
                    now = time.monotonic()
                    stale = refreshed and now - refreshed >= self._max_age_ms / 1000
                    if (self._wanted or stale) and now >= quiet_until:
                        break
                    wake = quiet_until if self._wanted else (refreshed or now) + self._max_age_ms / 1000
                    self._changed.wait(min(60.0, max(0.001, wake - now)))
                if self._closed:
                    return
                self._wanted = False
                topics = sorted(self._topics)
                version = self.cluster.version
            if now - refreshed > _BACKOFF_RESET_S:
                no_news = 0
            answered = self._refresh(topics, bootstrap_first=no_news > 0)
            failures = 0 if answered else failures + 1
            no_news = no_news + 1 if self.cluster.version == version else 0
            now = time.monotonic()
            refreshed = now
            # Pause even after success: many callers may request the same refresh.
            pause_ms = BACKOFF.backoff_ms(max(1, failures or no_news), self._rng)
            quiet_until = now + (pause_ms if failures else min(pause_ms, NO_NEWS_BACKOFF_MS)) / 1000
            if not answered:
                self.request()
            for listener in self._listeners:
                try:
                    listener()
                except Exception:
                    LOG.exception("metadata listener failed")

    def _refresh(self, topics: Iterable[str], bootstrap_first: bool) -> bool:
        """Try addresses until a response lists brokers; return False when none does."""
        last: PacelineError | None = None
        candidates = self._candidates(bootstrap_first)
        for address in candidates:
            if self._closed:
                return True
            try:
                if self._ask(address, list(topics)):
                    self._silent.pop(address, None)
                    self._answered = address
                    return True
                # A starting broker, or a broker that no controller has reached, has no brokers; try the next address.
                kind: type[PacelineError] = BrokerNotAvailableError
                cause = "it has no brokers in its metadata yet"
            except grpc.RpcError as failure:
                error = from_rpc_error(failure)
                kind, cause = type(error), str(error) if self.cluster.brokers else advised(address, str(error))
                LOG.debug("metadata request failed: address=%s error=%s", address, error)
            except Exception as failure:
                if self._closed:  # gRPC raises ValueError for a call on a closed channel
                    return True
                # Keep the thread alive after any error: without the thread the client would not learn of new leaders.
                LOG.exception("metadata request failed: address=%s", address)
                kind, cause = UnknownServerError, repr(failure)
            self._silent[address] = cause
            last = kind(by_cause({each: self._silent[each] for each in sorted(candidates) if each in self._silent}))
            if not self.cluster.brokers:
                self._last_error = last  # for callers whose wait for the first response expires before the next address
        with self._changed:
            self._last_error = last
            self._changed.notify_all()
        return False

    def _candidates(self, bootstrap_first: bool) -> list[str]:
        """Return addresses to ask: the known brokers, then the bootstrap addresses, or the reverse.

        A broker that is cut off from the cluster keeps returning its old metadata, which may list only that broker. So
        after a response without changes the bootstrap addresses come first, and the address that returned it comes
        after them. Addresses that did not respond come last.
        """
        with self._changed:
            known = [broker.address for broker in self.cluster.brokers.values()]
        self._rng.shuffle(known)
        bootstrap = self._rng.sample(self._bootstrap, len(self._bootstrap))
        ordered = dict.fromkeys(bootstrap + known if bootstrap_first else known + self._bootstrap)
        again = self._answered if bootstrap_first else ""
        return sorted(ordered, key=lambda address: (address in self._silent, address == again))

    def _ask(self, address: str, topics: list[str]) -> bool:
        stub = MetadataServiceStub(self._channels.get(address))
        cluster = stub.DescribeCluster(DescribeClusterRequest(), timeout=ONE_BROKER_TIMEOUT_S)
        if not cluster.brokers:
            return False
        described = []
        if topics:
            answer = merged_pages(
                DescribeTopicsRequest(topics=topics),
                lambda page: stub.DescribeTopics(page, timeout=ONE_BROKER_TIMEOUT_S),
                "topics",
            )
            described = list(answer.topics)
        with self._changed:
            self.cluster.update_cluster(cluster)
            for topic in described:
                self.cluster.update_topic(topic)
            self._last_error = None
            self._changed.notify_all()
            return True
