"""Description of each topic key, for clients that read a cluster's configuration."""

from collections.abc import Mapping
from typing import Final

from paceline.log.log_config import LIST_KEYS, TOPIC_KEYS, LogConfig
from paceline.model.config_keys import ConfigKey, ConfigType

_TYPES: Final[Mapping[type, ConfigType]] = {
    bool: ConfigType.BOOLEAN,
    int: ConfigType.INTEGER,
    float: ConfigType.DOUBLE,
}

_DOCUMENTATION: Final[Mapping[str, str]] = {
    "segment.bytes": "Size in bytes at which the active segment file is closed and a new one begins.",
    "segment.ms": "Age in milliseconds at which the active segment is closed, even if it is not full.",
    "segment.jitter.ms": "Maximum milliseconds subtracted at random from segment.ms, so that rolls spread out.",
    "segment.index.bytes": "Size in bytes of the offset index of a segment; a full index closes the segment.",
    "index.interval.bytes": "Bytes of records between two entries of the offset index.",
    "retention.ms": "Milliseconds that records are kept under cleanup.policy=delete; -1 keeps them for ever.",
    "retention.bytes": "Bytes of a partition that are kept under cleanup.policy=delete; -1 sets no limit.",
    "cleanup.policy": "delete removes old segments, compact keeps the last record of each key; both may be given.",
    "file.delete.delay.ms": "Milliseconds between the removal of a segment from the log and the deletion of its files.",
    "delete.retention.ms": "Milliseconds that compaction keeps tombstones, which are records without a value.",
    "min.compaction.lag.ms": "Milliseconds that a record stays uncompacted after it was written.",
    "max.compaction.lag.ms": "Milliseconds after which a record is compacted, even if the dirty part is small.",
    "min.cleanable.dirty.ratio": "Part of the log, 0 to 1, that has to be uncompacted before compaction starts.",
    "flush.messages": "Records after which the log is forced to disk; by default the operating system decides.",
    "flush.ms": "Milliseconds after which the log is forced to disk; by default the operating system decides.",
    "max.message.bytes": "Size in bytes of the largest batch that may be appended, after compression.",
    "compression.type": "Codec of stored batches: uncompressed, gzip, snappy, lz4, zstd; producer keeps its codec.",
    "message.timestamp.type": "CreateTime keeps the producer's timestamp, LogAppendTime stores the broker's.",
    "message.timestamp.difference.max.ms": "Maximum milliseconds between a record's and the broker's time.",
    "min.insync.replicas": "In-sync replicas that a write with acks ALL needs; with fewer it is refused.",
    "unclean.leader.election.enable": "Whether a replica outside the ISR may lead if no member can, losing records.",
    "leader.replication.throttled.replicas": "Replicas throttled at the leader: partition:broker, or *.",
    "follower.replication.throttled.replicas": "Replicas throttled at the follower: partition:broker, or *.",
}


def _type(key: str) -> ConfigType:
    if key in LIST_KEYS:
        return ConfigType.LIST
    return _TYPES.get(type(getattr(LogConfig(), key.replace(".", "_"))), ConfigType.STRING)


TOPIC_KEY_DESCRIPTIONS: Final[Mapping[str, ConfigKey]] = {
    key: ConfigKey(key, _type(key), LogConfig().value_text(key), _DOCUMENTATION[key]) for key in TOPIC_KEYS
}
