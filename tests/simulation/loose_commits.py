"""Commits for groups without members, as of tools and of consumers that assign partitions to themselves.

Such a group's offsets expire one by one, a while after their commits, so its log has tombstones that a coordinator
loads, and commits that meet an expiration.
"""

from typing import TYPE_CHECKING, Any

from paceline.broker.groups.records import OffsetValue
from paceline.broker.groups.requests import CommitRequest
from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition
from tests.simulation.group_client import MOVED, GroupClient

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster

_PAUSES_MS = (30, 200, 1_000, 3_000, 7_000)


class LooseCommitter(GroupClient):
    """Commits offsets of one group without members, and sometimes deletes the group."""

    def __init__(self, cluster: "SimulatedCluster", group_id: str, topic: str) -> None:
        super().__init__(cluster, f"committer-{group_id}", group_id)
        self._topic = topic
        self._commits = 0
        self.committed_us = -1
        """Start of the last acknowledged commit, in microseconds."""

    def start(self) -> None:
        """Start the client."""
        self.look_around()
        self._later()

    def _later(self) -> None:
        if not self.stopped:
            self.scheduler.call_later(self.chance.choice(_PAUSES_MS) * self.chance.uniform(0.5, 1.5), self._commit)

    def _commit(self) -> None:
        count = self.partition_counts.get(self._topic, 0)
        if self.stopped or not count:
            self._later()
            return
        if self.cluster.profile.deletes(self.group_id) and self.chance.random() < 0.2:
            self._ask(lambda coordinator, reply: coordinator.delete(self.group_id, reply), lambda _answer: None)
        begun_us = self.cluster.world.now_us
        self._commits += 1
        chosen = self.chance.sample(range(count), self.chance.randint(1, count))
        value = OffsetValue(self._commits, -1, f"{self.name}/{self._commits}", self.scheduler.wall_ms())
        offsets = {TopicPartition(self._topic, index): value for index in sorted(chosen)}
        request = CommitRequest(self.group_id, -1, "", None, offsets)
        checks = self.cluster.checks.groups
        commit = checks.commit_begins(self.group_id, value.metadata)

        def done(answer: Any) -> None:
            self._later()
            if isinstance(answer, Exception):
                return
            kept = [one for one, failure in answer.items() if failure is None]
            checks.committed(commit, kept)
            if kept:
                self.committed_us = begun_us
            if any(isinstance(failure, PacelineError) and failure.code in MOVED for failure in answer.values()):
                self._coordinator = None

        self._ask(lambda coordinator, reply: coordinator.commit(request, reply), done)
