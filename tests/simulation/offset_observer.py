"""A client that requests the committed offsets of groups from brokers, like tools and consumers without a group.

Members fetch offsets once per generation, and a generation needs a coordinator that can write. This client fetches all
the time, from random brokers, so it also reaches coordinators that are cut off from the cluster.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition
from tests.simulation.clients import Client

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster

_TIMEOUT_MS = 1_500


class OffsetObserver(Client):
    """A client that fetches committed offsets."""

    def __init__(self, cluster: "SimulatedCluster", topic: str) -> None:
        super().__init__(cluster, "offset-observer")
        self._topic = topic

    def start(self) -> None:
        """Start the client."""
        self._ask_later()

    def _ask_later(self) -> None:
        if not self.stopped:
            self.scheduler.call_later(self.chance.uniform(20, 200), self._ask)

    def _ask(self) -> None:
        """Request a group's offsets from a broker; the answer counts when the broker acts as coordinator."""
        self._ask_later()
        target = f"broker-{self.chance.choice(self.cluster.profile.broker_ids)}"
        group_id = self.chance.choice(self.cluster.profile.group_ids)
        checks = self.cluster.checks
        wanted = [TopicPartition(self._topic, index) for index in range(checks.records.partitions_of(self._topic))]
        fetch = checks.groups.fetch_begins(group_id)

        def handle(reply: Callable[[Any], None]) -> None:
            life = self.cluster.broker_named(target)
            if life is None:
                return
            try:
                offsets = life.node.group_coordinator().fetch_offsets(group_id, wanted)
            except PacelineError as error:
                reply(error)
                return
            checks.groups.fetch_answered(fetch, life)
            reply(offsets)

        def done(answer: Any) -> None:
            if not isinstance(answer, Exception):
                checks.groups.fetched(fetch, answer)

        self.cluster.network.call(self.peer, target, handle, _TIMEOUT_MS, done)
