"""Overview and brokers: how the cluster is, and what is wrong with it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from paceline.console.pages.view import Column, Panel, Screen, lens_path, moment_text, paged, seconds_text, size_text
from paceline.findings.explain import Finding, explain
from paceline.findings.facts import BrokerFacts, PartitionFacts, ReplicaFacts
from paceline.model.admin import PartitionDescription
from paceline.model.identifiers import TopicPartition

PARTITION_COLUMNS: Final = (
    Column(key="name", title="partition", href=lambda row: lens_path(row["topic"], row["partition"])),
    Column(key="leader"),
    Column(key="leader_epoch", title="epoch"),
    Column(key="replicas"),
    Column(key="isr", title="ISR"),
    Column(key="sentence", title="state", severity="severity"),
)

_TIGHT: Final = {
    "SHORT": "short of space: produce requests are refused",
    "FULL": "full: produce requests are refused, followers pause",
}


def is_whole(partition: PartitionDescription) -> bool:
    """Return whether a partition has a leader and all its replicas are in sync."""
    return partition.leader is not None and len(partition.isr) >= len(partition.replicas)


def partitions_to_show(topics: Sequence[Any], query: Mapping[str, str]) -> tuple[list[tuple[Any, Any]], int, int]:
    """Return the partitions of the asked page as (topic, partition), those that are not whole first; total and page."""
    pairs = [(topic, one) for topic in topics for one in topic.partitions]
    pairs.sort(key=lambda pair: (is_whole(pair[1]), pair[1].leader is not None))
    rows, total, page = paged(pairs, query)
    return list(rows), total, page


def finding_of(topic: str, partition: PartitionDescription, cluster: Any, now_ms: int) -> Finding:
    """Return the worst finding about a partition from the metadata alone."""
    alive = {broker.broker_id for broker in cluster.brokers}
    facts = PartitionFacts(
        topic=topic,
        partition=partition.partition,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        controller=cluster.controller_id,
        controller_epoch=cluster.controller_epoch,
        isr=partition.isr,
        replicas=tuple(
            ReplicaFacts(broker_id=one, online=one not in partition.offline_replicas) for one in partition.replicas
        ),
        brokers=tuple(BrokerFacts(broker_id=one, alive=one in alive) for one in partition.replicas),
    )
    return explain(facts, now_ms)[0]


def partition_row(topic: Any, partition: PartitionDescription, finding: Finding) -> dict[str, Any]:
    """Return the row of a partition."""
    return {
        "name": f"{topic.name}/{partition.partition}",
        "topic": topic.name,
        "partition": partition.partition,
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "severity": finding.severity.name.lower(),
        "sentence": finding.sentence + ".",
        "next_command": finding.next_command,
    }


def overview(
    cluster: Any,
    topics: Sequence[Any],
    shown: tuple[list[tuple[Any, Any]], int, int],
    found: Mapping[TopicPartition, Finding],
    taken_ms: int,
) -> Screen:
    """Return the first page.

    Args:
        cluster: result of `Admin.describe_cluster`.
        topics: all topics.
        shown: result of `partitions_to_show`.
        found: the worst finding of partitions whose brokers were asked.
        taken_ms: Unix time of ``cluster`` and ``topics``.
    """
    partitions = [one for topic in topics for one in topic.partitions]
    known = {broker for one in partitions for broker in one.replicas} | {one.broker_id for one in cluster.brokers}
    active = "none" if cluster.controller_id is None else f"{cluster.controller_id}, epoch {cluster.controller_epoch}"
    rows, total, page = shown
    return Screen(
        title="Overview",
        section="/",
        facts=(
            ("cluster id", cluster.cluster_id),
            ("active controller", active + (f", {cluster.controller_address}" if cluster.controller_address else "")),
            ("brokers up", f"{len(cluster.brokers)} of {len(known)}"),
            ("topics", len(topics)),
            ("partitions", len(partitions)),
            ("partitions without a leader", sum(one.leader is None for one in partitions)),
            ("partitions not fully in sync", sum(not is_whole(one) for one in partitions)),
            ("server version", cluster.server_version),
            ("as of", moment_text(taken_ms)),
        ),
        panels=(
            Panel(
                name="partitions",
                title="Partitions",
                columns=PARTITION_COLUMNS,
                rows=[
                    partition_row(
                        topic,
                        one,
                        found.get(TopicPartition(topic.name, one.partition))
                        or finding_of(topic.name, one, cluster, taken_ms),
                    )
                    for topic, one in rows
                ],
                total=total,
                page=page,
                help="Those with a problem first; each leads to its replication lens.",
            ),
        ),
    )


def event_text(event: Mapping[str, Any], ms: int) -> str:
    """Return an event about a broker in a few words."""
    silent = event.get("silent_ms")
    why = str(event.get("cause") or "") if silent is None else f"silent for {seconds_text(silent / 1000)}"
    return f"{moment_text(ms)[11:19]} {event['kind']}" + (f", {why}" if why else "")


def brokers(
    cluster: Any,
    topics: Sequence[Any],
    disks: Sequence[Any],
    silent_ms: Mapping[int, int | None],
    told: Mapping[int, str],
) -> Screen:
    """Return the page of brokers.

    Args:
        cluster: result of `Admin.describe_cluster`.
        topics: all topics.
        disks: result of `Admin.describe_log_dirs`.
        silent_ms: for each broker that answered, time since a controller answered one of its heartbeats.
        told: the latest event about a broker, as `event_text`.
    """
    partitions = [one for topic in topics for one in topic.partitions]
    held = Counter(broker for one in partitions for broker in one.replicas)
    led = Counter(one.leader for one in partitions)
    preferred = Counter(one.replicas[0] for one in partitions if one.replicas)
    behind = Counter(broker for one in partitions for broker in one.replicas if broker not in one.isr)
    offline = Counter(broker for one in partitions for broker in one.offline_replicas)
    live = {one.broker_id: one for one in cluster.brokers}
    stored = {one.broker_id: one for one in disks}
    rows, directories = [], []
    for broker in sorted({*live, *held}):
        on_disk = stored.get(broker)
        failed = [one.path for one in on_disk.log_dirs if one.error is not None] if on_disk else []
        severity, state = "ok", "up"
        if broker not in live:
            severity, state = "critical", "down"
        elif failed:
            severity, state = "warning", f"up, but {', '.join(failed)} has failed"
        elif held[broker] and offline[broker] == held[broker]:
            severity, state = "warning", "up, but without a lease, or stopping"
        elif broker not in silent_ms or (on_disk is not None and on_disk.error is not None):
            severity, state = "warning", "registered, but does not answer"
        rows.append(
            {
                "broker": broker,
                "severity": severity,
                "state": state,
                "address": live[broker].address if broker in live else None,
                "rack": (live[broker].rack or None) if broker in live else None,
                "leads": led[broker],
                "preferred_for": preferred[broker],
                "replicas": held[broker],
                "not_in_sync": behind[broker],
                "bytes": sum(one.size_bytes for one in on_disk.log_dirs) if on_disk and not on_disk.error else None,
                "controller_silent_ms": silent_ms.get(broker),
                "latest_event": told.get(broker),
            }
        )
        for one in on_disk.log_dirs if on_disk else ():
            space = one.space
            directories.append(
                {
                    "broker": broker,
                    "directory": one.path,
                    "severity": "critical" if one.error else "warning" if space and space.room in _TIGHT else "ok",
                    "state": "failed" if one.error else _TIGHT.get(space.room, "online") if space else "online",
                    "replicas": len(one.replicas),
                    "bytes": one.size_bytes,
                    "free": space and space.free_bytes,
                    "disk": space and space.total_bytes,
                    "min_free": space and space.min_free_bytes,
                }
            )
    return Screen(
        title="Brokers",
        section="/brokers",
        panels=(
            Panel(
                name="brokers",
                title="Brokers",
                columns=(
                    Column(key="broker"),
                    Column(key="state", severity="severity"),
                    Column(key="address"),
                    Column(key="rack"),
                    Column(key="leads"),
                    Column(key="preferred_for"),
                    Column(key="replicas"),
                    Column(key="not_in_sync"),
                    Column(key="bytes", title="stored", show=size_text),
                    Column(
                        key="controller_silent_ms",
                        title="last answer of a controller",
                        show=lambda ms: f"{ms / 1000:.1f} s ago",
                    ),
                    Column(key="latest_event"),
                ),
                rows=rows,
                help="A broker keeps its lease while a controller answers its heartbeats (controller.broker.lease.ms); "
                "the latest event says why the controller suspected it, or when it came or left.",
            ),
            Panel(
                name="directories",
                title="Log directories",
                columns=(
                    Column(key="broker"),
                    Column(key="directory"),
                    Column(key="state", severity="severity"),
                    Column(key="replicas"),
                    Column(key="bytes", title="stored", show=size_text),
                    Column(key="free", show=size_text),
                    Column(key="disk", show=size_text),
                    Column(key="min_free", title="writes stop below", show=size_text),
                ),
                rows=directories,
            ),
        ),
    )
