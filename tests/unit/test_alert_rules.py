"""Each alert rule fires from series of the processes' registry, and from nothing else; promtool evaluates the rules.

The series are those of `Metrics`, the registry of a broker and a controller, after the calls that a fault causes. The
text that a process serves is tested in runtime/test_metrics_endpoint.py.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import yaml

from paceline.model.node_description import NodeCertificate, NodeDescription, NodePeer
from paceline.runtime.metrics import Metrics, node_families

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "config" / "prometheus" / "rules.yml"
HEALTHY_MIN, FAULTY_MIN = 16, 12
STEP_S = 5
YEAR_S = 365 * 86_400
TEXT = RULES.read_text(encoding="utf-8")
NAMES = re.findall(r"alert: (\w+)", TEXT)

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")


@dataclass
class Process:
    """One scraped process: its registry, and what Prometheus or the operating system add."""

    metrics: Metrics = field(default_factory=Metrics)
    is_up: bool = True
    start_s: int = 1_000
    clock_off_s: int = 0
    node: NodeDescription = field(
        default_factory=lambda: NodeDescription(
            node_id=1, role="broker", certificates=(NodeCertificate("/node.crt", YEAR_S * 1000),)
        )
    )
    rows: dict[str, dict[tuple[str, ...], float]] = field(
        default_factory=lambda: {
            "zk_session_state": {("connected",): 1.0, ("in_doubt",): 0.0},
            "zk_session_events_total": {("expired",): 0.0},
            "log_directory_free_bytes": {("/d",): 9e9},
            "log_directory_min_free_bytes": {("/d",): 1e8},
            "log_directory_room": {("/d",): 1.0},
        }
    )

    def samples(self, now_s: int) -> dict[str, float]:
        """Return what a scrape finds, by series."""
        node = replace(self.node, clock_ms=(now_s + self.clock_off_s) * 1000)
        self.metrics.families.rows = {**self.rows, **node_families(node)}
        found = {}
        for family in self.metrics.registry.collect():
            for sample in family.samples:
                if sample.name in TEXT:
                    labels = {**sample.labels, "job": "paceline"}
                    found[f"{sample.name} {json.dumps(labels)}"] = sample.value
        found['process_start_time_seconds {"job": "paceline"}'] = float(self.start_s)
        return found


Cluster = dict[str, Process]
Fault = Callable[[Cluster, int], None]


def _gauge(name: str, value: float, who: str = "broker-1") -> Fault:
    return lambda cluster, _minute: cluster[who].metrics.refresh({name: value})


def _rows(name: str, rows: dict[tuple[str, ...], float]) -> Fault:
    def fault(cluster: Cluster, _minute: int) -> None:
        cluster["broker-1"].rows = {**cluster["broker-1"].rows, name: rows}

    return fault


def _down(cluster: Cluster, _minute: int) -> None:
    cluster["broker-1"].is_up = False


def _restarts(cluster: Cluster, minute: int) -> None:
    cluster["broker-1"].start_s = 2_000 + minute // 3


def _shrinks(cluster: Cluster, minute: int) -> None:
    count = 1 + minute // 3
    cluster["broker-1"].metrics.refresh({"isr_shrinks_total": count, "isr_expands_total": count})


def _shrinks_once(cluster: Cluster, _minute: int) -> None:
    cluster["broker-1"].metrics.refresh({"isr_shrinks_total": 40})


def _expires(cluster: Cluster, minute: int) -> None:
    _rows("zk_session_events_total", {("expired",): 1.0 + minute // 2})(cluster, minute)


def _lags(cluster: Cluster, minute: int) -> None:
    _rows("group_lag_records", {("g",): 20_000.0 + 1_000 * minute, ("slow but steady",): 30_000.0})(cluster, minute)


def _unclean(cluster: Cluster, minute: int) -> None:
    if minute == FAULTY_MIN - 2:
        cluster["controller-1"].metrics.leader_elections.labels("unclean", "session").inc()
    else:
        cluster["controller-1"].metrics.leader_elections.labels("unclean", "session").inc(0)


def _late(cluster: Cluster, _minute: int) -> None:
    for _ in range(9):
        cluster["broker-1"].metrics.event_loop_lag_seconds.observe(0.3)


def _node(**fields: object) -> Fault:
    def fault(cluster: Cluster, _minute: int) -> None:
        cluster["broker-1"].node = replace(cluster["broker-1"].node, **fields)  # type: ignore[arg-type]

    return fault


def _clock(cluster: Cluster, _minute: int) -> None:
    cluster["broker-1"].clock_off_s = -40


SOON = NodeCertificate("/node.crt", 10 * 86_400_000)
FAULTS: list[tuple[str, Fault]] = [
    ("PacelineProcessDown", _down),
    ("PacelineNoActiveController", _gauge("active_controller", 0, "controller-1")),
    ("PacelineOfflinePartitions", _gauge("offline_partitions", 2, "controller-1")),
    ("PacelineUnderMinIsr", _gauge("under_min_isr_partitions", 1)),
    ("PacelineUnderReplicated", _gauge("under_replicated_partitions", 1)),
    ("PacelineIsrDoesNotGrowBack", _shrinks_once),
    ("PacelineUncleanElection", _unclean),
    ("PacelineLogDirectoryOffline", _gauge("offline_log_directories", 1)),
    ("PacelineDiskNearlyFull", _rows("log_directory_room", {("/d",): 2.0})),
    ("PacelineDamagedLogs", _gauge("damaged_logs", 1)),
    ("PacelineControllerQueueGrows", _gauge("controller_queue_size", 500, "controller-1")),
    ("PacelineEventLoopLate", _late),
    ("PacelineCertificateEnds", _node(certificates=(SOON,))),
    ("PacelineDiskFillsUp", _rows("log_directory_free_bytes", {("/d",): 1.5e8})),
    ("PacelineZooKeeperAway", _rows("zk_session_state", {("connected",): 0.0, ("in_doubt",): 1.0})),
    ("PacelineFlapping", _restarts),
    ("PacelineFlapping", _shrinks),
    ("PacelineFlapping", _expires),
    ("PacelineGroupLags", _lags),
    ("PacelineStuckReassignment", _gauge("stuck_reassignments", 1, "controller-1")),
    ("PacelineClockDiffers", _clock),
    ("PacelinePeerUnreachable", _node(peers=(NodePeer("leader", 2, "b:1", 40_000),))),
    ("PacelineDecisionWaits", _gauge("undecided_partitions", 1, "controller-1")),
]


def _series(fault: Fault) -> list[dict[str, str]]:
    """Return the series of a cluster that is healthy first and then has the fault."""
    cluster = {name: Process() for name in ("controller-1", "controller-2", "broker-1", "broker-2", "broker-3")}
    cluster["controller-1"].metrics.refresh({"active_controller": 1})
    values: dict[str, list[str]] = {}
    steps = 0
    for minute in range(-1, FAULTY_MIN):
        # Nothing changes in the first minutes, so that one scrape shows them.
        before, steps = steps, (HEALTHY_MIN if minute < 0 else HEALTHY_MIN + minute + 1) * 60 // STEP_S
        if minute >= 0:
            fault(cluster, minute)
        for instance, process in cluster.items():
            found = process.samples(before * STEP_S) if process.is_up else {}
            found['up {"job": "paceline"}'] = float(process.is_up)
            for series, value in found.items():
                name, _, labels = series.partition(" ")
                if name not in TEXT:
                    continue
                # The clock goes on between two scrapes; every other value changes once a minute.
                pace = STEP_S if name == "paceline_clock_seconds" else 0
                given = json.loads(labels) | {"instance": instance}
                key = name + "{" + ",".join(f"{k}={json.dumps(v)}" for k, v in sorted(given.items())) + "}"
                column = values.setdefault(key, [])
                column += ["_"] * (before - len(column))
                column += [repr(value + step * pace) for step in range(steps - before)]
    return [{"series": key, "values": " ".join(column)} for key, column in values.items()]


def _evaluated(tmp_path: Path, fault: Fault, expected: list[str]) -> subprocess.CompletedProcess[str]:
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": f"{STEP_S}s",
        "tests": [
            {
                "interval": f"{STEP_S}s",
                "input_series": _series(fault),
                "promql_expr_test": [
                    {"expr": firing, "eval_time": f"{HEALTHY_MIN * 60 - STEP_S}s", "exp_samples": []},
                    {
                        "expr": firing,
                        "eval_time": f"{HEALTHY_MIN + FAULTY_MIN - 1}m",
                        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in expected],
                    },
                ],
            }
        ],
    }
    file = tmp_path / "test.yml"
    file.write_text(json.dumps(document), encoding="utf-8")  # JSON is YAML, and written a hundred times as fast
    command = ["promtool", "test", "rules", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(("alert", "fault"), FAULTS, ids=[f"{name}-{n}" for n, (name, _) in enumerate(FAULTS)])
def test_the_fault_fires_its_alert_and_no_other(tmp_path: Path, alert: str, fault: Fault) -> None:
    done = _evaluated(tmp_path, fault, [alert])
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_has_a_fault_that_fires_it() -> None:
    assert sorted({name for name, _ in FAULTS}) == sorted(NAMES)


def test_a_removed_broker_fires_nothing(tmp_path: Path) -> None:
    def removed(cluster: Cluster, _minute: int) -> None:
        cluster["broker-1"].metrics.refresh({"broker_removed": 1})
        cluster["broker-1"].rows = {}

    done = _evaluated(tmp_path, removed, [])
    assert done.returncode == 0, done.stdout + done.stderr


def test_alertmanager_holds_back_only_alerts_that_exist() -> None:
    settings = yaml.safe_load((ROOT / "config/alertmanager/alertmanager.yml").read_text(encoding="utf-8"))
    matchers = [
        one for rule in settings["inhibit_rules"] for one in (*rule["source_matchers"], *rule["target_matchers"])
    ]
    assert set(re.findall(r"Paceline\w+", " ".join(matchers))) <= set(NAMES) and len(matchers) == 2
