"""A client that asks brokers for the committed offsets of groups, as tools and consumers without a group do.

Members ask once in a generation, and a generation needs a coordinator that can write. This client asks all the time,
and whichever broker, so it also hears coordinators that are cut off from the cluster.
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
    """One such client."""

    def __init__(self, cluster: "SimulatedCluster", topic: str) -> None:
        super().__init__(cluster, "offset-observer")
        self._topic = topic

    def start(self) -> None:
        """Begin."""
        self._ask_later()

    def _ask_later(self) -> None:
        if not self.stopped:
            self.scheduler.call_later(self.chance.uniform(20, 200), self._ask)

    def _ask(self) -> None:
        """Ask one broker for one group; the answer counts when the broker takes itself for the coordinator."""
        self._ask_later()
        target = f"broker-{self.chance.choice(self.cluster.profile.broker_ids)}"
        group_id = f"group-{self.chance.randrange(self.cluster.profile.groups)}"
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
