"""An ingest completes while brokers and controllers of its cluster are killed between its steps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deltalake
import pytest

from paceline.dev.local_cluster import LocalCluster
from paceline.pipeline.jobs.ingest import job
from paceline.pipeline.jobs.ingest.config import IngestConfig
from paceline_client import Admin, NewTopic, Producer
from tests.support.inline_spark import InlineSpark

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

PARTITIONS = 4
RECORDS = 20_000


class Killer:
    """After each of the first steps, restarts the process killed last and kills the next one."""

    def __init__(self, cluster: LocalCluster, victims: list[Any]) -> None:
        self._cluster, self._victims = cluster, victims
        self._down: Any = None
        self.killed: list[str] = []

    def step(self, name: str, facts: Mapping[str, Any]) -> None:
        if name not in ("planned", "written", "committed") or not self._victims:
            return
        self.restore()
        self._down = self._victims.pop(0)
        self._cluster.kill(self._down)
        self.killed.append(f"{self._down.name} after {name}")

    def restore(self) -> None:
        if self._down is not None:
            self._cluster.restart(self._down, wait=False)
            self._down = None


def test_leaders_and_controllers_that_die_between_steps_cost_no_record_and_no_order(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    topic = "killed"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, partitions=PARTITIONS, replication_factor=3)])
        with Producer(cluster.bootstrap) as producer:
            for partition in range(PARTITIONS):
                values = ((None, b"%d" % number) for number in range(RECORDS // PARTITIONS))
                producer.send_many(topic, values, partition=partition)
            producer.flush(120)
        (described,) = admin.describe_topics([topic])
        leaders = [partition.leader for partition in described.partitions]
    first, second = cluster.broker(leaders[0]), cluster.broker(next(b for b in leaders if b != leaders[0]))
    killer = Killer(cluster, [first, cluster.controller(0), second, cluster.controller(1)])
    config = IngestConfig(
        tuple(cluster.bootstrap.split(",")), (topic,), str(tmp_path / "table"), max_batch_bytes=50_000
    )
    try:
        result = job.run(InlineSpark(), config, killer)
    finally:
        killer.restore()
    assert len(killer.killed) >= 3, killer.killed
    assert result.summary["rows"] == RECORDS
    table = deltalake.DeltaTable(config.table).to_pyarrow_table()
    rows = sorted(
        zip(
            table.column("partition").to_pylist(),
            table.column("offset").to_pylist(),
            table.column("value").to_pylist(),
            strict=True,
        )
    )
    assert len(rows) == RECORDS
    # The value of a record is its offset, so one comparison checks order and uniqueness.
    assert rows == [(p, n, b"%d" % n) for p in range(PARTITIONS) for n in range(RECORDS // PARTITIONS)]
