"""`GroupSubscription`: the topics of a member, and the partition counts of the group's topics."""

import functools
import logging
import re
import time
from collections.abc import Iterable

import grpc

from paceline.model.errors import BrokerNotAvailableError
from paceline.model.identifiers import INTERNAL_TOPICS
from paceline.rpc.channels import ChannelCache
from paceline.rpc.errors import from_rpc_error
from paceline.rpc.pages import merged_pages
from paceline.v1.metadata_service_pb2 import DescribeTopicsRequest
from paceline.v1.metadata_service_pb2_grpc import MetadataServiceStub
from paceline_client.errors import BootstrapError
from paceline_client.metadata_refresher import MetadataRefresher

LOG = logging.getLogger("paceline.client")

_ONE_CALL_S = 5.0


class GroupSubscription:
    """Topic names, or a pattern that is matched against the cluster's topics periodically."""

    def __init__(self, metadata: MetadataRefresher, channels: ChannelCache, refresh_ms: int) -> None:
        self.metadata = metadata
        self._channels = channels
        self._refresh_ms = refresh_ms
        self._pattern: re.Pattern[str] | None = None
        self._matched_at = 0.0
        self.topics: frozenset[str] = frozenset()

    def set_topics(self, topics: Iterable[str]) -> None:
        """Subscribe to these topics."""
        self._pattern = None
        self.topics = frozenset(topics)

    def set_pattern(self, pattern: str | re.Pattern[str]) -> None:
        """Subscribe to all existing and future topics whose whole name matches; internal topics are excluded."""
        self._pattern = re.compile(pattern)
        self._matched_at = 0.0
        self.topics = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether there is no subscription; a pattern without matches is a subscription."""
        return not self.topics and self._pattern is None

    def refresh(self, at_once: bool = False) -> bool:
        """Match the pattern again when it is due; return whether the topics have changed."""
        now = time.monotonic()
        if self._pattern is None or (not at_once and now - self._matched_at < self._refresh_ms / 1000):
            return False
        try:
            matched = frozenset(name for name in self.partition_counts(()) if self._pattern.fullmatch(name))
        except BrokerNotAvailableError as error:
            LOG.debug("looking up topics of a pattern failed: pattern=%s error=%s", self._pattern.pattern, error)
            return False
        self._matched_at = now
        matched -= INTERNAL_TOPICS
        changed, self.topics = matched != self.topics, matched
        return changed

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the partition counts of the topics that exist; no names mean all topics.

        A topic that one broker does not know may be new, so the other brokers are asked for it.

        Raises:
            BrokerNotAvailableError: no broker answered.
        """
        names = frozenset(topics)
        request = DescribeTopicsRequest(topics=sorted(names))
        found: dict[str, int] | None = None
        cause: Exception | str = "no answer"
        try:
            brokers = self.metadata.wait_for_brokers(_ONE_CALL_S)
        except BootstrapError as error:
            raise BrokerNotAvailableError(str(error)) from error
        for broker in brokers:
            try:
                stub = MetadataServiceStub(self._channels.get(broker.address))
                answer = merged_pages(request, functools.partial(stub.DescribeTopics, timeout=_ONE_CALL_S), "topics")
            except grpc.RpcError as failure:
                cause = from_rpc_error(failure)
                continue
            counts = {one.name: len(one.partitions) for one in answer.topics if not one.HasField("error")}
            found = counts | (found or {})
            if names <= found.keys():
                return found
        if found is not None:
            return found
        raise BrokerNotAvailableError(f"no broker described the topics: {cause}")
