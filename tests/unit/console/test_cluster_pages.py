"""Overview and brokers: the order of partitions, the sentences, the state of brokers."""

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.console.pages import cluster as pages
from paceline.console.pages.view import PAGE, paged, seconds_text, show, size_text
from paceline.model.errors import BrokerNotAvailableError, KafkaStorageError
from tests.unit.console.metadata import MARKUP, cluster, partition, topic, topics


def overview(alive: tuple[int, ...] = (1, 2), **query: str) -> dict[str, Any]:
    return pages.overview(cluster(*alive), topics(), {}, 0, query)


def test_partitions_with_a_problem_come_first_each_with_its_sentence() -> None:
    found = overview(alive=(1,))["partitions"]
    assert [one["name"] for one in found] == [f"{MARKUP}/0", "a/1", "a/0"]
    assert [one["severity"] for one in found] == ["critical", "warning", "ok"]
    assert found[1]["sentence"] == "a/1 has 1 of 2 replicas in sync, because broker 2 is not alive."


def test_the_overview_counts_brokers_that_are_down() -> None:
    facts = overview(alive=(1,))["facts"]
    assert facts["brokers up"] == "1 of 2"
    assert facts["active controller"] == "7, epoch 2, c:1"
    assert (facts["partitions"], facts["partitions without a leader"], facts["partitions not fully in sync"]) == (
        3, 1, 2,
    )  # fmt: skip


def test_a_hundred_thousand_partitions_are_shown_page_by_page() -> None:
    many = [topic("many", *(partition(index) for index in range(100_000)))]
    found = pages.overview(cluster(1, 2), many, {}, 0, {"page": "999"})
    assert (len(found["partitions"]), found["total"], found["page"]) == (PAGE, 100_000, 999)
    assert found["partitions"][0]["partition"] == 99_900
    assert pages.overview(cluster(1, 2), many, {}, 0, {"page": "5000"})["page"] == 999


@pytest.mark.parametrize("page", ["-1", "x", "9" * 30, "٣"])
def test_a_page_that_is_no_number_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        paged([1], {"page": page})


def brokers(
    disks: list[Any], silent: dict[int, int | None], alive: tuple[int, ...] = (1, 2), of: list[Any] | None = None
) -> list[dict[str, Any]]:
    found = pages.brokers(cluster(*alive), topics() if of is None else of, disks, silent, {2: "gone"})
    return list(found["brokers"])


def disk(broker: int, error: Exception | None = None, room: str = "ROOMY", of_broker: Exception | None = None) -> Any:
    space = SimpleNamespace(free_bytes=5, total_bytes=9, min_free_bytes=1, room=room)
    directory = SimpleNamespace(path="/d", error=error, replicas=(1,), size_bytes=7, space=None if error else space)
    return SimpleNamespace(broker_id=broker, error=of_broker, log_dirs=(directory,))


def test_a_broker_shows_its_leaders_replicas_bytes_and_contact() -> None:
    first, second = brokers([disk(1), disk(2)], {1: 40, 2: None})
    assert (first["state"], first["leads"], first["replicas"], first["bytes"]) == ("up", 2, 3, 7)
    assert (first["controller_silent_ms"], second["not_in_sync"], second["latest_event"]) == (40, 1, "gone")


def test_the_state_of_a_broker_says_what_is_wrong() -> None:
    offline = [topic("a", partition(0, offline_replicas=(2,)))]
    assert [one["state"] for one in brokers([disk(1), disk(2)], {1: 1, 2: 1}, of=offline)][1].startswith(
        "up, but without a lease"
    )
    assert brokers([disk(1)], {1: 1}, alive=(1,))[1]["state"] == "down"
    assert brokers([disk(1)], {1: 1})[1]["state"] == "registered, but does not answer"
    failed = brokers([disk(1, KafkaStorageError("x")), disk(2)], {1: 1, 2: 1})
    assert failed[0]["state"] == "up, but /d has failed"
    silent = brokers([disk(1, of_broker=BrokerNotAvailableError("x")), disk(2)], {1: 1, 2: 1})[0]
    assert (silent["severity"], silent["bytes"]) == ("warning", None)


def test_a_directory_without_room_says_which_requests_stop() -> None:
    (row,) = pages.brokers(cluster(1), topics(), [disk(1, room="FULL")], {1: 1}, {})["directories"]
    assert (row["severity"], row["free"]) == ("warning", 5) and "followers pause" in row["state"]


def test_values_are_text_for_people() -> None:
    assert [show(one) for one in (None, True, 12_345, [1, 2], ())] == ["-", "yes", "12,345", "1, 2", "none"]
    assert [size_text(one) for one in (0, 1023, 1536, 5 << 30)] == ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]
    assert [seconds_text(one) for one in (2.5, 30, 90, 7_300)] == ["2.5 s", "30 s", "1 min 30 s", "2 h 1 min"]
