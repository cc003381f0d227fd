"""The client's half of incremental fetch sessions (KIP-227): what a fetch to one broker has to name. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from paceline.model.identifiers import TopicPartition

_MAX_EPOCH = 2**31 - 1


class WantedPartition(NamedTuple):
    """What a fetch asks of one partition; sent again only when it differs from what the session knows."""

    topic_id: str
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int | None
    last_fetched_epoch: int | None


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """What to put into the next fetch."""

    session_id: int
    session_epoch: int
    partitions: dict[TopicPartition, WantedPartition]
    forgotten: list[TopicPartition]


class FetchSessionHandler:
    """The session with one broker; at most one fetch is under way."""

    def __init__(self) -> None:
        self._session_id = 0
        self._epoch = 0
        self._known: dict[TopicPartition, WantedPartition] = {}

    def build(self, wanted: Mapping[TopicPartition, WantedPartition]) -> SessionRequest:
        """Return the next request: everything when a session begins, otherwise what changed."""
        before, self._known = self._known, dict(wanted)
        if not self._session_id:
            return SessionRequest(0, 0, dict(wanted), [])
        changed = {tp: what for tp, what in wanted.items() if before.get(tp) != what}
        forgotten = [tp for tp in before if tp not in wanted]
        return SessionRequest(self._session_id, self._epoch, changed, forgotten)

    def answered(self, session_id: int) -> None:
        """A fetch was answered without an error of the whole request; 0 says the broker keeps no session."""
        if not session_id:
            self.reset()
        elif session_id != self._session_id:
            self._session_id, self._epoch = session_id, 1
        else:
            self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1

    def reset(self) -> None:
        """Begin anew with a full fetch: a call was lost or cancelled, or the broker does not know the session."""
        self._session_id = self._epoch = 0
        self._known = {}
