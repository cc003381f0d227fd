"""Settings: precedence, spelling, validation, and the one file every process shares."""

from dataclasses import fields
from pathlib import Path

import pytest

from paceline.broker.__main__ import main
from paceline.log.log_config import TOPIC_KEYS, LogConfig
from paceline.model.settings import BrokerConfig, ControllerConfig, GroupConfig
from paceline.runtime.settings import BrokerSettings, SettingsError, load_broker, load_controller
from paceline.runtime.settings.keys import KEYS, NOT_HERE, BrokerKeys, ControllerKeys
from paceline.runtime.settings.sources import parse_properties

REQUIRED = ["--zookeeper-connect=zk:2181", "--log-dirs=/data"]
DEV = Path(__file__).resolve().parents[3] / "config" / "dev.properties"


def broker(*flags: str, environment: dict[str, str] | None = None) -> BrokerSettings:
    return load_broker([*REQUIRED, *flags], environment or {})


def refused(*flags: str, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as failure:
        broker(*flags, environment=environment)
    return str(failure.value)


def test_flags_beat_environment_beat_file_beat_default(tmp_path: Path) -> None:
    file = tmp_path / "a.properties"
    file.write_text("replica.lag.time.max.ms=1001\nreplica.fetch.backoff.ms=1002\nnum.replica.fetchers=3\n")
    settings = broker(
        f"--config={file}",
        "--replica-lag-time-max-ms",
        "3003",
        environment={"PACELINE_REPLICA_LAG_TIME_MAX_MS": "2001", "PACELINE_REPLICA_FETCH_BACKOFF_MS": "2002"},
    )
    config = settings.config(1)
    assert (config.replica_lag_time_max_ms, config.replica_fetch_backoff_ms) == (3003, 2002)
    assert (config.num_replica_fetchers, config.replica_fetch_min_bytes) == (3, 1)
    assert settings.origins["replica.lag.time.max.ms"] == "flag --replica-lag-time-max-ms"
    assert settings.origins["replica.fetch.backoff.ms"] == "environment PACELINE_REPLICA_FETCH_BACKOFF_MS"
    assert settings.origins["num.replica.fetchers"] == f"file {file}:3"


def test_print_config_shows_every_key_with_its_value_and_origin() -> None:
    lines = broker("--broker-id=7", "--print-config").print_config().splitlines()
    shown = {line.split()[0]: line for line in lines}
    assert set(shown) == {key for key, field in KEYS.items() if field in BrokerKeys.model_fields}
    assert shown["broker.id"].split() == ["broker.id", "7", "flag", "--broker-id"]
    assert shown["replica.lag.time.max.ms"].split() == ["replica.lag.time.max.ms", "30000", "default"]


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--replica-lag-time-max=5", "did you mean --replica-lag-time-max-ms?"),
        ("--min-insync-replica=2", "did you mean --min-insync-replicas?"),
        (
            "--num-io-threads=8",
            "num.io.threads is a Kafka key that is not supported: a broker runs",
        ),
        ("--broker-id", "flag --broker-id needs a value"),
        ("stray", "'stray' is not a flag"),
    ],
)
def test_a_wrong_flag_is_an_error_with_a_hint(flag: str, expected: str) -> None:
    assert expected in refused(flag)


def test_an_unknown_key_in_the_file_names_line_and_nearest_key(tmp_path: Path) -> None:
    file = tmp_path / "a.properties"
    file.write_text("# comment\nreplica.lag.time.max.mss=5\nlog.segment.byte=3\n")
    message = refused("--config", str(file))
    assert f"{file}:2: unknown key replica.lag.time.max.mss; did you mean replica.lag.time.max.ms?" in message
    assert f"{file}:3: unknown key log.segment.byte; did you mean log.segment.bytes?" in message


def test_a_key_given_twice_in_the_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "a.properties"
    file.write_text("broker.id=1\nbroker.id=2\n")
    assert "broker.id is set twice" in refused("--config", str(file))


def test_a_missing_file_is_reported() -> None:
    assert "/nowhere/a.properties cannot be read" in refused("--config=/nowhere/a.properties")


def test_a_mistyped_variable_is_an_error_and_a_foreign_one_is_not() -> None:
    assert "did you mean PACELINE_BROKER_ID?" in refused(environment={"PACELINE_BROKER_IDS": "1"})
    broker(environment={"PACELINE_BOOTSTRAP": "127.0.0.1:9092", "HOME": "/root"})


def test_an_invalid_value_is_reported_with_its_origin() -> None:
    message = refused("--broker-id=x", "--replica-lag-time-max-ms=0", environment={"PACELINE_METRICS_PORT": "70000"})
    assert "flag --broker-id: broker.id = 'x'" in message
    assert "flag --replica-lag-time-max-ms: replica.lag.time.max.ms = '0'" in message
    assert "environment PACELINE_METRICS_PORT: metrics.port = '70000'" in message


def test_required_keys_are_required() -> None:
    with pytest.raises(SettingsError, match=r"zookeeper\.connect is required"):
        load_broker(["--log-dirs=/data"], {})
    with pytest.raises(SettingsError, match=r"log\.dirs is required"):
        load_broker(["--zookeeper-connect=zk:2181"], {})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            ["--replica-lag-time-max-ms=100"],
            "500 must not exceed replica.lag.time.max.ms 100",
        ),
        (["--replica-socket-timeout-ms=100"], "must not exceed replica.socket.timeout.ms 100"),
        (["--broker-id=1001"], "above reserved.broker.max.id 1000"),
        (["--broker-id-generation-enable=false"], "broker.id is required while"),
        (["--log-cleaner-min-compaction-lag-ms=9", "--log-cleaner-max-compaction-lag-ms=8"], "must not exceed"),
        (["--log-retention-ms=0"], "log.retention.ms must be at least 1"),
        (["--log-cleanup-policy=shred"], "must be delete, compact or both"),
        (["--log-dirs=/a,/a"], "names a directory twice"),
        (["--listeners=CLIENT://0.0.0.0:1,REPLICATION://h:2,CONTROL://h:3"], "would advertise 0.0.0.0"),
        (["--listeners=CLIENT://h:1"], "REPLICATION is required"),
        (["--listeners=CLIENT://h:1,REPLICATION://h:1,CONTROL://h:3"], "two listeners have the same address"),
        (["--listeners=CLIENT://h:x"], "is not NAME://host:port"),
        (["--listeners=PLAINTEXT://h:1,CLIENT://h:4,REPLICATION://h:2,CONTROL://h:3"], "no listener PLAINTEXT"),
        (["--advertised-listeners=EXTERNAL://h:1"], "EXTERNAL is not among the listeners"),
    ],
)
def test_contradictions_are_refused(flags: list[str], expected: str) -> None:
    assert expected in refused(*flags)


def test_listeners_are_advertised_as_given_or_as_bound() -> None:
    settings = broker(
        "--listeners=CLIENT://0.0.0.0:9092,EXTERNAL://0.0.0.0:19092,REPLICATION://10.0.0.1:9093,CONTROL://[::1]:0",
        "--advertised-listeners=CLIENT://broker-1:9092,EXTERNAL://localhost:19092",
        "--allow-insecure=true",
    )
    assert [endpoint.host for endpoint in settings.listeners] == ["0.0.0.0", "0.0.0.0", "10.0.0.1", "::1"]
    assert {endpoint.listener: endpoint.host for endpoint in settings.advertised} == {
        "CLIENT": "broker-1",
        "EXTERNAL": "localhost",
        "REPLICATION": "10.0.0.1",
        "CONTROL": "::1",
    }


@pytest.mark.parametrize(
    ("connect", "expected"),
    [
        ("a:1,b:2", "a:1,b:2/paceline"),
        ("a:1/own", "a:1/own"),
        ("a:1/own/deep/", "a:1/own/deep"),
        ("a:1/", "a:1"),
    ],
)
def test_the_default_chroot_is_paceline(connect: str, expected: str) -> None:
    assert load_broker([f"--zookeeper-connect={connect}", "--log-dirs=/d"], {}).zookeeper_hosts == expected


def test_the_default_connection_timeout_is_the_session_timeout() -> None:
    assert broker("--zookeeper-session-timeout-ms=4000").zookeeper_connection_timeout_ms == 4_000
    assert broker("--zookeeper-connection-timeout-ms=9000").zookeeper_connection_timeout_ms == 9_000


def test_the_shorter_unit_wins_when_several_are_set() -> None:
    def retention(*flags: str) -> str:
        return broker(*flags).topic_defaults["retention.ms"]

    assert retention("--log-retention-hours=2") == str(2 * 3_600_000)
    assert retention("--log-retention-hours=2", "--log-retention-minutes=3") == str(3 * 60_000)
    assert retention("--log-retention-hours=2", "--log-retention-minutes=3", "--log-retention-ms=4") == "4"
    assert retention("--log-retention-minutes=-1") == "-1"
    assert broker("--log-roll-ms=5", "--log-roll-hours=1").topic_defaults["segment.ms"] == "5"


def test_the_defaults_for_topics_are_the_defaults_of_a_log() -> None:
    defaults = broker().topic_defaults
    assert set(defaults) <= set(TOPIC_KEYS)
    assert LogConfig.from_properties(defaults) == LogConfig()


def test_every_field_of_a_cores_config_is_a_key_or_listed_as_none() -> None:
    fixed_in_kafka_too = {
        "isr_propagation_interval_ms",
        "isr_propagation_quiet_ms",
        "isr_propagation_max_wait_ms",
        "leader_imbalance_check_interval_ms",  # set in seconds
        "max_partitions_per_request",
        "topic_defaults",
        "ssl_listeners",  # from listener.security.protocol.map
        "zookeeper_multi_max_bytes",
        "zookeeper_multi_max_operations",
        "lease_ms",
        "groups",  # the fields of GroupConfig
        "offsets_retention_ms",  # set in minutes
    }
    for config, keys in ((BrokerConfig, BrokerKeys), (GroupConfig, BrokerKeys), (ControllerConfig, ControllerKeys)):
        for field in fields(config):
            assert field.name in keys.model_fields or field.name in fixed_in_kafka_too, field.name


def test_a_keys_default_is_the_cores_default() -> None:
    settings = broker()
    assert settings.config(5) == BrokerConfig(broker_id=5)
    controller = load_controller(["--zookeeper-connect=zk:2181"], {})
    assert controller.config == ControllerConfig(controller_id=1_000_001)


def test_no_key_is_both_accepted_and_refused() -> None:
    assert not set(NOT_HERE) & set(KEYS)


def test_the_development_file_serves_brokers_and_controllers() -> None:
    settings = broker("--config", str(DEV), "--broker-id=1")
    config = settings.config(1)
    assert (config.zookeeper_session_timeout_ms, config.replica_lag_time_max_ms) == (6_000, 2_000)
    assert config.replica_fetch_wait_max_ms == 500
    assert settings.topic_defaults["min.insync.replicas"] == "2"
    controller = load_controller(["--config", str(DEV), "--zookeeper-connect=zk:2181"], {})
    assert controller.config.default_replication_factor == 3


def test_properties_are_read_as_java_reads_them() -> None:
    text = "a=1\n  b : two words \nc\n!no\n#no\nd=x\\\n   y\ne\\=f=g\\u0041\\t.\n\n"
    assert parse_properties(text) == [
        (1, "a", "1"),
        (2, "b", "two words"),
        (3, "c", ""),
        (6, "d", "xy"),
        (8, "e=f", "gA\t."),
    ]


def test_every_invalid_setting_is_reported_in_one_run(tmp_path: Path) -> None:
    file = tmp_path / "bad.properties"
    file.write_text("replica.fetch.min.byts=3\nreplica.fetch.min.bytes=many\n")
    with pytest.raises(SettingsError) as failure:
        load_broker(["--config", str(file), "--log-dirz=/tmp"], {"PACELINE_REPLICA_FETCH_MIN_BYTE": "1"})
    lines = str(failure.value).splitlines()
    wanted = [
        "replica.fetch.min.byts; did you mean",
        "PACELINE_REPLICA_FETCH_MIN_BYTE",
        "--log-dirz",
        "replica.fetch.min.bytes = 'many'",
        "zookeeper.connect is required",
    ]
    for text in wanted:
        assert [line for line in lines if text in line], (text, lines)


def test_print_config_shows_settings_that_cannot_be_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "half.properties"
    file.write_text("replica.fetch.min.bytes=3\nzookeeper.sasl.password=hunter2\n")
    assert main(["--config", str(file), "--print-config"], {}) == 2
    shown = capsys.readouterr()
    rows = {line.split()[0]: line.split()[1:] for line in shown.out.splitlines()}
    assert rows["zookeeper.connect"] == ["required"]
    assert rows["replica.fetch.min.bytes"] == ["3", "file", f"{file}:1"]
    assert "zookeeper.connect is required" in shown.err and "hunter2" not in shown.out + shown.err
