"""Topic keys: names, defaults and refusals."""

import pytest

from paceline.log.compression import Codec
from paceline.log.log_config import TOPIC_KEYS, LogConfig, TimestampType
from paceline.model.errors import InvalidConfigError


def test_defaults_are_kafkas() -> None:
    config = LogConfig.from_properties({})
    assert config == LogConfig()
    assert (config.segment_bytes, config.segment_ms, config.index_interval_bytes) == (1073741824, 604800000, 4096)
    assert (config.max_message_bytes, config.min_insync_replicas, config.compression_type) == (1048588, 1, None)
    assert config.deletes and not config.compacts


def test_every_key_is_read_back_from_its_text() -> None:
    assert len(TOPIC_KEYS) == len(set(TOPIC_KEYS)) == 23
    properties = {key: LogConfig().value_text(key) for key in TOPIC_KEYS}
    assert LogConfig.from_properties(properties) == LogConfig()
    changed = LogConfig.from_properties(
        {
            "cleanup.policy": "compact, delete",
            "compression.type": "uncompressed",
            "message.timestamp.type": "LogAppendTime",
            "unclean.leader.election.enable": "TRUE",
        }
    )
    assert changed.compacts and changed.deletes and changed.unclean_leader_election_enable
    assert changed.compression_type is Codec.NONE
    assert changed.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    assert LogConfig.from_properties({key: changed.value_text(key) for key in TOPIC_KEYS}) == changed


def test_keys_that_are_not_given_keep_the_brokers_value() -> None:
    broker = LogConfig(segment_bytes=5000, retention_ms=-1)
    config = LogConfig.from_properties({"segment.bytes": "6000"}, broker)
    assert (config.segment_bytes, config.retention_ms) == (6000, -1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("segment.bytes", "13"),
        ("segment.bytes", "2147483648"),
        ("segment.bytes", "many"),
        ("segment.ms", "0"),
        ("retention.ms", "-2"),
        ("cleanup.policy", ""),
        ("cleanup.policy", "keep"),
        ("compression.type", "rar"),
        ("message.timestamp.type", "Whenever"),
        ("min.insync.replicas", "0"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "-0.1"),
        ("retention.ms", "1_000"),
        ("retention.ms", "9" * 400),
        ("unclean.leader.election.enable", "yes"),
        ("no.such.key", "1"),
    ],
)
def test_a_wrong_key_or_value_is_refused(key: str, value: str) -> None:
    with pytest.raises(InvalidConfigError):
        LogConfig.from_properties({key: value})
    if key == "no.such.key":
        with pytest.raises(InvalidConfigError):
            LogConfig().value_text(key)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("retention.ms", "abc", "must be a whole number"),
        ("retention.ms", "", "must be a whole number"),
        ("retention.ms", "-2", "must be between -1 and"),
        ("min.cleanable.dirty.ratio", "half", "must be a number between 0 and 1"),
        ("message.timestamp.type", "Whenever", "must be CreateTime or LogAppendTime"),
    ],
)
def test_the_error_for_an_invalid_value_names_the_key_and_the_allowed_values(key: str, value: str, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"^invalid value '{value}' for {key}: {words}"):
        LogConfig.from_properties({key: value})


def test_a_mistyped_key_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(InvalidConfigError, match=r"'retention\.mss'; did you mean 'retention\.ms'\?"):
        LogConfig.from_properties({"retention.mss": "5"})
