"""Topics: the list, and of one topic its partitions, its settings and the groups that read it."""

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.console.pages.cluster import Found, counts, is_whole, partition_row
from paceline.console.pages.view import Query, Row, matching, moment_text, paged, picked
from paceline.model.identifiers import TopicPartition

_RANKS = ("topic", "broker", "broker default")


def topic_list(topics: Sequence[Any], query: Query) -> Row:
    """Return the list of topics, filtered by ``?q=``."""
    by_name = {topic.name: topic for topic in topics}
    names, numbers = paged(matching(list(by_name), query), query)
    return {"title": "Topics", "topics": [_topic_row(by_name[name]) for name in names], **numbers}


def _topic_row(topic: Any) -> Row:
    lost = sum(one.leader is None for one in topic.partitions)
    behind = sum(not is_whole(one) for one in topic.partitions)
    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "replication_factor": max((len(one.replicas) for one in topic.partitions), default=0),
        "not_in_sync": behind,
        "without_leader": lost,
        "severity": "critical" if lost else "warning" if behind else "ok",
    }


def topic_page(
    topic: Any,
    query: Query,
    cluster: Any,
    views: Mapping[TopicPartition, Any],
    sizes: Mapping[tuple[str, int, int], int],
    found: Found,
    now_ms: int,
) -> Row:
    """Return the partitions of a topic.

    Args:
        topic: a topic with all its partitions.
        query: parameters of the request.
        cluster: result of `Admin.describe_cluster`.
        views: result of `Admin.describe_leaders` for the partitions of this page.
        sizes: bytes by topic, partition and broker.
        found: findings.
        now_ms: Unix time in ms.
    """
    shown, numbers = paged(topic.partitions, query)
    rows = []
    for one in shown:
        view = views.get(TopicPartition(topic.name, one.partition))
        ends = {each.broker_id: each.log_end_offset for each in view.replicas} if view else {}
        offsets = {
            "log_start": view and view.log_start_offset,
            "high_watermark": view and view.high_watermark,
            "log_end": ends.get(view.leader) if view else None,
            "records": view and view.high_watermark - view.log_start_offset,
            "bytes": sizes.get((topic.name, one.partition, -1 if one.leader is None else one.leader)),
        }
        rows.append(partition_row(topic, one, cluster, found, now_ms) | offsets)
    return {
        "title": topic.name,
        "topic": topic.name,
        "facts": {"topic id": topic.topic_id, **counts([topic])},
        "partitions": rows,
        **numbers,
    }


def settings(name: str, entries: Sequence[Any]) -> Row:
    """Return the settings of a topic from `Admin.describe_configs`, those with an own value first."""
    ordered = sorted(entries, key=lambda one: (_RANKS.index(one.source) if one.source in _RANKS else 9, one.key))
    rows = [
        picked(one, "key value type documentation", origin=one.source, default=one.default_value) for one in ordered
    ]
    return {"title": name, "topic": name, "settings": rows}


def readers(name: str, rows: Sequence[Row], query: Query, taken_ms: int | None) -> Row:
    """Return the groups that read a topic, with their lag per partition, from the latest sample of all groups."""
    shown, numbers = paged(rows, query)
    facts = {"as of": None if taken_ms is None else moment_text(taken_ms)}
    return {"title": name, "topic": name, "facts": facts, "groups": list(shown), **numbers}
