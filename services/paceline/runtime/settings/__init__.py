"""Load settings: merge the sources, check them against the table and convert them to the cores' configuration.

    settings = load_broker(sys.argv[1:], os.environ)
    settings.config          # BrokerConfig for the core
    settings.topic_defaults  # {"segment.bytes": "1073741824", ...} for LogConfig

pydantic-settings checks types and ranges; precedence, spelling and origins are implemented here, because
its own sources neither support Java properties nor report the origin of a value.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource

from paceline.model.control import Endpoint
from paceline.model.settings import BrokerConfig, ControllerConfig, GroupConfig
from paceline.model.tls import TlsFiles
from paceline.runtime.settings.fields import MAX_INT64, key_name
from paceline.runtime.settings.keys import KEYS, BrokerKeys, CommonKeys, ControllerKeys, GatewayKeys, ProcessKeys
from paceline.runtime.settings.listeners import advertised_listeners, parse_listeners
from paceline.runtime.settings.security import HIDDEN, SECRETS, Security, resolve_secret, security_of
from paceline.runtime.settings.sources import Setting, SettingsError, from_environment, from_file, from_flags
from paceline.runtime.settings.zookeeper import zookeeper_problems

__all__ = [
    "BrokerSettings",
    "ControllerSettings",
    "GatewaySettings",
    "ProcessOptions",
    "SettingsError",
    "load_broker",
    "load_controller",
    "load_gateway",
    "print_unchecked",
]

DEFAULT_CHROOT = "/paceline"
_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000

K = TypeVar("K", bound=ProcessKeys)
N = TypeVar("N", bound=CommonKeys)


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Flags that are not settings."""

    config_file: Path | None = None
    """``--config FILE``."""
    print_config: bool = False
    """``--print-config``: print every key with value and origin, then exit."""
    die_with_parent: bool = False
    """``--die-with-parent``: end when the parent process ends; for development clusters and tests."""
    show_help: bool = False
    """``--help``."""
    show_version: bool = False
    """``--version``."""


@dataclass(frozen=True, slots=True)
class LoadedSettings(Generic[K]):
    """Common part of the settings of all processes."""

    keys: K
    origins: Mapping[str, str]
    """Origin of each key's value; no entry means the default."""
    listeners: tuple[Endpoint, ...]
    """Addresses to bind; port 0 means any free port."""
    advertised: tuple[Endpoint, ...]
    """Addresses to publish; port 0 means the bound port."""
    security: Security
    options: ProcessOptions

    def print_config(self) -> str:
        """Return one line per key: name, value, origin."""
        rows = []
        for field in type(self.keys).model_fields:
            text = _text(getattr(self.keys, field))
            if key_name(field) in SECRETS and text:
                text = HIDDEN
            rows.append((key_name(field), text, self.origins.get(key_name(field), "default")))
        return _columns(rows)


def _text(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _columns(rows: list[tuple[str, str, str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(
        f"{key:<{widths[0]}}  {value:<{widths[1]}}  {origin}".rstrip() for key, value, origin in sorted(rows)
    )


@dataclass(frozen=True, slots=True)
class NodeSettings(LoadedSettings[N], Generic[N]):
    """Common part of the settings of brokers and controllers."""

    @property
    def zookeeper_hosts(self) -> str:
        """``host:port,...`` with the chroot, ``/paceline`` when the setting has none."""
        hosts, slash, chroot = self.keys.zookeeper_connect.partition("/")
        return hosts + (f"/{chroot}".rstrip("/") if slash else DEFAULT_CHROOT)

    @property
    def zookeeper_connection_timeout_ms(self) -> int:
        """Longest wait for the first connection; the session timeout when not set."""
        return self.keys.zookeeper_connection_timeout_ms or self.keys.zookeeper_session_timeout_ms


@dataclass(frozen=True, slots=True)
class GatewaySettings(LoadedSettings[GatewayKeys]):
    """All settings of a gateway process."""

    @property
    def broker_tls(self) -> TlsFiles | None:
        """Certificate files for calls to brokers, None for plaintext."""
        keys = self.keys
        plain = self.security.listeners["CLIENT"].tls is None
        if keys.bootstrap_security_protocol == "PLAINTEXT" or (plain and not keys.bootstrap_security_protocol):
            return None
        names = (keys.ssl_ca_file, keys.ssl_certificate_file, keys.ssl_key_file)
        return TlsFiles(*(Path(name or "") for name in names))


@dataclass(frozen=True, slots=True)
class BrokerSettings(NodeSettings[BrokerKeys]):
    """All settings of a broker process."""

    log_dirs: tuple[str, ...]
    topic_defaults: Mapping[str, str]
    """Topic keys with their broker-wide values, for LogConfig."""

    def config(self, broker_id: int) -> BrokerConfig:
        """Return the core's configuration once the broker's id is known."""
        groups = GroupConfig(
            offsets_retention_ms=self.keys.offsets_retention_minutes * _MINUTE_MS,
            **_shared_fields(GroupConfig, self.keys, {"offsets_retention_ms"}),
        )
        ssl = tuple(name for name, listener in self.security.listeners.items() if listener.tls is not None)
        shared = _shared_fields(BrokerConfig, self.keys, {"broker_id"})
        return BrokerConfig(broker_id=broker_id, ssl_listeners=ssl, groups=groups, **shared)


@dataclass(frozen=True, slots=True)
class ControllerSettings(NodeSettings[ControllerKeys]):
    """All settings of a controller process."""

    topic_defaults: Mapping[str, str]
    """Topic keys for which the shared settings file differs from the built-in default."""

    @property
    def config(self) -> ControllerConfig:
        """Return the core's configuration."""
        return ControllerConfig(
            leader_imbalance_check_interval_ms=self.keys.leader_imbalance_check_interval_seconds * 1_000,
            topic_defaults=self.topic_defaults,
            **_shared_fields(ControllerConfig, self.keys, {"leader_imbalance_check_interval_ms"}),
        )


def load_broker(arguments: Sequence[str], environment: Mapping[str, str]) -> BrokerSettings:
    """Return a broker's settings.

    Raises:
        SettingsError: a key is unknown, a value is not valid, or values contradict each other.
    """
    keys, origins, options = _load(BrokerKeys, arguments, environment)
    problems = zookeeper_problems(keys.zookeeper_connect)
    listeners = parse_listeners("broker", keys.listeners, problems)
    advertised = advertised_listeners(listeners, keys.advertised_listeners, problems)
    security = security_of(keys, listeners, problems)
    problems.extend(_broker_contradictions(keys))
    log_dirs = tuple(part.strip() for part in (keys.log_dirs or keys.log_dir or "").split(",") if part.strip())
    if not log_dirs:
        problems.append("log.dirs is required: at least one directory")
    if len(set(log_dirs)) != len(log_dirs):
        problems.append(f"log.dirs names a directory twice: {','.join(log_dirs)}")
    if problems:
        raise SettingsError("\n".join(problems))
    return BrokerSettings(keys, origins, listeners, advertised, security, options, log_dirs, _topic_defaults(keys))


def load_controller(arguments: Sequence[str], environment: Mapping[str, str]) -> ControllerSettings:
    """Return a controller's settings.

    Raises:
        SettingsError: a key is unknown, a value is not valid, or values contradict each other.
    """
    keys, origins, options = _load(ControllerKeys, arguments, environment)
    brokers, _, _ = _load(BrokerKeys, arguments, environment)
    plain = _topic_defaults(_validated(BrokerKeys, {"zookeeper.connect": keys.zookeeper_connect}))
    shared = {key: value for key, value in _topic_defaults(brokers).items() if value != plain.get(key)}
    problems = zookeeper_problems(keys.zookeeper_connect)
    listeners = parse_listeners("controller", keys.listeners, problems)
    advertised = advertised_listeners(listeners, keys.advertised_listeners, problems)
    security = security_of(keys, listeners, problems)
    if problems:
        raise SettingsError("\n".join(problems))
    return ControllerSettings(keys, origins, listeners, advertised, security, options, shared)


def load_gateway(arguments: Sequence[str], environment: Mapping[str, str]) -> GatewaySettings:
    """Return a gateway's settings.

    Raises:
        SettingsError: a key is unknown, a value is not valid, or values contradict each other.
    """
    keys, origins, options = _load(GatewayKeys, arguments, environment)
    problems: list[str] = []
    listeners = parse_listeners("gateway", keys.listeners, problems)
    security = security_of(keys, listeners, problems)
    if keys.bootstrap_security_protocol == "SSL":
        problems.extend(
            f"{key_name(field)} is required: bootstrap.security.protocol is SSL"
            for field in ("ssl_ca_file", "ssl_certificate_file", "ssl_key_file")
            if not getattr(keys, field)
        )
    if problems:
        raise SettingsError("\n".join(problems))
    return GatewaySettings(keys, origins, listeners, listeners, security, options)


def process_options(arguments: Sequence[str]) -> tuple[ProcessOptions, list[str]]:
    """Return the options from flags that are not settings, and the remaining arguments.

    Raises:
        SettingsError: ``--config`` has no value.
    """
    rest: list[str] = []
    config_file: Path | None = None
    seen = set()
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        if argument == "--config" or argument.startswith("--config="):
            value = argument.partition("=")[2] or (waiting.pop(0) if waiting and "=" not in argument else "")
            if not value:
                raise SettingsError("flag --config needs a value")
            config_file = Path(value)
        elif argument in {"--print-config", "--die-with-parent", "--help", "-h", "--version"}:
            seen.add(argument)
        else:
            rest.append(argument)
    options = ProcessOptions(
        config_file,
        print_config="--print-config" in seen,
        die_with_parent="--die-with-parent" in seen,
        show_help=bool(seen & {"--help", "-h"}),
        show_version="--version" in seen,
    )
    return options, rest


def _load(
    keys_class: type[K], arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[K, dict[str, str], ProcessOptions]:
    options, mine, problems = _merged(keys_class, arguments, environment)
    for key in SECRETS & mine.keys():
        setting = mine[key]
        try:
            text = resolve_secret(key, setting.text, setting.origin, setting.file)
            mine[key] = dataclasses.replace(setting, text=text)
        except ValueError as failure:
            problems.append(str(failure))
    try:
        keys = _validated(keys_class, {key: setting.text for key, setting in mine.items()})
    except ValidationError as failure:
        problems.extend(_problem(error, mine) for error in failure.errors())
    if problems:
        raise SettingsError("\n".join(problems))
    return keys, {key: setting.origin for key, setting in mine.items()}, options


def _merged(
    keys_class: type[ProcessKeys], arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[ProcessOptions, dict[str, Setting], list[str]]:
    """Return the options, the settings of this kind of process, and an error message per unknown setting."""
    options, flags = process_options(arguments)
    problems: list[str] = []
    merged: dict[str, Setting] = {}
    if options.config_file is not None:
        merged.update(from_file(options.config_file, problems))
    merged.update(from_environment(environment, problems))
    merged.update(from_flags(flags, problems))
    return options, {key: each for key, each in merged.items() if KEYS[key] in keys_class.model_fields}, problems


def print_unchecked(keys_class: type[ProcessKeys], arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return one line per key as written, for settings that cannot be loaded."""
    _, mine, _ = _merged(keys_class, arguments, environment)
    rows = []
    for field, info in keys_class.model_fields.items():
        key = key_name(field)
        setting = mine.get(key)
        if setting is not None:
            rows.append((key, HIDDEN if key in SECRETS else setting.text, setting.origin))
        else:
            rows.append((key, "", "required") if info.is_required() else (key, _text(info.default), "default"))
    return _columns(rows)


def _validated(keys_class: type[K], values: Mapping[str, str]) -> K:
    class OnlyThese(keys_class):  # type: ignore[valid-type, misc]
        """The same keys, without pydantic's own environment and secrets sources."""

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], **_: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (InitSettingsSource(settings_cls, dict(values)),)

    checked: K = OnlyThese()
    return checked


def _problem(error: Any, settings: Mapping[str, Setting]) -> str:
    key = str(error["loc"][0]) if error["loc"] else ""
    if error["type"] == "missing":
        return f"{key} is required"
    setting = settings.get(key)
    if setting is None:
        return f"{key}: {error['msg']}"
    shown = HIDDEN if key in SECRETS else repr(setting.text)
    return f"{setting.origin}: {key} = {shown}: {error['msg']}"


def _broker_contradictions(keys: BrokerKeys) -> list[str]:
    """Return contradictions between a broker's keys, as checked by Kafka 2.8 KafkaConfig.validateValues."""
    problems = []
    if keys.broker_id_generation_enable and keys.broker_id > keys.reserved_broker_max_id:
        problems.append(
            f"broker.id {keys.broker_id} is above reserved.broker.max.id {keys.reserved_broker_max_id}, "
            "where generated ids begin"
        )
    if not keys.broker_id_generation_enable and keys.broker_id < 0:
        problems.append("broker.id is required while broker.id.generation.enable is false")
    wait_ms = keys.replica_fetch_wait_max_ms
    problems.extend(
        f"replica.fetch.wait.max.ms {wait_ms} must not exceed {limit} {getattr(keys, KEYS[limit])}"
        for limit in ("replica.lag.time.max.ms", "replica.socket.timeout.ms")
        if wait_ms > getattr(keys, KEYS[limit])
    )
    if keys.log_cleaner_min_compaction_lag_ms > keys.log_cleaner_max_compaction_lag_ms:
        problems.append("log.cleaner.min.compaction.lag.ms must not exceed log.cleaner.max.compaction.lag.ms")
    problems.extend(
        f"{name} must be at least 1, or -1 for never"
        for name in ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
        if getattr(keys, KEYS[name]) == 0
    )
    policies = {part.strip() for part in keys.log_cleanup_policy.split(",")}
    if not policies or not policies <= {"delete", "compact"}:
        problems.append(f"log.cleanup.policy {keys.log_cleanup_policy!r} must be delete, compact or both")
    return problems


def _topic_defaults(keys: BrokerKeys) -> dict[str, str]:
    """Return the topic keys; for a limit set in several units the smallest unit wins, as in Kafka."""
    found: dict[str, str] = {}
    for field, info in BrokerKeys.model_fields.items():
        extra = info.json_schema_extra
        topic_key = extra.get("topic_key") if isinstance(extra, dict) else None
        value = getattr(keys, field)
        if isinstance(topic_key, str) and value is not None:
            found[topic_key] = str(value).lower() if isinstance(value, bool) else str(value)
    found.setdefault("segment.ms", str(keys.log_roll_hours * _HOUR_MS))
    found.setdefault("segment.jitter.ms", str(keys.log_roll_jitter_hours * _HOUR_MS))
    found.setdefault("flush.ms", str(MAX_INT64))
    if keys.log_retention_ms is None:
        minutes, hours = keys.log_retention_minutes, keys.log_retention_hours
        unit, count = (_MINUTE_MS, minutes) if minutes is not None else (_HOUR_MS, hours)
        found["retention.ms"] = str(-1 if count < 0 else count * unit)
    return found


def _shared_fields(config: type[Any], keys: CommonKeys, apart: set[str]) -> dict[str, Any]:
    """Return the fields that a core's configuration shares with the table; the other fields keep their defaults."""
    known = type(keys).model_fields
    return {
        field.name: getattr(keys, field.name)
        for field in dataclasses.fields(config)
        if field.name in known and field.name not in apart
    }
