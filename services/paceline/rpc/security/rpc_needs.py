"""Which operation on which resource each public RPC needs: the one table of authorization.

`authorizer` refuses calls by it, scripts/settings_tables.py writes the table of docs/security.md from it, and a test
fails for a public RPC without a row. An RPC that is not in the table is refused to everybody but super users.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from paceline.model.acls import CLUSTER_NAME, Operation, ResourceType
from paceline.v1.admin_service_pb2 import CONFIG_RESOURCE_TYPE_BROKER

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER


@dataclass(frozen=True, slots=True)
class Need:
    """An operation on a resource that the request names."""

    operation: Operation
    kind: ResourceType
    or_cluster: bool = False
    """Whether the same operation on the cluster is enough."""
    or_write_any: bool = False
    """Whether Write on any topic is enough."""

    def resource_of(self, entry: Any) -> tuple[ResourceType, str]:
        """Return the resource that a request, or an entry of it, names."""
        if self.kind is CLUSTER:
            return CLUSTER, CLUSTER_NAME
        if isinstance(entry, str):
            return self.kind, entry
        if self.kind is GROUP:
            return GROUP, entry.group_id
        resource = getattr(entry, "resource", None)
        if resource is not None:  # settings of a topic or of brokers
            is_broker = resource.type == CONFIG_RESOURCE_TYPE_BROKER
            return (CLUSTER, CLUSTER_NAME) if is_broker else (TOPIC, resource.name)
        return self.kind, entry.topic if hasattr(entry, "topic") else entry.name

    def __str__(self) -> str:
        """Return the need for the table of the documentation."""
        text = f"{self.operation} on the {self.kind.value.lower()}"
        if self.or_cluster:
            text += " or on the cluster"
        return text + " or Write on any topic" * self.or_write_any


@dataclass(frozen=True, slots=True)
class Row:
    """The needs of one RPC."""

    call: tuple[Need, ...] = ()
    """Needs of the request as a whole; a refusal ends the call with an error."""
    each: Need | None = None
    """Need of each entry of the request field ``field``."""
    field: str = ""
    answers: str = ""
    """Field of the answer in which a refused entry has its error; empty if the refusal of an entry ends the call."""
    listed: str = ""
    """Field of the answer from which entries without `each` are left out."""
    is_change: bool = False
    """Whether the audit log has a line for every entry, or for the request without entries."""
    note: str = ""
    """Addition to the documentation."""

    def needs(self) -> Iterable[Need]:
        """Return all needs."""
        return (*self.call, *([self.each] if self.each is not None else []))


def _each(operation: Operation, field: str, answers: str | None = None, *, kind: ResourceType = TOPIC,
          call: tuple[Need, ...] = (), is_change: bool = False, note: str = "", **more: Any) -> Row:  # fmt: skip
    need = Need(operation, kind, **more)
    return Row(call, need, field, field if answers is None else answers, is_change=is_change, note=note)


def _on_cluster(operation: Operation, is_change: bool = False, field: str = "", note: str = "") -> Row:
    return Row((Need(operation, CLUSTER),), field=field, is_change=is_change, note=note)


_LOG: Final = "/paceline.v1.LogService/"
_METADATA: Final = "/paceline.v1.MetadataService/"
_ADMIN: Final = "/paceline.v1.AdminService/"
_GROUP: Final = "/paceline.v1.GroupService/"
_ACL: Final = "/paceline.v1.AclService/"
_WRITE = _each(Operation.WRITE, "partitions", note="`__consumer_offsets`, `__transaction_state` and `__cluster_events` "
               "take records of nodes only")  # fmt: skip
_READ = _each(Operation.READ, "partitions")
_DESCRIBE = _each(Operation.DESCRIBE, "partitions")
_READ_GROUP = Row((Need(Operation.READ, GROUP),))
_DESCRIBE_GROUP = Need(Operation.DESCRIBE, GROUP)

RPC_NEEDS: Final[Mapping[str, Row]] = {
    f"{_LOG}Produce": _WRITE,
    f"{_LOG}ProduceStream": _WRITE,
    f"{_LOG}Fetch": _READ,
    f"{_LOG}FetchStream": _READ,
    f"{_LOG}ListOffsets": _DESCRIBE,
    f"{_LOG}OffsetForLeaderEpoch": _DESCRIBE,
    f"{_LOG}DeleteRecords": _each(Operation.DELETE, "partitions", is_change=True),
    f"{_LOG}InitProducerId": Row((Need(Operation.IDEMPOTENT_WRITE, CLUSTER, or_write_any=True),)),
    f"{_LOG}DigestRange": Row((Need(Operation.READ, TOPIC),)),
    f"{_METADATA}DescribeCluster": Row(
        note="without Describe on the cluster: brokers, controller and cluster id, but not the state of the process"
    ),
    f"{_METADATA}DescribeTopics": _each(
        Operation.DESCRIBE, "topics", note="a list of all topics leaves out those without it"
    ),
    f"{_METADATA}DescribeReplicas": Row((Need(Operation.DESCRIBE, TOPIC),)),
    f"{_METADATA}DescribeNode": _on_cluster(Operation.DESCRIBE),
    f"{_METADATA}WatchEvents": _on_cluster(
        Operation.DESCRIBE, note="events about topics without Describe are left out"
    ),
    f"{_ADMIN}CreateTopics": _each(Operation.CREATE, "topics", is_change=True, or_cluster=True),
    f"{_ADMIN}DeleteTopics": _each(Operation.DELETE, "topics", is_change=True),
    f"{_ADMIN}CreatePartitions": _each(Operation.ALTER, "topics", is_change=True),
    f"{_ADMIN}AlterPartitionReassignments": _on_cluster(Operation.ALTER, is_change=True, field="partitions"),
    f"{_ADMIN}ListPartitionReassignments": _on_cluster(Operation.DESCRIBE),
    f"{_ADMIN}ElectLeaders": _on_cluster(Operation.ALTER, is_change=True, field="partitions"),
    f"{_ADMIN}DescribeConfigs": _each(
        Operation.DESCRIBE_CONFIGS, "resources", note="on the cluster for settings of brokers"
    ),
    f"{_ADMIN}IncrementalAlterConfigs": _each(
        Operation.ALTER_CONFIGS, "resources", is_change=True, note="on the cluster for settings of brokers"
    ),
    f"{_ADMIN}DescribeLogDirs": _on_cluster(Operation.DESCRIBE),
    f"{_ADMIN}AlterReplicaLogDirs": _on_cluster(Operation.ALTER, is_change=True, field="replicas"),
    f"{_ADMIN}RetryLogDir": _on_cluster(Operation.ALTER, is_change=True),
    f"{_GROUP}FindCoordinator": Row((_DESCRIBE_GROUP,)),
    f"{_GROUP}JoinGroup": _READ_GROUP,
    f"{_GROUP}SyncGroup": _READ_GROUP,
    f"{_GROUP}Heartbeat": _READ_GROUP,
    f"{_GROUP}LeaveGroup": _READ_GROUP,
    f"{_GROUP}CommitOffsets": _each(Operation.READ, "offsets", "partitions", call=_READ_GROUP.call),
    f"{_GROUP}FetchOffsets": Row(
        (_DESCRIBE_GROUP,), Need(Operation.DESCRIBE, TOPIC), "partitions", listed="partitions",
        note="offsets of all partitions leave out topics without it",
    ),
    f"{_GROUP}ListGroups": Row(each=_DESCRIBE_GROUP, listed="groups", note="leaves out groups without it"),
    f"{_GROUP}DescribeGroups": _each(Operation.DESCRIBE, "group_ids", "groups", kind=GROUP),
    f"{_GROUP}DeleteGroups": _each(Operation.DELETE, "group_ids", "groups", kind=GROUP, is_change=True),
    f"{_ACL}CreateAcls": _on_cluster(Operation.ALTER),
    f"{_ACL}DeleteAcls": _on_cluster(Operation.ALTER),
    f"{_ACL}DescribeAcls": _on_cluster(Operation.DESCRIBE),
    f"{_ACL}CheckAcls": _on_cluster(Operation.DESCRIBE),
    f"{_ACL}WhoAmI": Row(),
    f"{_ACL}RevokeCertificate": _on_cluster(Operation.ALTER, is_change=True),
    f"{_ACL}RestoreCertificate": _on_cluster(Operation.ALTER, is_change=True),
    f"{_ACL}DescribeRevokedCertificates": Row(note="the owners only with Describe on the cluster"),
    f"{_ACL}AlterClientQuotas": _on_cluster(Operation.ALTER_CONFIGS),
    f"{_ACL}DescribeClientQuotas": _on_cluster(Operation.DESCRIBE_CONFIGS),
    "/grpc.health.v1.Health/Check": Row(),
    "/grpc.health.v1.Health/Watch": Row(),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Row(),
}  # fmt: skip
