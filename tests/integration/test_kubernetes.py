"""The Kubernetes manifests: valid by the API schemas, and each container's settings load."""

import base64
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cryptography import x509

from paceline.model.control import Endpoint
from paceline.runtime.settings import BrokerSettings, ControllerSettings, load_broker, load_controller, load_gateway

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.32", "1.36")
"""The oldest that the README names, which has the label for a pod's index, and a recent one."""

Manifest = dict[str, Any]


def manifests(kind: str | None = None) -> Iterator[Manifest]:
    """Yield the objects of the files that kustomization.yaml lists."""
    for name in yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]:
        for each in yaml.safe_load_all((FOLDER / name).read_text()):
            if kind is None or each["kind"] == kind:
                yield each


def stateful_set(name: str) -> Manifest:
    (found,) = (each for each in manifests("StatefulSet") if each["metadata"]["name"] == name)
    return found


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """Return the files of each Secret that secrets.sh prints."""
    tools = os.environ["PATH"].split(":")
    without_paceline = ":".join(folder for folder in tools if not (Path(folder) / "paceline").exists())
    environment = {**os.environ, "PATH": without_paceline}
    command = [FOLDER / "secrets.sh", tmp_path_factory.mktemp("secrets") / "paceline"]
    made = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300, env=environment)
    printed = list(yaml.safe_load_all(made.stdout))
    for each in printed:
        kubernetes_validate.validate(each, VERSIONS[0], strict=True)
    return {
        each["metadata"]["name"]: {name: base64.b64decode(text) for name, text in each["data"].items()}
        for each in printed
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid_by_the_schemas_of_the_api(version: str) -> None:
    for each in manifests():
        kubernetes_validate.validate(each, version, strict=True)


def test_an_unknown_field_is_not_valid() -> None:
    spoilt = stateful_set("broker")
    spoilt["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(spoilt, VERSIONS[0], strict=True)


def test_the_settings_are_those_of_the_one_file() -> None:
    (found,) = (each for each in manifests("ConfigMap") if each["metadata"]["name"] == "paceline")
    assert found["data"]["paceline.properties"] == (ROOT / "config" / "dev.properties").read_text(encoding="utf-8")


def loaded(
    role: str, index: int, secrets: dict[str, dict[str, bytes]], tmp_path: Path
) -> tuple[BrokerSettings | ControllerSettings, str]:
    """Load a pod's settings as its containers would, and return them with the pod's DNS name."""
    name = f"{role}-{index}"
    known = {"POD_NAME": name, "POD_IP": "10.0.0.7", "POD_INDEX": str(index)}
    pod = stateful_set(role)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment: dict[str, str] = {}
    for entry in container["env"]:
        value = entry["value"] if "value" in entry else known.get(entry["name"], "machine-a")
        environment[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda m: environment[m[1]], value)
    for source in container["envFrom"]:
        name_of_map = source["configMapRef"]["name"]
        (values,) = (each["data"] for each in manifests("ConfigMap") if each["metadata"]["name"] == name_of_map)
        environment.update(values)
    node_id = environment[f"PACELINE_{role.upper()}_ID"]
    files = secrets[role]
    for target, source_name in (
        ("ca.crt", "ca.crt"),
        ("zookeeper.password", "zookeeper.password"),
        ("node.crt", f"{role}-{node_id}.crt"),
        ("node.key", f"{role}-{node_id}.key"),
    ):
        (tmp_path / target).touch(mode=0o600)
        (tmp_path / target).write_bytes(files[source_name])
    environment = {key: value.replace("/run/paceline", str(tmp_path)) for key, value in environment.items()}
    arguments = ["--config", str(ROOT / "config" / "dev.properties")]
    load = load_broker if role == "broker" else load_controller
    return load(arguments, environment), f"{name}.{role}.paceline.svc.cluster.local"


@pytest.mark.parametrize(("role", "index"), [("broker", 0), ("broker", 2), ("controller", 0), ("controller", 1)])
def test_each_pod_advertises_the_name_in_its_certificate(
    role: str, index: int, secrets: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    settings, host = loaded(role, index, secrets, tmp_path)
    assert {endpoint.host for endpoint in settings.advertised} == {host}
    assert all(each.tls is not None for each in settings.security.listeners.values())
    certificate = x509.load_pem_x509_certificate((tmp_path / "node.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert host in names.get_values_for_type(x509.DNSName)
    (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    assert uri.endswith(f"/{role}/{index if role == 'broker' else 1_000_000 + index}")


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_ports_of_listeners_probes_and_services_are_the_same(
    role: str, secrets: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    settings, _ = loaded(role, 0, secrets, tmp_path)
    (container,) = stateful_set(role)["spec"]["template"]["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}

    def by_name(endpoints: tuple[Endpoint, ...]) -> dict[str, int]:
        return {endpoint.listener.lower(): endpoint.port for endpoint in endpoints}

    wanted = {**by_name(settings.listeners), "metrics": settings.keys.metrics_port}
    assert ports == wanted == {**by_name(settings.advertised), "metrics": settings.keys.metrics_port}
    (service,) = (each for each in manifests("Service") if each["metadata"]["name"] == role)
    assert {each["name"]: each["port"] for each in service["spec"]["ports"]} == wanted
    assert {container[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")} == {
        "metrics"
    }


def test_zookeeper_starts_as_its_image_does_with_the_id_of_its_pod() -> None:
    # scripts/images.sh takes the official image where it can be pulled; its jars lie elsewhere than those of Debian's.
    (container,) = stateful_set("zookeeper")["spec"]["template"]["spec"]["containers"]
    assert "command" not in container and "args" not in container
    (server_id,) = (each["value"] for each in container["env"] if each["name"] == "ZOO_MY_ID")
    (settings,) = (
        each["data"]["zoo.cfg"] for each in manifests("ConfigMap") if each["metadata"]["name"] == "zookeeper"
    )
    assert re.findall(r"^server\.(\d+)=zookeeper-(\d)\.", settings, re.MULTILINE) == [
        (server_id.replace("$(POD_INDEX)", index), index) for index in "012"
    ]
    # Both images write the id to /data/myid.
    assert "\ndataDir=/data\n" in settings
    # The other files of /conf, such as the settings of the log, are the image's.
    assert {"name": "config", "mountPath": "/conf/zoo.cfg", "subPath": "zoo.cfg", "readOnly": True} in container[
        "volumeMounts"
    ]


def test_no_pod_may_write_to_its_image_or_gain_rights() -> None:
    for each in manifests("StatefulSet"):
        pod = each["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            rights = container["securityContext"]
            assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
            assert rights["capabilities"] == {"drop": ["ALL"]}


def test_the_secrets_of_other_nodes_reach_no_service_container() -> None:
    for role in ("broker", "controller"):
        (container,) = stateful_set(role)["spec"]["template"]["spec"]["containers"]
        assert "all-secrets" not in {mount["name"] for mount in container["volumeMounts"]}


def test_the_settings_of_gateways_load_and_their_certificate_has_the_name_of_the_service(
    secrets: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    (deployment,) = manifests("Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    for name, content in secrets["gateway"].items():
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_bytes(content)
    environment = {
        one["name"]: one.get("value", "10.0.0.7")
        .replace("$(POD_IP)", "10.0.0.7")
        .replace("/run/paceline", str(tmp_path))
        for one in container["env"]
    }
    settings = load_gateway([], environment)
    assert settings.broker_tls is not None and settings.security.listeners["CLIENT"].tls is not None
    assert len(bytes.fromhex(secrets["gateway"]["gateway.keys"].decode())) == 32
    certificate = x509.load_pem_x509_certificate(secrets["gateway"]["gateway-1.crt"])
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "gateway.paceline.svc.cluster.local" in names.get_values_for_type(x509.DNSName)
    (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    assert uri.endswith("/gateway/1")
