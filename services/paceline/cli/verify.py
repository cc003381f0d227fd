"""``paceline verify``: compare the stored records of all replicas by digests, which brokers compute."""

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from paceline.cli.completion import topic_names
from paceline.cli.connection import bootstrap_option, open_admin
from paceline.cli.exit_codes import NEGATIVE_VERDICT
from paceline.cli.failures import reported
from paceline.cli.numbers import COUNT
from paceline.cli.output import output_option, show_summary

if TYPE_CHECKING:
    from paceline.cli.replica_digests import Verified
    from paceline_client import Admin, Broker, PartitionDescription, TopicDescription


@click.command(context_settings={"show_default": True})
@click.option("--topic", "topics", multiple=True, shell_complete=topic_names, help="topic to verify; may be repeated")
@click.option("--tasks", type=COUNT, default=8, help="number of partitions that are compared at the same time")
@bootstrap_option
@output_option
def verify(bootstrap: str, topics: tuple[str, ...], tasks: int, output: str) -> None:
    """Compare the stored records of all replicas, of all topics or of those given; exits with 3 when they differ.

    Brokers send digests, not records. Compacted topics are skipped: each replica compacts independently, so that equal
    records may have different bytes.
    """
    with reported(output):
        # The pool ends after the client is closed, so that an interrupt fails the calls that are in flight.
        with ThreadPoolExecutor(tasks, thread_name_prefix="paceline-verify") as pool, open_admin(bootstrap) as admin:
            names = sorted(topics) or admin.list_topics()
            described = admin.describe_topics(names)
            policies = admin.describe_configs(names, ["cleanup.policy"])
            brokers = {broker.broker_id: broker for broker in admin.describe_cluster().brokers}
            compacted = [name for name in names if any("compact" in (each.value or "") for each in policies[name])]
            pairs = [(one, each) for one in described if one.name not in compacted for each in one.partitions]
            results = list(pool.map(lambda pair: _verified(admin, brokers, *pair), pairs))
        findings = [finding for result in results for finding in result.findings]
        summary = {
            "partitions": len(pairs),
            "compacted_topics_left_out": compacted,
            "ranges": sum(result.ranges for result in results),
            "records": sum(result.records for result in results),
            "stored_bytes": sum(result.stored_bytes for result in results),
            "differences": dict(Counter(finding.difference for finding in findings)),
            "findings": [asdict(finding) for finding in findings],
        }
        show_summary(summary, output)
    sys.exit(NEGATIVE_VERDICT if findings else 0)


def _verified(
    admin: "Admin", brokers: "dict[int, Broker]", topic: "TopicDescription", partition: "PartitionDescription"
) -> "Verified":
    from paceline.cli.replica_digests import Answer, verify_partition
    from paceline.model.errors import BrokerNotAvailableError, PacelineError

    def ask(broker_id: int, start: int, end: int) -> Answer:
        if broker_id not in brokers:
            return BrokerNotAvailableError(f"broker {broker_id} is not live")
        try:
            return admin.digest_range(
                brokers[broker_id], topic.name, partition.partition, start, end, topic_id=topic.topic_id
            )
        except PacelineError as error:
            return error

    return verify_partition(topic.name, partition, ask)
