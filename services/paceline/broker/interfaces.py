"""Interfaces that a broker's core needs besides clock, ZooKeeper and logs."""

from collections.abc import Callable
from typing import Protocol

from paceline.model.control import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    Endpoint,
    InternalTopic,
    LiveBroker,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.replica_fetch import ReplicaFetchRequest, ReplicaFetchResponse


class BrokerTransport(Protocol):
    """Calls from a broker to leaders and to the controller.

    Each call ends in exactly one callback on the broker's scheduler: the response, or an exception (unreachable,
    deadline expired). A response may arrive after the caller has stopped waiting; the caller must check whether the
    response still applies.
    """

    def replica_fetch(
        self,
        leader: LiveBroker,
        fetcher_id: int,
        request: ReplicaFetchRequest,
        timeout_ms: int,
        on_done: Callable[[ReplicaFetchResponse | Exception], None],
    ) -> None:
        """Fetch from a leader over the fetcher's own connection; one call in flight per (leader, fetcher id)."""

    def close_fetcher(self, leader_id: int, fetcher_id: int) -> None:
        """End the fetcher's thread and connection; responses in flight may be dropped or delivered."""

    def controlled_shutdown(
        self,
        controller: Endpoint,
        request: ControlledShutdownRequest,
        timeout_ms: int,
        on_done: Callable[[ControlledShutdownResponse | Exception], None],
    ) -> None:
        """Ask a controller to move this broker's leaders away."""

    def create_internal_topic(
        self,
        controller: Endpoint,
        topic: InternalTopic,
        timeout_ms: int,
        on_done: Callable[[Exception | None], None],
    ) -> None:
        """Ask a controller to create an internal topic; the callback gets the error, or None."""

    def broker_heartbeat(
        self,
        controller: Endpoint,
        request: BrokerHeartbeatRequest,
        timeout_ms: int,
        on_done: Callable[[BrokerHeartbeatResponse | Exception], None],
    ) -> None:
        """Renew the lease at a controller, without waiting for other calls to that controller."""


class BackgroundWork(Protocol):
    """Runs blocking disk work; the broker process uses an executor."""

    def run(self, work: Callable[[], None], on_done: Callable[[Exception | None], None]) -> None:
        """Run ``work``, then call ``on_done`` on the broker's scheduler with its exception, or None."""


class ReplicaListener(Protocol):
    """Receives what a broker's replicas mean for the rest of the broker."""

    def partition_left(self, topic_partition: TopicPartition) -> None:
        """The partition is no longer hosted, or is Offline."""

    def replicas_changed(self) -> None:
        """The controller must request the state of the replicas."""

    def log_dir_failed(self, log_dir: str) -> None:
        """A log directory has failed; called once."""

    def leader_does_not_answer(self, leader_id: int, cause: str) -> None:
        """A leader does not answer fetches."""

    def fetch_connection_broke(self) -> None:
        """A fetcher has lost the connection to its leader: with the controller's own evidence, the leader is dead."""
