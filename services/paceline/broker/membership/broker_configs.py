"""Read this broker's dynamic settings from ZooKeeper.

The broker's own node overrides the node of all brokers. Both are read in every new session, and whenever
``/config/changes`` announces a change of either. Source: KIP-226; Kafka 2.8 ZkNodeChangeNotificationListener.
"""

import logging
import random
from collections.abc import Callable, Mapping
from typing import Final

from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError, SessionLostError
from paceline.coordination.flow import Flow, FlowRun, Zk
from paceline.coordination.interface import GetData, ZkCode, ZooKeeper
from paceline.coordination.recipes import expect
from paceline.model.backoff import Retries
from paceline.model.broker_dynamic_config import BrokerDynamicConfig, broker_dynamic_config
from paceline.model.scheduler import Scheduler

LOG: Final = logging.getLogger(__name__)


class BrokerConfigs:
    """Reads the dynamic settings of a broker; ``on_change`` gets the effective settings after every read."""

    def __init__(
        self,
        broker_id: int,
        zookeeper: ZooKeeper,
        scheduler: Scheduler,
        on_change: Callable[[BrokerDynamicConfig], None],
        rng: random.Random,
    ) -> None:
        self._broker_id = broker_id
        self._zookeeper = zookeeper
        self._scheduler = scheduler
        self._on_change = on_change
        self._retries = Retries(scheduler, rng)
        self._reading = False
        self._again = False
        self._stopped = False
        self._logged = ""
        """Reason in the last warning about a failed read."""

    def read(self) -> None:
        """Read both nodes; read again if a read is in progress."""
        if self._stopped:
            return
        if self._reading:
            self._again = True
            return
        self._reading = True
        self._again = False
        FlowRun(
            read_broker_config(self._broker_id), self._zookeeper, self._scheduler, self._have_read, self._failed
        ).start()

    def announced(self, entity: str) -> None:
        """Handle an announced change; ``entity`` is a broker id, such as ``3``, or ``<default>`` for all brokers."""
        if entity in (str(self._broker_id), "<default>"):
            self.read()

    def stop(self) -> None:
        """Stop reading."""
        self._stopped = True

    def _have_read(self, config: BrokerDynamicConfig) -> None:
        self._reading = False
        self._logged = ""
        self._retries.reset()
        if self._stopped:
            return
        self._on_change(config)
        if self._again:
            self.read()

    def _failed(self, error: Exception) -> None:
        self._reading = False
        if not isinstance(error, SessionLostError):
            if str(error) != self._logged:
                self._logged = str(error)
                LOG.warning("dynamic settings not read, trying again: broker=%d error=%s", self._broker_id, error)
            self._retries.schedule(self.read)


def read_broker_config(broker_id: int) -> Flow[BrokerDynamicConfig]:
    """Return the effective dynamic settings of a broker."""
    paths = [znodes.broker_config_path(broker_id), znodes.broker_config_path(None)]
    responses = yield Zk([GetData(path) for path in paths])
    found: list[Mapping[str, str]] = []
    for path, response in zip(paths, responses, strict=True):
        expect(response, path, ZkCode.NO_NODE)
        try:
            found.append(znodes.decode_config(path, response.data) if response.ok else {})
        except MalformedZnodeError:
            found.append({})
    return broker_dynamic_config(*found)
