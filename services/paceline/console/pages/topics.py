"""Topics: the list, and of one topic its partitions, its settings and the groups that read it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from paceline.console.pages.cluster import finding_of, is_whole, partition_row
from paceline.console.pages.view import (
    Column,
    Panel,
    Screen,
    group_path,
    lens_path,
    matching,
    moment_text,
    paged,
    search,
    size_text,
    topic_path,
)
from paceline.findings.explain import Finding
from paceline.model.identifiers import TopicPartition

SECTION: Final = "/topics"
LAG_COLUMNS: Final = (
    Column(key="partition"),
    Column(key="committed"),
    Column(key="end"),
    Column(key="lag"),
    Column(key="member"),
    Column(key="client_id", title="client"),
)


def topic_list(topics: Sequence[Any], query: Mapping[str, str]) -> Screen:
    """Return the list of topics, filtered by ``?q=``."""
    by_name = {topic.name: topic for topic in topics}
    names, total, page = paged(matching(sorted(by_name), query), query)
    rows = []
    for topic in (by_name[name] for name in names):
        lost = sum(one.leader is None for one in topic.partitions)
        behind = sum(not is_whole(one) for one in topic.partitions)
        row = {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "replication_factor": max((len(one.replicas) for one in topic.partitions), default=0),
            "not_in_sync": behind,
            "without_leader": lost,
            "severity": "critical" if lost else "warning" if behind else "ok",
        }
        rows.append(row)
    return Screen(
        title="Topics",
        section=SECTION,
        actions=(("Create a topic", "/changes/create-topic"),),
        forms=(search(query, "Name contains"),),
        panels=(
            Panel(
                name="topics",
                title="Topics",
                columns=(
                    Column(key="topic", href=lambda row: topic_path(row["topic"])),
                    Column(key="partitions"),
                    Column(key="replication_factor"),
                    Column(key="not_in_sync", severity="severity"),
                    Column(key="without_leader"),
                ),
                rows=rows,
                total=total,
                page=page,
                empty="no topic has such a name" if query.get("q") else "no topics yet",
            ),
        ),
    )


def about_topic(name: str) -> dict[str, Any]:
    """Return what all pages about a topic share, as arguments of `Screen`."""
    parts = (("Partitions", ""), ("Messages", "messages"), ("Settings", "settings"), ("Groups", "groups"))
    named = topic_path(name).removeprefix("/topics/")
    kinds = ("alter", "produce", "trim", "delete")
    texts = ("Change a setting", "Produce a record", "Trim", "Delete")
    return {
        "section": SECTION,
        "tabs": tuple((text, topic_path(name, part)) for text, part in parts),
        "actions": tuple(
            (text, f"/changes/{kind}{'' if kind == 'produce' else '-topic'}?topic={named}")
            for kind, text in zip(kinds, texts, strict=True)
        ),
    }


def topic_page(
    topic: Any,
    query: Mapping[str, str],
    cluster: Any,
    views: Mapping[TopicPartition, Any],
    sizes: Mapping[tuple[str, int, int], int],
    found: Mapping[TopicPartition, Finding],
    now_ms: int,
) -> Screen:
    """Return the partitions of a topic.

    Args:
        topic: a topic with all its partitions.
        query: parameters of the request.
        cluster: result of `Admin.describe_cluster`.
        views: result of `Admin.describe_leaders` for the partitions of this page.
        sizes: bytes by topic, partition and broker.
        found: the worst finding of partitions whose brokers were asked.
        now_ms: Unix time in ms.
    """
    shown, total, page = paged(topic.partitions, query)
    rows = []
    for one in shown:
        where = TopicPartition(topic.name, one.partition)
        view = views.get(where)
        leader = next((each for each in view.replicas if each.broker_id == view.leader), None) if view else None
        rows.append(
            partition_row(topic, one, found.get(where) or finding_of(topic.name, one, cluster, now_ms))
            | {
                "log_start": view and view.log_start_offset,
                "high_watermark": view and view.high_watermark,
                "log_end": leader and leader.log_end_offset,
                "records": view and view.high_watermark - view.log_start_offset,
                "bytes": sizes.get((topic.name, one.partition, one.leader)) if one.leader is not None else None,
            }
        )
    return Screen(
        title=topic.name,
        **about_topic(topic.name),
        facts=(
            ("topic id", topic.topic_id),
            ("partitions", total),
            ("replication factor", max((len(one.replicas) for one in topic.partitions), default=0)),
            ("partitions without a leader", sum(one.leader is None for one in topic.partitions)),
            ("partitions not fully in sync", sum(not is_whole(one) for one in topic.partitions)),
        ),
        panels=(
            Panel(
                name="partitions",
                title="Partitions",
                columns=(
                    Column(key="partition", show=str, href=lambda row: lens_path(row["topic"], row["partition"])),
                    Column(key="leader"),
                    Column(key="leader_epoch", title="epoch"),
                    Column(key="replicas"),
                    Column(key="isr", title="ISR"),
                    Column(key="log_start"),
                    Column(key="high_watermark"),
                    Column(key="log_end"),
                    Column(key="records"),
                    Column(key="bytes", title="stored by the leader", show=size_text),
                    Column(key="sentence", title="state", severity="severity"),
                ),
                rows=rows,
                total=total,
                page=page,
                help="Offsets are exclusive ends, except the log start. Each partition leads to its replication lens.",
            ),
        ),
    )


def settings(name: str, entries: Sequence[Any]) -> Screen:
    """Return the settings of a topic, those with an own value first.

    ``entries`` is the result of `Admin.describe_configs` for the topic.
    """
    ranks = ("topic", "broker", "broker default")
    ordered = sorted(entries, key=lambda one: (ranks.index(one.source) if one.source in ranks else 9, one.key))
    return Screen(
        title=name,
        **about_topic(name),
        panels=(
            Panel(
                name="settings",
                title="Settings",
                columns=(
                    Column(key="key"),
                    Column(key="value"),
                    Column(key="origin"),
                    Column(key="default"),
                    Column(key="type"),
                    Column(key="documentation"),
                ),
                rows=[
                    {
                        "key": one.key,
                        "value": one.value,
                        "origin": one.source,
                        "default": one.default_value,
                        "type": one.type,
                        "documentation": one.documentation,
                    }
                    for one in ordered
                ],
                help="The origin is the level that sets the value: the topic, the brokers, or the built-in default.",
            ),
        ),
    )


def readers(name: str, rows: Sequence[Mapping[str, Any]], query: Mapping[str, str], taken_ms: int | None) -> Screen:
    """Return the groups that read a topic, with their lag per partition, from the latest sample of all groups."""
    shown, total, page = paged(rows, query)
    return Screen(
        title=name,
        **about_topic(name),
        facts=(("as of", None if taken_ms is None else moment_text(taken_ms)),),
        panels=(
            Panel(
                name="groups",
                title="Groups that read this topic",
                columns=(Column(key="group", href=lambda row: group_path(row["group"])), *LAG_COLUMNS),
                rows=shown,
                total=total,
                page=page,
                empty="no group has read this topic" if taken_ms is not None else "groups have not been sampled yet",
            ),
        ),
    )
