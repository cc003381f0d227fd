"""What a broker's core is handed besides clock, ZooKeeper and log: a way to call other processes."""

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
from paceline.model.replica_fetch import ReplicaFetchRequest, ReplicaFetchResponse


class BrokerTransport(Protocol):
    """Calls from a broker to leaders and to the controller.

    Each call ends in exactly one callback on the broker's scheduler: the answer, or the exception that took its
    place (unreachable, deadline passed). An answer may arrive after its caller has lost interest; the caller matches
    it to what it still waits for.
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
        """End the fetcher's thread and connection; answers still on their way may be dropped or delivered."""

    def controlled_shutdown(
        self,
        controller: Endpoint,
        request: ControlledShutdownRequest,
        timeout_ms: int,
        on_done: Callable[[ControlledShutdownResponse | Exception], None],
    ) -> None:
        """Ask a controller to take leadership away."""

    def create_internal_topic(
        self,
        controller: Endpoint,
        topic: InternalTopic,
        timeout_ms: int,
        on_done: Callable[[Exception | None], None],
    ) -> None:
        """Ask a controller to create one of the cluster's own topics; the callback gets why it failed, or None."""

    def broker_heartbeat(
        self,
        controller: Endpoint,
        request: BrokerHeartbeatRequest,
        timeout_ms: int,
        on_done: Callable[[BrokerHeartbeatResponse | Exception], None],
    ) -> None:
        """Renew the lease at a controller; never waits behind other calls to it."""


class BackgroundWork(Protocol):
    """Somewhere else to wait for the disk: an executor in the service."""

    def run(self, work: Callable[[], None], on_done: Callable[[Exception | None], None]) -> None:
        """Do ``work``, then call ``on_done`` on the broker's scheduler with its exception, None when it went well."""
