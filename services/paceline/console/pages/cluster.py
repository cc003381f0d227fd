"""Overview and brokers: the state of the cluster and its findings."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from paceline.console.pages.view import Query, Row, moment_text, paged, picked, seconds_text
from paceline.findings.explain import Finding, explain
from paceline.findings.facts import BrokerFacts, PartitionFacts, ReplicaFacts
from paceline.model.admin import PartitionDescription
from paceline.model.identifiers import TopicPartition

Found = Mapping[TopicPartition, Finding]
"""The worst finding of partitions whose brokers were asked."""
_TIGHT: Final = {
    "SHORT": "short of space: produce requests are refused",
    "FULL": "full: produce requests are refused, followers pause",
}


def is_whole(partition: PartitionDescription) -> bool:
    """Return whether a partition has a leader and all its replicas are in sync."""
    return partition.leader is not None and len(partition.isr) >= len(partition.replicas)


def worst_first(topics: Sequence[Any], query: Query) -> tuple[Sequence[tuple[Any, Any]], dict[str, int]]:
    """Return a page of partitions as (topic, partition), those that are not whole first, as `paged`."""
    pairs = [(topic, one) for topic in topics for one in topic.partitions]
    pairs.sort(key=lambda pair: (is_whole(pair[1]), pair[1].leader is not None))
    return paged(pairs, query)


def partition_row(topic: Any, partition: PartitionDescription, cluster: Any, found: Found, now_ms: int) -> Row:
    """Return the row of a partition, with a finding from the metadata alone if there is no other."""
    where, alive = TopicPartition(topic.name, partition.partition), {one.broker_id for one in cluster.brokers}
    offline = partition.offline_replicas
    facts = PartitionFacts(
        **where._asdict(),
        **{name: getattr(partition, name) for name in ("leader", "leader_epoch", "isr")},
        controller=cluster.controller_id,
        controller_epoch=cluster.controller_epoch,
        replicas=tuple(ReplicaFacts(broker_id=one, online=one not in offline) for one in partition.replicas),
        brokers=tuple(BrokerFacts(broker_id=one, alive=one in alive) for one in partition.replicas),
    )
    finding = found.get(where) or explain(facts, now_ms)[0]
    return picked(
        partition,
        "partition leader leader_epoch replicas isr",
        name=str(where),
        topic=topic.name,
        severity=finding.severity.name.lower(),
        sentence=f"{finding.sentence}.",
        next_command=finding.next_command,
    )


def counts(topics: Sequence[Any]) -> Row:
    """Return how many partitions there are, and how many of them have a problem."""
    partitions = [one for topic in topics for one in topic.partitions]
    return {
        "partitions": len(partitions),
        "partitions without a leader": sum(one.leader is None for one in partitions),
        "partitions not fully in sync": sum(not is_whole(one) for one in partitions),
    }


def finding_rows(found: Sequence[Finding]) -> list[Row]:
    """Return the findings about processes; those about single partitions are in the table of partitions."""
    return [
        picked(one, "kind next_command", severity=one.severity.name.lower(), sentence=f"{one.sentence}.")
        for one in found
        if "/" not in one.subject
    ]


def overview(cluster: Any, topics: Sequence[Any], found: Found, taken_ms: int, query: Query) -> Row:
    """Return the first page; ``cluster`` and ``topics`` are described as of ``taken_ms``, Unix time."""
    known = {broker for topic in topics for one in topic.partitions for broker in one.replicas}
    known |= {one.broker_id for one in cluster.brokers}
    active = "none" if cluster.controller_id is None else f"{cluster.controller_id}, epoch {cluster.controller_epoch}"
    shown, numbers = worst_first(topics, query)
    return {
        "title": "Overview",
        "facts": {
            "cluster id": cluster.cluster_id,
            "active controller": ", ".join(filter(None, (active, cluster.controller_address))),
            "brokers up": f"{len(cluster.brokers)} of {len(known)}",
            "topics": len(topics),
            **counts(topics),
            "server version": cluster.server_version,
            "as of": moment_text(taken_ms),
        },
        "partitions": [partition_row(topic, one, cluster, found, taken_ms) for topic, one in shown],
        **numbers,
    }


def brokers(
    cluster: Any,
    topics: Sequence[Any],
    disks: Sequence[Any],
    silences: Mapping[int, int | None],
    told: Mapping[int, str],
) -> Row:
    """Return the page of brokers.

    Args:
        cluster: result of `Admin.describe_cluster`.
        topics: all topics.
        disks: result of `Admin.describe_log_dirs`.
        silences: for each broker that answered, time since a controller answered one of its heartbeats.
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
        disk, address = stored.get(broker), live.get(broker)
        failed = [one.path for one in disk.log_dirs if one.error is not None] if disk else []
        severity, state = "warning", ""
        if address is None:
            severity, state = "critical", "down"
        elif failed:
            state = f"up, but {', '.join(failed)} has failed"
        elif held[broker] and offline[broker] == held[broker]:
            state = "up, but without a lease, or stopping"
        elif broker not in silences or (disk is not None and disk.error is not None):
            state = "registered, but does not answer"
        row = {
            "broker": broker,
            "severity": severity if state else "ok",
            "state": state or "up",
            "address": address and address.address,
            "rack": (address.rack or None) if address else None,
            "leads": led[broker],
            "preferred_for": preferred[broker],
            "replicas": held[broker],
            "not_in_sync": behind[broker],
            "bytes": sum(one.size_bytes for one in disk.log_dirs) if disk and not disk.error else None,
            "controller_silent_ms": silences.get(broker),
            "latest_event": told.get(broker),
        }
        rows.append(row)
        directories += [_directory(broker, one) for one in (disk.log_dirs if disk else ())]
    return {"title": "Brokers", "brokers": rows, "directories": directories}


def _directory(broker: int, one: Any) -> Row:
    space = one.space
    tight = _TIGHT.get(space.room) if space else None
    return {
        "broker": broker,
        "directory": one.path,
        "severity": "critical" if one.error else "warning" if tight else "ok",
        "state": "failed" if one.error else tight or "online",
        "replicas": len(one.replicas),
        "bytes": one.size_bytes,
        "free": space and space.free_bytes,
        "disk": space and space.total_bytes,
        "min_free": space and space.min_free_bytes,
    }


def event_text(event: Mapping[str, Any], ms: int) -> str:
    """Return an event about a broker in a few words."""
    silent = event.get("silent_ms")
    why = str(event.get("cause") or "") if silent is None else f"silent for {seconds_text(silent / 1000)}"
    return ", ".join(filter(None, (f"{moment_text(ms)[11:19]} {event['kind']}", why)))
