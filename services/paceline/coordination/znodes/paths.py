"""Paths of the znodes, without the chroot, which the client adds; docs/protocol/zookeeper.md#znode-paths."""

import re

from paceline.model.identifiers import TopicPartition

CLUSTER_ID = "/cluster/id"
BROKER_IDS = "/brokers/ids"
BROKER_SEQUENCE = "/brokers/seqid"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION = "/admin/preferred_replica_election"
ISR_CHANGE_NOTIFICATION = "/isr_change_notification"
ISR_CHANGE_PREFIX = "/isr_change_notification/isr_change_"
LOG_DIR_EVENT_NOTIFICATION = "/log_dir_event_notification"
LOG_DIR_EVENT_PREFIX = "/log_dir_event_notification/log_dir_event_"
CONFIG = "/config"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE_PREFIX = "/config/changes/config_change_"
CONFIG_ENTITY_TYPES = ("topics", "clients", "users", "brokers", "ips")
LATEST_PRODUCER_ID_BLOCK = "/latest_producer_id_block"
CONSUMERS = "/consumers"

CONTROLLER_IDS = "/controllers/ids"
"""Not in Kafka: ephemeral, one per running controller, with its endpoints; `/controller` has Kafka's JSON."""
BROKER_EPOCHS = "/broker_epochs"
"""Not in Kafka: persistent, one per broker id; its *version* rises with every registration."""
CONTROLLER_JOURNAL = "/controller_journal"
"""Not in Kafka: the partitions written by the active controller's latest multis."""
REVOKED_CERTIFICATES = "/revoked_certificates"
"""Not in Kafka: a node for each revoked certificate, named by its serial number; the data is the owner."""

PERSISTENT_NODES: tuple[str, ...] = (
    CONSUMERS,
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    BROKER_SEQUENCE,
    ISR_CHANGE_NOTIFICATION,
    LATEST_PRODUCER_ID_BLOCK,
    LOG_DIR_EVENT_NOTIFICATION,
    *(f"/config/{entity_type}" for entity_type in CONFIG_ENTITY_TYPES),
    CONTROLLER_IDS,
    BROKER_EPOCHS,
)
"""Created by every process at start, with parents; "already exists" is ignored."""

_ID = re.compile(r"0|[1-9][0-9]{0,9}")


def broker_path(broker_id: int) -> str:
    """Return a broker's registration node."""
    return f"{BROKER_IDS}/{broker_id}"


def broker_epoch_path(broker_id: int) -> str:
    """Return the node whose version rises with every registration of a broker."""
    return f"{BROKER_EPOCHS}/{broker_id}"


def controller_path(controller_id: int) -> str:
    """Return the node with a controller's endpoints."""
    return f"{CONTROLLER_IDS}/{controller_id}"


def topic_path(topic: str) -> str:
    """Return the node with a topic's assignment."""
    return f"{TOPICS}/{topic}"


def topic_partitions_path(topic: str) -> str:
    """Return the parent of a topic's partition nodes."""
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic_partition: TopicPartition) -> str:
    """Return the parent of a partition's state node."""
    return f"{TOPICS}/{topic_partition.topic}/partitions/{topic_partition.partition}"


def partition_state_path(topic_partition: TopicPartition) -> str:
    """Return the node with a partition's leader and ISR."""
    return f"{TOPICS}/{topic_partition.topic}/partitions/{topic_partition.partition}/state"


def delete_topic_path(topic: str) -> str:
    """Return the marker that requests a topic's deletion."""
    return f"{DELETE_TOPICS}/{topic}"


def config_path(entity_path: str) -> str:
    """Return the node with an entity's overrides: ``topics/t`` becomes ``/config/topics/t``."""
    return f"{CONFIG}/{entity_path}"


def topic_config_path(topic: str) -> str:
    """Return the node with a topic's overrides."""
    return f"{CONFIG}/topics/{topic}"


def broker_config_path(broker_id: int | None) -> str:
    """Return the node with one broker's dynamic settings, or with those of all brokers for None."""
    return f"{CONFIG}/brokers/{'<default>' if broker_id is None else broker_id}"


def parse_id(child: str) -> int | None:
    """Return the id of a child of ``/brokers/ids`` or ``/controllers/ids``, None when its name is not an id."""
    if not _ID.fullmatch(child) or int(child) > 2**31 - 1:
        return None
    return int(child)


def parent_paths(path: str) -> list[str]:
    """Return the ancestors of a path, top first, without the root."""
    names = path.strip("/").split("/")
    return ["/" + "/".join(names[:depth]) for depth in range(1, len(names))]
