"""Which topics may get a leader from outside their ISR."""

import logging
from collections.abc import Iterable

from paceline.controller.storage import Storage
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.interface import ZkCode
from paceline.runtime.flow import Flow

LOG = logging.getLogger(__name__)

KEY = "unclean.leader.election.enable"


class UncleanElectionConfig:
    """Reads the topic's configuration over the cluster's default, when an election needs to know.

    Source: spec/controller.md section 9, "Unclean permission".
    """

    def __init__(self, storage: Storage, default: bool) -> None:
        self._storage = storage
        self._default = default

    def allowed_topics(self, topics: Iterable[str]) -> Flow[set[str]]:
        """Return the topics that allow it; one whose configuration cannot be read does not."""
        wanted = sorted(topics)
        default_path = znodes.broker_config_path(None)
        paths = [default_path, *(znodes.topic_config_path(topic) for topic in wanted)]
        responses = yield from self._storage.read_all(paths)
        default: bool | None = None
        allowed = set()
        for path, topic, response in zip(paths, [None, *wanted], responses, strict=True):
            if not response.ok and response.code is not ZkCode.NO_NODE:
                continue
            try:
                value = znodes.decode_config(path, response.data).get(KEY)
            except MalformedZnodeError:
                LOG.warning("no unclean election by a configuration that is malformed", exc_info=True)
                continue
            if topic is None:
                default = self._default if value is None else value.lower() == "true"
            elif (value.lower() == "true") if value is not None else bool(default):
                allowed.add(topic)
        return allowed
