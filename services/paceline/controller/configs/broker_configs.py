"""Serve DescribeConfigs and IncrementalAlterConfigs for the dynamic settings of brokers.

Source: docs/protocol/controller.md#dynamic-broker-settings; KIP-226, KIP-73.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from paceline.controller.admin.admin_values import ConfigEntry, ConfigSource
from paceline.model.broker_dynamic_config import BROKER_DYNAMIC_KEYS, BROKER_KEY_DESCRIPTIONS, checked_broker_value
from paceline.model.errors import InvalidConfigError, InvalidRequestError, PacelineError

ALL_BROKERS: Final = ""
"""Resource name that means all brokers."""
MAX_BROKER_ID: Final = 2**31 - 1


def broker_problem(name: str) -> PacelineError | None:
    """Return the error of an invalid broker resource name, otherwise None; the broker need not be registered."""
    if name == ALL_BROKERS:
        return None
    if name.isascii() and name.isdecimal() and name == str(int(name[:11])) and int(name) <= MAX_BROKER_ID:
        return None
    return InvalidRequestError(f"{name!r} is neither a broker id nor empty, which means all brokers")


def broker_entity(name: str) -> str:
    """Return the path of the broker's settings under ``/config``."""
    return f"brokers/{name or '<default>'}"


def broker_entries(
    name: str, keys: Sequence[str], own: Mapping[str, str], of_all: Mapping[str, str]
) -> tuple[ConfigEntry, ...]:
    """Return the effective values at a broker with their sources."""
    wanted = [key for key in BROKER_DYNAMIC_KEYS if not keys or key in keys]
    layers = [(of_all, ConfigSource.BROKER_DEFAULT)]
    if name != ALL_BROKERS:
        layers.insert(0, (own, ConfigSource.BROKER))
    return tuple(_entry(key, layers) for key in wanted)


def _entry(key: str, layers: Sequence[tuple[Mapping[str, str], ConfigSource]]) -> ConfigEntry:
    for overrides, source in layers:
        if key in overrides:
            try:
                return ConfigEntry(key, checked_broker_value(key, overrides[key]), source)
            except InvalidConfigError:
                continue
    return ConfigEntry(key, BROKER_KEY_DESCRIPTIONS[key].default, ConfigSource.BUILT_IN_DEFAULT)
