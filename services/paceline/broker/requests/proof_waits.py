"""Let answers wait until every other ISR member has proved that it still follows this leader.

A leader without contact to ZooKeeper or the controller, and its successor, may both answer for a third of a session or
lease (`LeadershipProof`). So without contact a read, or an error that its caller does not retry, waits for a fetch that
every other member of the maximal ISR sent after the caller's request arrived: no successor led at that time. Otherwise
the answer becomes NOT_LEADER_OR_FOLLOWER. With contact nothing waits.
Source: docs/protocol/replication.md#answers-without-contact.
"""

from collections.abc import Callable, Iterable
from typing import Final

from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.partition.partition import Partition
from paceline.broker.requests.fetch import FetchHandler
from paceline.model.identifiers import TopicPartition
from paceline.replication.leadership_proof import LeadershipProof
from paceline.replication.purgatory import Cancel, DelayedOperation

_RELEASE_MS: Final = 1
"""Delay before the waiting fetches of followers are answered: only a later response proves that a follower followed
after the request arrived. Requests that arrive meanwhile share the responses."""


class ProofWaits:
    """The requests that wait for a proof of leadership."""

    def __init__(self, hosted: HostedPartitions, fetches: FetchHandler) -> None:
        self._hosted = hosted
        self._fetches = fetches
        self._proof = hosted.contact.proof
        self._release: dict[int, None] = {}
        """Followers whose waiting fetches are about to be answered."""
        self.wait_count = 0
        """Number of requests that did not have their proof when they arrived."""

    def when_proved(
        self,
        topic_partitions: Iterable[TopicPartition],
        asked_ms: int,
        timeout_ms: int,
        act: Callable[[], Cancel | None],
    ) -> Cancel | None:
        """Call ``act`` once the leaderships are proved since ``asked_ms``, at the latest ``timeout_ms`` after it.

        While ``act`` runs, a leadership that is not proved since then counts as not proved. Returns a function that
        cancels the wait, or the wait started by ``act``.
        """
        hosted = self._hosted
        if hosted.in_contact():
            return act()
        known = (hosted.online.get(one) for one in topic_partitions)
        led = [one for one in known if one is not None and one.is_leader and one.is_leadership_proved]
        wait = _ProofWait(self._proof, led, asked_ms, act)
        if not wait.try_complete():
            self.wait_count += 1
            followers = {one for partition in led for one in partition.maximal_isr if one != hosted.broker_id}
            if not self._release:
                hosted.scheduler.call_later(_RELEASE_MS, self._release_fetches)
            self._release.update(dict.fromkeys(followers))
            # Later than this the leadership would not be proved without the request either.
            left_ms = asked_ms + min(timeout_ms, self._proof.recent_ms) - hosted.now_ms()
            keys = (*followers, *(one.topic_partition for one in led))
            hosted.waiting_for_proofs.complete_or_watch(wait, keys, max(left_ms, 0))
        return wait.cancel

    def _release_fetches(self) -> None:
        """Answer the followers' waiting fetches, so that the proof takes one round trip and not a fetch wait."""
        followers, self._release = self._release, {}
        self._fetches.expect(followers)


class _ProofWait(DelayedOperation):
    """A request that waits until its partitions are proved, or led by another broker."""

    def __init__(
        self, proof: LeadershipProof, led: list[Partition], asked_ms: int, act: Callable[[], Cancel | None]
    ) -> None:
        super().__init__()
        self._proof = proof
        self._led = led
        self._asked_ms = asked_ms
        self._act = act
        self._further: Cancel | None = None

    def advance(self) -> bool:
        """Whether each partition is proved since the request arrived, or not led any more."""
        with self._proof.required_after(self._asked_ms):
            return all(one.is_leadership_proved or not one.is_leader or one.is_deposed for one in self._led)

    def on_complete(self) -> None:
        """Handle the request."""
        with self._proof.required_after(self._asked_ms):
            self._further = self._act()

    def cancel(self) -> None:
        """End the wait, or the wait that the request has started since."""
        super().cancel()
        if self._further is not None:
            self._further()
