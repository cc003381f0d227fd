"""The requests of one publisher: parts by partition and path, order, limits and refusals."""

from typing import Any

import pytest

from paceline.gateway.service.publisher import LARGE_BYTES, MAX_RECORD_BYTES, Answer, Path, PublishLane
from paceline.model.errors import (
    InvalidRequestError,
    MessageTooLargeError,
    PacelineError,
    ThrottledError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition
from paceline.v1.gateway_service_pb2 import IdempotentProducer, PublishRecord, PublishRequest

LARGE = b"L" * (LARGE_BYTES + 1)


class Publisher:
    """Keeps what was sent until the test gives it a result."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.crowded: set[TopicPartition] = set()
        self.open = 0

    def partition_count(self, _topic: str) -> int:
        return 4

    def is_crowded(self, lane: object) -> bool:
        return lane in self.crowded

    def accepted(self, _part: object) -> None:
        self.open += 1

    def ended(self, _part: object) -> None:
        self.open -= 1

    def send(self, _lane: object, part: Any) -> None:
        part.missing = len(part.indexes)
        self.sent.append(part)


def lane() -> tuple[Publisher, PublishLane]:
    publisher = Publisher()
    return publisher, PublishLane(publisher)  # type: ignore[arg-type]


def finish(of: PublishLane, part: Any, base: int = 0) -> None:
    of.finished(part, 0, len(part.indexes), (part.partition or 0, base))


def error_of(request: PublishRequest) -> PacelineError:
    _, of = lane()
    answers: list[Answer] = []
    of.publish(request, answers.append)
    with pytest.raises(PacelineError) as raised:
        answers[0].response()
    return raised.value


def test_the_records_of_a_list_keep_their_order_across_paths() -> None:
    publisher, of = lane()
    answers: list[Answer] = []
    rows = [PublishRecord(key=b"k", value=value) for value in (b"1", b"2", LARGE, b"3")]
    of.publish(PublishRequest(topic="t", records=rows), answers.append)
    assert [part.indexes for part in publisher.sent] == [[0, 1]]
    finish(of, publisher.sent[0], base=10)
    assert [part.path for part in publisher.sent] == [Path.SMALL, Path.LARGE]
    finish(of, publisher.sent[1], base=12)
    finish(of, publisher.sent[2], base=13)
    assert [one.offset for one in answers[0].response().results] == [10, 11, 12, 13]
    assert publisher.open == 0


def test_a_partition_that_waits_holds_up_no_other() -> None:
    publisher, of = lane()
    of.publish(PublishRequest(topic="t", partition=0, value=LARGE), lambda _: None)
    of.publish(PublishRequest(topic="t", partition=0, value=b"waits"), lambda _: None)
    of.publish(PublishRequest(topic="t", partition=1, value=b"goes on"), lambda _: None)
    assert [(part.partition, part.path) for part in publisher.sent] == [(0, Path.LARGE), (1, Path.SMALL)]


def test_a_crowded_partition_is_throttled_and_others_are_not() -> None:
    publisher, of = lane()
    publisher.crowded.add(TopicPartition("t", 2))
    answers: list[Answer] = []
    of.publish(PublishRequest(topic="t", partition=2, value=b"v"), answers.append)
    with pytest.raises(ThrottledError):
        answers[0].response()
    of.publish(PublishRequest(topic="t", partition=3, value=b"v"), answers.append)
    assert [part.partition for part in publisher.sent] == [3]


def test_a_record_above_the_limit_does_not_refuse_the_other_records_of_its_list() -> None:
    publisher, of = lane()
    answers: list[Answer] = []
    rows = [PublishRecord(key=b"k", value=b"v" * size) for size in (1, MAX_RECORD_BYTES, 1)]
    of.publish(PublishRequest(topic="t", records=rows), answers.append)
    finish(of, publisher.sent[0])
    finish(of, publisher.sent[1])
    first, second, third = answers[0].response().results
    assert not first.HasField("error") and second.error.code == 10 and not third.HasField("error")


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (PublishRequest(topic="t", value=b"v", partition=4), UnknownTopicOrPartitionError),
        (PublishRequest(topic="t", value=b"v", partition=-1), UnknownTopicOrPartitionError),
        (PublishRequest(topic="t", value=b"v" * (MAX_RECORD_BYTES + 1)), MessageTooLargeError),
        (PublishRequest(topic="t", value=b"v", records=[PublishRecord()]), InvalidRequestError),
        (PublishRequest(topic="t", records=[PublishRecord()] * 10_001), InvalidRequestError),
        (PublishRequest(topic="t", producer=IdempotentProducer(producer_id=1)), InvalidRequestError),
        (
            PublishRequest(topic="t", partition=0, producer=IdempotentProducer(producer_id=1, base_sequence=-1)),
            InvalidRequestError,
        ),
        (
            PublishRequest(
                topic="t", partition=0, value=b"v" * MAX_RECORD_BYTES, producer=IdempotentProducer(producer_id=1)
            ),
            MessageTooLargeError,
        ),
    ],
)
def test_a_bad_request_has_a_typed_error(request_: PublishRequest, kind: type[PacelineError]) -> None:
    assert type(error_of(request_)) is kind
