"""Count bytes and records written, read and copied, in total and by topic, as Kafka's BrokerTopicMetrics do.

Counted once per batch or fetched partition, never per record. A topic's counters are removed with its last replica on
this broker; the counters of a role are reset with the last replica in that role.
"""

from dataclasses import dataclass
from typing import Final

LEADING: Final = (
    "messages_in",
    "bytes_in",
    "bytes_rejected",
    "produce_requests",
    "produce_failures",
    "replication_bytes_out",
    "reassignment_bytes_out",
    "invalid_crc",
)
"""Counters of leaders; consumers may also read from followers (KIP-392)."""
FOLLOWING: Final = ("replication_bytes_in", "reassignment_bytes_in")
"""Counters of followers."""


@dataclass(slots=True)
class Traffic:
    """Counters of one topic, or of all topics together."""

    messages_in: int = 0
    """Records appended for producers."""
    bytes_in: int = 0
    bytes_rejected: int = 0
    """Bytes of refused batches."""
    bytes_out: int = 0
    """Bytes sent to consumers."""
    produce_requests: int = 0
    """Batches: a request counts once per partition."""
    produce_failures: int = 0
    fetch_requests: int = 0
    """Partitions read for fetches of consumers."""
    fetch_failures: int = 0
    replication_bytes_in: int = 0
    """Bytes copied from leaders."""
    replication_bytes_out: int = 0
    """Bytes sent to followers."""
    reassignment_bytes_in: int = 0
    """Bytes copied by replicas that a reassignment adds."""
    reassignment_bytes_out: int = 0
    """Bytes sent to replicas that a reassignment adds."""
    invalid_crc: int = 0
    """Batches of producers whose checksum did not match."""


class BrokerTraffic:
    """The counters of a broker and of each topic it hosts."""

    def __init__(self) -> None:
        self.all = Traffic()
        self.topics: dict[str, Traffic] = {}

    def of(self, topic: str) -> Traffic:
        """Return a topic's counters; create them if the topic has none."""
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = Traffic()
        return found

    def forget(self, topic: str) -> None:
        """Remove the counters of a topic without replicas on this broker."""
        self.topics.pop(topic, None)

    def end_roles(self, topic: str, leads: bool, follows: bool) -> None:
        """Reset a topic's counters of each role that none of its replicas has any more."""
        counted = self.topics.get(topic)
        if counted is None:
            return
        for has_role, names in ((leads, LEADING), (follows, FOLLOWING)):
            if not has_role:
                for name in names:
                    setattr(counted, name, 0)

    def produced(self, topic: str, size_bytes: int, records: int) -> None:
        """Count an appended batch; ``records`` is 0 for a duplicate."""
        for each in (self.all, self.of(topic)):
            each.produce_requests += 1
            if records:
                each.messages_in += records
                each.bytes_in += size_bytes

    def refused(self, topic: str, size_bytes: int, hosted: bool, invalid_crc: bool) -> None:
        """Count a refused batch; a topic that is not hosted gets no counters."""
        for each in (self.all, self.of(topic)) if hosted else (self.all,):
            each.produce_requests += 1
            each.produce_failures += 1
            each.bytes_rejected += size_bytes
            each.invalid_crc += invalid_crc

    def fetched(self, topic: str, size_bytes: int, failed: bool) -> None:
        """Count one partition of the response to a consumer's fetch."""
        for each in (self.all,) if failed else (self.all, self.of(topic)):
            each.fetch_requests += 1
            each.fetch_failures += failed
            each.bytes_out += size_bytes

    def sent_to_follower(self, topic: str, size_bytes: int, is_added: bool) -> None:
        """Count the records of one partition in the response to a follower's fetch."""
        for each in (self.all, self.of(topic)):
            each.replication_bytes_out += size_bytes
            if is_added:
                each.reassignment_bytes_out += size_bytes

    def copied(self, topic: str, size_bytes: int, is_added: bool) -> None:
        """Count records copied from a leader."""
        for each in (self.all, self.of(topic)):
            each.replication_bytes_in += size_bytes
            if is_added:
                each.reassignment_bytes_in += size_bytes
