"""`ReplicaReports`: make the controller ask this broker for the state of its replicas.

The broker writes a log-dir-event node; the controller answers it with LeaderAndIsr, and learns from the response which
replicas are offline.
"""

import logging
import random

from paceline.broker.recipes import notify_log_dir_failure
from paceline.coordination.errors import SessionLostError
from paceline.coordination.flow import FlowRun
from paceline.coordination.interface import ZooKeeper
from paceline.model.backoff import Retries
from paceline.model.scheduler import Scheduler

LOG = logging.getLogger("paceline.broker")


class ReplicaReports:
    """Writes one node for all changes since the previous report.

    After a failed write the report is sent again: soon, or after the next registration if the session ended.
    """

    def __init__(self, broker_id: int, zookeeper: ZooKeeper, scheduler: Scheduler, rng: random.Random) -> None:
        self._broker_id = broker_id
        self._zookeeper = zookeeper
        self._scheduler = scheduler
        self._retries = Retries(scheduler, rng)
        self._is_registered = False
        self._is_due = False

    def request(self) -> None:
        """Report now, or after the registration, that a replica or log directory has failed, or a replica is back."""
        self._is_due = True
        if self._is_registered:
            self._write()

    def registered(self) -> None:
        """Send the reports that waited for this registration."""
        self._is_registered = True
        self._write()

    def _write(self) -> None:
        if not self._is_due:
            return
        self._is_due = False
        flow = notify_log_dir_failure(self._broker_id)
        FlowRun(flow, self._zookeeper, self._scheduler, lambda _none: self._retries.reset(), self._failed).start()

    def _failed(self, error: Exception) -> None:
        self._is_due = True
        if not isinstance(error, SessionLostError):
            LOG.warning("log dir event not written, trying again: broker=%d error=%s", self._broker_id, error)
            self._retries.schedule(self._write)
