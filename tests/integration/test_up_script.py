"""`scripts/up.sh`, `compose.sh` and `certificate.sh` with a stand-in for the container engine."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINE = """#!/bin/sh
# Records each call. `compose up` fails because a port is in use; one container of another project has that port.
echo "$COMPOSE_FILE $COMPOSE_PROFILES|$*" >>"$CALLS"
if [ -n "${RUNS:-}" ]; then
  case "$*" in
    "compose config --services") printf '%s\n' broker-1 broker-2 controller-1 zookeeper-1 console; exit 0 ;;
    "compose ps -q "*) service=${*##* }; n=$(grep -c "no-build $service\\$" "$CALLS")
      case " $CHANGED " in *" $service "*) echo "$service-$n" ;; *) echo "$service-0" ;; esac; exit 0 ;;
    "inspect --format {{.State.Running}} "*) echo true; exit 0 ;;
    "inspect --format {{if .State.Health}}"*) echo healthy; exit 0 ;;
    "exec "*"broker describe 2 "*) [ -z "$BEHIND" ] || [ "$(grep -c 'broker describe 2' "$CALLS")" -gt 2 ]; exit ;;
    "exec "*) exit 0 ;;
  esac
fi
case "$*" in
  "compose config") printf '%s\n' networks: '  front: {}' services: '  certificates:' '    image: a' '  broker-1:' \
    '    image: a' '  producer:' '    profiles:' '      - load' '    init: true' '  spark-master:' '    profiles:' \
    '    - pipeline' '    - other' volumes: '  lake: {}' ;;
  "compose up "*) [ -z "$STARTS" ] || exit 0
    echo "Bind for 127.0.0.1:$BUSY_PORT failed: port is already allocated"; exit 1 ;;
  "compose ps -q" | "compose ps -a -q") echo 0001; echo 0002 ;;
  "compose logs --no-color console") echo "console_1  | open http://localhost:19180/?token=old"
    echo "console_1  | open http://localhost:19180/?token=new" ;;
  "compose run "*) echo "no authority" >&2; exit 1 ;;
  "inspect "*".Id"*)
    # `Id` is not a field of the engine's type, so docker reads the answer as a map, where a missing key is an error.
    echo 'template parsing error: map has no entry for key "Health"' >&2; exit 1 ;;
  "inspect "*) echo "0001 certificates exited 0 unhealthy"; [ -n "$STARTS" ] || echo "0002 broker-1 exited 3 "
    echo "0003 producer exited $PRODUCER_CODE "; echo "0004 spark-master exited 1 " ;;
  "logs "*) echo "cannot read the log directory" ;;
  "ps "*"publish=$BUSY_PORT"*) echo another_controller-2_1 ;;
  "volume inspect "*) [ "$3" = paceline_broker-4-data ] && [ -n "${RACK_VOLUMES:-}" ] ;;
esac
"""


def run(
    tmp_path: Path, *command: str, timeout_s: float = 120, **variables: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run a script of scripts/ and return the result with the calls of docker."""
    engine = tmp_path / "docker"
    engine.write_text(ENGINE, encoding="utf-8")
    engine.chmod(0o755)
    calls = tmp_path / "calls"
    calls.touch()
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CALLS": str(calls),
        "BUSY_PORT": "19182",
        "STARTS": "",
        "PRODUCER_CODE": "1",
        "PACELINE_CERTIFICATE_FOLDER": str(tmp_path / "issued"),
        **variables,
    }
    done = subprocess.run(
        [str(ROOT / "scripts" / command[0]), *command[1:]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return done, calls.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(("port", "example"), [("19182", "PORT_CONTROLLER_2=29182"), ("29095", "PORT_BROKER_1=29091")])
def test_a_failed_start_names_the_holder_of_the_port_and_each_failed_container(
    tmp_path: Path, port: str, example: str
) -> None:
    done, _ = run(tmp_path, "up.sh", BUSY_PORT=port)

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"port 127.0.0.1:{port} is in use by the container another_controller-2_1: stop it, or choose other ports:"
        f" {example} make up",
        "(the ports are PORT_CONTROLLER_1 and _2, PORT_BROKER_1 to _3, with RACKS=1 to _6, PORT_CONSOLE,"
        " PORT_PROMETHEUS, PORT_GRAFANA and PORT_SPARK)",
        "broker-1 is exited, exit code 3. The end of its log:",
        "  cannot read the log directory",
        "'make logs' shows more; 'make down' stops everything, and with VOLUMES=1 deletes the data, too",
    ]


@pytest.mark.parametrize(("profiles", "producer"), [("", "1"), ("obs", "1"), ("load", "0")])
def test_a_start_does_not_wait_for_containers_of_other_profiles_or_that_are_done(
    tmp_path: Path, profiles: str, producer: str
) -> None:
    done, calls = run(tmp_path, "up.sh", STARTS="1", PROFILES=profiles, PRODUCER_CODE=producer, INSECURE="1")
    assert done.returncode == 0 and "up: brokers" in done.stdout, done.stdout + done.stderr
    assert "\n    console http://localhost:19180/?token=new\n" in done.stdout
    assert "waiting for:" not in done.stdout and any("compose ps -a -q" in call for call in calls)


def test_a_start_waits_for_the_containers_of_its_profiles(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired) as waited:
        run(tmp_path, "up.sh", timeout_s=6, STARTS="1", PROFILES="load", INSECURE="1")
    assert b"waiting for: producer (exited)\n" in (waited.value.stdout or b"")


def test_profiles_may_be_separated_by_spaces(tmp_path: Path) -> None:
    _, calls = run(tmp_path, "up.sh", PROFILES="load pipeline")

    assert next(call for call in calls if "compose up" in call).startswith(" load,pipeline|")
    dry_run = subprocess.run(
        ["make", "-n", "-o", "images", "up", "PROFILES=load pipeline"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"PROFILES=(['\"])load pipeline\1 scripts/up\.sh", dry_run.stdout)


@pytest.mark.parametrize("profile", ["bogus", "Load"])
def test_an_unknown_profile_is_refused_before_an_engine_is_started(tmp_path: Path, profile: str) -> None:
    done, calls = run(tmp_path, "images.sh", "load", profile)

    assert (done.returncode, calls) == (1, [])
    assert done.stderr == f"images: unknown profile {profile}: the profiles are load, obs and pipeline\n"


@pytest.mark.parametrize("command", [["down", "-v"], ["ps"], ["logs"]])
def test_brokers_of_racks_are_known_to_down_ps_and_logs_without_racks(tmp_path: Path, command: list[str]) -> None:
    _, calls = run(tmp_path, "compose.sh", *command, RACK_VOLUMES="1")
    assert calls[-1].startswith("docker-compose.yml:docker-compose.racks.yml ")

    _, calls = run(tmp_path, "compose.sh", *command)
    assert calls[-1].startswith(" ")


def test_a_running_cluster_is_replaced_one_process_at_a_time_each_in_sync_before_the_next(tmp_path: Path) -> None:
    changed = "broker-1 broker-2 zookeeper-1"
    done, calls = run(
        tmp_path, "up.sh", RUNS="1", STARTS="1", CHANGED=changed, BEHIND="1", PRODUCER_CODE="0", INSECURE="1"
    )
    assert done.returncode == 0, done.stderr

    # Compose itself replaces only what has changed.
    steps = [
        call.split("|")[1] for call in calls if " --no-deps " in call or "exec" in call or "up -d --remove" in call
    ]
    ups = [step.split()[-1] for step in steps if "--no-deps" in step]
    assert ups == ["zookeeper-1", "controller-1", "broker-1", "broker-2"]
    assert "compose up -d --remove-orphans" in steps[-1]
    asked = [step for step in steps if "broker describe 2" in step]
    assert len(asked) == 3, "it waits until every replica of the broker is in sync"
    assert all("exec -e PACELINE_BOOTSTRAP_SERVERS=broker-1:9092" in step and " broker-1-1 " in step for step in asked)
    replaced = re.findall(r"(\S+) was replaced", done.stdout)
    assert replaced == ["zookeeper-1", "broker-1", "broker-2"]


def test_a_small_cluster_has_a_project_and_volumes_of_its_own(tmp_path: Path) -> None:
    engine = tmp_path / "docker"
    run(tmp_path, "compose.sh", "ps")
    engine.write_text(
        '#!/bin/sh\necho "$COMPOSE_PROJECT_NAME $PACELINE_SETTINGS_DIGEST" >>"$CALLS"\n', encoding="utf-8"
    )
    names = []
    for variables in ({"SMALL": "1"}, {"SMALL": "1", "INSECURE": "1"}, {"SMALL": "1", "COMPOSE_PROJECT_NAME": "own"}):
        called = subprocess.run(
            [str(ROOT / "scripts" / "compose.sh"), "config"],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(tmp_path / "names"), **variables},
            check=False, timeout=60,
        )  # fmt: skip
        assert called.returncode == 0
        names.append((tmp_path / "names").read_text(encoding="utf-8").splitlines()[-1].split())
    assert [name for name, _ in names] == ["paceline-small", "paceline-insecure-small", "own"]
    assert all(len(digest) == 16 for _, digest in names)


def test_a_certificate_that_cannot_be_issued_leaves_the_previous_one(tmp_path: Path) -> None:
    previous = tmp_path / "issued" / "alice" / "client-alice.crt"
    previous.parent.mkdir(parents=True)
    previous.touch()

    done, _ = run(tmp_path, "certificate.sh", "alice")

    assert done.returncode == 1
    assert done.stderr == "issuing a certificate for User:alice\nno authority\n"
    assert [path.name for path in (tmp_path / "issued").iterdir()] == ["alice"]
    assert previous.exists()


def test_a_cluster_without_tls_has_no_certificates(tmp_path: Path) -> None:
    done, calls = run(tmp_path, "certificate.sh", "alice", INSECURE="1")

    assert (done.returncode, calls) == (2, [])
    assert done.stderr == "a cluster without TLS (INSECURE=1) has no certificates\n"
