"""A group member's commits and heartbeats when its membership changes under them."""

from types import SimpleNamespace
from typing import Any

from paceline.model.identifiers import TopicPartition
from paceline_client.errors import CommitFailedError
from paceline_client.groups.committer import Committer
from paceline_client.groups.values import OffsetAndMetadata, Offsets

ONE = TopicPartition("t", 0)


class InFlight:
    """A call that the test cancels."""

    def add_done_callback(self, callback: Any) -> None:
        self._callback = callback

    def cancelled(self) -> bool:
        return True

    def end(self) -> None:
        self._callback(self)


def test_thousands_of_queued_commits_fail_in_order_when_the_membership_is_lost() -> None:
    first = InFlight()
    stub = SimpleNamespace(CommitOffsets=SimpleNamespace(future=lambda _request, timeout: first))
    coordinator: Any = SimpleNamespace(group_id="g", stub=lambda _timeout_s: stub)
    member = True

    def request_of(_offsets: Offsets) -> None:
        if not member:
            raise CommitFailedError("this member is in no generation of its group")

    committer = Committer(coordinator, request_of, lambda: None)
    failed: list[int] = []
    for offset in range(5_000):
        committer.send({ONE: OffsetAndMetadata(offset)}, lambda offsets, _error: failed.append(offsets[ONE].offset))
    member = False
    first.end()
    assert not committer.is_busy
    committer.call_back()
    assert failed == list(range(5_000))
