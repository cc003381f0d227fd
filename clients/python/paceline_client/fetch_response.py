"""Process the fetch result of one partition: records, truncation, errors, or a read replica."""

import logging

from paceline.model.errors import OffsetOutOfRangeError, error_for
from paceline.v1.errors_pb2 import PartitionError
from paceline_client.clock import monotonic_ms
from paceline_client.errors import NoOffsetError
from paceline_client.fetch_request import FetchConfig
from paceline_client.metadata import Broker
from paceline_client.metadata_refresher import MetadataRefresher
from paceline_client.partition_errors import BACKOFF_MS, PartitionErrors
from paceline_client.read_replicas import LEADER_ONLY_MS, read_from
from paceline_client.subscription import OffsetReset, PartitionState
from paceline_client.wire import FetchedPartition

LOG = logging.getLogger("paceline.client")


class PartitionResults:
    """Updates the states of partitions; the caller holds the consumer's lock."""

    def __init__(self, config: FetchConfig, metadata: MetadataRefresher, errors: PartitionErrors) -> None:
        """Use the policies of ``config``."""
        self._reset = config.auto_offset_reset
        self._metadata = metadata
        self._errors = errors

    def take(self, state: PartitionState, fetched: FetchedPartition, broker: Broker, topic_id: str) -> None:
        """Process ``broker``'s result for a partition that was requested with this topic id.

        Raises:
            CorruptMessageError: the data is not a sequence of whole batches from the fetch offset.
        """
        if fetched.error is None and topic_id:
            if state.topic_id not in ("", topic_id):
                self._topic_recreated(state)
                return
            state.topic_id, state.looked_up = topic_id, None
        if fetched.error is not None:
            self._take_error(state, fetched.error, broker)
        elif fetched.preferred_read_replica is not None:
            read_from(state, fetched.preferred_read_replica, self._metadata)
        elif fetched.diverging is not None:
            state.truncated(*fetched.diverging)
        else:
            state.take_fetched(fetched.batches, fetched.high_watermark)

    def _topic_recreated(self, state: PartitionState) -> None:
        """Reset the position when the topic was re-created, after the prefetched records have been returned.

        A position that was looked up in the deleted topic, and not fetched from, is looked up again.
        """
        if state.chunks:
            self._errors.try_later(state)
            return
        reset = state.looked_up or self._reset
        LOG.warning("topic was re-created: partition=%s reset_to=%s", state.topic_partition, reset.value)
        state.seek_to(reset)

    def _take_error(self, state: PartitionState, wire: PartitionError, broker: Broker) -> None:
        tp = state.topic_partition
        error = error_for(wire.code, f"{broker}: {tp}: {wire.message}")
        if state.read_replica == broker.broker_id:
            # After an error from a follower fetch from the leader, whose log range is authoritative.
            state.back_to_leader(monotonic_ms() + LEADER_ONLY_MS)
            if not self._metadata.apply_hint(tp, wire):
                self._metadata.request()
            return
        if isinstance(error, OffsetOutOfRangeError):
            self._out_of_range(state, wire)
            return
        if not (error.retriable or error.refresh_metadata):
            state.error = error
            return
        self._errors.record(state, error)
        if not self._metadata.apply_hint(tp, wire):
            self._errors.try_later(state)
            self._metadata.request()

    def _out_of_range(self, state: PartitionState, wire: PartitionError) -> None:
        """Reset an out-of-range position by ``auto_offset_reset``, after the prefetched records have been returned."""
        if state.chunks:
            state.retry_at_ms = monotonic_ms() + BACKOFF_MS
            return
        start = wire.log_start_offset if wire.HasField("log_start_offset") else None
        end = wire.high_watermark if wire.HasField("high_watermark") else None
        reset = self._reset
        if reset is OffsetReset.ERROR:
            state.error = NoOffsetError(
                state.topic_partition, f"offset {state.fetch_offset} is out of range, the log has [{start}, {end})"
            )
            return
        LOG.warning(
            "offset out of range: partition=%s offset=%s log_start=%s log_end=%s reset_to=%s",
            state.topic_partition,
            state.fetch_offset,
            start,
            end,
            reset.value,
        )
        target = start if reset is OffsetReset.EARLIEST else end
        if target is None:
            state.seek_to(reset)
        else:
            state.seek(target)
