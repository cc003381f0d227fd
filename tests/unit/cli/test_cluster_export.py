"""The file of `paceline cluster export`: what is refused, and what is created."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.cli.cluster_export import import_cluster, parse_export
from paceline.model.admin import NewTopic

ENTRY = {"name": "t", "topic_id": "x", "assignments": [[1, 2], [2, 1]], "configs": {"retention.ms": "5"}}
FILE = {"version": 1, "cluster_id": "c", "topics": [ENTRY, {**ENTRY, "name": "__consumer_offsets"}]}


class Cluster:
    """Records what an import asks of an empty cluster with some live brokers."""

    def __init__(self, *live: int, topics: tuple[str, ...] = ("__cluster_events",)) -> None:
        self.topics, self.calls = topics, list[tuple[Any, bool]]()
        self.live = live

    def list_topics(self) -> list[str]:
        return list(self.topics)

    def describe_cluster(self) -> Any:
        return SimpleNamespace(brokers=[SimpleNamespace(broker_id=one) for one in self.live])

    def create_topics(self, topics: list[NewTopic], *, validate_only: bool = False) -> None:
        self.calls.append((topics, validate_only))

    def alter_broker_configs(self, changes: Any, *, validate_only: bool = False) -> None:
        self.calls.append((changes, validate_only))


def run(cluster: Cluster, file: Any = FILE, any_brokers: bool = False, dry_run: bool = False) -> list[str]:
    return import_cluster(cluster, json.dumps(file), any_brokers, dry_run)  # type: ignore[arg-type]


def test_topics_are_checked_first_and_internal_topics_are_left_to_the_brokers() -> None:
    cluster = Cluster(1, 2, 3)
    assert run(cluster, FILE | {"broker_configs": {"all": {"k": "1"}, "2": {"k": "2"}}}) == ["t"]
    topics = [NewTopic("t", assignments=((1, 2), (2, 1)), configs={"retention.ms": "5"})]
    changes = {None: {"k": "1"}, 2: {"k": "2"}}
    assert cluster.calls == [(topics, True), (changes, True), (changes, False), (topics, False)]


def test_the_controller_places_the_replicas_on_request() -> None:
    cluster = Cluster(7, 8)
    run(cluster, any_brokers=True)
    assert cluster.calls[-1] == ([NewTopic("t", 2, 2, configs={"retention.ms": "5"})], False)


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (Cluster(1, 2, topics=("old",)), "the cluster has 1 topics, such as old"),
        (Cluster(1), "brokers 2 of the assignments are not live"),
    ],
)
def test_a_cluster_with_topics_or_without_the_brokers_is_not_changed(cluster: Cluster, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(cluster)
    assert cluster.calls == []


def test_a_dry_run_only_checks() -> None:
    cluster = Cluster(1, 2)
    assert run(cluster, dry_run=True) == ["t"]
    assert [is_check for _, is_check in cluster.calls] == [True]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"version": 2, "topics": []}', '{"version": 1}', '{"version": 1, "topics": [{"name": "t"}]}',
     json.dumps({"version": 1, "topics": [{**ENTRY, "assignments": [[]]}]}),
     json.dumps({"version": 1, "topics": [{**ENTRY, "assignments": [["1"]]}]})],
)  # fmt: skip
def test_another_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the file is|entry 0 of topics"):
        parse_export(text)
