"""`ConsumerGroup`: membership, automatic commits and committed offsets of a `Consumer`."""

import logging
import re
import time
from collections.abc import Callable, Iterable
from typing import Final

from paceline.model.errors import InvalidRequestError, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.rpc.channels import ChannelCache
from paceline_client.errors import sendable
from paceline_client.groups.committed import fetch_committed
from paceline_client.groups.committer import Committer
from paceline_client.groups.coordinator import GroupCoordinator
from paceline_client.groups.heartbeats import Heartbeats
from paceline_client.groups.membership import AssignedPartitions, GroupMembership
from paceline_client.groups.subscriptions import GroupSubscription
from paceline_client.groups.values import CommitCallback, GroupSettings, OffsetAndMetadata, Offsets, RebalanceListener
from paceline_client.metadata_refresher import MetadataRefresher

LOG = logging.getLogger("paceline.client")

_FETCH_MS: Final = 5_000


class ConsumerGroup:
    """The group membership of a consumer. Call its methods on the polling thread; heartbeats have their own thread."""

    def __init__(
        self,
        settings: GroupSettings,
        metadata: MetadataRefresher,
        channels: ChannelCache,
        host: AssignedPartitions,
        on_news: Callable[[], None],
        metadata_max_age_ms: int,
    ) -> None:
        self._settings = settings
        self._host = host
        self._on_news = on_news
        self._coordinator = GroupCoordinator(settings.group_id, metadata, channels)
        self._subscription = GroupSubscription(metadata, channels, metadata_max_age_ms)
        self.membership = GroupMembership(
            settings, self._coordinator, self._subscription, host, self.commit_sync, on_news
        )
        self._committer = Committer(self._coordinator, self.membership.commit_request, on_news)
        self._heartbeats: Heartbeats | None = None
        self._next_commit = 0.0

    @property
    def is_subscribed(self) -> bool:
        """Whether the group assigns the partitions."""
        return not self._subscription.is_empty

    @property
    def wants_poll(self) -> bool:
        """Whether the polling thread has group work to do."""
        return self._committer.has_ended or (self.is_subscribed and self.membership.wants_poll)

    # Subscribing

    def subscribe(
        self, topics: Iterable[str], pattern: str | re.Pattern[str] | None, listener: RebalanceListener
    ) -> None:
        """Subscribe to these topics, or to topics that match the pattern."""
        try:
            if pattern is not None:
                self._subscription.set_pattern(pattern)
            else:
                self._subscription.set_topics(topics)
        except re.error as error:
            raise InvalidRequestError(f"the pattern {pattern!r} is not a regular expression: {error}") from None
        self.membership.listener = listener
        self.membership.rejoin()
        if self._heartbeats is None:
            self._heartbeats = Heartbeats(self.membership, f"{self._settings.client_id}-heartbeat")

    def unsubscribe(self, timeout_ms: float) -> None:
        """Leave the group."""
        if self.is_subscribed:
            self.membership.leave(timeout_ms)
            self._subscription.set_topics(())

    # Polling

    def poll(self, deadline: float) -> None:
        """Take part in rebalances, commit when auto-commit is due, and fetch committed offsets.

        Raises:
            PacelineError: the coordinator permanently refuses this member.
        """
        self._committer.call_back()
        if self.is_subscribed:
            self.membership.poll(deadline)
        self.begin_at_committed(deadline)
        self._commit_when_due()

    def begin_at_committed(self, deadline: float) -> None:
        """Fetch committed offsets for partitions that need them; a later poll retries after a retriable failure."""
        waiting = self._host.awaiting_committed()
        if not waiting:
            return
        timeout_ms = min(_FETCH_MS, max(50.0, (deadline - time.monotonic()) * 1000))
        try:
            self._host.begin_at(fetch_committed(self._coordinator, waiting, timeout_ms))
        except PacelineError as error:
            if not error.retriable:
                raise
            LOG.debug("fetching committed offsets failed: group=%s error=%s", self._settings.group_id, error)

    def _commit_when_due(self) -> None:
        settings, now = self._settings, time.monotonic()
        if not settings.enable_auto_commit or now < self._next_commit or self._committer.is_busy:
            return
        self._next_commit = now + settings.auto_commit_interval_ms / 1000
        if self.is_subscribed and self.membership.generation < 0:
            return
        offsets = self._host.consumed()
        if offsets:
            self.commit_async(offsets, _log_failure)

    # Offsets

    def commit_sync(self, offsets: Offsets | None, timeout_ms: float) -> None:
        """Commit these offsets, or the positions after all records returned by `poll`, and wait.

        Raises:
            CommitFailedError: the membership was lost.
            PacelineError: the coordinator refused, or did not answer in time.
        """
        offsets = self._host.consumed() if offsets is None else offsets
        if offsets:
            self._committer.sync(offsets, timeout_ms)

    def commit_async(self, offsets: Offsets | None, callback: CommitCallback) -> None:
        """Commit without waiting; a later poll runs the callback. A failed commit is not retried."""
        sent = dict(self._host.consumed() if offsets is None else offsets)
        if sent:
            self._committer.send(sent, callback)

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets of the group, None for a partition without a committed offset."""
        with sendable():
            return fetch_committed(self._coordinator, partitions, timeout_ms)

    def close(self, timeout_ms: float) -> None:
        """Commit if automatic commits are enabled, leave the group and stop the heartbeats."""
        try:
            if self.is_subscribed:
                self.membership.leave(timeout_ms)
            elif self._settings.enable_auto_commit:
                self.commit_sync(None, timeout_ms)
        except PacelineError as error:
            LOG.warning("leaving the group failed: group=%s error=%s", self._settings.group_id, error)
        finally:
            if self._heartbeats is not None:
                self._heartbeats.close()
            self._committer.call_back()


def _log_failure(_offsets: Offsets, error: PacelineError | None) -> None:
    if error is not None:
        # After a retriable failure, such as a moved coordinator, the next automatic commit includes these offsets.
        LOG.log(logging.DEBUG if error.retriable else logging.WARNING, "automatic commit failed: error=%s", error)
