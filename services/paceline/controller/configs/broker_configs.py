"""Serve DescribeConfigs and IncrementalAlterConfigs for the dynamic settings of brokers.

Source: docs/protocol/controller.md#dynamic-broker-settings; KIP-226, KIP-73.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from paceline.controller.admin.admin_values import ConfigEntry, ConfigSource
from paceline.controller.context import ControllerContext
from paceline.controller.zk_store import ZkStore
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.flow import Flow
from paceline.model.broker_dynamic_config import (
    BROKER_DYNAMIC_KEYS,
    BROKER_KEY_DESCRIPTIONS,
    REMOVAL,
    REMOVED,
    REMOVING,
    checked_broker_value,
)
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


def check_removal(context: ControllerContext, name: str, wanted: str) -> None:
    """Check that a broker may be set to `removing` or `removed`.

    Raises:
        InvalidConfigError: all brokers are meant, the broker is unknown or the last one, another is being removed, or
            the broker still has replicas and is to be `removed`.
    """
    if name == ALL_BROKERS:
        raise InvalidConfigError(f"{REMOVAL} is for a single broker")
    broker_id = int(name)
    held = {one.topic_partition for one in context.replicas_on([broker_id])}
    if broker_id not in context.brokers and not held and broker_id not in context.removals:
        known = ", ".join(map(str, context.registered_broker_ids())) or "none"
        raise InvalidConfigError(f"there is no broker {broker_id}; live brokers: {known}")
    if all(other == broker_id for other in context.placeable_broker_ids()):
        raise InvalidConfigError(f"broker {broker_id} is the last live broker, so that it cannot be removed")
    others = [other for other, state in context.removals.items() if state == REMOVING and other != broker_id]
    if wanted == REMOVING and others:
        raise InvalidConfigError(
            f"broker {others[0]} is being removed: finish with `paceline broker remove {others[0]}`, or stop with "
            f"`paceline broker remove {others[0]} --cancel`, before another broker is removed"
        )
    if wanted == REMOVED and held:
        raise InvalidConfigError(
            f"broker {broker_id} still has replicas of {len(held)} partitions, such as {min(held)}: move them first "
            f"with `paceline broker remove {broker_id}`"
        )


def read_removals(context: ControllerContext, store: ZkStore) -> Flow[None]:
    """Read which brokers are being removed or have been removed."""
    names = yield from store.children(f"{znodes.CONFIG}/brokers", watch=False)
    ids = [broker_id for name in names if (broker_id := znodes.parse_id(name)) is not None]
    paths = [znodes.broker_config_path(broker_id) for broker_id in ids]
    responses = yield from store.read_all(paths)
    found = {}
    for broker_id, path, response in zip(ids, paths, responses, strict=True):
        try:
            state = znodes.decode_config(path, response.data).get(REMOVAL) if response.ok else None
        except MalformedZnodeError:
            state = None
        if state in (REMOVING, REMOVED):
            found[broker_id] = state
    context.removals.clear()
    context.removals.update(found)


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
