"""Alert rules and dashboards name metrics that the processes serve."""

import json
import re
from pathlib import Path

from paceline.runtime.metrics import FAMILIES, Metrics
from tests.support.broker_cluster import BrokerCluster

ROOT = Path(__file__).resolve().parents[2]
RULES = (ROOT / "config" / "prometheus" / "rules.yml").read_text(encoding="utf-8")
DASHBOARD = json.loads((ROOT / "config" / "grafana" / "paceline.json").read_text(encoding="utf-8"))


def _served() -> set[str]:
    """Return the names of all series that a process can have."""
    names = [*FAMILIES, *BrokerCluster()[1].node.metrics_snapshot()]
    families = {metric.name for metric in Metrics().registry.collect()} | {f"paceline_{name}" for name in names}
    endings = ("", "_total", "_sum", "_count", "_bucket")
    return {f"{family.removesuffix('_total')}{ending}" for family in families for ending in endings}


def _named(text: str) -> set[str]:
    return set(re.findall(r"paceline_\w+|process_\w+", text))


def test_every_metric_of_the_alert_rules_is_served() -> None:
    expressions = re.findall(r"expr: (.+)", RULES)
    assert len(expressions) >= 10
    assert _named("\n".join(expressions)) <= _served()


def test_every_metric_of_the_dashboard_is_served() -> None:
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    assert len(expressions) >= 18
    assert _named("\n".join(expressions)) - {"process_resident_memory_bytes", "process_cpu_seconds_total"} <= _served()


def test_the_metrics_document_and_the_rules_alert_on_the_same_series() -> None:
    document = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    section = document.split("## Alert on")[1].split("\n## ")[0]
    rules = "\n".join(re.findall(r"expr: (.+)", RULES))
    assert [name for name in sorted(_named(section)) if name not in rules] == []
