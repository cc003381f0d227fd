"""Read the topic settings that elections need: unclean election, and ``min.insync.replicas``."""

import logging
from collections.abc import Iterable

from paceline.controller.zk_store import ZkStore
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.flow import Flow
from paceline.coordination.interface import Response, ZkCode
from paceline.log.log_config import LogConfig
from paceline.model.errors import InvalidConfigError

LOG = logging.getLogger(__name__)

UNCLEAN_KEY = "unclean.leader.election.enable"
MINIMUM_KEY = "min.insync.replicas"


class ElectionSettings:
    """Reads topic settings when an election needs them; a topic without a setting has the cluster's default.

    Source: docs/protocol/controller.md#unclean-election; docs/protocol/controller.md#unclean-restart.
    """

    def __init__(self, store: ZkStore, unclean_default: bool, minimum_default: int) -> None:
        self._store = store
        self._unclean_default = unclean_default
        self._minimum_default = minimum_default

    def allowed_topics(self, topics: Iterable[str], refused: set[str] | None = None) -> Flow[set[str]]:
        """Return the topics that allow an unclean election; a topic whose configuration cannot be read does not.

        ``refused`` gets the topics whose configuration ZooKeeper refused to read.
        """
        found = yield from self._values(topics, UNCLEAN_KEY, str(self._unclean_default), refused=refused)
        return {topic for topic, value in found.items() if value.lower() == "true"}

    def min_insync_replicas(self, topics: Iterable[str]) -> Flow[dict[str, int]]:
        """Return ``min.insync.replicas`` of topics whose configuration has not changed since their creation.

        If the configuration has changed, a smaller value may have been in effect earlier, and a leader alone in the ISR
        may have committed records under that value. Topics whose configuration cannot be read or is not valid are
        omitted. Values in ``/config/brokers`` do not count, because brokers do not read this setting from there.
        """
        found = yield from self._values(topics, MINIMUM_KEY, str(self._minimum_default), dynamic=False)
        unchanged = yield from self._unchanged(sorted(found))
        return {topic: int(found[topic]) for topic in unchanged if _is_minimum(found[topic])}

    def current_min_insync_replicas(self, topics: Iterable[str]) -> Flow[dict[str, int]]:
        """Return the present ``min.insync.replicas``; topics without a readable, valid configuration are omitted."""
        found = yield from self._values(topics, MINIMUM_KEY, str(self._minimum_default))
        return {topic: int(value) for topic, value in found.items() if _is_minimum(value)}

    def _unchanged(self, topics: list[str]) -> Flow[list[str]]:
        paths = [path for topic in topics for path in (znodes.topic_config_path(topic), znodes.topic_path(topic))]
        responses = yield from self._store.read_all(paths)
        unchanged = []
        for topic, config, node in zip(topics, responses[::2], responses[1::2], strict=True):
            if node.stat is None:
                continue
            if config.code is ZkCode.NO_NODE or (config.stat is not None and config.stat.mzxid <= node.stat.czxid):
                unchanged.append(topic)
        return unchanged

    def _values(
        self, topics: Iterable[str], key: str, default: str, dynamic: bool = True, refused: set[str] | None = None
    ) -> Flow[dict[str, str]]:
        wanted = sorted(topics)
        default_path = znodes.broker_config_path(None)
        paths = [default_path, *(znodes.topic_config_path(topic) for topic in wanted)]
        responses = yield from self._store.read_all(paths)
        for_all = _overrides(default_path, responses[0]) if dynamic else {}
        found = {}
        for topic, path, response in zip(wanted, paths[1:], responses[1:], strict=True):
            if refused is not None and (_is_refused(responses[0]) or _is_refused(response)):
                refused.add(topic)
            own = _overrides(path, response)
            if own is None:
                continue
            if key in own:
                found[topic] = own[key]
            elif for_all is not None:
                found[topic] = for_all.get(key, default)
        return found


def _is_minimum(text: str) -> bool:
    try:
        LogConfig.from_properties({MINIMUM_KEY: text})
    except InvalidConfigError:
        return False
    return True


def _is_refused(response: Response) -> bool:
    return not response.ok and response.code is not ZkCode.NO_NODE


def _overrides(path: str, response: Response) -> dict[str, str] | None:
    if _is_refused(response):
        return None
    try:
        return znodes.decode_config(path, response.data)
    except MalformedZnodeError as error:
        LOG.warning("malformed configuration, unclean election not allowed: error=%s", error)
        return None
