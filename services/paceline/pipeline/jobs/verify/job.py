"""Verify the replicas of topics: each Spark task compares the replicas of its share of the partitions by digests."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from paceline.model.errors import UnknownTopicOrPartitionError
from paceline.model.tls import TlsFiles
from paceline.pipeline.jobs.certificates import driver_tls
from paceline.pipeline.jobs.run import ExitCode, JobListener, JobResult, SilentListener
from paceline.pipeline.jobs.verify.replicas import (
    PartitionToVerify,
    Verified,
    ask_over_grpc,
    describe,
    verify_partition,
)

CLIENT_ID = "paceline-verify"


@dataclass(frozen=True, slots=True)
class VerifyConfig:
    """Selects the partitions to verify."""

    bootstrap_servers: tuple[str, ...]
    topics: tuple[str, ...] = ()
    """Topic names; empty means all topics that are not compacted."""
    max_tasks: int = 8
    tls: TlsFiles | None = None
    """Certificate files, at the same paths on driver and executors; None: the files in the driver's environment."""


def run(spark: Any, config: VerifyConfig, listener: JobListener | None = None) -> JobResult:
    """Compare all replicas; a difference gives the exit code for a negative result.

    Compacted topics are skipped: each replica compacts independently, so that equal records may have different bytes.

    Raises:
        UnknownTopicOrPartitionError: a named topic does not exist.
        PacelineError: the cluster did not answer.
    """
    listener = listener or SilentListener()
    config = replace(config, tls=driver_tls(config.tls))
    items, compacted = _partitions(config)
    count = max(1, min(config.max_tasks, len(items)))
    tasks = _VerifyTasks([items[number::count] for number in range(count)], config.tls)
    listener.step("planned", {"partitions": len(items), "tasks": count})
    rows = spark.range(0, count, 1, count).mapInArrow(tasks.__call__, "found string").collect() if items else []
    reports = [json.loads(row.found) for row in rows]
    findings = [finding for report in reports for finding in report["findings"]]
    summary = {
        "partitions": len(items),
        "compacted_topics_left_out": compacted,
        "ranges": sum(report["ranges"] for report in reports),
        "records": sum(report["records"] for report in reports),
        "stored_bytes": sum(report["size_bytes"] for report in reports),
        "differences": dict(Counter(finding["difference"] for finding in findings)),
        "findings": findings,
    }
    return JobResult(ExitCode.NEGATIVE_VERDICT if findings else ExitCode.OK, summary)


def _partitions(config: VerifyConfig) -> tuple[list[PartitionToVerify], list[str]]:
    from paceline_client import Admin

    with Admin(",".join(config.bootstrap_servers), tls=config.tls) as admin:
        names = sorted(config.topics) or admin.list_topics()
        described = [topic for topic in admin.describe_topics(names) if topic.partitions]
        missing = set(names) - {topic.name for topic in described}
        if missing:
            raise UnknownTopicOrPartitionError(f"topic {', '.join(sorted(missing))} does not exist")
        policies = admin.describe_configs(names, ["cleanup.policy"])
        compacted = [name for name in names if any("compact" in (each.value or "") for each in policies[name])]
        addresses = {broker.broker_id: broker.address for broker in admin.describe_cluster().brokers}
    items = [
        PartitionToVerify(
            topic.name,
            partition.partition,
            topic.topic_id,
            -1 if partition.leader is None else partition.leader,
            tuple(partition.replicas),
            {broker_id: addresses[broker_id] for broker_id in partition.replicas if broker_id in addresses},
        )
        for topic in described
        if topic.name not in compacted
        for partition in topic.partitions
    ]
    return items, compacted


@dataclass(frozen=True, slots=True)
class _VerifyTasks:
    items: Sequence[Sequence[PartitionToVerify]]
    tls: TlsFiles | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from paceline.pipeline.cluster import channels_of_this_process

        channels = channels_of_this_process(CLIENT_ID, self.tls)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                verified = Verified()
                findings = []
                for item in self.items[number]:
                    findings += verify_partition(item, ask_over_grpc(item, channels.get), verified)
                found = {
                    "findings": describe(findings),
                    "ranges": verified.ranges,
                    "records": verified.records,
                    "size_bytes": verified.size_bytes,
                }
                yield pa.RecordBatch.from_pydict({"found": [json.dumps(found)]})
