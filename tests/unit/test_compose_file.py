"""docker-compose.yml agrees with the settings of the services; checked without a container engine."""

import re
from pathlib import Path

import yaml

from paceline.cli.acl import read_rules
from paceline.runtime.settings.keys import KEYS
from paceline.runtime.settings.sources import environment_name, from_file

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")

ADDRESSES_IDS_AND_DIRECTORIES = {
    "zookeeper.connect",
    "controller.id",
    "broker.id",
    "listeners",
    "advertised.listeners",
    "log.dirs",
    "metrics.host",
    "metrics.port",
}
SECURITY = {
    "listener.security.protocol.map",
    "ssl.ca.file",
    "ssl.certificate.file",
    "ssl.key.file",
    "super.users",
    "authorizer.mode",
    "zookeeper.sasl.username",
    "zookeeper.sasl.password",
    "zookeeper.set.acl",
}


def test_the_environment_gives_known_keys_and_only_addresses_ids_directories_and_security() -> None:
    given = set(re.findall(r"^ +(PACELINE_\w+):", COMPOSE, re.MULTILINE))
    allowed = {environment_name(key) for key in ADDRESSES_IDS_AND_DIRECTORIES | SECURITY}

    of_clients = {
        "PACELINE_BOOTSTRAP_SERVERS",
        "PACELINE_GATEWAY_TOKEN_KEY_FILE",
    }  # of gateways, and clients in profiles
    assert given == allowed | of_clients
    assert allowed <= {environment_name(key) for key in KEYS}


def test_the_insecure_cluster_undoes_the_security_of_the_secure_one() -> None:
    override = (ROOT / "docker-compose.insecure.yml").read_text(encoding="utf-8")
    given = dict(re.findall(r'^ +(PACELINE_\w+): "(.*)"', override, re.MULTILINE))

    assert given == {
        "PACELINE_ZOOKEEPER_SASL_USERNAME": "",
        "PACELINE_ZOOKEEPER_SASL_PASSWORD": "",
        "PACELINE_ZOOKEEPER_SET_ACL": "false",
        "PACELINE_LISTENER_SECURITY_PROTOCOL_MAP": "",
        "PACELINE_ALLOW_INSECURE": "true",
        "PACELINE_AUTHORIZER_MODE": "off",
        "PACELINE_SSL_CA_FILE": "",
        "PACELINE_SSL_CERTIFICATE_FILE": "",
        "PACELINE_SSL_KEY_FILE": "",
    }
    assert "sessionRequireClientSASLAuth" not in override


def test_the_sample_with_racks_secures_its_brokers_like_the_others() -> None:
    sample = (ROOT / "docker-compose.racks.yml").read_text(encoding="utf-8")
    for name in sorted(environment_name(key) for key in SECURITY):
        lines = re.findall(rf"^ +{name}: .*$", COMPOSE, re.MULTILINE)
        assert lines[-1] in sample, name
    assert set(re.findall(r"host-[a-z]", sample.split("services:")[1])) == {"host-a", "host-b", "host-c"}


def test_prometheus_asks_every_broker_of_the_sample_with_racks() -> None:
    sample = yaml.safe_load((ROOT / "docker-compose.racks.yml").read_text(encoding="utf-8"))
    (job,) = yaml.safe_load((ROOT / "config" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))[
        "scrape_configs"
    ]
    targets = {target for each in job["static_configs"] for target in each["targets"]}
    ((file,),) = (each["files"] for each in job["file_sd_configs"])
    (mount,) = sample["services"]["prometheus"]["volumes"]
    source, target, _ = mount.split(":")
    assert target == file
    (more,) = yaml.safe_load((ROOT / source).read_text(encoding="utf-8"))

    brokers = {name for name in sample["services"] if name.startswith("broker-")}
    assert brokers == {each.split("-back:9101")[0] for each in targets | set(more["targets"]) if "broker" in each}
    assert more["labels"] == {"role": "broker"}


def test_every_service_has_an_id_and_ports_of_its_own() -> None:
    ids = re.findall(r'PACELINE_(?:BROKER|CONTROLLER)_ID: "(\d+)"', COMPOSE)
    published = re.findall(r'- "127\.0\.0\.1:\$\{\w+:-(\d+)\}:19082"|- "127\.0\.0\.1:\$\{\w+:-(\d+)\}:19092"', COMPOSE)
    ports = [controller or broker for controller, broker in published]

    assert len(ids) == len(set(ids)) == 5
    assert len(ports) == len(set(ports)) == 5
    for port in ports:
        assert re.search(rf"EXTERNAL://localhost:\$\{{\w+:-{port}\}}", COMPOSE), f"{port} is not advertised"


def test_the_console_listens_on_the_port_that_is_published_on_loopback() -> None:
    # It refuses requests whose Host header has another port.
    console = yaml.safe_load(COMPOSE)["services"]["console"]
    port = console["command"][-1]
    assert console["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f"http://127.0.0.1:{port}/healthz" in console["healthcheck"]["test"]
    assert console["networks"] == ["front"] and console["volumes"] == ["console-secrets:/run/paceline:ro"]
    assert console["environment"]["PACELINE_SSL_CERTIFICATE_FILE"] == "/run/paceline/client.crt"
    insecure = yaml.safe_load((ROOT / "docker-compose.insecure.yml").read_text(encoding="utf-8"))
    assert insecure["services"]["console"]["environment"]["PACELINE_SSL_CERTIFICATE_FILE"] == ""


def test_a_container_has_more_time_to_stop_than_a_service_needs() -> None:
    grace_s = int(re.findall(r"stop_grace_period: (\d+)s", COMPOSE)[0])
    settings = from_file(ROOT / "config" / "dev.properties", [])

    assert grace_s * 1000 > int(settings["shutdown.timeout.ms"].text)


def test_no_container_leaves_an_unnamed_volume() -> None:
    # The image of the services declares a volume at /var/lib/paceline, and so do the images built on it.
    services = yaml.safe_load(COMPOSE)["services"]
    built_here = [name for name, service in services.items() if "PACELINE_IMAGE" in service["image"]]
    built_here += [name for name, service in services.items() if "PACELINE_PIPELINE_IMAGE" in service["image"]]

    assert {"certificates", "broker-1", "producer", "spark-driver", "spark-worker-2"} <= set(built_here)
    for name in built_here:
        mounts = [*services[name]["volumes"], *services[name]["tmpfs"]]
        assert any(re.search(r"(^|:)/var/lib/paceline($|:)", mount) for mount in mounts), name


def test_zookeeper_elects_a_leader_while_the_name_of_a_stopped_server_cannot_be_resolved() -> None:
    insecure = (ROOT / "docker-compose.insecure.yml").read_text(encoding="utf-8")
    for text in (COMPOSE, insecure):
        for service in ("zookeeper-1", "zookeeper-2", "zookeeper-3"):
            environment = yaml.safe_load(text)["services"][service]["environment"]
            # Five attempts, a second apart, outlast a look-up that fails.
            assert "-Dzookeeper.leaderConnectDelayDuringRetryMs=1000" in environment["JVMFLAGS"], service
    for service in ("zookeeper-1", "zookeeper-2", "zookeeper-3"):
        assert yaml.safe_load(COMPOSE)["services"][service]["dns_opt"] == ["timeout:1", "attempts:1"]


def test_each_client_waits_for_its_rules_and_every_rule_is_for_a_client_of_this_file() -> None:
    services = yaml.safe_load(COMPOSE)["services"]
    clients = {name for name, one in services.items() if "PACELINE_SSL_CERTIFICATE_FILE" in one.get("environment", {})}
    nodes = {name for name in services if name.startswith(("broker-", "controller-"))}
    waiting = {name for name in clients - nodes - {"rules"} if "rules" in services[name].get("depends_on", {})}
    assert waiting == {"console", "producer", "consumer", "spark-master"}  # workers wait for the master
    text = (ROOT / "config" / "client-acls.json").read_text(encoding="utf-8")
    principals = {rule.principal for rule in read_rules(text, "client-acls.json")}
    script = (ROOT / "config" / "compose" / "certificates.sh").read_text(encoding="utf-8")
    named = {f"User:{name}" for name in re.findall(r"^client (\w+)$", script, re.MULTILINE)}
    assert named == principals | {"User:admin"}
