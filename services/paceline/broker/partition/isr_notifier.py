"""`IsrNotifier`: notify the controller of partitions with a new ISR.

Source: docs/protocol/replication.md#isr-propagation. `replication/isr_propagation.py` decides when.
"""

from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.coordination.flow import FlowRun
from paceline.coordination.interface import ZooKeeper
from paceline.coordination.recipes import propagate_isr_change
from paceline.model.scheduler import Periodic


class IsrNotifier:
    """Writes the due partitions into a notification node; after a failed write they are due again."""

    def __init__(self, hosted: HostedPartitions, zookeeper: ZooKeeper) -> None:
        self._propagation = hosted.isr_updates.propagation
        self._zookeeper = zookeeper
        self._scheduler = hosted.scheduler
        self.timer = Periodic(hosted.scheduler, hosted.config.isr_propagation_interval_ms, self._notify)

    def _notify(self) -> None:
        due = self._propagation.take_due(self._scheduler.now_ms())
        if due:
            FlowRun(
                propagate_isr_change(due),
                self._zookeeper,
                self._scheduler,
                lambda _none: None,
                lambda _error: self._propagation.put_back(due),
            ).start()
