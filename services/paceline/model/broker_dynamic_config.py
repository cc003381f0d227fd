"""Dynamic settings of a broker: from ``/config/brokers/<id>``, otherwise from ``/config/brokers/<default>``.

Source: docs/protocol/controller.md#dynamic-broker-settings; KIP-226.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from paceline.model.config_keys import ConfigKey, ConfigType
from paceline.model.errors import InvalidConfigError

LEADER_THROTTLED_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_THROTTLED_RATE: Final = "follower.replication.throttled.rate"
ALTER_LOG_DIRS_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
REPLICATION_RATES: Final = (LEADER_THROTTLED_RATE, FOLLOWER_THROTTLED_RATE)
REMOVAL: Final = "broker.removal"
REMOVING: Final = "removing"
REMOVED: Final = "removed"
BROKER_DYNAMIC_KEYS: Final = (*REPLICATION_RATES, ALTER_LOG_DIRS_RATE, REMOVAL)
UNLIMITED: Final = 2**63 - 1
DEFAULT_ALTER_LOG_DIRS_RATE: Final = 32 << 20
"""Below the rate at which a move would delay produce requests noticeably; Kafka has no limit by default."""
BROKER_KEY_DESCRIPTIONS: Final[Mapping[str, ConfigKey]] = {
    LEADER_THROTTLED_RATE: ConfigKey(
        LEADER_THROTTLED_RATE,
        ConfigType.INTEGER,
        str(UNLIMITED),
        "Bytes per second that a broker sends to throttled followers, over all partitions it leads.",
    ),
    FOLLOWER_THROTTLED_RATE: ConfigKey(
        FOLLOWER_THROTTLED_RATE,
        ConfigType.INTEGER,
        str(UNLIMITED),
        "Bytes per second that a broker copies into throttled replicas, over all partitions it follows.",
    ),
    ALTER_LOG_DIRS_RATE: ConfigKey(
        ALTER_LOG_DIRS_RATE,
        ConfigType.INTEGER,
        str(DEFAULT_ALTER_LOG_DIRS_RATE),
        "Bytes per second that a broker copies between its log directories, over all moves.",
    ),
    REMOVAL: ConfigKey(
        REMOVAL,
        ConfigType.STRING,
        "",
        "`removing` while `paceline broker remove` moves replicas off a broker: it gets no new ones. `removed` "
        "afterwards: the broker stays idle and does not register. Only for a single broker.",
    ),
}


@dataclass(frozen=True, slots=True)
class BrokerDynamicConfig:
    """Maximum rates in bytes per second, and whether the broker is removed; `UNLIMITED` means no limit."""

    leader_throttled_rate: int = UNLIMITED
    follower_throttled_rate: int = UNLIMITED
    alter_log_dirs_rate: int = DEFAULT_ALTER_LOG_DIRS_RATE
    is_removed: bool = False
    """Whether an operator has removed the broker from the cluster."""


def unknown_broker_key(key: str) -> InvalidConfigError:
    """Return the error for a key that is not a dynamic broker setting."""
    return InvalidConfigError(
        f"{key!r} is not a dynamic broker setting, only {', '.join(BROKER_DYNAMIC_KEYS)}; "
        "change other settings in the settings file and restart the broker"
    )


def checked_broker_value(key: str, text: str) -> str:
    """Check and normalise the value of a dynamic broker setting.

    Raises:
        InvalidConfigError: the value is not valid.
    """
    if key == REMOVAL:
        if text.strip() not in (REMOVING, REMOVED):
            raise InvalidConfigError(f"invalid value {text!r} for {key}: {REMOVING} or {REMOVED} is expected")
        return text.strip()
    try:
        value = int(text.strip())
    except ValueError:
        value = -1
    if not 0 <= value <= UNLIMITED:
        raise InvalidConfigError(f"invalid value {text!r} for {key}: a number of bytes per second is expected")
    return str(value)


def broker_dynamic_config(own: Mapping[str, str], of_all: Mapping[str, str]) -> BrokerDynamicConfig:
    """Return the effective settings of a broker; an invalid value counts as not set."""
    return BrokerDynamicConfig(
        leader_throttled_rate=_effective(LEADER_THROTTLED_RATE, own, of_all),
        follower_throttled_rate=_effective(FOLLOWER_THROTTLED_RATE, own, of_all),
        alter_log_dirs_rate=_effective(ALTER_LOG_DIRS_RATE, own, of_all),
        is_removed=own.get(REMOVAL) == REMOVED,
    )


def _effective(key: str, own: Mapping[str, str], of_all: Mapping[str, str]) -> int:
    for overrides in (own, of_all):
        if key in overrides:
            try:
                return int(checked_broker_value(key, overrides[key]))
            except InvalidConfigError:
                continue
    return int(BROKER_KEY_DESCRIPTIONS[key].default)
