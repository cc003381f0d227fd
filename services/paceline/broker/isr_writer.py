"""Carries ISR proposals to ZooKeeper and their outcome back (design 3.3, 3.5, 3.19)."""

from collections.abc import Callable
from functools import partial
from typing import Final

from paceline.broker.hosted_partition import HostedPartition, IsrProposal
from paceline.broker.metrics import BrokerMetrics
from paceline.coordination.errors import SessionLostError
from paceline.coordination.interface import ZooKeeper
from paceline.coordination.isr_write import Conflict, IsrWriteResult, JoinerEpochStale, write_isr
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.runtime.flow import FlowRun
from paceline.runtime.ports import Scheduler

RETRY_MS: Final = 1_000


class IsrWriter:
    """Writes proposals, one flow each. A write whose fate is unknown is repeated as it was, in the next session.

    Repeating is safe: the write names the version it was decided on, so it applies once, and one that had applied is
    recognised by its content. It ends with the proposal: a newer leader epoch makes it pointless.
    """

    def __init__(
        self,
        broker_id: int,
        zookeeper: ZooKeeper,
        scheduler: Scheduler,
        metrics: BrokerMetrics,
        on_outcome: Callable[[], None],
    ) -> None:
        self._broker_id = broker_id
        self._zookeeper = zookeeper
        self._scheduler = scheduler
        self._metrics = metrics
        self._on_outcome = on_outcome
        self._waiting: list[tuple[HostedPartition, IsrProposal]] = []
        self._stopped = False

    def write(self, partition: HostedPartition, proposal: IsrProposal) -> None:
        """Write a proposal; the partition hears how it ended."""
        if self._stopped or partition.proposal is not proposal:
            return
        desired = LeaderAndIsr(
            leader=self._broker_id,
            leader_epoch=proposal.leader_epoch,
            isr=proposal.isr,
            zk_version=proposal.zk_version,
            controller_epoch=partition.controller_epoch,
        )
        FlowRun(
            write_isr(partition.topic_partition, desired, dict(proposal.joiners)),
            self._zookeeper,
            self._scheduler,
            partial(self._done, partition, proposal),
            partial(self._failed, partition, proposal),
        ).start()

    def session_ready(self) -> None:
        """Repeat what the last session left unknown."""
        waiting, self._waiting = self._waiting, []
        for partition, proposal in waiting:
            self.write(partition, proposal)

    def stop(self) -> None:
        """Write nothing more."""
        self._stopped = True
        self._waiting = []

    def _done(self, partition: HostedPartition, proposal: IsrProposal, result: IsrWriteResult) -> None:
        if isinstance(result, JoinerEpochStale):
            self._metrics.failed_isr_updates += 1
            partition.isr_refused(proposal, f"broker {result.broker_ids} is not registered as it fetched")
        elif isinstance(result, Conflict):
            self._metrics.failed_isr_updates += 1
            partition.isr_conflict(proposal, result.current)
        else:
            partition.isr_written(proposal, result.zk_version)
        self._on_outcome()

    def _failed(self, partition: HostedPartition, proposal: IsrProposal, error: Exception) -> None:
        self._metrics.failed_isr_updates += 1
        partition.isr_unknown(proposal, str(error))
        if isinstance(error, SessionLostError):
            self._waiting.append((partition, proposal))
        else:
            self._scheduler.call_later(RETRY_MS, lambda: self.write(partition, proposal))
