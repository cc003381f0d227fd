"""`ReplicaManager`: what a broker does with its replicas.

Become leader or follower and stop replicas (for the controller: `control/`), append (`produces`), read (`fetches`),
shrink ISRs, and write high watermarks. Each part is built from the parts before it. All methods run on the node's
scheduler, one at a time; there are no locks. Source: docs/protocol/replication.md#hosted-partitions.
"""

import random
from typing import Final

from paceline.broker.fetcher.alter_log_dirs import AlterLogDirsManager
from paceline.broker.fetcher.fetcher_manager import FetcherManager
from paceline.broker.interfaces import BackgroundWork, BrokerTransport
from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.partition.partition import Partition
from paceline.broker.requests.append_coalescing import AppendCoalescer
from paceline.broker.requests.fetch import FetchHandler
from paceline.broker.requests.produce import ProduceHandler
from paceline.broker.requests.proof_waits import ProofWaits
from paceline.broker.storage.high_watermark_checkpoint import HighWatermarkCheckpoint
from paceline.broker.storage.log_flusher import LogFlusher
from paceline.broker.storage.replica_storage import ReplicaStorage
from paceline.log.log_manager import LogManager
from paceline.model.scheduler import Periodic

_CHECKS_AT_ONCE: Final = 500
"""Partitions per slice of an ISR check: checking thousands at once would delay every request."""


class ReplicaManager:
    """Handles requests for the hosted partitions."""

    def __init__(
        self,
        hosted: HostedPartitions,
        logs: LogManager,
        transport: BrokerTransport,
        rng: random.Random,
        flusher: LogFlusher,
        background: BackgroundWork,
    ) -> None:
        """Create the manager; ``transport`` calls leaders, ``rng`` draws session ids, ``background`` copies logs."""
        self.hosted = hosted
        self.logs = logs
        self.shutting_down = False
        self.storage = ReplicaStorage(logs, hosted)
        self.checkpoint = HighWatermarkCheckpoint(logs, hosted, self.storage)
        self.fetchers = FetcherManager(transport, hosted, self.storage)
        self.moves = AlterLogDirsManager(logs, hosted, self.storage, flusher, background)
        coalescer = AppendCoalescer(hosted.scheduler)
        self.fetches = FetchHandler(hosted, self.storage, self.fetchers, coalescer, rng)
        self.proofs = ProofWaits(hosted, self.fetches)
        self.produces = ProduceHandler(hosted, self.storage, self.proofs, coalescer)
        self._isr_check = Periodic(
            hosted.scheduler, max(1, hosted.config.replica_lag_time_max_ms // 2), self._check_isrs
        )

    def start(self) -> None:
        """Delete the logs that the last process left for deletion, and check the ISRs periodically."""
        self.storage.purge_after(0)  # no read of the last process is in progress
        self._isr_check.start()

    def _check_isrs(self) -> None:
        """Check the ISRs, twice per ``replica.lag.time.max.ms``.

        Therefore a follower that stops fetching leaves the ISR after 1.0 to 1.5 times that time.
        Source: docs/protocol/replication.md#leaving-the-isr.
        """
        if self.hosted.stopped:
            return
        self.fetches.sessions.close_silent(self.hosted.now_ms())
        self.storage.damaged_logs.retry_pending()
        self._check_slice(self.hosted.led())

    def _check_slice(self, partitions: list[Partition]) -> None:
        for partition in partitions[:_CHECKS_AT_ONCE]:
            if partition.is_leader:
                self.hosted.isr_updates.maybe_shrink(partition)
                # A follower outside the ISR that has stopped fetching no longer delays the high watermark.
                partition.advance_high_watermark()
        self.hosted.deliver_changes()
        rest = partitions[_CHECKS_AT_ONCE:]
        if rest and not self.hosted.stopped:
            self.hosted.scheduler.call_soon(lambda: self._check_slice(rest))

    def stop(self) -> None:
        """Stop fetchers and background work, answer all waiting requests, and write high watermarks and logs."""
        hosted = self.hosted
        hosted.stopped = self.shutting_down = True
        self.fetchers.close()
        self.moves.close()
        self.checkpoint.stop()
        self._isr_check.stop()
        hosted.deliver_changes()
        hosted.waiting_for_proofs.complete_all()
        self.fetches.sessions.close_all()
        hosted.waiting_fetches.complete_all()
        hosted.waiting_produces.complete_all()
        hosted.waiting_deletes.complete_all()
        self.logs.checkpoint_high_watermarks()
        self.logs.shutdown()
