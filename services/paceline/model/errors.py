"""The errors of Paceline; every class has Kafka's error number and attributes that decide the caller's reaction.

`code` is the number in the protocol (`paceline.v1.ErrorCode` has the same values), `retriable` whether the same request
may succeed later, `definite` whether the operation was definitely not carried out, for any request. A leader answers
some errors even after it has appended a batch (``acks=all``): these are not definite. `refresh_metadata` is true when
the caller's metadata is out of date. The protos have the same three values as options of the enum.
"""

from enum import IntEnum
from typing import ClassVar, Final, Self


class ErrorCode(IntEnum):
    """Kafka's numbers where positive; 0 is success, numbers from 1000 are Paceline's own."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    REASSIGNMENT_IN_PROGRESS = 60
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    INVALID_RECORD = 87
    INVALID_UPDATE_VERSION = 95
    INCONSISTENT_TOPIC_ID = 103
    UNKNOWN_SERVER_ERROR = 1000
    SHUTTING_DOWN = 1001
    THROTTLED = 1002


class PacelineError(Exception):
    """Base of every error that a service may return."""

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR
    retriable: ClassVar[bool] = False
    definite: ClassVar[bool] = True
    refresh_metadata: ClassVar[bool] = False

    @property
    def metadata(self) -> dict[str, str]:
        """Additional data for the caller, for example the active controller's ``address``."""
        return dict(self.__dict__.get("_metadata", ()))

    @property
    def retry_delay_ms(self) -> int:
        """Return the minimum pause before a retry requested by the server, 0 without a request."""
        text = self.metadata.get("retry_delay_ms", "")
        return int(text) if text.isdecimal() else 0

    def with_metadata(self, **metadata: object) -> Self:
        """Add metadata, as strings, and return the error: ``raise SomeError("why").with_metadata(address=address)``."""
        self.__dict__["_metadata"] = {**self.metadata, **{key: str(value) for key, value in metadata.items()}}
        return self


class UnknownServerError(PacelineError):
    """A failure without its own code."""

    definite = False


class OffsetOutOfRangeError(PacelineError):
    """The offset is outside the log."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, message: str, log_start_offset: int = -1, end_offset: int = -1) -> None:
        super().__init__(message)
        self.log_start_offset = log_start_offset
        self.end_offset = end_offset


class CorruptMessageError(PacelineError):
    """A batch has a wrong checksum or inconsistent lengths."""

    code = ErrorCode.CORRUPT_MESSAGE


class UnknownTopicOrPartitionError(PacelineError):
    """The topic or partition does not exist in the metadata of the answering process.

    Not definite: a replica may be deleted after it was the only replica to append a batch.
    """

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    retriable = True
    definite = False
    refresh_metadata = True


class LeaderNotAvailableError(PacelineError):
    """The partition has no leader at the moment."""

    code = ErrorCode.LEADER_NOT_AVAILABLE
    retriable = True
    refresh_metadata = True


class NotLeaderOrFollowerError(PacelineError):
    """The broker does not lead the partition.

    Not definite: a leader may lose leadership after it has appended a batch, and the next leader may have the batch.
    """

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    retriable = True
    definite = False
    refresh_metadata = True


class RequestTimedOutError(PacelineError):
    """The deadline passed before the outcome was known."""

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True
    definite = False


class BrokerNotAvailableError(PacelineError):
    """The broker is not registered."""

    code = ErrorCode.BROKER_NOT_AVAILABLE
    retriable = True
    refresh_metadata = True


NOT_REGISTERED: Final = {"registered": "no"}
"""Error metadata by which a process reports that it has not registered as a broker since it started."""


class ReplicaNotAvailableError(PacelineError):
    """This broker does not host the replica."""

    code = ErrorCode.REPLICA_NOT_AVAILABLE
    retriable = True
    refresh_metadata = True


class MessageTooLargeError(PacelineError):
    """The batch is larger than ``max.message.bytes``."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class StaleControllerEpochError(PacelineError):
    """The control request came from a deposed controller."""

    code = ErrorCode.STALE_CONTROLLER_EPOCH


class InvalidTopicError(PacelineError):
    """The topic name is not valid, or clients may not write to the topic."""

    code = ErrorCode.INVALID_TOPIC


class RecordListTooLargeError(PacelineError):
    """The batch is larger than a log segment."""

    code = ErrorCode.RECORD_LIST_TOO_LARGE


class NotEnoughReplicasError(PacelineError):
    """The ISR is smaller than ``min.insync.replicas``; no record was appended."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS
    retriable = True


class NotEnoughReplicasAfterAppendError(PacelineError):
    """The record was appended, but the ISR shrank below ``min.insync.replicas`` before it was replicated."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    retriable = True
    definite = False


class InvalidRequiredAcksError(PacelineError):
    """The acks value is unknown."""

    code = ErrorCode.INVALID_REQUIRED_ACKS


class ClusterAuthorizationError(PacelineError):
    """The caller's certificate does not authorize the call."""

    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class InvalidTimestampError(PacelineError):
    """A record timestamp is outside the topic's bounds."""

    code = ErrorCode.INVALID_TIMESTAMP


class TopicAlreadyExistsError(PacelineError):
    """The topic already exists, or a topic whose name differs only in ``.`` and ``_``."""

    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidPartitionsError(PacelineError):
    """The number of partitions is not valid."""

    code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactorError(PacelineError):
    """The replication factor is not valid."""

    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignmentError(PacelineError):
    """The manual replica assignment is not consistent."""

    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class InvalidConfigError(PacelineError):
    """A configuration key or value was refused."""

    code = ErrorCode.INVALID_CONFIG


class NotControllerError(PacelineError):
    """This process is not the active controller."""

    code = ErrorCode.NOT_CONTROLLER
    retriable = True
    refresh_metadata = True


class InvalidRequestError(PacelineError):
    """The request is malformed."""

    code = ErrorCode.INVALID_REQUEST


class PolicyViolationError(PacelineError):
    """The operation is against the configured policy."""

    code = ErrorCode.POLICY_VIOLATION


class OutOfOrderSequenceNumberError(PacelineError):
    """The batch does not continue the producer's sequence."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpochError(PacelineError):
    """The producer's epoch is older than the latest epoch in the log."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class KafkaStorageError(PacelineError):
    """A log directory failed."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True
    definite = False
    refresh_metadata = True


class LogDirNotFoundError(PacelineError):
    """The broker has no such log directory."""

    code = ErrorCode.LOG_DIR_NOT_FOUND


class ReassignmentInProgressError(PacelineError):
    """A reassignment of the partition is running."""

    code = ErrorCode.REASSIGNMENT_IN_PROGRESS


class FetchSessionIdNotFoundError(PacelineError):
    """The fetch session is unknown."""

    code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    retriable = True


class InvalidFetchSessionEpochError(PacelineError):
    """The fetch session epoch is not the epoch that the broker expects."""

    code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
    retriable = True


class TopicDeletionDisabledError(PacelineError):
    """``delete.topic.enable`` is false."""

    code = ErrorCode.TOPIC_DELETION_DISABLED


class FencedLeaderEpochError(PacelineError):
    """The leader epoch in the request is older than the broker's; current metadata has the newer epoch."""

    code = ErrorCode.FENCED_LEADER_EPOCH
    retriable = True
    refresh_metadata = True


class UnknownLeaderEpochError(PacelineError):
    """The leader epoch in the request is newer than the broker's."""

    code = ErrorCode.UNKNOWN_LEADER_EPOCH
    retriable = True


class UnsupportedCompressionTypeError(PacelineError):
    """The broker does not support the batch's compression codec."""

    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class StaleBrokerEpochError(PacelineError):
    """The broker epoch in the request is older than the broker's registration."""

    code = ErrorCode.STALE_BROKER_EPOCH


class OffsetNotAvailableError(PacelineError):
    """The new leader's high watermark has not reached the start of its epoch yet (KIP-207)."""

    code = ErrorCode.OFFSET_NOT_AVAILABLE
    retriable = True


class PreferredLeaderNotAvailableError(PacelineError):
    """The preferred leader is not online, or not in sync."""

    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


class EligibleLeadersNotAvailableError(PacelineError):
    """No replica is online, so even an unclean election finds no leader."""

    code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


class ElectionNotNeededError(PacelineError):
    """The partition already has the leader that the election would choose."""

    code = ErrorCode.ELECTION_NOT_NEEDED


class NoReassignmentInProgressError(PacelineError):
    """The partition has no reassignment to cancel."""

    code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


class InvalidRecordError(PacelineError):
    """A record of the batch is not valid."""

    code = ErrorCode.INVALID_RECORD


class InvalidUpdateVersionError(PacelineError):
    """A conditional write lost against a newer version."""

    code = ErrorCode.INVALID_UPDATE_VERSION


class InconsistentTopicIdError(PacelineError):
    """The topic id in the request differs from the id of the topic with that name."""

    code = ErrorCode.INCONSISTENT_TOPIC_ID
    refresh_metadata = True


class OffsetMetadataTooLargeError(PacelineError):
    """The metadata text of a committed offset is longer than offset.metadata.max.bytes."""

    code = ErrorCode.OFFSET_METADATA_TOO_LARGE


class CoordinatorLoadInProgressError(PacelineError):
    """The coordinator is loading the group."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    retriable = True


class CoordinatorNotAvailableError(PacelineError):
    """The group has no coordinator at the moment. A commit may have been written."""

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    retriable = True
    definite = False


class NotCoordinatorError(PacelineError):
    """This broker does not coordinate the group. A commit may have been written."""

    code = ErrorCode.NOT_COORDINATOR
    retriable = True
    definite = False


class IllegalGenerationError(PacelineError):
    """The generation is not the group's current generation."""

    code = ErrorCode.ILLEGAL_GENERATION


class InconsistentGroupProtocolError(PacelineError):
    """The members have no common assignor, or the group has another protocol type."""

    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class InvalidGroupIdError(PacelineError):
    """The group id is not valid."""

    code = ErrorCode.INVALID_GROUP_ID


class UnknownMemberIdError(PacelineError):
    """The group has no such member."""

    code = ErrorCode.UNKNOWN_MEMBER_ID


class InvalidSessionTimeoutError(PacelineError):
    """The session timeout is outside group.min.session.timeout.ms and group.max.session.timeout.ms."""

    code = ErrorCode.INVALID_SESSION_TIMEOUT


class RebalanceInProgressError(PacelineError):
    """The group rebalances."""

    code = ErrorCode.REBALANCE_IN_PROGRESS


class InvalidCommitOffsetSizeError(PacelineError):
    """The offsets of one commit do not fit into one batch."""

    code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE


class NonEmptyGroupError(PacelineError):
    """The group has members."""

    code = ErrorCode.NON_EMPTY_GROUP


class GroupIdNotFoundError(PacelineError):
    """The group does not exist."""

    code = ErrorCode.GROUP_ID_NOT_FOUND


class MemberIdRequiredError(PacelineError):
    """A new member must join with the id in the metadata entry "member_id"."""

    code = ErrorCode.MEMBER_ID_REQUIRED


class GroupMaxSizeReachedError(PacelineError):
    """The group already has group.max.size members."""

    code = ErrorCode.GROUP_MAX_SIZE_REACHED


class FencedInstanceIdError(PacelineError):
    """Another member has taken over the group instance id; this member must stop."""

    code = ErrorCode.FENCED_INSTANCE_ID


class ShuttingDownError(PacelineError):
    """The server is shutting down."""

    code = ErrorCode.SHUTTING_DOWN
    retriable = True
    refresh_metadata = True


class ThrottledError(PacelineError):
    """The server's limit for requests in flight is reached."""

    code = ErrorCode.THROTTLED
    retriable = True


def _classes(base: type[PacelineError]) -> list[type[PacelineError]]:
    found = [base]
    for child in base.__subclasses__():
        found.extend(_classes(child))
    return found


ERROR_CLASSES: dict[ErrorCode, type[PacelineError]] = {
    cls.code: cls for cls in _classes(PacelineError) if cls is not PacelineError
}
"""The class of each code; ``NONE`` has no class."""


def error_for(code: ErrorCode | int, message: str = "") -> PacelineError:
    """Return an error of the class that carries ``code``; an unknown number gives `UnknownServerError`."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return UnknownServerError(message or f"error code {code}")
    cls = ERROR_CLASSES.get(known, UnknownServerError)
    if cls is OffsetOutOfRangeError:
        return OffsetOutOfRangeError(message or known.name)
    return cls(message or known.name)
