"""Assign producer ids from blocks claimed in ZooKeeper. Source: KIP-98; Kafka 2.8 ProducerIdManager."""

from collections.abc import Callable

from paceline.coordination.flow import FlowRun
from paceline.coordination.interface import ZooKeeper
from paceline.coordination.recipes import claim_producer_id_block
from paceline.coordination.znodes import ProducerIdBlock
from paceline.model.errors import LeaderNotAvailableError, PacelineError
from paceline.model.scheduler import Scheduler

ProducerIdReply = Callable[[tuple[int, int] | PacelineError], None]
"""Callback with (producer id, producer epoch), or an error."""


class ProducerIds:
    """The current block of producer ids; callers wait while the next block is being claimed."""

    def __init__(self, broker_id: int, zookeeper: ZooKeeper, scheduler: Scheduler) -> None:
        self._broker_id = broker_id
        self._zookeeper = zookeeper
        self._scheduler = scheduler
        self._next = 0
        self._last = -1
        self._waiting: list[ProducerIdReply] = []

    def take(self, reply: ProducerIdReply) -> None:
        """Reply with a unique producer id and epoch 0."""
        if self._next <= self._last:
            producer_id = self._next
            self._next += 1
            reply((producer_id, 0))
            return
        self._waiting.append(reply)
        if len(self._waiting) == 1:
            FlowRun(
                claim_producer_id_block(self._broker_id), self._zookeeper, self._scheduler, self._claimed, self._failed
            ).start()

    def fail_waiting(self, error: PacelineError) -> None:
        """Reply with the error to all waiting callers."""
        waiting, self._waiting = self._waiting, []
        for reply in waiting:
            reply(error)

    def _claimed(self, block: ProducerIdBlock) -> None:
        self._next, self._last = block.first, block.last
        waiting, self._waiting = self._waiting, []
        for reply in waiting:
            self.take(reply)

    def _failed(self, error: Exception) -> None:
        self.fail_waiting(
            error if isinstance(error, PacelineError) else LeaderNotAvailableError(f"no producer id: {error}")
        )
