"""Client side of incremental fetch sessions (KIP-227): the partitions to list in a fetch to one broker. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from paceline.model.identifiers import TopicPartition

_MAX_EPOCH = 2**31 - 1


class WantedPartition(NamedTuple):
    """Fetch parameters of one partition; sent again only when they differ from the parameters in the session."""

    topic_id: str
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int | None = None
    last_fetched_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """Session fields and partitions of the next fetch."""

    session_id: int
    session_epoch: int
    partitions: dict[TopicPartition, WantedPartition]
    forgotten: list[TopicPartition]


class FetchSessionHandler:
    """The session with one broker; at most one fetch is in flight."""

    def __init__(self) -> None:
        self._session_id = 0
        self._epoch = 0
        self._known: dict[TopicPartition, WantedPartition] = {}

    def build(self, wanted: Mapping[TopicPartition, WantedPartition]) -> SessionRequest:
        """Return the next request: all partitions when a session begins, otherwise the changes."""
        before, self._known = self._known, dict(wanted)
        if not self._session_id:
            return SessionRequest(0, 0, dict(wanted), [])
        changed = {tp: what for tp, what in wanted.items() if before.get(tp) != what}
        forgotten = [tp for tp in before if tp not in wanted]
        return SessionRequest(self._session_id, self._epoch, changed, forgotten)

    def answered(self, session_id: int) -> None:
        """Handle a successful response; session id 0 means that the broker keeps no session."""
        if not session_id:
            self.reset()
        elif session_id != self._session_id:
            self._session_id, self._epoch = session_id, 1
        else:
            self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1

    def reset(self) -> None:
        """Make the next fetch a full fetch, after a lost or cancelled call or when the broker has no session."""
        self._session_id = self._epoch = 0
        self._known = {}
