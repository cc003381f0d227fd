"""Events of the controller. An event reports a change; its handler reads the present state.

Source: docs/protocol/controller.md#events.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from paceline.model.control import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ControlResponse,
    LeaderAndIsrRequest,
    StopReplicaRequest,
)
from paceline.model.errors import NotControllerError, RequestTimedOutError
from paceline.model.identifiers import TopicPartition

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""

    for_everyone: ClassVar[bool] = False
    """Whether a controller that is not active handles the event, too."""

    @property
    def name(self) -> str:
        """Name in logs and metrics."""
        return type(self).__name__

    def preempt(self) -> None:
        """Called instead of the handler when the controller is not, or no longer, active."""

    def abort(self) -> None:
        """Called when handling stops midway; earlier writes may have been applied."""
        self.preempt()


@dataclass(frozen=True, slots=True)
class Request(Event, Generic[T]):
    """Base of the requests of clients and brokers."""

    reply: Callable[[T | Exception], None] = field(kw_only=True)
    is_certain: ClassVar[bool] = False
    """Whether an aborted request can be repeated safely: it has changed nothing, or a repetition changes nothing."""

    def preempt(self) -> None:
        """Redirect the caller to the next controller."""
        self.reply(NotControllerError("the controller is resigning"))

    def abort(self) -> None:
        """Reply that the result is unknown, except for requests that can be repeated."""
        if self.is_certain:
            self.preempt()
        else:
            said = "the controller resigned during the request; it is unknown whether the change was made"
            self.reply(RequestTimedOutError(said))


class Startup(Event):
    """A session is connected: publish this controller's address, watch ``/controller``, take part in the election."""

    for_everyone = True


class ControllerChange(Event):
    """``/controller`` was created or changed."""

    for_everyone = True


class Reelect(Event):
    """``/controller`` was deleted."""

    for_everyone = True


class AddressChange(Event):
    """A node under ``/controllers/ids`` changed: restore this controller's node, read the active controller's node."""

    for_everyone = True


@dataclass(frozen=True, slots=True)
class ActiveControllerDead(Event):
    """A standby has evidence that the process of the active controller is dead; its session has not ended yet."""

    controller_id: int
    controller_epoch: int
    for_everyone = True


class Rewatch(Event):
    """The client reconnected within its session and lost all watches: read and watch all watched nodes again."""


class BrokerChange(Event):
    """Children of ``/brokers/ids`` changed."""


@dataclass(frozen=True, slots=True)
class BrokerModifications(Event):
    """Data of a broker's registration changed."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class BrokerLeaseChange(Event):
    """A broker's lease expired, its heartbeats resumed, or its followers report that they cannot fetch from it."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class ShutdownDisproved(Event):
    """A broker with a controlled shutdown says in a heartbeat that it does not stop."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class BrokerConnectionClosed(Event):
    """The control connection to a broker closed, and its address accepts connects."""

    broker_id: int
    broker_epoch: int


class TopicChange(Event):
    """Children of ``/brokers/topics`` changed."""


@dataclass(frozen=True, slots=True)
class PartitionModifications(Event):
    """A topic's node changed."""

    topic: str


class TopicDeletion(Event):
    """Children of ``/admin/delete_topics`` changed."""


class IsrChangeNotification(Event):
    """Children of ``/isr_change_notification`` changed."""


class LogDirEventNotification(Event):
    """Children of ``/log_dir_event_notification`` changed."""


class ConfigChange(Event):
    """Children of ``/config/changes`` changed: report them, and elect leaders where unclean election became allowed."""


@dataclass(frozen=True, slots=True)
class LeaderAndIsrResponseReceived(Event):
    """A broker answered a LeaderAndIsr request."""

    broker_id: int
    request: LeaderAndIsrRequest
    response: ControlResponse


@dataclass(frozen=True, slots=True)
class StopReplicaDeletionResponseReceived(Event):
    """A broker answered a StopReplica request that deletes replicas of topics being deleted."""

    broker_id: int
    request: StopReplicaRequest
    response: ControlResponse


@dataclass(frozen=True, slots=True)
class ControlledShutdown(Request[ControlledShutdownResponse]):
    """A broker that shuts down asks the controller to move its leaders to other brokers."""

    request: ControlledShutdownRequest
    is_certain = True


class AutoPreferredReplicaLeaderElection(Event):
    """The periodic check for partitions whose leader is not the preferred leader is due."""


class PreferredReplicaElectionFromNode(Event):
    """``/admin/preferred_replica_election`` was created."""


@dataclass(frozen=True, slots=True)
class PartitionReassignmentIsrChange(Event):
    """The state node of a partition that is being reassigned changed."""

    topic_partition: TopicPartition


class PartitionReassignmentFromNode(Event):
    """``/admin/reassign_partitions`` was created."""


class ReassignmentNodeChanged(Event):
    """The data of ``/admin/reassign_partitions`` changed: watch it again; as in Kafka, this starts no reassignment."""
