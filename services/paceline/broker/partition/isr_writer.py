"""Write ISR proposals to ZooKeeper and report the results. Source: docs/protocol/replication.md#writing-the-isr."""

import random
from collections.abc import Callable
from functools import partial
from typing import Final

from paceline.broker.partition.isr_batch import IsrWrite, write_isrs
from paceline.broker.partition.isr_proposal import IsrProposal
from paceline.broker.partition.partition import Partition
from paceline.coordination.errors import SessionLostError
from paceline.coordination.flow import FlowRun
from paceline.coordination.interface import ZooKeeper
from paceline.coordination.isr_write import IsrWriteResult, Written, write_isr
from paceline.model.backoff import Retries
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.scheduler import Scheduler

BATCH_SIZE: Final = 500
"""Writes per transaction; about 100 KB, far below ZooKeeper's limit of 1 MiB."""
BATCHES_IN_FLIGHT: Final = 4

_Pair = tuple[Partition, IsrProposal]


class IsrWriter:
    """Writes ISR proposals: a single proposal in its own flow, several proposals together in one transaction.

    A write with an unknown result is retried unchanged: in the next session after a lost session, otherwise after
    a pause. The retry is safe: the write is conditional on the version in its proposal, so ZooKeeper applies it at
    most once, and an applied write is recognised by its content. The retries end when the proposal is no longer
    current, for example in a newer leader epoch.
    """

    def __init__(
        self,
        broker_id: int,
        zookeeper: ZooKeeper,
        scheduler: Scheduler,
        rng: random.Random,
        on_result: Callable[[Partition, IsrProposal, IsrWriteResult | Exception], None],
        on_outcome: Callable[[], None],
    ) -> None:
        """``on_result`` gets each result, an exception while it is unknown; ``on_outcome`` follows one or several."""
        self._broker_id = broker_id
        self._zookeeper = zookeeper
        self._scheduler = scheduler
        self._retries = Retries(scheduler, rng)
        self._on_result = on_result
        self._on_outcome = on_outcome
        self._queue: list[_Pair] = []
        self._scheduled = False
        self._in_flight = 0
        self._waiting: list[_Pair] = []
        self._stopped = False

    def write(self, partition: Partition, proposal: IsrProposal) -> None:
        """Write a proposal soon, together with other queued proposals; the result is reported to the partition."""
        self._queue.append((partition, proposal))
        self._flush_soon()

    def session_ready(self) -> None:
        """Retry the writes whose results are unknown because the previous session ended."""
        waiting, self._waiting = self._waiting, []
        self._queue.extend(waiting)
        self._flush_soon()

    def connected(self) -> None:
        """Write the proposals that waited for the connection and are still current.

        Proposals wait here and not in the ZooKeeper client, whose queued requests cannot be withdrawn: before such a
        request is sent, the topic may be deleted and re-created with a state of the same version.
        """
        self._flush_soon()

    def stop(self) -> None:
        """Stop writing."""
        self._stopped = True
        self._queue = []
        self._waiting = []

    def _flush_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            # Do not write while the fetch that created the proposal is handled: send the fetch response first.
            self._scheduler.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        self._queue = [pair for pair in self._queue if pair[0].proposal is pair[1]]
        if not self._zookeeper.connected:
            return
        while self._queue and self._in_flight < BATCHES_IN_FLIGHT and not self._stopped:
            batch, self._queue = self._queue[:BATCH_SIZE], self._queue[BATCH_SIZE:]
            if len(batch) == 1:
                self._write_alone(*batch[0])
            else:
                self._write_batch(batch)

    def _write_batch(self, batch: list[_Pair]) -> None:
        self._in_flight += 1
        writes = [
            IsrWrite(partition.topic_partition, self._desired(partition, proposal), proposal.joiners)
            for partition, proposal in batch
        ]

        def done(results: list[Written | None]) -> None:
            self._in_flight -= 1
            for (partition, proposal), result in zip(batch, results, strict=True):
                if result is None:
                    self._write_alone(partition, proposal)
                else:
                    self._retries.reset()
                    self._on_result(partition, proposal, result)
            self._on_outcome()
            self._flush()

        FlowRun(
            write_isrs(writes),
            self._zookeeper,
            self._scheduler,
            done,
            # After any failure write each ISR alone, to get a result per partition.
            lambda _error: done([None] * len(batch)),
        ).start()

    def _write_alone(self, partition: Partition, proposal: IsrProposal) -> None:
        if self._stopped or partition.proposal is not proposal:
            return
        FlowRun(
            write_isr(partition.topic_partition, self._desired(partition, proposal), dict(proposal.joiners)),
            self._zookeeper,
            self._scheduler,
            partial(self._done, partition, proposal),
            partial(self._failed, partition, proposal),
        ).start()

    def _desired(self, partition: Partition, proposal: IsrProposal) -> LeaderAndIsr:
        return LeaderAndIsr(
            leader=self._broker_id,
            leader_epoch=proposal.leader_epoch,
            isr=proposal.isr,
            zk_version=proposal.zk_version,
            controller_epoch=partition.controller_epoch,
        )

    def _done(self, partition: Partition, proposal: IsrProposal, result: IsrWriteResult) -> None:
        self._retries.reset()
        self._on_result(partition, proposal, result)
        self._on_outcome()

    def _failed(self, partition: Partition, proposal: IsrProposal, error: Exception) -> None:
        self._on_result(partition, proposal, error)
        if isinstance(error, SessionLostError):
            self._waiting.append((partition, proposal))
        else:
            self._retries.schedule(lambda: self.write(partition, proposal))
