"""Serve DescribeConfigs and IncrementalAlterConfigs; `broker_configs` has the part for brokers.

A change is a single multi: the resource's configuration, conditional on the version that was read, and the notification
that makes brokers read it. Kafka writes the two nodes separately, and loses the notification if the process dies in
between.

Source: docs/protocol/zookeeper.md#configuration-nodes; KIP-339; Kafka 2.8 AdminManager.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from paceline.controller.admin.admin_requests import DescribeConfigs, IncrementalAlterConfigs
from paceline.controller.admin.admin_values import (
    AlterConfigsResult,
    ConfigAlteration,
    ConfigEntry,
    ConfigKeyChange,
    ConfigOperation,
    ConfigResource,
    ConfigSource,
    DescribeConfigsResult,
    ResourceType,
)
from paceline.controller.configs.broker_configs import (
    ALL_BROKERS,
    broker_entity,
    broker_entries,
    broker_problem,
    check_removal,
)
from paceline.controller.context import ControllerContext
from paceline.controller.state.election_settings import UNCLEAN_KEY
from paceline.controller.zk_store import ZkStore, first_failure
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.flow import Flow
from paceline.coordination.interface import Create, Multi, Operation, Response, SetData, ZkCode
from paceline.log.log_config import LIST_KEYS, TOPIC_KEYS, LogConfig, unknown_topic_key
from paceline.model.broker_dynamic_config import (
    BROKER_DYNAMIC_KEYS,
    REMOVAL,
    checked_broker_value,
    unknown_broker_key,
)
from paceline.model.errors import (
    InvalidConfigError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    PacelineError,
    RequestTimedOutError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from paceline.model.settings import ControllerConfig

ATTEMPTS = 3
MAX_CONFIG_NODE_BYTES = 500_000
Overrides = dict[str, str]


class TopicConfigAdmin:
    """Reads and changes the configuration of topics, and dynamic settings of brokers."""

    def __init__(self, config: ControllerConfig, context: ControllerContext, store: ZkStore) -> None:
        self._config = config
        self._context = context
        self._store = store

    # describing

    def describe(self, event: DescribeConfigs) -> Flow[None]:
        """Answer with the effective values and their sources."""
        problems = [self._resource_problem(one) or _key_problem(one, keys) for one, keys in event.resources]
        wanted_resources = [
            resource for (resource, _), problem in zip(event.resources, problems, strict=True) if problem is None
        ]
        defaults = yield from self._defaults()
        all_brokers = ConfigResource(ResourceType.BROKER, ALL_BROKERS)
        read = list(dict.fromkeys([*wanted_resources, all_brokers]))
        responses = yield from self._store.read_all([_path(resource) for resource in read])
        found = dict(zip(read, responses, strict=True))
        results = []
        for (resource, keys), problem in zip(event.resources, problems, strict=True):
            if problem is not None:
                results.append(DescribeConfigsResult(resource, problem))
                continue
            try:
                overrides = _overrides(resource, found[resource])
                if resource.kind is ResourceType.BROKER:
                    of_all = _overrides(all_brokers, found[all_brokers])
                    shown = broker_entries(resource.name, keys, overrides, of_all)
                    results.append(DescribeConfigsResult(resource, entries=shown))
                    continue
            except PacelineError as error:
                results.append(DescribeConfigsResult(resource, error))
                continue
            wanted = [key for key in TOPIC_KEYS if not keys or key in keys]
            entries = tuple(_entry(key, overrides, defaults) for key in wanted)
            results.append(DescribeConfigsResult(resource, entries=entries))
        event.reply(results)

    def _defaults(self) -> Flow[Overrides]:
        """Return the settings for all brokers; skips unknown keys and values that are not valid."""
        defaults = {key: value for key, value in self._config.topic_defaults.items() if _parses(key, value)}
        if self._config.unclean_leader_election_enable:
            defaults[UNCLEAN_KEY] = "true"
        path = znodes.broker_config_path(None)
        (response,) = yield from self._store.read_all([path])
        try:
            dynamic = znodes.decode_config(path, response.data).get(UNCLEAN_KEY) if response.ok else None
        except MalformedZnodeError:
            dynamic = None
        if dynamic is not None and _parses(UNCLEAN_KEY, dynamic):
            defaults[UNCLEAN_KEY] = dynamic
        return defaults

    # changing

    def alter(self, event: IncrementalAlterConfigs) -> Flow[None]:
        """Check and write; either all changes of a resource are made or none."""
        resources = [alteration.resource for alteration in event.alterations]
        times = Counter(resources)
        errors: dict[ConfigResource, PacelineError] = {}
        wanted: dict[ConfigResource, ConfigAlteration] = {}
        for alteration in event.alterations:
            resource = alteration.resource
            problem = self._resource_problem(resource) or _changes_problem(alteration.changes)
            if times[resource] > 1:
                problem = InvalidRequestError(f"{_resource_text(resource)} is listed more than once")
            if problem is not None:
                errors[resource] = problem
            else:
                wanted[resource] = alteration
        yield from self._write_all(wanted, event.validate_only, errors)
        event.reply([AlterConfigsResult(resource, errors.get(resource)) for resource in resources])

    def _write_all(
        self,
        wanted: Mapping[ConfigResource, ConfigAlteration],
        validate_only: bool,
        errors: dict[ConfigResource, PacelineError],
    ) -> Flow[None]:
        """Change each configuration, and write it if its version is unchanged; retry after a concurrent write."""
        defaults = yield from self._defaults()
        remaining = list(wanted)
        tried: dict[ConfigResource, bytes] = {}
        for _ in range(ATTEMPTS):
            responses = yield from self._store.read_all([_path(resource) for resource in remaining])
            multis: dict[ConfigResource, Multi] = {}
            for resource, response in zip(remaining, responses, strict=True):
                errors.pop(resource, None)
                if resource in tried and response.ok and response.data == tried[resource]:
                    continue  # Written by the earlier attempt, notification included; its answer was lost.
                try:
                    present = _overrides(resource, response)
                    wished = _applied(wanted[resource], present, defaults)
                    if resource.kind is ResourceType.BROKER and wished.get(REMOVAL) not in (None, present.get(REMOVAL)):
                        check_removal(self._context, resource.name, wished[REMOVAL])
                    tried[resource] = _encoded(wished)
                except PacelineError as error:
                    errors[resource] = error
                    continue
                multis[resource] = self._store.fenced(*_operations(resource, tried[resource], response))
            if validate_only or not multis:
                return
            answers = yield from self._store.send_fenced(list(multis.values()))
            remaining = []
            for resource, answer in zip(multis, answers, strict=True):
                if answer.ok:
                    self._note_removal(resource, wanted[resource].changes)
                    continue
                code = first_failure(answer)[1]
                if code not in (ZkCode.BAD_VERSION, ZkCode.NO_NODE, ZkCode.NODE_EXISTS):
                    errors[resource] = _refused(resource, code)
                    continue
                remaining.append(resource)
                # The error after the last attempt. It is not definite if an earlier write may have been applied.
                kind = RequestTimedOutError if answer.in_doubt_before else InvalidUpdateVersionError
                errors[resource] = kind(f"the configuration of {_resource_text(resource)} keeps changing")
            if not remaining:
                return

    def _note_removal(self, resource: ConfigResource, changes: Sequence[ConfigKeyChange]) -> None:
        """Let the next event place no replica on a broker that is being removed; the notification comes later."""
        for change in changes:
            if change.key == REMOVAL and resource.kind is ResourceType.BROKER and resource.name != ALL_BROKERS:
                if change.operation is ConfigOperation.SET:
                    self._context.removals[int(resource.name)] = checked_broker_value(REMOVAL, change.value or "")
                else:
                    self._context.removals.pop(int(resource.name), None)

    def _resource_problem(self, resource: ConfigResource) -> PacelineError | None:
        if resource.kind is None:
            return InvalidRequestError("the resource type is missing or unknown")
        if resource.kind is ResourceType.BROKER:
            return broker_problem(resource.name)
        context = self._context
        if resource.name not in context.topics or context.is_queued_for_deletion(resource.name):
            return UnknownTopicOrPartitionError(f"topic {resource.name!r} does not exist")
        return None


def _resource_text(resource: ConfigResource) -> str:
    if resource.kind is ResourceType.BROKER:
        return f"broker {resource.name}" if resource.name else "all brokers"
    return f"topic {resource.name!r}"


def _entity(resource: ConfigResource) -> str:
    return broker_entity(resource.name) if resource.kind is ResourceType.BROKER else f"topics/{resource.name}"


def _path(resource: ConfigResource) -> str:
    return znodes.config_path(_entity(resource))


def _keys_of(resource: ConfigResource) -> tuple[tuple[str, ...], Callable[[str], InvalidConfigError]]:
    """Return the keys of a kind of resource, and the function that returns the error for any other key."""
    if resource.kind is ResourceType.BROKER:
        return BROKER_DYNAMIC_KEYS, unknown_broker_key
    return TOPIC_KEYS, unknown_topic_key


def _key_problem(resource: ConfigResource, keys: Sequence[str]) -> PacelineError | None:
    known, unknown = _keys_of(resource)
    return next((unknown(key) for key in keys if key not in known), None)


def _changes_problem(changes: Sequence[ConfigKeyChange]) -> PacelineError | None:
    times = Counter(change.key for change in changes)
    if not changes:
        return InvalidRequestError("the request has no changes")
    for change in changes:
        if times[change.key] > 1:
            return InvalidRequestError(f"{change.key!r} is listed more than once")
        if change.operation is None:
            return InvalidRequestError(f"the operation on {change.key!r} is missing or unknown")
        if change.operation is ConfigOperation.DELETE:
            if change.value is not None:
                return InvalidRequestError(f"DELETE of {change.key!r} takes no value")
        elif change.value is None:
            return InvalidConfigError(f"{change.operation.name} of {change.key!r} needs a value")
    return None


def _refused(resource: ConfigResource, code: ZkCode) -> UnknownServerError:
    return UnknownServerError(
        f"ZooKeeper refused access to the configuration of {_resource_text(resource)}: {code.name}"
    )


def _overrides(resource: ConfigResource, response: Response) -> Overrides:
    path = _path(resource)
    if response.code is ZkCode.NO_NODE:
        return {}
    if not response.ok:
        raise _refused(resource, response.code)
    try:
        return znodes.decode_config(path, response.data)
    except MalformedZnodeError as error:
        raise InvalidConfigError(str(error)) from None


def _applied(alteration: ConfigAlteration, overrides: Overrides, defaults: Mapping[str, str]) -> Overrides:
    """Return the overrides after the changes.

    Raises:
        InvalidConfigError: a key is unknown or a value is not valid; no change of the resource is applied.
    """
    known, unknown = _keys_of(alteration.resource)
    is_topic = alteration.resource.kind is ResourceType.TOPIC
    result = dict(overrides)
    for change in alteration.changes:
        is_deleted = change.operation is ConfigOperation.DELETE
        # An unknown key may be deleted if it is set, because another tool may have written it.
        if change.key not in known and not (is_deleted and change.key in result):
            raise unknown(change.key)
        if is_deleted:
            result.pop(change.key, None)
            continue
        value = change.value or ""
        if change.operation is not ConfigOperation.SET:
            value = _edited(change, overrides, defaults)
        if is_topic:
            LogConfig.from_properties({change.key: value}).refuse_unreceivable_batches()
        else:
            value = checked_broker_value(change.key, value)
        result[change.key] = value
    if is_topic:
        _check_lags(alteration.changes, result, defaults)
    return result


def _edited(change: ConfigKeyChange, overrides: Overrides, defaults: Mapping[str, str]) -> str:
    if change.key not in LIST_KEYS:
        assert change.operation is not None
        raise InvalidConfigError(f"{change.key!r} is not a list, so {change.operation.name} cannot apply")
    members = _members(_entry_value(change.key, overrides, defaults))
    named = _members(change.value or "")
    if change.operation is ConfigOperation.APPEND:
        return ",".join(dict.fromkeys([*members, *named]))
    return ",".join(member for member in members if member not in named)


def _members(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _check_lags(changes: Sequence[ConfigKeyChange], overrides: Overrides, defaults: Mapping[str, str]) -> None:
    low, high = "min.compaction.lag.ms", "max.compaction.lag.ms"
    if not any(change.key in (low, high) for change in changes):
        return
    least, most = int(_entry_value(low, overrides, defaults)), int(_entry_value(high, overrides, defaults))
    if least > most:
        raise InvalidConfigError(f"{low} {least} must not exceed {high} {most}")


def _entry(key: str, overrides: Mapping[str, str], defaults: Mapping[str, str]) -> ConfigEntry:
    """Return a key's effective value; a value that cannot be parsed counts as not set, as on brokers."""
    if key in overrides and _parses(key, overrides[key]):
        return ConfigEntry(key, overrides[key], ConfigSource.TOPIC)
    built_in = LogConfig().value_text(key)
    if key in defaults:
        value = LogConfig.from_properties({key: defaults[key]}).value_text(key)
        if value != built_in:
            return ConfigEntry(key, value, ConfigSource.BROKER_DEFAULT)
    return ConfigEntry(key, built_in, ConfigSource.BUILT_IN_DEFAULT)


def _entry_value(key: str, overrides: Mapping[str, str], defaults: Mapping[str, str]) -> str:
    return _entry(key, overrides, defaults).value


def _parses(key: str, value: str) -> bool:
    try:
        LogConfig.from_properties({key: value})
    except InvalidConfigError:
        return False
    return True


def _encoded(overrides: Overrides) -> bytes:
    data = znodes.encode_config(overrides)
    if len(data) > MAX_CONFIG_NODE_BYTES:
        raise InvalidConfigError(f"the configuration takes {len(data)} bytes, the limit is {MAX_CONFIG_NODE_BYTES}")
    return data


def _operations(resource: ConfigResource, data: bytes, present: Response) -> tuple[Operation, Operation]:
    path = _path(resource)
    change: Operation = SetData(path, data, present.stat.version) if present.stat is not None else Create(path, data)
    notice = znodes.encode_config_change(_entity(resource))
    return change, Create(znodes.CONFIG_CHANGE_PREFIX, notice, sequential=True)
