"""Producers report missing topics, and a cut-off broker hides no partitions: the drivers of every library."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.answers import packed
from tests.conformance.clusters import ScriptedCluster, fresh_topic
from tests.conformance.driver import Driver, ToolchainMissingError, known_drivers

LANGUAGES = ["go", pytest.param("java", marks=pytest.mark.slow), "python"]


@pytest.fixture(scope="module")
def drivers() -> Iterator[dict[str, Driver]]:
    """The drivers that tests have started, by language."""
    running: dict[str, Driver] = {}
    yield running
    for driver in running.values():
        driver.close()


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    """Two fake brokers."""
    scripted = ScriptedCluster()
    yield scripted
    scripted.stop()


def started(drivers: dict[str, Driver], language: str) -> Driver:
    """Return the driver of a language; skip the test without its tools."""
    if language not in drivers:
        try:
            drivers[language] = Driver(known_drivers()[language])
        except ToolchainMissingError as error:
            pytest.skip(str(error))
    return drivers[language]


def ask(driver: Driver, command: str, **arguments: Any) -> Any:
    """Return the result of a command."""
    answer = driver.ask({"command": command, **arguments}, 150.0)
    assert "ok" in answer, answer
    return answer["ok"]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("partition", [None, 0])
def test_a_record_of_a_missing_topic_fails_after_some_seconds(
    drivers: dict[str, Driver], cluster: ScriptedCluster, language: str, partition: int | None
) -> None:
    driver, topic = started(drivers, language), fresh_topic()
    ask(driver, "open", bootstrap=cluster.bootstrap, delivery_timeout_ms=120_000)
    record = {"value": packed(b"v")} | ({} if partition is None else {"partition": partition})
    began = time.monotonic()
    [result] = ask(driver, "produce", topic=topic, records=[record])["results"]
    took_s = time.monotonic() - began
    assert (result["error"]["code"], result["error"]["definite"]) == ("UNKNOWN_TOPIC_OR_PARTITION", True), result
    assert 4.0 < took_s < 20.0
    cluster.topic(topic, 1)
    [result] = ask(driver, "produce", topic=topic, records=[record])["results"]
    assert result.get("offset") == "0", result
    ask(driver, "close")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_cut_off_broker_hides_no_partition_from_a_producer_or_consumer(
    drivers: dict[str, Driver], cluster: ScriptedCluster, language: str
) -> None:
    driver, topic = started(drivers, language), fresh_topic()
    cluster.topic(topic, 1)
    cluster.act("cut_off", {"id": 1})
    cluster.fake.grow(topic, 2)
    ask(driver, "open", bootstrap=cluster.bootstrap)
    ask(driver, "produce", topic=topic, records=[{"partition": 1, "value": packed(b"v")}])
    for _ in range(10):
        # A new client begins at a random broker.
        ask(driver, "open", bootstrap=cluster.bootstrap)
        ask(driver, "consume_open", consumer="c", topic=topic, partition=1, start="earliest")
        records = ask(driver, "consume_poll", consumer="c", timeout_ms=10_000)["records"]
        assert [record["partition"] for record in records] == [1]
    ask(driver, "close")
