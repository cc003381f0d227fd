"""Log directories: `model.log_dirs` <-> ``paceline.v1`` AdminService and ``paceline.internal.v1``."""

from collections.abc import Iterable, Sequence

from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.model.log_dirs import LogDirView, ReplicaLogDir
from paceline.rpc.convert.common import error_to_proto, message_of
from paceline.v1 import admin_service_pb2 as pb


def log_dirs_to_proto(views: Iterable[LogDirView]) -> list[pb.LogDir]:
    """Encode the log directories of a broker."""
    return [
        pb.LogDir(
            path=view.path,
            error=error_to_proto(pb.LogDirError, view.error),
            replicas=[message_of(pb.LogDirReplica, replica) for replica in view.replicas],
            space=None if view.space is None else message_of(pb.LogDirSpace, view.space),
        )
        for view in views
    ]


def replica_log_dirs_from_proto(messages: Iterable[pb.ReplicaLogDir]) -> list[ReplicaLogDir]:
    """Decode the requested log directory of each replica."""
    return [ReplicaLogDir(TopicPartition(one.topic, one.partition), one.path) for one in messages]


def log_dir_results_to_proto(
    messages: Sequence[pb.ReplicaLogDir], errors: Sequence[PacelineError | None]
) -> list[pb.AlterReplicaLogDirResult]:
    """Encode one result per requested replica."""
    return [
        pb.AlterReplicaLogDirResult(
            broker_id=replica.broker_id,
            topic=replica.topic,
            partition=replica.partition,
            error=error_to_proto(pb.LogDirError, error),
        )
        for replica, error in zip(messages, errors, strict=True)
    ]
