"""The part of `Admin` for configuration: effective values, their sources, and changes of single keys."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from paceline.model.errors import InvalidRequestError, PacelineError, error_for
from paceline.v1 import admin_service_pb2 as pb
from paceline_client.admin_connection import AdminConnection, checked, error_in, names_in
from paceline_client.errors import sendable

_SOURCES: Final = {
    pb.CONFIG_SOURCE_TOPIC: "topic",
    pb.CONFIG_SOURCE_BROKER: "broker",
    pb.CONFIG_SOURCE_BROKER_DEFAULT: "broker default",
    pb.CONFIG_SOURCE_BUILT_IN_DEFAULT: "built-in default",
}
_TYPES: Final = {
    pb.CONFIG_TYPE_BOOLEAN: "boolean",
    pb.CONFIG_TYPE_INTEGER: "integer",
    pb.CONFIG_TYPE_DOUBLE: "double",
    pb.CONFIG_TYPE_STRING: "string",
    pb.CONFIG_TYPE_LIST: "list",
}
_OPERATIONS: Final = {
    "set": pb.CONFIG_OPERATION_SET,
    "delete": pb.CONFIG_OPERATION_DELETE,
    "append": pb.CONFIG_OPERATION_APPEND,
    "subtract": pb.CONFIG_OPERATION_SUBTRACT,
}


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key with its effective value."""

    key: str
    value: str
    source: str
    """``topic``, ``broker``, ``broker default`` or ``built-in default``."""
    type: str = ""
    """``boolean``, ``integer``, ``double``, ``string`` or ``list``."""
    default_value: str = ""
    """Default value, which applies when the key is not set at any level."""
    documentation: str = ""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Change of one key; ``append`` and ``subtract`` are for lists and take a comma-separated list."""

    key: str
    operation: Literal["set", "delete", "append", "subtract"] = "set"
    value: str | None = None
    """None for ``delete``."""


@dataclass(frozen=True, slots=True)
class ConfigResult:
    """Result of the changes to one topic or broker: all were made, or, with an ``error``, none of them."""

    topic: str
    """Topic name, or broker id; empty for all brokers."""
    error: PacelineError | None = None


class ConfigAdmin(AdminConnection):
    """Configuration of topics and of running brokers; use `Admin`."""

    def describe_configs(
        self, topics: str | Iterable[str], keys: Iterable[str] = (), *, timeout_ms: int | None = None
    ) -> dict[str, list[ConfigEntry]]:
        """Return the effective configuration of topics, each value with its source.

        Args:
            topics: a topic name, or several names.
            keys: keys to return; empty means all keys.
            timeout_ms: longest wait.

        Raises:
            UnknownTopicOrPartitionError: the topic does not exist.
            InvalidConfigError: the key does not exist.
        """
        return self._describe_configs([_topic(name) for name in names_in(topics)], keys, timeout_ms)

    def describe_broker_configs(
        self, brokers: Iterable[int | None], keys: Iterable[str] = (), *, timeout_ms: int | None = None
    ) -> dict[int | None, list[ConfigEntry]]:
        """Return the dynamic settings of brokers, each value with its source; None stands for all brokers.

        Raises:
            InvalidConfigError: the key does not exist, or can only be set in the settings file.
        """
        found = self._describe_configs([_broker(broker) for broker in brokers], keys, timeout_ms)
        return {int(name) if name else None: entries for name, entries in found.items()}

    def _describe_configs(
        self, resources: Sequence[pb.ConfigResource], keys: Iterable[str], timeout_ms: int | None
    ) -> dict[str, list[ConfigEntry]]:
        wanted = list(keys)
        with sendable():
            request = pb.DescribeConfigsRequest(
                resources=[pb.DescribeConfigsResource(resource=resource, keys=wanted) for resource in resources],
            )
        answer = self._list("DescribeConfigs", request, timeout_ms, "resources")
        found = {}
        for each in answer.resources:
            if each.HasField("error"):
                raise error_for(each.error.code, each.error.message)
            found[each.resource.name] = [
                ConfigEntry(
                    entry.key,
                    entry.value,
                    _SOURCES.get(entry.source, ""),
                    _TYPES.get(entry.type, ""),
                    entry.default_value,
                    entry.documentation,
                )
                for entry in each.entries
            ]
        return found

    def alter_configs(
        self,
        changes: Mapping[str, Mapping[str, str | None] | Sequence[ConfigChange]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> list[ConfigResult]:
        """Change single keys of topics and keep all other keys; running brokers apply the changes within a second.

        Args:
            changes: per topic `ConfigChange` objects, or ``{key: value}``, where None removes the topic's own value.
            validate_only: check without changing anything.
            timeout_ms: longest wait.
            raise_errors: raise the first topic's error; False returns errors in the results.

        Raises:
            InvalidConfigError: a key is unknown or a value is not valid; no key of that topic was changed.
            UnknownTopicOrPartitionError: the topic does not exist.
        """
        wanted = [(_topic(name), _changes(given)) for name, given in changes.items()]
        return self._alter_configs(wanted, validate_only, timeout_ms, raise_errors)

    def alter_broker_configs(
        self,
        changes: Mapping[int | None, Mapping[str, str | None] | Sequence[ConfigChange]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> list[ConfigResult]:
        """Change dynamic settings of brokers; the key None stands for all brokers.

        A value set for a single broker overrides the value for all brokers. Arguments as for `alter_configs`.

        Raises:
            InvalidConfigError: a key is unknown or can only be set in the settings file, or a value is not valid.
        """
        wanted = [(_broker(broker), _changes(given)) for broker, given in changes.items()]
        return self._alter_configs(wanted, validate_only, timeout_ms, raise_errors)

    def _alter_configs(
        self,
        wanted: Sequence[tuple[pb.ConfigResource, Sequence[ConfigChange]]],
        validate_only: bool,
        timeout_ms: int | None,
        raise_errors: bool,
    ) -> list[ConfigResult]:
        if not wanted:
            return []
        with sendable():
            request = pb.IncrementalAlterConfigsRequest(
                resources=[
                    pb.AlterConfigsResource(resource=resource, changes=[_wire_change(each) for each in given])
                    for resource, given in wanted
                ],
                validate_only=validate_only,
            )
        answer = self._change("IncrementalAlterConfigs", request, timeout_ms)
        results = [
            ConfigResult(
                each.resource.name,
                error_in(each),
            )
            for each in answer.resources
        ]
        return checked(results, raise_errors)


def _topic(name: str) -> pb.ConfigResource:
    with sendable():
        return pb.ConfigResource(type=pb.CONFIG_RESOURCE_TYPE_TOPIC, name=name)


def _broker(broker: int | None) -> pb.ConfigResource:
    with sendable():
        return pb.ConfigResource(type=pb.CONFIG_RESOURCE_TYPE_BROKER, name="" if broker is None else str(broker))


def _changes(given: Mapping[str, str | None] | Sequence[ConfigChange]) -> Sequence[ConfigChange]:
    if not isinstance(given, Mapping):
        return given
    return [ConfigChange(key, "delete" if value is None else "set", value) for key, value in given.items()]


def _wire_change(change: ConfigChange) -> pb.ConfigChange:
    if change.operation not in _OPERATIONS:
        raise InvalidRequestError(f"operation must be one of {', '.join(_OPERATIONS)}, not {change.operation!r}")
    with sendable():
        return pb.ConfigChange(key=change.key, operation=_OPERATIONS[change.operation], value=change.value)
