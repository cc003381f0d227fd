"""Topics that are re-created, or take smaller batches than the producer makes: the drivers of every library."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.model.errors import ErrorCode
from tests.conformance.answers import packed
from tests.conformance.clusters import ScriptedCluster, fresh_topic, wait_until
from tests.conformance.driver import Driver, ToolchainMissingError, known_drivers


@pytest.fixture(scope="module", params=["go", "java", "python"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A driver; a language without its tools is skipped."""
    try:
        running = Driver(known_drivers()[request.param])
    except ToolchainMissingError as error:
        pytest.skip(str(error))
    yield running
    running.close()


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    """Two fake brokers."""
    scripted = ScriptedCluster()
    yield scripted
    scripted.stop()


class Session:
    """An open driver with one topic of one partition."""

    def __init__(self, driver: Driver, cluster: ScriptedCluster, linger_ms: int = 0) -> None:
        self.driver, self.cluster, self.topic = driver, cluster, fresh_topic()
        cluster.topic(self.topic, 1)
        self.ask("open", bootstrap=cluster.bootstrap, delivery_timeout_ms=120_000, linger_ms=linger_ms)

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Return the result of a command."""
        answer = self.driver.ask({"command": command, "topic": self.topic, **arguments}, 60.0)
        assert "ok" in answer, answer
        found = answer["ok"]
        assert isinstance(found, dict)
        return found

    def produce(self, count: int) -> list[dict[str, Any]]:
        """Return the outcomes of records whose values are their numbers."""
        records = [{"partition": 0, "value": packed(b"%d" % number)} for number in range(count)]
        results = self.ask("produce", records=records)["results"]
        assert isinstance(results, list)
        return results

    def read(self, count: int) -> list[str]:
        """Return the offsets of the next records of the consumer."""
        offsets: list[str] = []
        while len(offsets) < count:
            records = self.ask("consume_poll", consumer="c", timeout_ms=30_000)["records"]
            assert records, f"only {offsets} within 30 s"
            offsets += [record["offset"] for record in records]
        return offsets


def test_a_consumer_reads_a_re_created_topic_from_its_beginning(driver: Driver, cluster: ScriptedCluster) -> None:
    session = Session(driver, cluster)
    session.ask("consume_open", consumer="c", partition=0, start="earliest")
    session.produce(3)
    assert session.read(3) == ["0", "1", "2"]
    cluster.fake.make_anew(session.topic, 1)
    assert [result.get("offset") for result in session.produce(5)] == ["0", "1", "2", "3", "4"]
    assert session.read(5) == ["0", "1", "2", "3", "4"]
    session.ask("close")


def test_a_record_in_doubt_does_not_keep_a_re_created_topic_waiting(driver: Driver, cluster: ScriptedCluster) -> None:
    session, fake = Session(driver, cluster), cluster.fake
    session.produce(1)
    fake.faults.drop_after = 1 << 30
    outcomes: list[dict[str, Any]] = []
    in_doubt = threading.Thread(target=lambda: outcomes.extend(session.produce(1)))
    in_doubt.start()
    wait_until(lambda: fake.produce_requests >= 2, "the record is sent")
    with fake.lock:
        fake.make_anew(session.topic, 1)
        fake.faults.drop_after = 0
    in_doubt.join(60.0)
    assert outcomes, "the record waits for its delivery timeout"
    # A client that repeats the record before it learns of the re-created topic delivers it there.
    delivered = outcomes[0].get("offset") == "0"
    assert delivered or outcomes[0]["error"]["definite"] is False, outcomes
    begin = 1 if delivered else 0
    assert [result.get("offset") for result in session.produce(2)] == [str(begin), str(begin + 1)]
    session.ask("close")


def test_a_batch_that_its_topic_does_not_take_is_sent_in_parts(driver: Driver, cluster: ScriptedCluster) -> None:
    if driver.spec.language == "python":
        pytest.skip("Python's producer reports MESSAGE_TOO_LARGE and sends no parts")
    session = Session(driver, cluster, linger_ms=1_000)
    cluster.fake.faults.refuse = [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.MESSAGE_TOO_LARGE]
    assert [result.get("offset") for result in session.produce(8)] == [str(offset) for offset in range(8)]
    assert cluster.values(session.topic, 0) == [b"%d" % number for number in range(8)]
    session.ask("close")
