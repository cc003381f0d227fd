"""The errors of Paceline; every class has Kafka's error number and attributes that decide the caller's reaction.

* `code` is the number in the protocol; `paceline.v1.ErrorCode` has the same values.
* `retriable`: the same request may succeed later.
* `definite`: the operation was certainly not carried out, whichever request returns the error. A leader returns some
  errors even after it has appended a batch (``acks=all``): these errors are not definite.
* `refresh_metadata`: the caller's metadata is out of date.

The protos have the last three as options of the enum values.
"""

from enum import IntEnum
from typing import ClassVar, Final, Self


class ErrorCode(IntEnum):
    """Error numbers: 0 is success, numbers below 1000 are Kafka's, numbers from 1000 are Paceline's own."""

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
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
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
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
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
    THROTTLING_QUOTA_EXCEEDED = 89
    INVALID_UPDATE_VERSION = 95
    INCONSISTENT_TOPIC_ID = 103
    UNKNOWN_SERVER_ERROR = 1000
    SHUTTING_DOWN = 1001
    THROTTLED = 1002
    LOG_DIR_FULL = 1003


class PacelineError(Exception):
    """Base of every error that a service may return."""

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR
    retriable: ClassVar[bool] = False
    definite: bool = True
    """An instance may differ from its class: False when an earlier attempt of the request may have been carried out."""
    refresh_metadata: ClassVar[bool] = False

    def __init_subclass__(cls, code: ErrorCode | None = None, **traits: bool) -> None:
        """Set the class attributes from the keywords of a subclass; the others are inherited."""
        super().__init_subclass__()
        if code is not None:
            cls.code = code
        for name, value in traits.items():
            assert name in ("retriable", "definite", "refresh_metadata"), name
            setattr(cls, name, value)

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


class UnknownServerError(PacelineError, definite=False):
    """A failure without its own code."""


class OffsetOutOfRangeError(PacelineError, code=ErrorCode.OFFSET_OUT_OF_RANGE):
    """The offset is outside the log."""

    def __init__(self, message: str, log_start_offset: int = -1, end_offset: int = -1) -> None:
        super().__init__(message)
        self.log_start_offset = log_start_offset
        self.end_offset = end_offset


class CorruptMessageError(PacelineError, code=ErrorCode.CORRUPT_MESSAGE):
    """A batch has a wrong checksum or inconsistent lengths."""


class UnknownTopicOrPartitionError(
    PacelineError, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, retriable=True, definite=False, refresh_metadata=True
):
    """The topic or partition does not exist in the metadata of the answering process.

    Not definite: a replica may be deleted after it was the only replica to append a batch.
    """


class LeaderNotAvailableError(
    PacelineError, code=ErrorCode.LEADER_NOT_AVAILABLE, retriable=True, refresh_metadata=True
):
    """The partition has no leader at the moment."""


class NotLeaderOrFollowerError(
    PacelineError, code=ErrorCode.NOT_LEADER_OR_FOLLOWER, retriable=True, definite=False, refresh_metadata=True
):
    """The broker does not lead the partition.

    Not definite: a leader may lose leadership after it has appended a batch, and the next leader may have the batch.
    """


class RequestTimedOutError(
    PacelineError, TimeoutError, code=ErrorCode.REQUEST_TIMED_OUT, retriable=True, definite=False
):
    """The deadline passed before the outcome was known."""


class BrokerNotAvailableError(
    PacelineError, code=ErrorCode.BROKER_NOT_AVAILABLE, retriable=True, refresh_metadata=True
):
    """The broker is not registered."""


NOT_REGISTERED: Final = {"registered": "no"}
"""Error metadata by which a process reports that it has not registered as a broker since it started."""


class ReplicaNotAvailableError(
    PacelineError, code=ErrorCode.REPLICA_NOT_AVAILABLE, retriable=True, refresh_metadata=True
):
    """This broker does not host the replica."""


class MessageTooLargeError(PacelineError, code=ErrorCode.MESSAGE_TOO_LARGE):
    """The batch is larger than ``max.message.bytes``."""


class StaleControllerEpochError(PacelineError, code=ErrorCode.STALE_CONTROLLER_EPOCH):
    """The control request came from a deposed controller."""


class InvalidTopicError(PacelineError, code=ErrorCode.INVALID_TOPIC):
    """The topic name is not valid, or clients may not write to the topic."""


class RecordListTooLargeError(PacelineError, code=ErrorCode.RECORD_LIST_TOO_LARGE):
    """The batch is larger than a log segment."""


class NotEnoughReplicasError(PacelineError, code=ErrorCode.NOT_ENOUGH_REPLICAS, retriable=True):
    """The ISR is smaller than ``min.insync.replicas``; no record was appended."""


class NotEnoughReplicasAfterAppendError(
    PacelineError, code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, retriable=True, definite=False
):
    """The record was appended, but the ISR shrank below ``min.insync.replicas`` before the record was replicated."""


class InvalidRequiredAcksError(PacelineError, code=ErrorCode.INVALID_REQUIRED_ACKS):
    """The acks value is unknown."""


class TopicAuthorizationError(PacelineError, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED):
    """No rule allows the operation on the topic, which may not exist."""


class GroupAuthorizationError(PacelineError, code=ErrorCode.GROUP_AUTHORIZATION_FAILED):
    """No rule allows the operation on the group, which may not exist."""


class TransactionalIdAuthorizationError(PacelineError, code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
    """No rule allows the operation on the transactional id."""


class ClusterAuthorizationError(PacelineError, code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
    """The caller's certificate does not authorize the call, or no rule allows the operation on the cluster."""


class InvalidTimestampError(PacelineError, code=ErrorCode.INVALID_TIMESTAMP):
    """A record timestamp is outside the topic's bounds."""


class TopicAlreadyExistsError(PacelineError, code=ErrorCode.TOPIC_ALREADY_EXISTS):
    """The topic already exists, or a topic whose name differs only in ``.`` and ``_``."""


class InvalidPartitionsError(PacelineError, code=ErrorCode.INVALID_PARTITIONS):
    """The number of partitions is not valid."""


class InvalidReplicationFactorError(PacelineError, code=ErrorCode.INVALID_REPLICATION_FACTOR):
    """The replication factor is not valid."""


class InvalidReplicaAssignmentError(PacelineError, code=ErrorCode.INVALID_REPLICA_ASSIGNMENT):
    """The manual replica assignment is not consistent."""


class InvalidConfigError(PacelineError, code=ErrorCode.INVALID_CONFIG):
    """A configuration key or value was refused."""


class NotControllerError(PacelineError, code=ErrorCode.NOT_CONTROLLER, retriable=True, refresh_metadata=True):
    """This process is not the active controller."""


class InvalidRequestError(PacelineError, code=ErrorCode.INVALID_REQUEST):
    """The request is malformed."""


class PolicyViolationError(PacelineError, code=ErrorCode.POLICY_VIOLATION):
    """The operation is against the configured policy."""


class OutOfOrderSequenceNumberError(PacelineError, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
    """The batch does not continue the producer's sequence."""


class InvalidProducerEpochError(PacelineError, code=ErrorCode.INVALID_PRODUCER_EPOCH):
    """The producer's epoch is older than the latest epoch in the log."""


class KafkaStorageError(
    PacelineError, code=ErrorCode.KAFKA_STORAGE_ERROR, retriable=True, definite=False, refresh_metadata=True
):
    """A log directory failed."""


class LogDirFullError(
    KafkaStorageError, code=ErrorCode.LOG_DIR_FULL, retriable=True, definite=True, refresh_metadata=False
):
    """The disk of a log directory has too little free space; nothing was appended, and the directory stays online."""


class LogDirNotFoundError(PacelineError, code=ErrorCode.LOG_DIR_NOT_FOUND):
    """The broker has no such log directory."""


class ReassignmentInProgressError(PacelineError, code=ErrorCode.REASSIGNMENT_IN_PROGRESS):
    """A reassignment of the partition is running."""


class FetchSessionIdNotFoundError(PacelineError, code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, retriable=True):
    """The fetch session is unknown."""


class InvalidFetchSessionEpochError(PacelineError, code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, retriable=True):
    """The fetch session epoch is not the epoch that the broker expects."""


class TopicDeletionDisabledError(PacelineError, code=ErrorCode.TOPIC_DELETION_DISABLED):
    """``delete.topic.enable`` is false."""


class FencedLeaderEpochError(PacelineError, code=ErrorCode.FENCED_LEADER_EPOCH, retriable=True, refresh_metadata=True):
    """The leader epoch in the request is older than the broker's; current metadata has the newer epoch."""


class UnknownLeaderEpochError(PacelineError, code=ErrorCode.UNKNOWN_LEADER_EPOCH, retriable=True):
    """The leader epoch in the request is newer than the broker's."""


class UnsupportedCompressionTypeError(PacelineError, code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE):
    """The broker does not support the batch's compression codec."""


class StaleBrokerEpochError(PacelineError, code=ErrorCode.STALE_BROKER_EPOCH):
    """The broker epoch in the request is older than the broker's registration."""


class OffsetNotAvailableError(PacelineError, code=ErrorCode.OFFSET_NOT_AVAILABLE, retriable=True):
    """The new leader's high watermark has not reached the start of its epoch yet (KIP-207)."""


class PreferredLeaderNotAvailableError(PacelineError, code=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE):
    """The preferred leader is not online, or not in sync."""


class EligibleLeadersNotAvailableError(PacelineError, code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE):
    """No replica is online, so even an unclean election finds no leader."""


class ElectionNotNeededError(PacelineError, code=ErrorCode.ELECTION_NOT_NEEDED):
    """The partition already has the leader that the election would choose."""


class NoReassignmentInProgressError(PacelineError, code=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
    """The partition has no reassignment to cancel."""


class InvalidRecordError(PacelineError, code=ErrorCode.INVALID_RECORD):
    """A record of the batch is not valid."""


class ThrottlingQuotaExceededError(PacelineError, code=ErrorCode.THROTTLING_QUOTA_EXCEEDED, retriable=True):
    """The caller changed more partitions than its controller_mutation_rate allows."""


class InvalidUpdateVersionError(PacelineError, code=ErrorCode.INVALID_UPDATE_VERSION):
    """A conditional write failed, because the version has changed."""


class InconsistentTopicIdError(PacelineError, code=ErrorCode.INCONSISTENT_TOPIC_ID, refresh_metadata=True):
    """The topic id in the request differs from the id of the topic with that name."""


class OffsetMetadataTooLargeError(PacelineError, code=ErrorCode.OFFSET_METADATA_TOO_LARGE):
    """The metadata text of a committed offset is longer than offset.metadata.max.bytes."""


class CoordinatorLoadInProgressError(PacelineError, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, retriable=True):
    """The coordinator is loading the group."""


class CoordinatorNotAvailableError(
    PacelineError, code=ErrorCode.COORDINATOR_NOT_AVAILABLE, retriable=True, definite=False
):
    """The group has no coordinator at the moment. A commit may have been written."""


class NotCoordinatorError(PacelineError, code=ErrorCode.NOT_COORDINATOR, retriable=True, definite=False):
    """This broker does not coordinate the group. A commit may have been written."""


class IllegalGenerationError(PacelineError, code=ErrorCode.ILLEGAL_GENERATION):
    """The generation is not the group's current generation."""


class InconsistentGroupProtocolError(PacelineError, code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
    """The members have no common assignor, or the group has another protocol type."""


class InvalidGroupIdError(PacelineError, code=ErrorCode.INVALID_GROUP_ID):
    """The group id is not valid."""


class UnknownMemberIdError(PacelineError, code=ErrorCode.UNKNOWN_MEMBER_ID):
    """The group has no such member."""


class InvalidSessionTimeoutError(PacelineError, code=ErrorCode.INVALID_SESSION_TIMEOUT):
    """The session timeout is outside group.min.session.timeout.ms and group.max.session.timeout.ms."""


class RebalanceInProgressError(PacelineError, code=ErrorCode.REBALANCE_IN_PROGRESS):
    """The group is rebalancing; the member must join again."""


class InvalidCommitOffsetSizeError(PacelineError, code=ErrorCode.INVALID_COMMIT_OFFSET_SIZE):
    """The offsets of one commit do not fit into one batch, or the group has too many or too large offsets."""


class NonEmptyGroupError(PacelineError, code=ErrorCode.NON_EMPTY_GROUP):
    """The group has members."""


class GroupIdNotFoundError(PacelineError, code=ErrorCode.GROUP_ID_NOT_FOUND):
    """The group does not exist."""


class MemberIdRequiredError(PacelineError, code=ErrorCode.MEMBER_ID_REQUIRED):
    """A new member must join with the id in the metadata entry "member_id"."""


class GroupMaxSizeReachedError(PacelineError, code=ErrorCode.GROUP_MAX_SIZE_REACHED):
    """The group already has group.max.size members, or their subscriptions exceed group.max.metadata.bytes."""


class FencedInstanceIdError(PacelineError, code=ErrorCode.FENCED_INSTANCE_ID):
    """Another member has taken over the group instance id; this member must stop."""


class ShuttingDownError(PacelineError, code=ErrorCode.SHUTTING_DOWN, retriable=True, refresh_metadata=True):
    """The server is shutting down."""


class ThrottledError(PacelineError, code=ErrorCode.THROTTLED, retriable=True):
    """A limit of the server is reached."""

    @classmethod
    def at(cls, limit: str, message: str) -> Self:
        """Return an error whose metadata entry ``limit`` names the setting or constant."""
        return cls(message).with_metadata(limit=limit)


class InvalidTransitionError(Exception):
    """A bug: an object was to change from a state to a state that must not follow it."""


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
    return ERROR_CLASSES.get(known, UnknownServerError)(message or known.name)
