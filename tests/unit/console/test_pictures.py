"""Pictures of the cluster: shared by viewers, and kept while the cluster does not answer."""

import threading

import pytest

from paceline.console.service.cluster import Pictures, UnreachableError
from paceline.model.errors import InvalidRequestError, UnknownTopicOrPartitionError
from paceline_client.errors import BootstrapError, NoConnectionError

LIMIT_S = 20.0


class Facts:
    """Something to gather."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Exception | None = None

    def gather(self) -> int:
        if self.error is not None:
            raise self.error
        self.count += 1
        return self.count


def test_a_fresh_picture_is_shared() -> None:
    pictures, facts = Pictures(), Facts()
    assert [pictures.get("a", facts.gather, 60).value for _ in range(3)] == [1, 1, 1]
    assert pictures.get("b", facts.gather, 60).value == 2
    assert pictures.get("a", facts.gather, 0).value == 3


def test_viewers_that_ask_at_the_same_time_share_one_gathering() -> None:
    pictures, begun, go_on = Pictures(), threading.Event(), threading.Event()
    calls: list[int] = []
    found: list[int] = []

    def gather() -> int:
        calls.append(1)
        begun.set()
        assert go_on.wait(LIMIT_S)
        return 5

    threads = [threading.Thread(target=lambda: found.append(pictures.get("a", gather, 60).value)) for _ in range(4)]
    for each in threads:
        each.start()
    assert begun.wait(LIMIT_S)
    go_on.set()
    for each in threads:
        each.join(LIMIT_S)
    assert (len(calls), found) == (1, [5] * 4)


@pytest.mark.parametrize("error", [BootstrapError("h:1 refused"), NoConnectionError("h:1 refused")])
def test_the_last_picture_stays_and_is_marked_while_the_cluster_does_not_answer(error: Exception) -> None:
    pictures, facts = Pictures(), Facts()
    first = pictures.get("a", facts.gather, 0)
    facts.error = error
    old = pictures.get("a", facts.gather, 0)
    assert (old.value, old.taken_ms, old.trouble) == (1, first.taken_ms, "The picture is old: h:1 refused")
    facts.error = None
    assert pictures.get("a", facts.gather, 0).trouble == ""


def test_without_an_earlier_picture_the_failure_is_raised() -> None:
    pictures, facts = Pictures(), Facts()
    facts.error = BootstrapError("h:1 refused")
    with pytest.raises(UnreachableError, match="h:1 refused"):
        pictures.get("a", facts.gather, 0)


@pytest.mark.parametrize("error", [UnknownTopicOrPartitionError("no t"), InvalidRequestError("no")])
def test_a_refusal_is_not_hidden_by_an_older_picture(error: Exception) -> None:
    pictures, facts = Pictures(), Facts()
    pictures.get("a", facts.gather, 0)
    facts.error = error
    with pytest.raises(type(error)):
        pictures.get("a", facts.gather, 0)


def test_the_number_of_pictures_is_bounded() -> None:
    pictures, facts = Pictures(), Facts()
    for number in range(1_000):
        pictures.get(number, facts.gather, 60)
    assert len(pictures._places) <= 128
