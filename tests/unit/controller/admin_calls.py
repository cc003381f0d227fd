"""Calls to the active controller that wait, in virtual time, for the one reply."""

from collections.abc import Callable
from typing import Any

from paceline.controller.admin.admin_requests import (
    AlterPartitionReassignments,
    CreatePartitions,
    DescribeConfigs,
    ElectLeaders,
    IncrementalAlterConfigs,
    ListPartitionReassignments,
)
from paceline.controller.admin.admin_values import (
    AlterConfigsResult,
    ConfigAlteration,
    ConfigEntry,
    ConfigKeyChange,
    ConfigOperation,
    ConfigResource,
    ElectionType,
    OngoingReassignment,
    RequestedReassignment,
    ResourceType,
)
from paceline.controller.node import ControllerNode
from paceline.model.admin import ElectionResult, NewPartitions, NewPartitionsResult, ReassignmentResult
from paceline.model.errors import PacelineError
from tests.unit.controller.cluster import Cluster, tp

TIMEOUT_MS = 5_000


def ask(cluster: Cluster, call: Callable[[Callable[[Any], None]], None], timeout_ms: int = TIMEOUT_MS) -> Any:
    """Make a call and return its answer; an exception that answers it is raised."""
    answers: list[Any] = []
    call(answers.append)
    cluster.time.run_until(lambda: bool(answers), max_ms=timeout_ms + 1_000)
    (answer,) = answers
    if isinstance(answer, Exception):
        raise answer
    return answer


def grow(
    cluster: Cluster, *topics: NewPartitions, timeout_ms: int = TIMEOUT_MS, validate_only: bool = False
) -> list[NewPartitionsResult]:
    node = cluster.controller
    return list(
        ask(
            cluster,
            lambda reply: node.ask(CreatePartitions(tuple(topics), timeout_ms, validate_only, reply=reply)),
            timeout_ms,
        )
    )


def elect(
    cluster: Cluster,
    election: ElectionType,
    *partitions: str,
    timeout_ms: int = TIMEOUT_MS,
    validate_only: bool = False,
) -> list[ElectionResult]:
    """Elect leaders; without partitions, for all partitions that need it."""
    node, wanted = cluster.controller, [tp(partition) for partition in partitions] or None
    return list(
        ask(
            cluster,
            lambda reply: node.ask(
                ElectLeaders(
                    election, None if wanted is None else tuple(wanted), timeout_ms, validate_only, reply=reply
                )
            ),
            timeout_ms,
        )
    )


def move(
    cluster: Cluster, *requested: tuple[str, tuple[int, ...] | None], validate_only: bool = False
) -> list[ReassignmentResult]:
    node = cluster.controller
    asked = [RequestedReassignment(tp(partition), target) for partition, target in requested]
    return list(
        ask(cluster, lambda reply: node.ask(AlterPartitionReassignments(tuple(asked), validate_only, reply=reply)))
    )


def moves(cluster: Cluster, *partitions: str) -> list[OngoingReassignment]:
    node, wanted = cluster.controller, [tp(partition) for partition in partitions] or None
    return list(
        ask(
            cluster,
            lambda reply: node.ask(ListPartitionReassignments(None if wanted is None else tuple(wanted), reply=reply)),
        )
    )


def topic(name: str) -> ConfigResource:
    return ConfigResource(ResourceType.TOPIC, name)


def entries(cluster: Cluster, name: str, *keys: str) -> dict[str, ConfigEntry]:
    node = cluster.controller
    (result,) = ask(cluster, lambda reply: node.ask(DescribeConfigs(((topic(name), keys),), reply=reply)))
    assert result.error is None, result.error
    return {entry.key: entry for entry in result.entries}


def change(key: str, value: str | None, operation: ConfigOperation | None = ConfigOperation.SET) -> ConfigKeyChange:
    return ConfigKeyChange(key, operation, value)


def alter(
    cluster: Cluster, *alterations: tuple[str, tuple[ConfigKeyChange, ...]], validate_only: bool = False
) -> list[AlterConfigsResult]:
    return alter_at(cluster, cluster.controller, *alterations, validate_only=validate_only)


def alter_at(
    cluster: Cluster,
    node: ControllerNode,
    *alterations: tuple[str, tuple[ConfigKeyChange, ...]],
    validate_only: bool = False,
) -> list[AlterConfigsResult]:
    asked = [ConfigAlteration(topic(name), changes) for name, changes in alterations]
    return list(ask(cluster, lambda reply: node.ask(IncrementalAlterConfigs(tuple(asked), validate_only, reply=reply))))


def kinds(results: list[Any]) -> list[type[PacelineError] | None]:
    """The class of each result's error, None for success."""
    return [None if result.error is None else type(result.error) for result in results]
