"""Programs for kafka-python and aiokafka: arguments, callbacks of sent records, TLS."""

from pathlib import Path
from typing import Any

import pytest

from paceline.model.errors import MessageTooLargeError, PacelineError, RequestTimedOutError
from paceline.model.identifiers import TopicPartition
from paceline.model.tls import CA_FILE, TlsFiles
from paceline_client.batch import ProducerBatch, RecordFuture, RecordMetadata
from paceline_client.codec import new_encoder
from paceline_client.compat import kafka
from paceline_client.compat.arguments import consumer_settings, producer_settings

PLACE = RecordMetadata("t", 0, 7, None)


class Producer:
    """A producer whose records have a result when the test says so."""

    def __init__(self, bootstrap: Any, **settings: Any) -> None:
        self.settings = settings
        self.batch = ProducerBatch(TopicPartition("t", 0), new_encoder(1_000), 0)

    def send(self, *_: Any) -> RecordFuture:
        return RecordFuture(self.batch, 0)


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> kafka.KafkaProducer:
    monkeypatch.setattr(kafka, "Producer", Producer)
    return kafka.KafkaProducer(bootstrap_servers="127.0.0.1:1", retries=5, batch_size=16384, max_request_size=9)


def settle(producer: kafka.KafkaProducer, offset: int | None, error: PacelineError | None = None) -> None:
    batch: ProducerBatch = producer.producer.batch  # type: ignore[attr-defined]
    batch.resolve(offset, None, error)
    batch.announce()


def test_arguments_of_producers_get_the_names_of_paceline(producer: kafka.KafkaProducer) -> None:
    settings = producer.producer.settings  # type: ignore[attr-defined]
    assert settings == {"batch_size": 16384, "max_record_bytes": 9, "tls": None}


def test_callbacks_run_with_the_result_before_and_after_it_is_known(producer: kafka.KafkaProducer) -> None:
    called: list[Any] = []
    future = producer.send("t", b"v").add_callback(called.append).add_errback(lambda _: called.append("failed"))
    future.add_callback(lambda prefix, place: called.append((prefix, place.offset)), "at")
    assert not future.is_done and called == []
    settle(producer, 7)
    assert called == [PLACE, ("at", 7)] and future.succeeded() and future.get() == PLACE
    future.add_both(called.append)
    assert called[2:] == [PLACE]


def test_errors_reach_errbacks_and_get(producer: kafka.KafkaProducer) -> None:
    called: list[Any] = []
    future = producer.send("t", b"v").add_callback(lambda _: called.append("delivered")).add_errback(called.append)
    error = MessageTooLargeError("too large")
    settle(producer, None, error)
    assert called == [error] and future.failed()
    with pytest.raises(kafka.KafkaError, match="too large"):
        future.get(timeout=0)


def test_a_callback_that_raises_keeps_no_other_from_running(producer: kafka.KafkaProducer) -> None:
    called: list[Any] = []
    producer.send("t", b"v").add_callback(lambda _: called[0]).add_callback(called.append)
    settle(producer, 7)
    assert called == [PLACE]


def test_get_ends_when_its_time_is_over(producer: kafka.KafkaProducer) -> None:
    with pytest.raises(RequestTimedOutError):
        producer.send("t", b"v").get(timeout=0.01)


@pytest.mark.parametrize("settings", [consumer_settings, producer_settings])
def test_ssl_files_become_certificate_files(settings: Any) -> None:
    given = {"security_protocol": "SSL", "ssl_cafile": "ca", "ssl_certfile": "crt", "ssl_keyfile": "key"}
    assert settings(given)["tls"] == TlsFiles(Path("ca"), Path("crt"), Path("key"))


@pytest.mark.parametrize("settings", [consumer_settings, producer_settings])
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"security_protocol": "SASL_SSL"}, "SASL_SSL"),
        ({"security_protocol": "SSL"}, "ssl_cafile"),
        ({"security_protocol": "SSL", "ssl_cafile": "ca", "ssl_check_hostname": False}, "ssl_check_hostname"),
        ({"sasl_mechanism": "PLAIN"}, "sasl_mechanism"),
        ({"ssl_context": object()}, "ssl_context"),
    ],
)
def test_an_argument_without_counterpart_is_named(
    settings: Any, arguments: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CA_FILE, raising=False)
    with pytest.raises(TypeError, match=named):
        settings(arguments)


def test_ssl_without_files_takes_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CA_FILE, "ca")
    assert producer_settings({"security_protocol": "SSL"})["tls"] is None
